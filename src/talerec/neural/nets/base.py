"""The base of all networks: a table of item vectors, states of rows, and the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from talerec.neural.losses import Criterion, Head
from talerec.neural.samples import Batch, Feed
from talerec.neural.settings import NetSettings, Rows

_SPREAD = 0.02  # standard deviation of every matrix and table before the first step


@dataclass(frozen=True, eq=False)
class Step:
    """Inputs of a network's loss apart from its batch.

    feed : all training samples; criterion : loss of states against targets; rng : for all draws of
    the epoch; epoch : completed epochs so far
    """

    feed: Feed
    criterion: Criterion
    rng: np.random.Generator
    epoch: int


class Net(nn.Module):
    """A network that encodes rows as states, which are scored against item vectors.

    The state of a row is a vector of size dim that predicts the next item.
    items : input vectors, items x dim; bias : of each item's score, or None
    causal : a row's state depends on no later row, so that every row of a window can have a target
    hides_rows : it is trained to predict masked rows, not the next row
    fixed_width : every sample is padded to `max_history`, which is part of the model
    shares_table : input vectors and output vectors of items are the same
    """

    causal: bool = True
    fixed_width: ClassVar[bool] = False
    hides_rows: ClassVar[bool] = False
    shares_table: bool = True

    def __init__(self, items: int, settings: NetSettings) -> None:
        """Create the item vectors (items x dim), not initialised, and no bias."""
        super().__init__()
        self.settings = settings
        self.items = nn.Parameter(torch.empty(items, settings.dim))
        self.bias: nn.Parameter | None = None

    @property
    def warmup(self) -> int:
        """Return the number of epochs before the first validation."""
        return int(self.settings.specific.get("warmup", 0))

    @property
    def longest_history(self) -> int:
        """Return how many of the newest rows of a history are read at inference."""
        return self.settings.max_history

    def prepare(self, rows: Rows) -> None:
        """Compute statistics of the training rows before the first step."""

    def reset(self) -> None:
        """Initialise all parameters in place: N(0, 0.02) for matrices, 0 for vectors.

        Scales of layer norms are 1.
        """
        for module in self.modules():
            for name, value in module.named_parameters(recurse=False):
                if isinstance(module, nn.LayerNorm):
                    nn.init.constant_(value, float(name == "weight"))
                elif value.dim() > 1:
                    nn.init.normal_(value, std=_SPREAD)
                else:
                    nn.init.zeros_(value)

    def embed(self, batch: Batch) -> Tensor:
        """Return the input vectors of a batch's items, b x width x dim.

        They come from the batch if it carries them, else from the network's item table.
        """
        vectors: Tensor = batch.vectors
        return F.embedding(batch.item, self.items) if vectors is None else vectors

    def encode(self, batch: Batch) -> Tensor:
        """Return the states of a batch's rows, b x width x dim."""
        raise NotImplementedError

    def encode_last(self, batch: Batch) -> Tensor:
        """Return the state of each sample's last row, b x dim, which scores its next item.

        batch : b samples, padded at their ends; `count` has the rows of each.
        """
        states = self.encode(batch)
        return states[torch.arange(len(states), device=states.device), batch.count - 1]

    def head(self) -> Head:
        """Return the output layer: item vectors (items x dim) and biases that score a state."""
        return Head(self.items, self.bias)

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Return the training loss of a batch: the mean over all rows that have a target.

        batch : `position` has the flat indices of these rows, `target` the items that come next.
        step : the loss function, random draws and number of the epoch.
        """
        states = self.encode(batch).flatten(0, 1)[batch.position]
        return step.criterion(states, self.head(), batch.target)


class PrefixNet(Net):
    """A network in which a row's state may depend on later rows of its sample.

    So a sample has one target, the row after its last.
    """

    causal: bool = False

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Return the mean loss of each sample's one target, predicted by its last row's state."""
        return step.criterion(self.encode_last(batch), self.head(), batch.target)


def causal_mask(width: int, device: torch.device) -> Tensor:
    """Return the width x width mask with which a row attends to itself and earlier rows."""
    return torch.ones(width, width, dtype=torch.bool, device=device).tril()

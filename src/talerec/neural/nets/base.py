"""What all networks have in common: a table of item vectors, states of rows, and scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from talerec.neural.losses import Criterion, Head
from talerec.neural.samples import Batch, Feed
from talerec.neural.settings import Rows, Settings

Tensor = torch.Tensor

_SPREAD = 0.02  # standard deviation of every matrix and table before the first step


@dataclass(frozen=True, eq=False)
class Step:
    """What a loss may ask for besides its batch."""

    feed: Feed
    criterion: Criterion
    rng: np.random.Generator
    epoch: int


class Net(nn.Module):
    """A network that turns rows into states; the state of a row is compared with the vectors of all items.

    causal : a row's state depends on no later row, so that one window serves every row of it as a target
    hides_rows : it learns by finding rows that were hidden from it, not by what comes next
    fixed_width : every sample is padded to `max_history`, which is part of the model
    shares_table : items are read and scored by the same vectors
    """

    causal: bool = True
    fixed_width: ClassVar[bool] = False
    hides_rows: ClassVar[bool] = False
    shares_table: bool = True

    def __init__(self, items: int, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.items = nn.Parameter(torch.empty(items, settings.dim))
        self.bias: nn.Parameter | None = None

    @property
    def warmup(self) -> int:
        """Epochs before the first one that is judged."""
        return 0

    @property
    def longest_asked(self) -> int:
        """The newest rows of a history that are read when it is asked about."""
        return self.settings.max_history

    def prepare(self, rows: Rows) -> None:
        """Learn from the rows what no step learns; before the first one."""

    def reset(self) -> None:
        """Draw the first parameters: N(0, .02) for matrices and tables, 0 for biases, 1 for scales of norms."""
        for module in self.modules():
            for name, value in module.named_parameters(recurse=False):
                if isinstance(module, nn.LayerNorm):
                    nn.init.constant_(value, float(name == "weight"))
                elif value.dim() > 1:
                    nn.init.normal_(value, std=_SPREAD)
                else:
                    nn.init.zeros_(value)

    def embed(self, batch: Batch) -> Tensor:
        """The vectors of a batch's items, b x width x dim."""
        vectors: Tensor = batch.vectors
        return F.embedding(batch.item, self.items) if vectors is None else vectors

    def encode(self, batch: Batch) -> Tensor:
        """The states of a batch's rows, b x width x dim."""
        raise NotImplementedError

    def ask(self, batch: Batch) -> Tensor:
        """The state from which each sample's next item is found, b x dim: that of its last row."""
        states = self.encode(batch)
        return states[torch.arange(len(states), device=states.device), batch.count - 1]

    def head(self) -> Head:
        """What states are compared with."""
        return Head(self.items, self.bias)

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """What a step makes smaller: the loss at every row that has a target."""
        states = self.encode(batch).flatten(0, 1)[batch.place]
        return step.criterion(states, self.head(), batch.target)


class PrefixNet(Net):
    """A network whose states know later rows, so that a sample has one target: the row after its last."""

    causal: bool = False

    def loss(self, batch: Batch, step: Step) -> Tensor:
        return step.criterion(self.ask(batch), self.head(), batch.target)


def causal_mask(width: int, device: torch.device) -> Tensor:
    """Which columns (second axis) a row may look at: itself and those before it."""
    return torch.ones(width, width, dtype=torch.bool, device=device).tril()


def key_mask(batch: Batch) -> Tensor:
    """Which cells of a batch every row may look at, b x 1 x 1 x width."""
    known: Tensor = batch.known[:, None, None]
    return known

"""BERT4Rec: bidirectional attention, trained to predict masked rows."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from talerec.neural.nets.base import Net, Step
from talerec.neural.nets.blocks import PostBlock, apply_blocks
from talerec.neural.samples import Batch
from talerec.neural.settings import NetSettings
from talerec.runtime import Array

_LAST_ONLY = 0.5  # share of the batches in which only the last row is masked, as at inference


class BERT4RecNet(Net):
    """Bidirectional post-LN transformer; at inference a mask row follows the history.

    places : position vectors; hidden : the input vector of a masked row; edge : the input's layer
    norm; last, last_norm : the output transformation
    """

    causal: bool = False
    hides_rows: ClassVar[bool] = True

    def __init__(self, items: int, settings: NetSettings) -> None:
        """Create position vectors, the mask row's vector, blocks, and output layers with a bias.

        `edge` normalises the input; `last` and `last_norm` transform the last block's output.
        """
        super().__init__(items, settings)
        dim = settings.dim
        self.places = nn.Parameter(torch.empty(settings.max_history, dim))
        self.hidden = nn.Parameter(torch.empty(1, dim))
        self.blocks = nn.ModuleList(
            PostBlock(dim, settings.heads, settings.dropout) for _ in range(settings.layers)
        )
        self.edge = nn.LayerNorm(dim, eps=1e-12)
        self.last, self.last_norm = nn.Linear(dim, dim), nn.LayerNorm(dim, eps=1e-12)
        self.drop = nn.Dropout(settings.dropout)
        self.bias = nn.Parameter(torch.empty(items))

    @property
    def longest_history(self) -> int:
        """Return how many of the newest rows are read: one less, as a mask row follows them."""
        return self.settings.max_history - 1

    def _states(self, vectors: Tensor, is_row: Tensor) -> Tensor:
        """Return the states of all columns, b x width x dim.

        vectors : input vectors, b x width x dim; is_row : b x width, False for padding
        """
        x = self.drop(self.edge(vectors + self.places[: vectors.shape[1]]))
        x = apply_blocks(self.blocks, x, is_row[:, None, None])
        return self.last_norm(F.gelu(self.last(x)))

    def encode_last(self, batch: Batch) -> Tensor:
        """Return the state of a mask row appended to each history, b x dim.

        batch : b histories, padded at their ends. The state of the mask row predicts the next item.
        """
        width = int(batch.lengths.max())
        vectors = F.pad(self.embed(batch)[:, :width], (0, 0, 0, 1))
        column = torch.arange(width + 1, device=vectors.device)
        is_mask = column == batch.count[:, None]
        states = self._states(
            torch.where(is_mask[..., None], self.hidden, vectors), column <= batch.count[:, None]
        )
        return states[torch.arange(len(batch), device=vectors.device), batch.count]

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Return the mean loss of predicting randomly masked rows of the batch.

        The setting `masked` is the share of rows to mask; a masked row has the vector `hidden` in
        place of its item's. step : has the loss function and the random draws.
        """
        device = batch.item.device
        hide = draw_masked_rows(batch, self.settings.specific["masked"], step.rng)
        vectors = torch.where(
            torch.as_tensor(hide).to(device)[..., None], self.hidden, self.embed(batch)
        )
        position = torch.as_tensor(np.flatnonzero(hide)).to(device)
        states = self._states(vectors, batch.is_row).flatten(0, 1)[position]
        return step.criterion(states, self.head(), batch.item.view(-1)[position])


def draw_masked_rows(batch: Batch, share: float, rng: np.random.Generator) -> Array:
    """Return a b x width mask of the rows to hide from the network, which predicts them.

    With probability 1/2 only each sample's last row, as at inference; else each row with
    probability `share`, and the last row of samples where none was drawn. Padding is never masked.
    """
    column = np.arange(batch.width)
    last: Array = column == (batch.lengths - 1)[:, None]
    if rng.random() < _LAST_ONLY:
        return last
    is_masked: Array = (rng.random(last.shape) < share) & (column < batch.lengths[:, None])
    is_masked |= last & ~is_masked.any(1, keepdims=True)
    return is_masked

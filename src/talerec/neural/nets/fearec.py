"""FEARec: attention on frequencies, and along lags at which a history resembles itself."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import nn

from talerec.neural.nets.base import PrefixNet, Step, causal_mask
from talerec.neural.nets.blocks import (
    Attention,
    PostBlock,
    attention_weights,
    merge_heads,
    split_heads,
)
from talerec.neural.nets.contrast import with_contrast
from talerec.neural.samples import Batch
from talerec.neural.settings import Settings

Tensor = torch.Tensor


def bands(width: int, layers: int, share: float) -> list[tuple[int, int]]:
    """The frequencies [left, right) that each layer sees, the first layer the highest."""
    m = width // 2 + 1
    if share > 1 / layers:
        slide: float = math.floor(m * (1 - share) / max(1, layers - 1))
    else:
        share, slide = 1 / layers, m / layers
    return [(int(m * (1 - share) - i * slide), int(m - i * slide)) for i in range(layers)]


def band_pass(width: int, left: int, right: int) -> Tensor:
    """The matrix that keeps the frequencies from `left` on and below `right` of a sequence."""
    t = torch.arange(width, dtype=torch.float64)
    made = torch.zeros(width, width, dtype=torch.float64)
    for k in range(max(0, left), min(right, width // 2 + 1)):
        twice = 1 if k == 0 or 2 * k == width else 2
        made += twice * torch.cos(2 * math.pi * k * (t[:, None] - t) / width)
    return (made / width).float()


def apart(width: int) -> Tensor:
    """Which pairs of columns (i, j) lie how far apart, going round: (width * width) x width, 1 at (i - j) mod width."""
    column = torch.arange(width)
    lag = (column[:, None] - column) % width
    return (lag.flatten()[:, None] == column).float()


class FrequencyAttention(Attention):
    """(1 - share) of what stands at the strongest lags, and `time_share` of attention between band-limited rows."""

    def __init__(self, settings: Settings, left: int, right: int) -> None:
        super().__init__(settings.dim, settings.heads, settings.dropout)
        width = settings.max_history
        self.share = settings.own["time_share"]
        self.lags = min(width, max(1, int(settings.own["lags"] * math.log(width))))
        self.register_buffer("band", band_pass(width, left, right), persistent=False)
        self.register_buffer("apart", apart(width), persistent=False)
        self.band: Tensor
        self.apart: Tensor

    def forward(self, x: Tensor, source: Tensor, mask: Tensor, *more: Any) -> Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)
        made = (1 - self.share) * self._along_lags(self.band @ q, k, v)
        if self.share > 0:
            made = made + self.share * self._in_time(q, k, v, mask)
        out: Tensor = self.out(made)
        return out

    def resemblance(self, q: Tensor, k: Tensor) -> Tensor:
        """R(lag) = (1 / dim) sum over t of q[(t + lag) mod M] . k[t], b x M."""
        return (q @ k.mT).flatten(1) @ self.apart / q.shape[2]

    def _along_lags(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The values at the strongest lags: those of the batch's mean while training, each sample's own when asked."""
        found = self.resemblance(q, k)
        lag = (found.mean(0, keepdim=True) if self.training else found).topk(self.lags).indices
        lag = lag.expand(len(q), -1)
        weights = torch.zeros_like(found).scatter(1, lag, found.gather(1, lag).softmax(1))
        turned = (weights @ self.apart.mT).view(len(v), v.shape[1], -1)  # [t + lag, t]
        return turned.mT @ v

    def _in_time(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (split_heads(self.band @ part, self.heads) for part in (q, k, v))
        weights = attention_weights(q @ k.mT / math.sqrt(q.shape[-1]), mask)
        return merge_heads(self.drop(weights) @ v)


class FEARecNet(PrefixNet):
    """Post-LN blocks of frequency attention over exactly `max_history` columns, and DuoRec's second loss."""

    fixed_width: ClassVar[bool] = True

    def __init__(self, items: int, settings: Settings) -> None:
        super().__init__(items, settings)
        dim, heads, dropout = settings.dim, settings.heads, settings.dropout
        self.places = nn.Parameter(torch.empty(settings.max_history, dim))
        self.edge = nn.LayerNorm(dim, eps=1e-12)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            PostBlock(dim, heads, dropout, FrequencyAttention(settings, left, right))
            for left, right in bands(settings.max_history, settings.layers, settings.own["band"])
        )

    def encode(self, batch: Batch) -> Tensor:
        known = batch.known
        x: Tensor = self.drop(self.edge(self.embed(batch) * known[..., None] + self.places))
        mask = causal_mask(batch.width, x.device) & known[:, None, None]
        for block in self.blocks:
            x = block(x, mask)
        return x

    def loss(self, batch: Batch, step: Step) -> Tensor:
        return with_contrast(self, batch, step, 1.0)

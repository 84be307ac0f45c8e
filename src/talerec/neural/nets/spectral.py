"""Networks that filter frequencies of a history: BSARec and FEARec."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from talerec.neural.nets.base import PrefixNet, Step, causal_mask
from talerec.neural.nets.blocks import (
    Attention,
    PostBlock,
    apply_blocks,
    attention_weights,
    merge_heads,
    split_heads,
)
from talerec.neural.nets.contrastive import contrastive_loss
from talerec.neural.samples import Batch
from talerec.neural.settings import NetSettings


def low_pass(width: int, bins: int) -> Tensor:
    """Return the width x width matrix C that keeps the lowest frequencies of a sequence.

    C[t, s] = (1 + 2 sum_k cos(2 pi k (t - s) / M)) / M, k from 1 to bins // 2, M = width; for even
    M, the term k = M / 2 counts once. C @ x filters the columns of x.
    """
    return band_pass(width, 0, bins // 2 + 1)


class FilterBlock(PostBlock):
    """BSARec's block: z = LN(y + drop(FFN(y))), y = share F(x) + (1 - share) A(x).

    F(x) = LN(drop(low + beta^2 high) + x), where low is the low-pass filtered x, high = x - low and
    beta is learned per dimension; A(x) = LN(x + drop(Att(x))) is self-attention.
    """

    def __init__(self, settings: NetSettings) -> None:
        """Create the attention block, the low-pass matrix and the learned scale of fast changes."""
        super().__init__(settings.dim, settings.heads, settings.dropout)
        self.share = settings.specific["share"]
        self.beta = nn.Parameter(torch.empty(1, settings.dim))
        self.filter_norm = nn.LayerNorm(settings.dim, eps=1e-12)
        kernel = low_pass(settings.max_history, settings.specific["bins"])
        self.register_buffer("low", kernel, persistent=False)
        self.low: Tensor

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the block's output for rows x, both b x max_history x dim.

        `share` of it is the filter (slow changes, and fast ones times beta^2), the rest
        self-attention; then a feed-forward network. mask : True where attention is allowed
        """
        low = self.low @ x
        filtered = self.filter_norm(self.drop(low + self.beta**2 * (x - low)) + x)
        attended = self.norm(x + self.drop(self.attention(x, x, mask)))
        return self.feed_forward(self.share * filtered + (1 - self.share) * attended)


class _SpectralNet(PrefixNet):
    """The base of BSARec and FEARec: a stack of blocks over exactly `max_history` columns.

    Padding holds the zero vector plus its position vector. places : position vectors
    """

    fixed_width: ClassVar[bool] = True

    def __init__(self, items: int, settings: NetSettings) -> None:
        """Create position vectors, the input's layer norm, and the subclass's blocks."""
        super().__init__(items, settings)
        self.places = nn.Parameter(torch.empty(settings.max_history, settings.dim))
        self.edge = nn.LayerNorm(settings.dim, eps=1e-12)
        self.drop = nn.Dropout(settings.dropout)
        self.blocks = nn.ModuleList(self.new_blocks())

    def new_blocks(self) -> Iterator[nn.Module]:
        """Yield the blocks of the network, the first one first."""
        raise NotImplementedError

    def encode_columns(self, vectors: Tensor, is_row: Tensor) -> Tensor:
        """Return the states of all columns, b x max_history x dim, from causal attention.

        vectors : input item vectors of that shape; is_row : b x max_history, False for padding,
        which is not attended to
        """
        x = self.drop(self.edge(vectors * is_row[..., None] + self.places))
        mask = causal_mask(x.shape[1], x.device) & is_row[:, None, None]
        return apply_blocks(self.blocks, x, mask)


class BSARecNet(_SpectralNet):
    """BSARec: a stack of filter blocks; a history stands at the end of the columns.

    A filter block adds self-attention and a low-pass filter over all columns; padding comes before
    the history.
    """

    def new_blocks(self) -> Iterator[nn.Module]:
        """Return one filter block per layer."""
        return (FilterBlock(self.settings) for _ in range(self.settings.layers))

    def reset(self) -> None:
        """Initialise parameters as `Net` does, but beta of each filter block with N(0, 1).

        Matrices get N(0, 0.02), vectors 0; beta scales the fast changes that a filter passes.
        """
        super().reset()
        for module in self.modules():
            if isinstance(module, FilterBlock):
                nn.init.normal_(module.beta)

    def encode_last(self, batch: Batch) -> Tensor:
        """Return the state of each sample's last row, b x dim.

        Rows are first moved from the start to the end of the columns, so padding comes before them.
        """
        vectors = self.embed(batch)
        column = torch.arange(batch.width, device=vectors.device)
        source = column - (batch.width - batch.count)[:, None]
        is_row = source >= 0
        index = source.clamp(min=0)[..., None].expand_as(vectors)
        return self.encode_columns(vectors.gather(1, index), is_row)[:, -1]


def bands(width: int, layers: int, share: float) -> list[tuple[int, int]]:
    """Return FEARec's frequency band [left, right) of each layer, the highest band first.

    Frequencies are the m = width // 2 + 1 bins of a real Fourier transform; each band has share * m
    of them. With share <= 1 / layers, the bands divide the m bins among the layers.
    """
    m = width // 2 + 1
    if share > 1 / layers:
        slide: float = math.floor(m * (1 - share) / max(1, layers - 1))
    else:
        share, slide = 1 / layers, m / layers
    return [(int(m * (1 - share) - i * slide), int(m - i * slide)) for i in range(layers)]


def band_pass(width: int, left: int, right: int) -> Tensor:
    """Return the width x width matrix that keeps the frequencies [left, right) of a sequence.

    Frequency k has k periods in `width` rows; the matrix times x filters the columns of x.
    """
    t = torch.arange(width, dtype=torch.float64)
    kernel = torch.zeros(width, width, dtype=torch.float64)
    for k in range(max(0, left), min(right, width // 2 + 1)):
        factor = 1 if k == 0 or 2 * k == width else 2
        kernel += factor * torch.cos(2 * math.pi * k * (t[:, None] - t) / width)
    return (kernel / width).float()


def circular_lags(width: int) -> Tensor:
    """Return the circular lag of each pair of rows, one-hot, (width * width) x width.

    Line i * width + j has its 1 in column (i - j) mod width.
    """
    column = torch.arange(width)
    lag = (column[:, None] - column) % width
    return (lag.flatten()[:, None] == column).float()


class FrequencyAttention(Attention):
    """FEARec's attention: (1 - time_share) lag attention + time_share softmax attention.

    Lag attention averages values over the lags of strongest autocorrelation. Autocorrelation and
    softmax attention see only the frequencies [left, right); the values of lag attention are not
    filtered. lags : how many lags are used; share : the time_share
    """

    def __init__(self, settings: NetSettings, left: int, right: int) -> None:
        """Create the attention layers, the band-pass matrix and the table of lags of row pairs."""
        super().__init__(settings.dim, settings.heads, settings.dropout)
        width = settings.max_history
        self.share = settings.specific["time_share"]
        self.lags = min(width, max(1, int(settings.specific["lags"] * math.log(width))))
        self.register_buffer("band", band_pass(width, left, right), persistent=False)
        self.register_buffer("pair_lags", circular_lags(width), persistent=False)
        self.band: Tensor
        self.pair_lags: Tensor

    def forward(self, x: Tensor, source: Tensor, mask: Tensor, *more: Any) -> Tensor:
        """Return the attended values of rows x, b x max_history x dim.

        `share` of them is softmax attention, the rest attention by lags; `band` is the matrix that
        keeps the layer's frequencies. mask : where softmax attention is allowed; `source` and
        `more` are ignored.
        """
        q, k, v = self.query(x), self.key(x), self.value(x)
        mixed = (1 - self.share) * self._attend_lags(self.band @ q, k, v)
        if self.share > 0:
            mixed = mixed + self.share * self._attend_rows(q, k, v, mask)
        return self.out(mixed)

    def autocorrelation(self, q: Tensor, k: Tensor) -> Tensor:
        """Return R(lag) = (1 / dim) sum over t of q[(t + lag) mod M] . k[t], b x M.

        q, k : b x M x dim, M = max_history
        """
        return (q @ k.mT).flatten(1) @ self.pair_lags / q.shape[2]

    def _attend_lags(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return values shifted by the strongest lags, averaged with the lags' softmax weights.

        q (band-limited), k, v and the result are b x M x dim, M = max_history. In training all
        samples use the lags of the strongest mean autocorrelation of the batch, at inference each
        sample its own; the weights are always the sample's own.
        """
        scores = self.autocorrelation(q, k)
        lag = (scores.mean(0, keepdim=True) if self.training else scores).topk(self.lags).indices
        lag = lag.expand(len(q), -1)
        weights = torch.zeros_like(scores).scatter(1, lag, scores.gather(1, lag).softmax(1))
        shifts = (weights @ self.pair_lags.mT).view(len(v), v.shape[1], -1)  # [t + lag, t]
        return shifts.mT @ v

    def _attend_rows(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """Return softmax attention between rows that have only the layer's band of frequencies.

        q, k, v and the result are b x M x dim, M = max_history; mask : True where a row may attend
        """
        q, k, v = (split_heads(self.band @ part, self.heads) for part in (q, k, v))
        weights = attention_weights(q @ k.mT / math.sqrt(q.shape[-1]), mask)
        return merge_heads(self.drop(weights) @ v)


class FEARecNet(_SpectralNet):
    """FEARec: blocks of frequency attention, trained with DuoRec's contrastive loss.

    A history stands at the start of the columns. Each layer has its own band of frequencies.
    """

    def new_blocks(self) -> Iterator[nn.Module]:
        """Yield one block per layer, each limited to its band of frequencies, the highest first."""
        s = self.settings
        for left, right in bands(s.max_history, s.layers, s.specific["band"]):
            yield PostBlock(s.dim, s.heads, s.dropout, FrequencyAttention(s, left, right))

    def encode(self, batch: Batch) -> Tensor:
        """Return the states of all columns of a batch, b x max_history x dim.

        A state is a vector that predicts the next item; padding is not attended to.
        """
        return self.encode_columns(self.embed(batch), batch.is_row)

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Return DuoRec's loss: cross-entropy of the targets plus a contrastive loss.

        The contrastive loss draws the states of samples with the same target together.
        """
        return contrastive_loss(self, batch, step, 1.0)

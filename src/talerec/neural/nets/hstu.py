"""HSTU: gated attention without a softmax that knows the request time."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from talerec.neural.losses import Head
from talerec.neural.nets.base import Net, causal_mask
from talerec.neural.nets.blocks import apply_blocks, merge_heads, split_heads
from talerec.neural.samples import Batch
from talerec.neural.settings import NetSettings

_STEP = 0.301  # width of a time bucket, in natural logarithms of seconds
_EPS = 1e-6
_CHUNK = 2**18  # entries that are summed in one product


def look_up(table: Tensor, index: Tensor) -> Tensor:
    """Return `table[index, 0]` for a short table (n x 1), of the shape of `index`.

    The gradient is faster than torch's own, as there are very many indices.
    """
    result: Tensor = _LookUp.apply(table, index)  # type: ignore[no-untyped-call]
    return result


def sum_by_index(index: Tensor, values: Tensor, size: int, chunk: int = _CHUNK) -> Tensor:
    """Return a vector of length `size`: the sum of `values` for each value of `index`.

    It is computed by products with one-hot matrices of `chunk` rows, which is fast on a GPU.
    """
    bins, total = torch.arange(size, device=values.device), values.new_zeros(size)
    for a in range(0, len(index), chunk):
        is_bin = index[a : a + chunk, None] == bins
        total += values[a : a + chunk] @ is_bin.to(values.dtype)
    return total


class _LookUp(torch.autograd.Function):
    """Autograd function of `table[index, 0]` for a short table and very many indices.

    The gradient sums by index, which is faster than torch's own on a GPU.
    """

    @staticmethod
    def forward(ctx: Any, table: Tensor, index: Tensor) -> Tensor:
        """Return `table[index, 0]`, of the shape of `index`; table is n x 1.

        ctx : keeps the index and the table's length for `backward`
        """
        ctx.save_for_backward(index)
        ctx.size = len(table)
        return table[:, 0][index]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the table, n x 1: the incoming gradients summed by index.

        The index was saved by `forward`, which returned `table[index, 0]`; it has no gradient
        (None).
        """
        index, values = ctx.saved_tensors[0].flatten(), grads[0].flatten()
        if values.device.type == "cpu":
            return torch.bincount(index, values, ctx.size).to(values.dtype)[:, None], None
        return sum_by_index(index, values, ctx.size)[:, None], None


class GatedUnit(nn.Module):
    """HSTU's block: A = SiLU(q k^T + bias) / M, o = W_o drop(LN(A v) * u) + x.

    [u, v, q, k] = SiLU(W LN(x)); M is max_history. The bias of a pair of rows is learned, the sum
    of two table entries: by their lag (rows between them) and by the bucket of the time between
    them.
    """

    def __init__(self, settings: NetSettings) -> None:
        """Create both linear layers and the tables of biases, by lag and by time bucket."""
        super().__init__()
        dim, self.heads, self.longest = settings.dim, settings.heads, settings.max_history
        self.enter, self.leave = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(dim, dim)
        self.by_place = nn.Parameter(torch.empty(self.longest, 1))
        self.by_time = nn.Parameter(torch.empty(settings.specific["buckets"] + 1, 1))
        self.drop = nn.Dropout(settings.dropout)

    def forward(self, x: Tensor, mask: Tensor, lag: Tensor, bucket: Tensor) -> Tensor:
        """Return the block's output for rows x, b x width x dim.

        mask : width x width, True where row i may attend to row j;
        lag : width x width, rows from j to i, 0 if j is later
        bucket : b x width x width, time bucket from row j to the row after i
        """
        dim = x.shape[2]
        projected = F.silu(self.enter(F.layer_norm(x, (dim,), eps=_EPS)))
        u, v, q, k = projected.chunk(4, 2)
        v, q, k = (split_heads(part.contiguous(), self.heads) for part in (v, q, k))
        bias = look_up(self.by_place, lag) + look_up(self.by_time, bucket)
        weights = F.silu(q @ k.mT + bias[:, None]) * mask / self.longest
        attended = F.layer_norm(merge_heads(weights @ v), (dim,), eps=_EPS)
        return self.leave(self.drop(attended * u)) + x


class HSTUNet(Net):
    """HSTU: item plus position vectors, gated blocks; scores are cosines over `temperature`.

    Output item vectors have length 1, states length 1 / temperature. places : position vectors
    """

    shares_table = False  # input vectors are not normalised

    def __init__(self, items: int, settings: NetSettings) -> None:
        """Create position vectors and blocks; their sizes are those of the settings."""
        super().__init__(items, settings)
        self.places = nn.Parameter(torch.empty(settings.max_history, settings.dim))
        self.blocks = nn.ModuleList(GatedUnit(settings) for _ in range(settings.layers))
        self.drop = nn.Dropout(settings.dropout)

    def time_buckets(self, batch: Batch) -> Tensor:
        """Return floor(ln(seconds) / 0.301) from row j to the row after row i, b x width x width.

        batch : `time` has the time of each row and `now` that of the row after it, microseconds.
        Axis 1 is i, axis 2 is j; seconds are at least 1 and buckets at most the setting `buckets`.
        """
        seconds = (batch.now[:, :, None] - batch.time[:, None]).double() / 1e6
        bucket = (seconds.clamp(min=1.0).log() / _STEP).floor().long()
        return bucket.clamp(0, self.settings.specific["buckets"])

    def encode(self, batch: Batch) -> Tensor:
        """Return the states of a batch's rows, b x width x dim, of length 1 / temperature.

        A state is a vector that predicts the next item. Blocks get the lag of each pair of rows,
        and the bucket of the time between them.
        """
        x = self.embed(batch) * math.sqrt(self.settings.dim) + self.places[: batch.width]
        x = self.drop(x)
        column = torch.arange(batch.width, device=x.device)
        lag = (column[:, None] - column).clamp(min=0)
        mask, bucket = causal_mask(batch.width, x.device), self.time_buckets(batch)
        x = apply_blocks(self.blocks, x, mask, lag, bucket)
        return F.normalize(x, dim=2, eps=_EPS) / self.settings.specific["temperature"]

    def head(self) -> Head:
        """Return the output layer: item vectors of length 1, so that scores are cosines."""
        return Head(F.normalize(self.items, dim=1, eps=_EPS), None)

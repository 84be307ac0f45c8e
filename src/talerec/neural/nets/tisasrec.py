"""TiSASRec: attention that depends on the time between two rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from talerec.neural.nets.base import Net, causal_mask
from talerec.neural.nets.blocks import (
    Attention,
    OriginalBlock,
    apply_blocks,
    attention_weights,
    merge_heads,
    split_heads,
)
from talerec.neural.samples import Batch
from talerec.neural.settings import NetSettings, Rows


class IntervalAttention(Attention):
    """s_ij = q_i . (k_j + P^K_j + T^K_r) / sqrt(e), out_i = sum_j a_ij (v_j + P^V_j + T^V_r).

    a is the softmax of s, e = dim / heads, r the interval of rows i and j, P vectors by position, T
    by interval. Intervals are few, so q T^K is computed for all of them and looked up, and weights
    are summed by interval before the product with T^V: no vector for every pair of rows.
    """

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__(dim, heads, dropout, project=False)

    def forward(self, x: Tensor, source: Tensor, mask: Tensor, *more: Any) -> Tensor:
        """Return the attended values of rows x over `source`, both b x width x dim.

        mask : where a row may attend; more : the intervals, b x width x width, and the list of
        tables P^K, P^V (width x dim), T^K, T^V (intervals x dim)
        """
        interval, tables = more
        place_key, place_value, time_key, time_value = (
            split_heads(table[None], self.heads) for table in tables
        )
        q = split_heads(self.query(x), self.heads)
        k = split_heads(self.key(source), self.heads) + place_key
        v = split_heads(self.value(source), self.heads) + place_value
        interval = interval[:, None].expand(-1, self.heads, -1, -1)
        scores = q @ k.mT + (q @ time_key.mT).gather(3, interval)
        weights = self.drop(attention_weights(scores / math.sqrt(q.shape[-1]), mask))
        by_interval = torch.zeros(*q.shape[:3], time_value.shape[2], device=x.device, dtype=x.dtype)
        by_interval = by_interval.scatter_add(3, interval, weights)
        return merge_heads(weights @ v + by_interval @ time_value)


class TiSASRecNet(Net):
    """TiSASRec: SASRec with positions and time intervals in keys and values, not in the input.

    unit : "user": intervals in units of the smallest one so far; "log": powers of two of the
        log's median interval
    units : the largest interval; longer ones count as this. edge : the output's layer norm
    """

    def __init__(self, items: int, settings: NetSettings) -> None:
        """Create the vectors of positions and intervals (keys and values), and the blocks.

        With the unit "log", `median` is the median interval, which `prepare` sets.
        """
        super().__init__(items, settings)
        dim, heads, dropout = settings.dim, settings.heads, settings.dropout
        M = settings.max_history
        self.units, self.by_log = settings.specific["units"], settings.specific["unit"] == "log"
        self.place_key, self.place_value = (nn.Parameter(torch.empty(M, dim)) for _ in range(2))
        self.time_key, self.time_value = (
            nn.Parameter(torch.empty(self.units + 1, dim)) for _ in range(2)
        )
        self.blocks = nn.ModuleList(
            OriginalBlock(dim, heads, dropout, IntervalAttention(dim, heads, dropout))
            for _ in range(settings.layers)
        )
        self.edge, self.drop = nn.LayerNorm(dim, eps=1e-8), nn.Dropout(dropout)
        if self.by_log:
            self.median = nn.Parameter(torch.empty(1), requires_grad=False)

    def prepare(self, rows: Rows) -> None:
        """If unit is "log", set `median`: the log's median positive interval, microseconds.

        Intervals are those between successive rows of a user; 1 without any. rows : the training
        log
        """
        if self.by_log:
            has_previous = np.ones(len(rows.time), bool)
            has_previous[np.asarray(rows.ptr[:-1])[np.diff(rows.ptr) > 0]] = False
            gaps = np.diff(rows.time, prepend=rows.time[:1])[has_previous]
            gaps = gaps[gaps > 0]
            nn.init.constant_(self.median, float(np.median(gaps)) if gaps.size else 1.0)

    def intervals(self, time: Tensor) -> Tensor:
        """Return the interval r_ij of rows i and j, b x width x width, at most `units`.

        time : b x width, microseconds. If unit is "log", r = floor(log2(1 + |t_i - t_j| / median));
        else r = |t_i - t_j| // the smallest positive interval of successive rows up to i (1 s
        without one).
        """
        apart = (time[:, :, None] - time[:, None]).abs()
        if self.by_log:
            exponent = torch.log2(1 + apart.double() / self.median.double()).floor().long()
            return exponent.clamp(max=self.units)
        never = torch.iinfo(torch.int64).max
        gaps = time.diff(dim=1, prepend=time[:, :1])
        unit = torch.where(gaps > 0, gaps, never).cummin(1).values
        unit = torch.where(unit == never, 1_000_000, unit)
        return (apart // unit[..., None]).clamp(max=self.units)

    def encode(self, batch: Batch) -> Tensor:
        """Return the states of a batch's rows, b x width x dim; each sees no later row.

        A state is a vector that predicts the next item. Attention gets the time intervals of row
        pairs, and tables of vectors by position and by interval; `edge` is the output's layer norm.
        """
        x = self.drop(self.embed(batch) * math.sqrt(self.settings.dim))
        interval, mask = self.intervals(batch.time), causal_mask(batch.width, x.device)
        places = [table[: batch.width] for table in (self.place_key, self.place_value)]
        tables = [self.drop(table) for table in (*places, self.time_key, self.time_value)]
        return self.edge(apply_blocks(self.blocks, x, mask, interval, tables))

"""TiSASRec: attention that knows how much time lies between two rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn

from talerec.neural.nets.base import Net, causal_mask
from talerec.neural.nets.blocks import (
    Attention,
    OriginalBlock,
    attention_weights,
    merge_heads,
    split_heads,
)
from talerec.neural.samples import Batch
from talerec.neural.settings import Rows, Settings

Tensor = torch.Tensor


class IntervalAttention(Attention):
    """s_ij = q_i . (k_j + P^K_j + T^K_r) / sqrt(e), out_i = sum_j a_ij (v_j + P^V_j + T^V_r), r the interval of i and j.

    Intervals are few, so q T^K is made for all of them and looked up, and weights are added up by interval before they
    meet T^V: no vector for every pair of rows.
    """

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__(dim, heads, dropout, project=False)

    def forward(self, x: Tensor, source: Tensor, mask: Tensor, *more: Any) -> Tensor:
        """more: intervals (b x width x width), and the tables P^K, P^V, T^K, T^V"""
        near, tables = more
        place_key, place_value, time_key, time_value = (
            split_heads(table[None], self.heads) for table in tables
        )
        q = split_heads(self.query(x), self.heads)
        k = split_heads(self.key(source), self.heads) + place_key
        v = split_heads(self.value(source), self.heads) + place_value
        near = near[:, None].expand(-1, self.heads, -1, -1)
        scores = q @ k.mT + (q @ time_key.mT).gather(3, near)
        weights = self.drop(attention_weights(scores / math.sqrt(q.shape[-1]), mask))
        by_interval = torch.zeros(*q.shape[:3], time_value.shape[2], device=x.device, dtype=x.dtype)
        by_interval = by_interval.scatter_add(3, near, weights)
        return merge_heads(weights @ v + by_interval @ time_value)


class TiSASRecNet(Net):
    """No position is added to what is read; positions and intervals are in keys and values.

    unit : "user": intervals in units of the smallest one among the rows so far; "log": in octaves of the log's median
    """

    def __init__(self, items: int, settings: Settings) -> None:
        super().__init__(items, settings)
        dim, heads, dropout, M = (
            settings.dim,
            settings.heads,
            settings.dropout,
            settings.max_history,
        )
        self.units, self.by_log = settings.own["units"], settings.own["unit"] == "log"
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
        if self.by_log:
            same = np.ones(len(rows.time), bool)
            same[np.asarray(rows.ptr[:-1])[np.diff(rows.ptr) > 0]] = False
            gaps = np.diff(rows.time, prepend=rows.time[:1])[same]
            gaps = gaps[gaps > 0]
            nn.init.constant_(self.median, float(np.median(gaps)) if gaps.size else 1.0)

    def intervals(self, time: Tensor) -> Tensor:
        """r_ij for rows i and j, b x width x width; unit i is the smallest positive interval among rows up to i."""
        apart = (time[:, :, None] - time[:, None]).abs()
        if self.by_log:
            octave = torch.log2(1 + apart.double() / self.median.double()).floor().long()
            return octave.clamp(max=self.units)
        never = torch.iinfo(torch.int64).max
        gaps = time.diff(dim=1, prepend=time[:, :1])
        unit = torch.where(gaps > 0, gaps, never).cummin(1).values
        unit = torch.where(unit == never, 1_000_000, unit)
        return (apart // unit[..., None]).clamp(max=self.units)

    def encode(self, batch: Batch) -> Tensor:
        x = self.drop(self.embed(batch) * math.sqrt(self.settings.dim))
        near, mask = self.intervals(batch.time), causal_mask(batch.width, x.device)
        places = [table[: batch.width] for table in (self.place_key, self.place_value)]
        tables = [self.drop(table) for table in (*places, self.time_key, self.time_value)]
        for block in self.blocks:
            x = block(x, mask, near, tables)
        made: Tensor = self.edge(x)
        return made

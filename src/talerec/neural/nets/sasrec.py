"""SASRec with causal attention, eSASRec with gated blocks, LinRec with linear attention."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from talerec.neural.losses import Head
from talerec.neural.nets.base import Net, Step, causal_mask
from talerec.neural.nets.blocks import (
    Attention,
    GatedBlock,
    OriginalBlock,
    PostBlock,
    PreBlock,
    apply_blocks,
    merge_heads,
    split_heads,
)
from talerec.neural.samples import Batch
from talerec.neural.settings import NetSettings

_BLOCKS = {"post": PostBlock, "pre": PreBlock, "original": OriginalBlock, "gated": GatedBlock}
_EPS = {"post": 1e-12, "original": 1e-8}


class SASRecNet(Net):
    """SASRec: item vectors plus position vectors, then blocks of causal attention.

    Positions count from the start of the window. places : position vectors; edge : a layer norm
    norm : "post" as in RecBole, "original" as published, "pre", or "gated" for LiGR's blocks
    output : "shared": input vectors score items too; "own": separate output vectors
    """

    default_norm: ClassVar[str] = "post"

    def __init__(self, items: int, settings: NetSettings) -> None:
        """Create position vectors and blocks, and separate output vectors if not shared."""
        super().__init__(items, settings)
        self.norm = settings.specific.get("norm", self.default_norm)
        self.shares_table = settings.specific.get("output", "shared") == "shared"
        dim, dropout = settings.dim, settings.dropout
        self.places = nn.Parameter(torch.empty(settings.max_history, dim))
        self.blocks = nn.ModuleList(
            _BLOCKS[self.norm](dim, settings.heads, dropout) for _ in range(settings.layers)
        )
        self.edge = (
            nn.Identity() if self.norm == "gated" else nn.LayerNorm(dim, _EPS.get(self.norm, 1e-5))
        )
        self.drop = nn.Dropout(dropout)
        if not self.shares_table:
            self.targets = nn.Parameter(torch.empty(items, dim))

    def reset(self) -> None:
        """Initialise parameters as `Net` does; for gated blocks, matrices with Xavier's normal.

        That is N(0, 0.02) for matrices, 0 for vectors, and 1 for scales of layer norms.
        """
        super().reset()
        if self.norm == "gated":
            for value in self.parameters():
                if value.dim() > 1:
                    nn.init.xavier_normal_(value)

    def embed_input(self, batch: Batch) -> Tensor:
        """Return the first block's input, b x width x dim: item vectors plus position vectors.

        Variant "original" scales item vectors by sqrt(dim); variant "post" normalises the sum.
        """
        x = self.embed(batch)
        if self.norm == "original":
            x = x * math.sqrt(x.shape[2])
        x = x + self.places[: batch.width]
        return self.drop(self.edge(x) if self.norm == "post" else x)

    def encode(self, batch: Batch) -> Tensor:
        """Return the states of a batch's rows, b x width x dim.

        A state is a vector that predicts the next item, from its row and earlier rows. Variants
        "pre" and "original" end in a layer norm (`edge`).
        """
        mask = causal_mask(batch.width, batch.item.device)
        x = apply_blocks(self.blocks, self.embed_input(batch), mask)
        return x if self.norm == "post" else self.edge(x)

    def head(self) -> Head:
        """Return the output layer: input item vectors or (output "own") others, and biases."""
        return Head(self.items if self.shares_table else self.targets, self.bias)


class ESASRecNet(SASRecNet):
    """SASRec with LiGR's gated blocks."""

    default_norm: ClassVar[str] = "gated"


_CHUNK = 64  # rows that attend to each other directly; earlier rows are a running sum


def linear_feature(x: Tensor) -> Tensor:
    """Return ELU(x) / ||ELU(x)||: the last axis, a row's vector per head, gets length 1."""
    activated = F.elu(x)
    return activated / (activated.square().sum(-1, keepdim=True) + 1e-12).sqrt()


class LinearAttention(Attention):
    """Linear attention phi(Q) (phi(K)^T V) / sqrt(e) per head, without a softmax.

    phi(x) = ELU(x) / ||ELU(x)||, e = dim / heads. Over all rows or, if `causal`, over each row and
    those before it.
    """

    def __init__(self, dim: int, heads: int, dropout: float, causal: bool) -> None:
        super().__init__(dim, heads, dropout)
        self.causal = causal

    def forward(self, x: Tensor, source: Tensor, mask: Tensor, *more: Any) -> Tensor:
        """Return the attended values of rows x, b x width x dim; `source` and `more` are ignored.

        mask : b x 1 x 1 x width, True for rows, False for padding; used only if not causal
        """
        q, k, v = (
            split_heads(layer(x), self.heads) for layer in (self.query, self.key, self.value)
        )
        q, k = linear_feature(q), linear_feature(k)
        values = causal_linear_attention(q, k, v) if self.causal else q @ ((k * mask.mT).mT @ v)
        return self.out(self.drop(merge_heads(values / math.sqrt(q.shape[-1]))))


def causal_linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return, for each row t, q_t times the sum over s <= t of k_s v_s^T.

    q, k, v : b x heads x width x e. Rows are taken 64 at a time, with a running sum of k_s v_s^T.
    """
    before = torch.zeros(*q.shape[:2], q.shape[3], v.shape[3], device=q.device, dtype=q.dtype)
    parts = []
    for a in range(0, q.shape[2], _CHUNK):
        queries, keys, values = (part[:, :, a : a + _CHUNK] for part in (q, k, v))
        inside = (queries @ keys.mT) * causal_mask(queries.shape[2], q.device)
        parts.append(queries @ before + inside @ values)
        before = before + keys.mT @ values
    return torch.cat(parts, 2)


class LinRecNet(SASRecNet):
    """LinRec: SASRec's post-LN network with linear attention.

    Attention is bidirectional unless the setting `causal` is "yes".
    """

    def __init__(self, items: int, settings: NetSettings) -> None:
        """Create SASRec's network, with blocks of linear attention."""
        super().__init__(items, settings)
        self.causal = settings.specific["causal"] == "yes"
        dim, heads, dropout = settings.dim, settings.heads, settings.dropout
        self.blocks = nn.ModuleList(
            PostBlock(dim, heads, dropout, LinearAttention(dim, heads, dropout, self.causal))
            for _ in range(settings.layers)
        )

    def encode(self, batch: Batch) -> Tensor:
        """Return the states of a batch's rows, b x width x dim; padding is not attended to.

        A state is a vector that predicts the next item.
        """
        return apply_blocks(self.blocks, self.embed_input(batch), batch.is_row[:, None, None])

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Return the mean loss over all targets if causal, else over each sample's one target.

        A sample is rows of a user; a target is the next row's item. step : has the loss function
        """
        if self.causal:
            return super().loss(batch, step)
        return step.criterion(self.encode_last(batch), self.head(), batch.target)

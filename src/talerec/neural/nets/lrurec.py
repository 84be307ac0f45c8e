"""LRURec: linear recurrent units, whose states move on by a factor and are found for all rows at once."""

from __future__ import annotations

import math

import torch
from torch import nn

from talerec.neural.nets.base import Net
from talerec.neural.nets.blocks import Feedforward
from talerec.neural.samples import Batch
from talerec.neural.settings import Settings

Tensor = torch.Tensor

_SMALLEST, _LARGEST = 0.8, 0.99  # of |lambda| at first


def scan(factor: Tensor, u: Tensor) -> Tensor:
    """h_t = factor h_{t-1} + u_t over the second axis of u, from h = 0; log2(width) passes.

    After the pass with reach l, h_t holds the terms of the last 2 l rows.
    """
    h, reach = u, 1
    while reach < u.shape[1]:
        before = torch.nn.functional.pad(h[:, :-reach], (0, 0, reach, 0))
        h = h + factor**reach * before
        reach *= 2
    return h


class LinearUnit(nn.Module):
    """u = gamma (B x + c), h_t = lambda h_{t-1} + u_t, y = Re(C h) + c'; lambda = exp(-exp(nu) + i exp(theta)), gamma = exp(g)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.nu, self.theta, self.gamma = (nn.Parameter(torch.empty(2 * dim)) for _ in range(3))
        self.enter, self.enter_turned = nn.Linear(dim, 2 * dim), nn.Linear(dim, 2 * dim)
        self.leave, self.leave_turned = (
            nn.Linear(2 * dim, dim),
            nn.Linear(2 * dim, dim, bias=False),
        )

    def reset(self) -> None:
        """|lambda| spread evenly over the ring's area, any angle, and gamma = sqrt(1 - |lambda|^2)."""
        squared = torch.empty_like(self.nu).uniform_(_SMALLEST**2, _LARGEST**2)
        angle = torch.empty_like(self.nu).uniform_(1e-6, 2 * math.pi)
        with torch.no_grad():
            self.nu.copy_(torch.log(-0.5 * torch.log(squared)))
            self.theta.copy_(torch.log(angle))
            self.gamma.copy_(0.5 * torch.log(1 - squared))

    def forward(self, x: Tensor) -> Tensor:
        factor = torch.exp(torch.complex(-self.nu.exp(), self.theta.exp()))
        h = scan(factor, self.gamma.exp() * torch.complex(self.enter(x), self.enter_turned(x)))
        made: Tensor = self.leave(h.real) - self.leave_turned(h.imag)
        return made


class LinearUnitBlock(nn.Module):
    """y = LN(drop(unit(x)) + x), z = LN(y + drop(FFN(y)))."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.unit, self.feed = LinearUnit(dim), Feedforward(dim, 4 * dim)
        self.norm, self.feed_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x + self.drop(self.unit(x)))
        made: Tensor = self.feed_norm(y + self.drop(self.feed(y)))
        return made


class LRURecNet(Net):
    """Item vectors without positions, blocks of linear recurrent units, and a bias of each item."""

    def __init__(self, items: int, settings: Settings) -> None:
        super().__init__(items, settings)
        self.edge = nn.LayerNorm(settings.dim)
        self.drop = nn.Dropout(settings.dropout)
        self.blocks = nn.ModuleList(
            LinearUnitBlock(settings.dim, settings.dropout) for _ in range(settings.layers)
        )
        self.bias = nn.Parameter(torch.empty(items))

    def reset(self) -> None:
        super().reset()
        for module in self.modules():
            if isinstance(module, LinearUnit):
                module.reset()

    def encode(self, batch: Batch) -> Tensor:
        x: Tensor = self.edge(self.drop(self.embed(batch)))
        for block in self.blocks:
            x = block(x)
        return x

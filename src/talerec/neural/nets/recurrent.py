"""Recurrent networks: GRU4Rec, and LRURec with linear recurrent units."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from talerec.neural.nets.base import Net
from talerec.neural.nets.blocks import Feedforward, apply_blocks
from talerec.neural.samples import Batch
from talerec.neural.settings import NetSettings


class GRU4RecNet(Net):
    """GRU4Rec: h_t = GRU(E[i_t], h_{t-1}) from h = 0; scores are h . E_j plus a bias per item.

    E are item vectors, i_t the item of row t.
    """

    def __init__(self, items: int, settings: NetSettings) -> None:
        """Create the GRU (`layers` layers of size dim) and a bias per item."""
        super().__init__(items, settings)
        self.gru = nn.GRU(settings.dim, settings.dim, settings.layers, batch_first=True)
        self.drop = nn.Dropout(settings.dropout)
        self.bias = nn.Parameter(torch.empty(items))

    def reset(self) -> None:
        """Initialise matrices with Xavier's uniform distribution, vectors with 0."""
        super().reset()
        for value in self.parameters():
            if value.dim() > 1:
                nn.init.xavier_uniform_(value)

    def encode(self, batch: Batch) -> Tensor:
        """Return the GRU's states of a batch's rows, b x width x dim, with dropout.

        A state is a vector that predicts the next item.
        """
        return self.drop(self.gru(self.drop(self.embed(batch)))[0])


_SMALLEST, _LARGEST = 0.8, 0.99  # initial |lambda|


def scan(factor: Tensor, u: Tensor) -> Tensor:
    """Return h_t = factor h_{t-1} + u_t along axis 1 of u, from h = 0, in log2(width) passes.

    u : b x width x channels, complex; factor : one number per channel. After the pass with reach l,
    h_t holds the terms of the last 2 l rows.
    """
    h, reach = u, 1
    while reach < u.shape[1]:
        before = torch.nn.functional.pad(h[:, :-reach], (0, 0, reach, 0))
        h = h + factor**reach * before
        reach *= 2
    return h


class LinearUnit(nn.Module):
    """Linear recurrent unit: u = gamma (B x + c), h_t = lambda h_{t-1} + u_t, y = Re(C h) + d.

    h has 2 dim complex channels; lambda = exp(-exp(nu) + i exp(theta)) and gamma = exp(g) are
    learned per channel. enter, enter_turned : real and imaginary part of B; leave, leave_turned :
    of C
    """

    def __init__(self, dim: int) -> None:
        """Create the parameters of 2 dim complex channels, not initialised."""
        super().__init__()
        self.nu, self.theta, self.gamma = (nn.Parameter(torch.empty(2 * dim)) for _ in range(3))
        self.enter, self.enter_turned = nn.Linear(dim, 2 * dim), nn.Linear(dim, 2 * dim)
        self.leave = nn.Linear(2 * dim, dim)
        self.leave_turned = nn.Linear(2 * dim, dim, bias=False)

    def reset(self) -> None:
        """Initialise lambda uniformly over the ring 0.8 < |lambda| < 0.99, in place.

        gamma = sqrt(1 - |lambda|^2) keeps the size of the states.
        """
        squared = torch.empty_like(self.nu).uniform_(_SMALLEST**2, _LARGEST**2)
        angle = torch.empty_like(self.nu).uniform_(1e-6, 2 * math.pi)
        with torch.no_grad():
            self.nu.copy_(torch.log(-0.5 * torch.log(squared)))
            self.theta.copy_(torch.log(angle))
            self.gamma.copy_(0.5 * torch.log(1 - squared))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of the linear recurrence for rows x, both b x width x dim.

        h_t = lambda h_{t-1} + gamma (B x_t + c) in complex channels; the output is Re(C h_t) plus a
        bias.
        """
        factor = torch.exp(torch.complex(-self.nu.exp(), self.theta.exp()))
        h = scan(factor, self.gamma.exp() * torch.complex(self.enter(x), self.enter_turned(x)))
        return self.leave(h.real) - self.leave_turned(h.imag)


class LinearUnitBlock(nn.Module):
    """LRURec's block: y = LN(drop(unit(x)) + x), z = LN(y + drop(FFN(y))).

    unit is a linear recurrent unit, FFN a feed-forward network.
    """

    def __init__(self, dim: int, dropout: float) -> None:
        """Create the unit, the feed-forward network (4 dim hidden units) and both layer norms."""
        super().__init__()
        self.unit, self.feed = LinearUnit(dim), Feedforward(dim, 4 * dim)
        self.norm, self.feed_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output for rows x, both b x width x dim.

        A linear recurrent unit, then a feed-forward network, each with a residual and a layer norm.
        """
        y = self.norm(x + self.drop(self.unit(x)))
        return self.feed_norm(y + self.drop(self.feed(y)))


class LRURecNet(Net):
    """LRURec: blocks of linear recurrent units over item vectors, without position vectors.

    Scores are states times the same item vectors, plus a bias. edge : the input's layer norm
    """

    def __init__(self, items: int, settings: NetSettings) -> None:
        """Create the blocks, the input's layer norm and a bias per item."""
        super().__init__(items, settings)
        self.edge = nn.LayerNorm(settings.dim)
        self.drop = nn.Dropout(settings.dropout)
        self.blocks = nn.ModuleList(
            LinearUnitBlock(settings.dim, settings.dropout) for _ in range(settings.layers)
        )
        self.bias = nn.Parameter(torch.empty(items))

    def reset(self) -> None:
        """Initialise parameters as `Net` does, then those of each linear recurrent unit.

        Matrices get N(0, 0.02), vectors 0, scales of layer norms 1.
        """
        super().reset()
        for module in self.modules():
            if isinstance(module, LinearUnit):
                module.reset()

    def encode(self, batch: Batch) -> Tensor:
        """Return the states of a batch's rows after all blocks, b x width x dim.

        A state is a vector that predicts the next item; `edge` is the input's layer norm.
        """
        return apply_blocks(self.blocks, self.edge(self.drop(self.embed(batch))))

"""Losses of states against a table of item vectors. A state's score of item j is h . E_j + bias_j."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

Tensor = torch.Tensor

#: Ways to compare the score of the target with those of other items.
SOFTMAX, SAMPLED, GBCE, BCE = LOSSES = ("softmax", "sampled", "gbce", "bce")

_LOGITS = 2**29  # bytes of scores that are held at once


class Head(NamedTuple):
    """What states are compared with: item vectors (items x dim), and a bias of each item or None."""

    table: Tensor
    bias: Tensor | None


def softmax_loss(
    states: Tensor, head: Head, target: Tensor, chunk: int = 0, half: bool = False
) -> Tensor:
    """Mean cross-entropy of each target among all items.

    Scores are made for `chunk` states at a time (0: as many as fit) and never kept: loss and gradients are computed together.
    half: the large products in bfloat16
    """
    size = chunk or max(1, _LOGITS // (4 * len(head.table)))
    loss: Tensor = _Softmax.apply(states, head.table, head.bias, target, size, half)  # type: ignore[no-untyped-call]
    return loss


class _Softmax(torch.autograd.Function):
    """Cross-entropy whose gradients are made with it, chunk by chunk."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        table: Tensor,
        bias: Tensor | None,
        target: Tensor,
        size: int,
        half: bool,
    ) -> Tensor:
        kind = torch.bfloat16 if half else states.dtype
        E = table.to(kind)
        to_states, to_table = torch.empty_like(states), torch.zeros_like(table)
        to_bias = None if bias is None else torch.zeros_like(bias)
        total = states.new_zeros(())
        for a in range(0, len(states), size):
            h, wanted = states[a : a + size].to(kind), target[a : a + size, None]
            scores = (h @ E.mT).to(states.dtype)
            if bias is not None:
                scores += bias
            level = scores.logsumexp(1, keepdim=True)
            total += (level - scores.gather(1, wanted)).sum()
            scores.sub_(level).exp_()  # probabilities
            scores.scatter_(1, wanted, scores.gather(1, wanted) - 1)
            p = scores.to(kind)
            to_states[a : a + size] = p @ E
            to_table += p.mT @ h
            if to_bias is not None:
                to_bias += scores.sum(0)
        ctx.save_for_backward(to_states, to_table, to_bias)
        ctx.count = len(states)
        return total / len(states)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        share = grads[0] / ctx.count
        made = [None if part is None else part * share for part in ctx.saved_tensors]
        return (*made, None, None, None)


def sampled_loss(
    states: Tensor, head: Head, target: Tensor, others: Tensor, log_q: Tensor | None = None
) -> Tensor:
    """Cross-entropy of each target among itself and `others`, which all states share.

    log_q: for each of `others` the logarithm of how often it is expected among them; its score is lowered by that,
    the target's is not. Where one of `others` is the target, it is left out.
    """
    own, rest = _scores(states, head, target, others)
    if log_q is not None:
        rest = rest - log_q
    rest = rest.masked_fill(others == target[:, None], -torch.inf)
    level = torch.cat([own[:, None], rest], 1).logsumexp(1)
    return (level - own).mean()


def gbce_loss(
    states: Tensor, head: Head, target: Tensor, others: Tensor, calibration: float
) -> Tensor:
    """Binary cross-entropy against `others`, which all states share, the target's part made smaller.

    beta = alpha (t (1 - 1/alpha) + 1/alpha), alpha = negatives / (items - 1), t the calibration: 0 is plain BCE.
    """
    own, rest = _scores(states, head, target, others)
    alpha = min(1.0, len(others) / max(1, len(head.table) - 1))
    beta = alpha * (calibration * (1 - 1 / alpha) + 1 / alpha)
    found = beta * F.softplus(-own) + F.softplus(rest).sum(1)
    return (found / (len(others) + 1)).mean()


def bce_loss(states: Tensor, head: Head, target: Tensor, others: Tensor) -> Tensor:
    """Binary cross-entropy of each target against items of its own (`others`, states x negatives)."""
    rest = (head.table[others] * states[:, None]).sum(2)
    own = (head.table[target] * states).sum(1)
    if head.bias is not None:
        own, rest = own + head.bias[target], rest + head.bias[others]
    found = F.softplus(-own) + F.softplus(rest).sum(1)
    return (found / (others.shape[1] + 1)).mean()


def _scores(states: Tensor, head: Head, target: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """The score of each state's target, and of the items that all share."""
    own = (states * F.embedding(target, head.table)).sum(1)
    rest = states @ F.embedding(others, head.table).mT
    if head.bias is not None:
        own, rest = own + head.bias[target], rest + head.bias[others]
    return own, rest


def info_nce(one: Tensor, two: Tensor, temperature: float) -> Tensor:
    """How well each row of `one` finds its partner in `two`, and back, among all 2 b - 1 others; dot products."""
    z = torch.cat([one, two])
    b = len(one)
    scores = (z @ z.mT) / temperature
    scores = scores.masked_fill(torch.eye(2 * b, dtype=torch.bool, device=z.device), -torch.inf)
    partner = torch.arange(2 * b, device=z.device).roll(b)
    return F.cross_entropy(scores, partner)


Criterion = Callable[[Tensor, Head, Tensor], Tensor]


def criterion(
    loss: str,
    negatives: int,
    *,
    half: bool = False,
    calibration: float = 0.0,
    odds: Tensor | None = None,
) -> Criterion:
    """The loss of this name, with negatives drawn anew each time.

    odds: how likely each item is drawn for `sampled`, whose scores are then corrected; None: all alike
    """

    def drawn(head: Head, *shape: int) -> Tensor:
        return torch.randint(len(head.table), shape, device=head.table.device)

    def sampled(states: Tensor, head: Head, target: Tensor) -> Tensor:
        if odds is None:
            return sampled_loss(states, head, target, drawn(head, negatives))
        others = torch.multinomial(odds, negatives, replacement=True)
        return sampled_loss(states, head, target, others, (odds[others] * negatives).log())

    def gbce(states: Tensor, head: Head, target: Tensor) -> Tensor:
        return gbce_loss(states, head, target, drawn(head, negatives), calibration)

    def bce(states: Tensor, head: Head, target: Tensor) -> Tensor:
        return bce_loss(states, head, target, drawn(head, len(target), negatives))

    def softmax(states: Tensor, head: Head, target: Tensor) -> Tensor:
        return softmax_loss(states, head, target, half=half)

    return {SOFTMAX: softmax, SAMPLED: sampled, GBCE: gbce, BCE: bce}[loss]

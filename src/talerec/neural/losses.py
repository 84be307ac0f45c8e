"""Losses of states h against item vectors E: the score of item j is h . E_j + bias_j."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

#: Losses by name.
SOFTMAX, SAMPLED, GBCE, BCE = LOSSES = ("softmax", "sampled", "gbce", "bce")

_LOGITS = 2**29  # bytes of scores in memory at once


class Head(NamedTuple):
    """The output layer: item vectors (items x dim), and a bias per item or None.

    The score of an item is the state (dim) times the item's vector, plus its bias.
    """

    table: Tensor
    bias: Tensor | None


def softmax_loss(
    states: Tensor, head: Head, target: Tensor, chunk: int = 0, is_bfloat16: bool = False
) -> Tensor:
    """Return the mean cross-entropy of the targets among all items.

    states : n x dim; head : item vectors and biases, which score states; target : n item positions.
    Scores are computed for `chunk` states at a time (0: as many as fit into 512 MiB) and never
    stored: loss and gradients are computed together.
    is_bfloat16 : the large products are in bfloat16
    """
    size = chunk or max(1, _LOGITS // (4 * len(head.table)))
    inputs = (states, head.table, head.bias, target, size, is_bfloat16)
    loss: Tensor = _Softmax.apply(*inputs)  # type: ignore[no-untyped-call]
    return loss


class _Softmax(torch.autograd.Function):
    """Mean cross-entropy over all items that computes its gradients in the forward pass.

    Only the scores of `size` states exist at a time.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        table: Tensor,
        bias: Tensor | None,
        target: Tensor,
        size: int,
        is_bfloat16: bool,
    ) -> Tensor:
        """Return the mean loss; save its gradients by states, table and bias, still as sums.

        states : n x dim; table : items x dim; target : n item positions; size : states per chunk
        """
        kind = torch.bfloat16 if is_bfloat16 else states.dtype
        E = table.to(kind)
        to_states, to_table = torch.empty_like(states), torch.zeros_like(table)
        to_bias = None if bias is None else torch.zeros_like(bias)
        total = states.new_zeros(())
        for a in range(0, len(states), size):
            h, labels = states[a : a + size].to(kind), target[a : a + size, None]
            scores = (h @ E.mT).to(states.dtype)
            if bias is not None:
                scores += bias
            level = scores.logsumexp(1, keepdim=True)
            total += (level - scores.gather(1, labels)).sum()
            scores.sub_(level).exp_()  # probabilities
            scores.scatter_(1, labels, scores.gather(1, labels) - 1)
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
        """Return the gradients by states, table and bias, which `forward` saved as sums.

        They are divided by the number of states and multiplied by the outer gradient; other inputs
        have none (None).
        """
        share = grads[0] / ctx.count
        gradients = [None if part is None else part * share for part in ctx.saved_tensors]
        return (*gradients, None, None, None)


def sampled_loss(
    states: Tensor, head: Head, target: Tensor, others: Tensor, log_q: Tensor | None = None
) -> Tensor:
    """Return the mean cross-entropy of each target among itself and m shared negatives.

    states : n x dim; head : item vectors and biases, which score states; target : n items
    others : the m negatives, items; where a negative equals a state's target, it is ignored there
    log_q : log of the expected number of draws of each negative, subtracted from its score
    """
    positive, negative = _score_targets(states, head, target, others)
    if log_q is not None:
        negative = negative - log_q
    negative = negative.masked_fill(others == target[:, None], -torch.inf)
    level = torch.cat([positive[:, None], negative], 1).logsumexp(1)
    return (level - positive).mean()


def gbce_loss(
    states: Tensor, head: Head, target: Tensor, others: Tensor, calibration: float
) -> Tensor:
    """Return the mean generalised BCE (gSASRec) of n targets against m shared negatives.

    The target's term is multiplied by beta = alpha (t (1 - 1/alpha) + 1/alpha), with alpha =
    negatives / (items - 1) and t the calibration; t = 0 is plain BCE. Each state's sum is divided
    by m + 1. states : n x dim; head : item vectors and biases; target : n items; others : m items
    """
    positive, negative = _score_targets(states, head, target, others)
    alpha = min(1.0, len(others) / max(1, len(head.table) - 1))
    beta = alpha * (calibration * (1 - 1 / alpha) + 1 / alpha)
    losses = beta * F.softplus(-positive) + F.softplus(negative).sum(1)
    return (losses / (len(others) + 1)).mean()


def bce_loss(states: Tensor, head: Head, target: Tensor, others: Tensor) -> Tensor:
    """Return the mean binary cross-entropy of each target against negatives of its own.

    states : n x dim; head : item vectors and biases, which score states; target : n items
    others : n x m items, the negatives of each state
    Each state's sum is divided by m + 1.
    """
    negative = (head.table[others] * states[:, None]).sum(2)
    positive = (head.table[target] * states).sum(1)
    if head.bias is not None:
        positive, negative = positive + head.bias[target], negative + head.bias[others]
    losses = F.softplus(-positive) + F.softplus(negative).sum(1)
    return (losses / (others.shape[1] + 1)).mean()


def _score_targets(
    states: Tensor, head: Head, target: Tensor, others: Tensor
) -> tuple[Tensor, Tensor]:
    """Return (positive, negative): scores of each state's target (n) and m negatives (n x m).

    states : n x dim; head : item vectors (items x dim), and a bias per item or None
    target : n items; others : m items, the same for all states
    """
    positive = (states * F.embedding(target, head.table)).sum(1)
    negative = states @ F.embedding(others, head.table).mT
    if head.bias is not None:
        positive, negative = positive + head.bias[target], negative + head.bias[others]
    return positive, negative


def info_nce(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Return the InfoNCE loss (NT-Xent) of b pairs: rows i of both tensors are partners.

    first, second : b x dim, not normalised here. Each of the 2 b rows must find its partner among
    the 2 b - 1 others: the mean cross-entropy, with dot products over `temperature` as logits.
    """
    z = torch.cat([first, second])
    b = len(first)
    scores = (z @ z.mT) / temperature
    scores = scores.masked_fill(torch.eye(2 * b, dtype=torch.bool, device=z.device), -torch.inf)
    partner = torch.arange(2 * b, device=z.device).roll(b)
    return F.cross_entropy(scores, partner)


Criterion = Callable[[Tensor, Head, Tensor], Tensor]


def criterion(
    loss: str,
    negatives: int,
    *,
    is_bfloat16: bool = False,
    calibration: float = 0.0,
    odds: Tensor | None = None,
) -> Criterion:
    """Return the loss function of this name: (states, output layer, targets) -> mean loss.

    loss : "softmax" (all items), "sampled", "gbce" or "bce"; the last three draw new negatives at
    each call, `negatives` of them: the same for all states, but for "bce" per state
    calibration : the t of gSASRec's loss; odds : probability of each item as a negative of
    "sampled", which then corrects its scores; None: uniform
    """

    def draw(head: Head, *shape: int) -> Tensor:
        """Return item positions drawn uniformly, in an array of this shape."""
        return torch.randint(len(head.table), shape, device=head.table.device)

    def sampled(states: Tensor, head: Head, target: Tensor) -> Tensor:
        """Return the sampled softmax loss against new negatives, uniform or drawn by `odds`.

        odds : probability of each item. Drawn by them, each negative's score is corrected by the
        log of its expected number of draws.
        """
        if odds is None:
            return sampled_loss(states, head, target, draw(head, negatives))
        others = torch.multinomial(odds, negatives, replacement=True)
        return sampled_loss(states, head, target, others, (odds[others] * negatives).log())

    def gbce(states: Tensor, head: Head, target: Tensor) -> Tensor:
        """Return gSASRec's loss against new negatives, the same for all states."""
        return gbce_loss(states, head, target, draw(head, negatives), calibration)

    def bce(states: Tensor, head: Head, target: Tensor) -> Tensor:
        """Return the binary cross-entropy against new negatives for each state."""
        return bce_loss(states, head, target, draw(head, len(target), negatives))

    def softmax(states: Tensor, head: Head, target: Tensor) -> Tensor:
        """Return the cross-entropy of the targets among all items."""
        return softmax_loss(states, head, target, is_bfloat16=is_bfloat16)

    return {SOFTMAX: softmax, SAMPLED: sampled, GBCE: gbce, BCE: bce}[loss]

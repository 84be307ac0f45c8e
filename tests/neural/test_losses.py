"""Losses: against torch's own, against double loops, and their gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kinds import need_torch

need = pytest.fixture(autouse=True, scope="module")(need_torch)

ITEMS, DIM, STATES = 11, 5, 9


@pytest.fixture
def given():
    import torch

    from talerec.neural.losses import Head

    torch.manual_seed(3)
    made = [
        torch.randn(*shape, dtype=torch.float64)
        for shape in ((STATES, DIM), (ITEMS, DIM), (ITEMS,))
    ]
    states, table, bias = (one.requires_grad_() for one in made)
    return states, Head(table, bias), torch.randint(ITEMS, (STATES,))


@pytest.mark.parametrize("chunk", [1, 7, 0])
@pytest.mark.parametrize("with_bias", [True, False])
def test_the_softmax_in_chunks_equals_cross_entropy_and_its_gradients(given, chunk, with_bias):
    import torch
    from torch.nn import functional as F

    from talerec.neural.losses import Head, softmax_loss

    states, head, target = given
    head = head if with_bias else Head(head.table, None)
    scores = states @ head.table.mT + (head.bias if with_bias else 0)
    wanted, found = F.cross_entropy(scores, target), softmax_loss(states, head, target, chunk)
    torch.testing.assert_close(found, wanted)
    asked = [states, head.table] + ([head.bias] if with_bias else [])
    for ours, theirs in zip(
        torch.autograd.grad(3 * found, asked), torch.autograd.grad(3 * wanted, asked), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_the_softmax_equals_torchs_fused_one_where_there_is_one(given):
    import torch
    from torch.nn import functional as F

    from talerec.neural.losses import softmax_loss

    if not hasattr(F, "linear_cross_entropy"):
        pytest.skip("torch has no linear_cross_entropy")
    states, head, target = given
    wanted = F.linear_cross_entropy(states, head.table, target, linear_bias=head.bias)
    torch.testing.assert_close(softmax_loss(states, head, target), wanted)


def test_gradients_of_the_softmax_are_those_of_its_differences(given):
    import torch

    from talerec.neural.losses import Head, softmax_loss

    states, head, target = given
    assert torch.autograd.gradcheck(
        lambda h, E, b: softmax_loss(h, Head(E, b), target, 4), (states, head.table, head.bias)
    )


def test_half_precision_comes_near(given):
    import torch

    from talerec.neural.losses import Head, softmax_loss

    states, head, target = given
    single = Head(head.table.float(), head.bias.float())
    near = softmax_loss(states.float(), single, target, is_bfloat16=True)
    torch.testing.assert_close(
        near.double(), softmax_loss(states, head, target), rtol=0.02, atol=0.02
    )


def test_sampled_with_every_item_once_is_the_full_softmax(given):
    import torch

    from talerec.neural.losses import sampled_loss, softmax_loss

    states, head, target = given
    found = sampled_loss(states, head, target, torch.arange(ITEMS))
    torch.testing.assert_close(found, softmax_loss(states, head, target))


def test_sampled_by_hand_with_log_q_on_the_others_alone(given):
    import torch

    from talerec.neural.losses import sampled_loss

    states, head, target = given
    others, log_q = torch.tensor([2, 5, 2]), torch.tensor([-0.5, -2.0, -0.5], dtype=torch.float64)
    h, E, b = (one.detach().numpy() for one in (states, *head))
    total = 0.0
    for row, wanted in enumerate(target.tolist()):
        own = h[row] @ E[wanted] + b[wanted]
        rest = [
            h[row] @ E[j] + b[j] - q
            for j, q in zip(others.tolist(), log_q.tolist(), strict=True)
            if j != wanted
        ]
        total += math.log(sum(math.exp(s) for s in [own, *rest])) - own
    assert sampled_loss(states, head, target, others, log_q).item() == pytest.approx(total / STATES)


@pytest.mark.parametrize("t", [0.0, 0.75, 1.0])
def test_gbce_is_what_its_paper_defines(given, t):
    import torch

    from talerec.neural.losses import gbce_loss

    states, head, target = given
    others = torch.tensor([1, 4, 4, 7])
    k, alpha = len(others), len(others) / (ITEMS - 1)
    beta = alpha * (t * (1 - 1 / alpha) + 1 / alpha)
    h, E, b = (one.detach().numpy() for one in (states, *head))
    sigmoid = lambda s: 1 / (1 + math.exp(-s))  # noqa: E731
    total = 0.0
    for row, wanted in enumerate(target.tolist()):
        total -= beta * math.log(sigmoid(h[row] @ E[wanted] + b[wanted]))
        total -= sum(math.log(1 - sigmoid(h[row] @ E[j] + b[j])) for j in others.tolist())
    found = gbce_loss(states, head, target, others, t).item()
    assert found == pytest.approx(total / STATES / (k + 1))


def test_gbce_without_calibration_is_bce(given):
    import torch

    from talerec.neural.losses import bce_loss, gbce_loss

    states, head, target = given
    others = torch.tensor([1, 4, 7])
    mine = others.expand(STATES, 3)
    torch.testing.assert_close(
        gbce_loss(states, head, target, others, 0.0), bce_loss(states, head, target, mine)
    )


def test_info_nce_is_a_double_loop(given):
    from talerec.neural.losses import info_nce

    one = given[0].detach()
    two = one.flip(0) + 0.1
    z = np.vstack([one.numpy(), two.numpy()])
    total = 0.0
    for i in range(len(z)):
        own = z[i] @ z[(i + STATES) % len(z)] / 0.7
        total += math.log(sum(math.exp(z[i] @ z[j] / 0.7) for j in range(len(z)) if j != i)) - own
    assert info_nce(one, two, 0.7).item() == pytest.approx(total / len(z))


def test_popular_negatives_are_drawn_by_their_odds_and_corrected():
    import torch

    from talerec.neural.losses import Head, criterion

    torch.manual_seed(0)
    odds = torch.tensor([0.0, 1.0, 0.0])  # the only item that can be drawn
    head = Head(torch.tensor([[1.0], [2.0], [3.0]]), None)
    states, target = torch.ones(1, 1), torch.tensor([0])
    found = criterion("sampled", 4, odds=odds)(states, head, target)
    rest = 4 * math.exp(2.0 - math.log(4))
    assert float(found) == pytest.approx(math.log(math.exp(1.0) + rest) - 1.0)

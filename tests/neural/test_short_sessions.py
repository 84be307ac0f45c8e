"""On short sessions, early stopping does not end the training of gru4rec too soon."""

from __future__ import annotations

import pytest

import talerec as tr
from kinds import need_torch

need = pytest.fixture(autouse=True, scope="module")(need_torch)


def ndcg(model: tr.Model, split: tr.Split) -> float:
    """Return NDCG@10 of a model that is fitted on the training rows, on the test rows."""
    return float(tr.evaluate(model.fit(split.train), split).metrics["NDCG@10"])


def test_gru4rec_learns_the_planted_order_of_sessions_at_its_defaults() -> None:
    """It is at least as good as counting which item follows which.

    The next item is the planted successor of the last in 6 of 10 cases. With steps as small and as
    few as those of the other networks, NDCG@10 is 0.16.
    """
    split = tr.leave_one_out(tr.synthetic_sessions(10_000, items=300))
    popular, markov = ndcg(tr.Popular(), split), ndcg(tr.Markov(), split)
    assert popular < 0.3 * markov  # otherwise the log has no order to learn
    assert ndcg(tr.GRU4Rec(device="cpu"), split) > markov

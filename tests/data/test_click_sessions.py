"""Synthetic sessions: exact in size, short, ordered as planted, equal for equal arguments."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talerec.data import Log, synthetic_sessions
from talerec.errors import TalerecError
from talerec.runtime import Array

SECOND = 10**6


def pairs(log: Log) -> tuple[Array, Array, Array]:
    """Return each row and the next of its session: items before and after, and the gap."""
    user = log.user_codes()
    rows = np.flatnonzero(user[1:] == user[:-1])
    return log.item[rows], log.item[rows + 1], log.time[rows + 1] - log.time[rows]


def count_pairs(log: Log) -> Array:
    """Return an items x items matrix: how often the column's item follows the row's."""
    counts = np.zeros((len(log.items), len(log.items)), int)
    before, after, _ = pairs(log)
    np.add.at(counts, (before, after), 1)
    return counts


@settings(max_examples=40, deadline=None)
@given(
    st.data(),
    st.integers(2, 400),
    st.integers(1, 60),
    st.integers(-(2**70), 2**70),
    st.floats(0, 1),
)
def test_any_size_gives_a_well_formed_log(
    data: st.DataObject, rows: int, items: int, seed: int, order: float
) -> None:
    users = data.draw(st.integers(1, rows // 2))
    log = synthetic_sessions(rows, items=items, users=users, seed=seed, order=order)
    assert (log.rows, len(log.users), len(log.items)) == (rows, users, items)
    assert (log.ptr.dtype, log.item.dtype, log.time.dtype) == (np.int64, np.int32, np.int64)
    assert (np.diff(log.ptr) >= 2).all()
    assert 0 <= log.item.min() <= log.item.max() < items
    assert (pairs(log)[2] >= 5 * SECOND).all()
    assert (log.time % SECOND == 0).all()


def test_equal_arguments_give_equal_logs_and_seeds_differ() -> None:
    frames = [synthetic_sessions(500, seed=seed).to_frame() for seed in (3, 3, 4)]
    assert frames[0].equals(frames[1])
    assert not frames[0].equals(frames[2])


def test_sessions_are_short_and_numbered_by_time() -> None:
    log = synthetic_sessions(50_000)
    lengths = np.diff(log.ptr)
    assert (lengths.mean(), len(lengths)) == (5, 10_000)
    # Two rows, and an exponential number of mean 3, rounded down or up at random.
    drawn = np.random.default_rng(0).exponential(3, 10**6)
    expected = 2 + np.floor(drawn + np.random.default_rng(1).random(10**6))
    for length in (2, 3, 5, 10, 20):
        share = (expected <= length).mean()
        assert (lengths <= length).mean() == pytest.approx(share, abs=0.015)
    assert (np.diff(log.time[log.ptr[:-1]]) >= 0).all()
    assert 60 * SECOND < pairs(log)[2].mean() < 70 * SECOND


def test_a_row_follows_the_planted_order_with_the_probability_asked_for() -> None:
    for order in (0.0, 0.3, 0.6, 0.9):
        counts = count_pairs(synthetic_sessions(60_000, items=50, order=order, seed=1))
        successor = counts.argmax(1)
        share = counts.max(1).sum() / counts.sum()
        by_popularity = counts.sum(0) / counts.sum()
        chance = (counts.sum(1) / counts.sum()) @ by_popularity[successor]
        assert share == pytest.approx(order + (1 - order) * chance, abs=0.03)


def test_planted_successors_are_a_circle_of_all_items() -> None:
    log = synthetic_sessions(20_000, items=40, order=1.0, seed=2)
    counts = count_pairs(log)
    assert ((counts > 0).sum(1) == 1).all()
    successor, item, visited = counts.argmax(1), 0, set()
    while item not in visited:
        visited.add(item)
        item = int(successor[item])
    assert len(visited) == 40


def test_first_rows_are_drawn_by_zipf() -> None:
    log = synthetic_sessions(200_000, items=30, seed=5)
    counts = np.sort(np.bincount(log.item[log.ptr[:-1]], minlength=30))[::-1]
    expected = np.arange(1, 31) ** -0.8
    assert counts / counts.sum() == pytest.approx(expected / expected.sum(), abs=0.006)


def test_no_number_is_planted_in_ids() -> None:
    """An item's id says nothing of its successor or its popularity."""
    log = synthetic_sessions(50_000, items=200, seed=6)
    successor = count_pairs(log).argmax(1)
    assert abs(np.corrcoef(np.arange(200), successor)[0, 1]) < 0.25
    popularity = np.bincount(log.item, minlength=200)
    assert abs(np.corrcoef(np.arange(200), popularity)[0, 1]) < 0.25


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": 0}, "rows is 0; it takes a whole number from 1"),
        ({"rows": 9, "users": 5}, "users is 5, but 9 rows are enough for 4 sessions at most"),
        ({"rows": 1}, "users is 1, but 1 rows are enough for 0 sessions at most"),
        ({"items": 0}, "items is 0"),
        ({"order": 1.5}, "order is 1.5; it takes a number from 0 to 1"),
        ({"order": float("nan")}, "order is nan"),
    ],
)
def test_refuses_sizes_that_do_not_fit(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(TalerecError, match=message):
        synthetic_sessions(**arguments)  # type: ignore[arg-type]

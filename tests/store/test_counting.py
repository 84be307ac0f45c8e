"""EventTail item counts against a plain count."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talerec.store import RecentCounts, StoredRow, limit_repeats

HOUR = 3_600_000_000

rows = st.lists(
    st.tuples(st.sampled_from("xy"), st.sampled_from("abc"), st.integers(-60 * HOUR, 60 * HOUR))
)


@given(rows=rows, steps=st.integers(1, 5))
def test_counts_cover_the_days_before_the_latest_event(
    rows: list[tuple[str, str, int]], steps: int
) -> None:
    """In any order and any batches; deletions are ignored, and a user counts three times."""
    counts = RecentCounts(days=1)
    stored = [StoredRow(n, *row) for n, row in enumerate(rows)]
    for begin in range(0, len(stored), steps):
        counts.add([*stored[begin : begin + steps], StoredRow(99, "u", None, 99 * HOUR)])
    if not rows:
        assert (counts.since, counts.totals()) == (0, Counter())
        return
    since = (max(time for *_, time in rows) // HOUR - 24) * HOUR  # before 1970 too
    assert counts.since == since
    pairs = Counter((user, item) for user, item, time in rows if time >= since)
    expected: Counter[str] = Counter()
    for (_, item), n in pairs.items():
        expected[item] += min(n, 3)
    assert counts.totals() == expected
    mask = limit_repeats(np.array([hash(row[:2]) for row in rows]))
    assert [row[:2] for row, is_counted in zip(rows, mask, strict=True) if is_counted] == [
        row[:2] for n, row in enumerate(rows) if sum(r[:2] == row[:2] for r in rows[:n]) < 3
    ]


def test_few_pairs_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: with more pairs of users and items, the oldest may count again."""
    monkeypatch.setattr("talerec.store.item_counts._MAX_PAIRS", 10)
    counts = RecentCounts(days=7)
    for n in range(100):
        counts.add([StoredRow(n, f"u{n}", "tea", 5 * HOUR)])
    assert counts.totals() == Counter({"tea": 100})
    assert len(counts._pair_hours) == 10


def test_a_clock_that_was_a_year_ahead_and_is_set_back_hides_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, year = time.time_ns() // 1000, 365 * 24 * HOUR
    counts = RecentCounts(days=7)
    counts.add([StoredRow(1, "u", "tea", now)])
    with monkeypatch.context() as ahead:
        ahead.setattr("talerec.store.clock.time_ns", lambda: 1000 * (now + year))
        counts.add([StoredRow(2, "u", "cup", now + year)])
        assert counts.totals() == Counter(["cup"])
    counts.add([StoredRow(3, "u", "pot", now)])
    assert counts.totals() == Counter(["pot"])
    assert counts.since < now


def test_a_future_event_does_not_expire_others() -> None:
    now = time.time_ns() // 1000
    counts = RecentCounts(days=7)
    counts.add(
        [
            StoredRow(1, "u", "typo", now + 30 * 24 * HOUR),
            StoredRow(2, "u", "soon", now + 20 * HOUR),
        ]
    )
    counts.add([StoredRow(3, "u", "tea", now)])
    assert counts.totals() == Counter(["soon", "tea"])

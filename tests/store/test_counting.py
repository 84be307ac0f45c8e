"""Counts of the last days against counting everything again."""

from __future__ import annotations

import time
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from talerec.store.events import Kept
from talerec.store.item_counts import RecentCounts

HOUR = 3_600_000_000

rows = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60 * HOUR)), max_size=30)


@given(rows=rows, steps=st.integers(1, 5))
def test_counts_are_those_of_the_days_before_the_latest_event(
    rows: list[tuple[str, int]], steps: int
) -> None:
    """In whatever order they come and in whatever steps; a deletion counts nothing."""
    counts = RecentCounts(days=1)
    kept = [Kept(n, "u", item, time) for n, (item, time) in enumerate(rows)]
    for begin in range(0, len(kept), steps):
        counts.add([*kept[begin : begin + steps], Kept(99, "u", None, 99 * HOUR)])
    latest = max((time // HOUR for _, time in rows), default=0)
    since = max(0, latest - 24) * HOUR
    assert counts.since == since
    assert counts.totals() == Counter(item for item, time in rows if time >= since)


def test_a_row_of_the_future_leaves_out_no_other() -> None:
    now = time.time_ns() // 1000
    counts = RecentCounts(days=7)
    counts.add([Kept(1, "u", "typo", now + 30 * 24 * HOUR), Kept(2, "u", "soon", now + 20 * HOUR)])
    counts.add([Kept(3, "u", "tea", now)])
    assert counts.totals() == Counter(["soon", "tea"])

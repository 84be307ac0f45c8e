"""EventTail item counts against a plain count."""

from __future__ import annotations

import time
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from talerec.store import RecentCounts, StoredRow

HOUR = 3_600_000_000

rows = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-60 * HOUR, 60 * HOUR)))


@given(rows=rows, steps=st.integers(1, 5))
def test_counts_cover_the_days_before_the_latest_event(
    rows: list[tuple[str, int]], steps: int
) -> None:
    """In any order and any batches; deletions are ignored."""
    counts = RecentCounts(days=1)
    stored = [StoredRow(n, "u", item, time) for n, (item, time) in enumerate(rows)]
    for begin in range(0, len(stored), steps):
        counts.add([*stored[begin : begin + steps], StoredRow(99, "u", None, 99 * HOUR)])
    if not rows:
        assert (counts.since, counts.totals()) == (0, Counter())
        return
    since = (max(time for _, time in rows) // HOUR - 24) * HOUR  # before 1970 too
    assert counts.since == since
    assert counts.totals() == Counter(item for item, time in rows if time >= since)


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

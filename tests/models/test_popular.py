"""Popularity, of all time and of late, against counting rows one by one."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import talerec as tr
from logs import DAY, SECOND, instants, log_of, logs, quick, rows_of, tiny_log

windows = st.sampled_from([0.0, 1 / 86_400, 1 / 24, 0.125, 0.5, 1.0, 365.0, 40_000.0, math.inf])
names = st.integers(0, 7).map("i{}".format)  # i5 and later are in no log


def ranked(log, counts):
    """(item, count), the most first, equal ones by position."""
    place = {name: i for i, name in enumerate(log.items.ids.to_list())}
    return sorted(counts.items(), key=lambda pair: (-pair[1], place[pair[0]]))


def listed(frame):
    return list(zip(frame["item_id"].to_list(), frame["score"].to_list(), strict=True))


def counted(log, window):
    """Rows of each item within the window before the last row, in whole microseconds."""
    span = math.inf if math.isinf(window) else Fraction(window).limit_denominator(10**6) * DAY
    newest = max(time for _, _, time in rows_of(log))
    return Counter(item for _, item, time in rows_of(log) if newest - time <= span)


@given(logs(), st.lists(names, max_size=5))
@quick
def test_popular_counts_every_row_whatever_the_history(log, history):
    model = tr.Popular().fit(log)
    expected = ranked(log, Counter(item for _, item, _ in rows_of(log)))
    k = len(log.items)
    assert listed(model.recommend_histories([history], k=k, unknown="skip")) == expected
    assert listed(model.recommend([log.users.ids[0]], k=k)) == expected


@given(logs(), windows, st.lists(names, max_size=5))
@quick
def test_trending_counts_the_rows_of_the_last_days_whatever_the_history(log, window, history):
    model = tr.Trending(window=window).fit(log)
    expected = ranked(log, counted(log, window))
    k = len(log.items)
    assert listed(model.recommend_histories([history], k=k, unknown="skip")) == expected
    assert listed(model.recommend([log.users.ids[0]], k=k)) == expected


@given(logs(), windows)
@quick
def test_items_without_rows_of_late_are_never_recommended(log, window):
    model = tr.Trending(window=window).fit(log)
    late = set(counted(log, window))
    old = [name for name in log.items.ids.to_list() if name not in late]
    frame = model.recommend(log.users.ids.to_list(), k=len(log.items))
    assert not set(frame["item_id"].to_list()) & set(old)
    if old:
        assert model.recommend_histories([[]], k=1, allow=old).is_empty()
        assert model.explain([], old[0])["contribution"].sum() == 0


@given(logs(), st.sampled_from([40_000.0, 1e9, 1e300, math.inf]))
@quick
def test_a_window_over_everything_is_popularity(log, window):
    users, k = log.users.ids.to_list(), len(log.items)
    trending, popular = tr.Trending(window=window).fit(log), tr.Popular().fit(log)
    assert trending.recommend(users, k=k).equals(popular.recommend(users, k=k))


@given(st.lists(st.tuples(st.just(0), names, instants), min_size=1, max_size=20))
@quick
def test_no_window_is_the_last_instant(rows):
    newest = max(time for _, _, time in rows)
    log = log_of(rows)
    ranked = tr.Trending(window=0).fit(log).recommend([0], k=len(log.items))
    expected = Counter(item for _, item, time in rows if time == newest)
    assert dict(listed(ranked)) == dict(expected)


def test_a_row_at_the_edge_of_the_window_counts_and_one_before_it_does_not():
    last = 10**15
    log = log_of([(1, "edge", last - DAY), (1, "out", last - DAY - 1), (2, "in", last)])
    ranked = tr.Trending(window=1).fit(log).recommend([1], k=3)
    assert listed(ranked) == [("edge", 1.0), ("in", 1.0)]


@pytest.mark.parametrize("seconds", [1, 7, 60, 3600, 36_288])
def test_windows_of_whole_seconds_have_their_edge_there(seconds):
    last = 10**15
    log = log_of([(1, "edge", last - seconds * SECOND), (2, "in", last)])
    ranked = tr.Trending(window=seconds / 86_400).fit(log).recommend([1], k=2)
    assert listed(ranked) == [("edge", 1.0), ("in", 1.0)]


def test_the_window_ends_with_the_logs_last_row_and_not_with_the_users():
    log = tiny_log([("a", 1, 1e9), ("a", 2, 1e9 + 1), ("b", 3, 1e9 + 30 * 86_400)])
    model = tr.Trending(window=7).fit(log)
    assert model.recommend(["a"], k=3)["item_id"].to_list() == [3]


def test_contributions_of_popularity_are_its_base():
    log = tiny_log([("a", 1, 1e9), ("a", 2, 1e9), ("b", 2, 1e9)])
    for model in (tr.Popular().fit(log), tr.Trending().fit(log)):
        explanation = model.explain([1, 2], 2)
        assert explanation["item_id"].to_list() == [1, 2, None]
        assert explanation["contribution"].to_list() == [0, 0, 2]

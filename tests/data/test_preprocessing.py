"""Cleaning and splitting, against loops over Python lists."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logs import START, Row, histories_of, instants, log_of, logs, quick, rows, rows_of, tiny_log
from talerec.data.log import Log
from talerec.data.preprocessing import (
    between,
    drop_duplicates,
    duplicated,
    k_core,
    order_ties,
)
from talerec.data.splits import Cases, Split, leave_one_out, time_split
from talerec.errors import TalerecError

# -- k-core ----------------------------------------------------------------------------------------


def core_by_hand(rows: list[Row], k: int) -> list[Row]:
    while True:
        users = Counter(user for user, _, _ in rows)
        items = Counter(item for _, item, _ in rows)
        left = [row for row in rows if users[row[0]] >= k and items[row[1]] >= k]
        if len(left) == len(rows):
            return left
        rows = left


@quick
@given(logs(max_rows=40), st.integers(1, 5))
def test_a_core_is_what_a_loop_over_lists_leaves(log: Log, k: int) -> None:
    expected = core_by_hand(rows_of(log), k)
    if not expected:
        with pytest.raises(TalerecError, match=f"nothing is left of the log after a {k}-core"):
            k_core(log, k)
        return
    core = k_core(log, k)
    assert rows_of(core) == expected
    assert core.users.ids.to_list() == sorted({user for user, _, _ in expected})
    assert core.items.ids.to_list() == sorted({item for _, item, _ in expected})


def test_a_core_falls_like_dominoes() -> None:
    chain = [(u, i, 1) for u in range(5) for i in (f"i{u}", f"i{u + 1}")]
    ring = [("x", "p", 1), ("x", "q", 1), ("y", "p", 1), ("y", "q", 1)]
    log = tiny_log([(str(user), item, time) for user, item, time in chain + ring])
    assert rows_of(k_core(log, 2)) == [(user, item, 10**6) for user, item, _ in ring]


def test_a_core_of_one_is_the_log() -> None:
    log = tiny_log([("u", "a", 1), ("v", "b", 2)])
    assert rows_of(k_core(log, 1)) == rows_of(log)


@pytest.mark.parametrize("k", [0, -1, 1.5, True, "5", None])
def test_a_core_takes_a_whole_number_from_one(k: Any) -> None:
    with pytest.raises(TalerecError) as caught:
        k_core(tiny_log([("u", "a", 1)]), k)
    assert str(caught.value) == f"core is {k}; it takes a whole number from 1"


# -- duplicates ------------------------------------------------------------------------------------


@quick
@given(logs(max_items=3, max_rows=40))
def test_of_equal_rows_the_first_stays(log: Log) -> None:
    given_rows = rows_of(log)
    assert rows_of(drop_duplicates(log)) == list(dict.fromkeys(given_rows))
    expected = [row in given_rows[:place] for place, row in enumerate(given_rows)]
    assert duplicated(log).tolist() == expected


def test_a_log_without_duplicates_stays() -> None:
    log = tiny_log([("u", "a", 1), ("u", "a", 2), ("v", "a", 1)])
    assert rows_of(drop_duplicates(log)) == rows_of(log)


# -- ties ------------------------------------------------------------------------------------------


@quick
@given(rows(max_items=12))
def test_ties_are_ordered_by_item(drawn: list[Row]) -> None:
    numbered = [(user, int(item[1:]), time) for user, item, time in drawn]
    for given_rows in (drawn, numbered):
        assert rows_of(order_ties(log_of(given_rows), "item")) == [
            row
            for history in histories_of(given_rows).values()
            for row in sorted(history, key=lambda row: (row[2], row[1]))
        ]


def test_integer_items_are_ordered_as_numbers_in_text_too() -> None:
    for items in ((10, 9), ("10", "9")):
        log = order_ties(tiny_log([("u", item, 5) for item in items]), "item")
        assert [str(item) for _, item, _ in rows_of(log)] == ["9", "10"]
    log = order_ties(tiny_log([("u", item, 5) for item in ("10", "9", "x")]), "item")
    assert [item for _, item, _ in rows_of(log)] == ["10", "9", "x"]


@quick
@given(logs(max_items=8), st.integers(0, 10**12))
def test_random_ties_are_a_permutation_within_instants_that_a_seed_repeats(
    log: Log, seed: int
) -> None:
    shuffled = order_ties(log, f"random:{seed}")
    assert shuffled.time.tolist() == log.time.tolist()
    assert shuffled.ptr.tolist() == log.ptr.tolist()
    assert Counter(rows_of(shuffled)) == Counter(rows_of(log))
    assert rows_of(order_ties(log, f"random:{seed}")) == rows_of(shuffled)


def test_random_ties_reach_every_order() -> None:
    log = tiny_log([("u", item, 5) for item in "abc"])
    orders = {tuple(order_ties(log, f"random:{seed}").item.tolist()) for seed in range(100)}
    assert len(orders) == 6


def test_ties_as_in_the_file_are_left_alone() -> None:
    log = tiny_log([("u", "b", 5), ("u", "a", 5)])
    assert order_ties(log, "file") is log
    assert [order_ties(log, ties).ties for ties in ("file", "item", "random:7")] == [
        "file",
        "item",
        "random:7",
    ]


@pytest.mark.parametrize(
    "ties",
    ["", "items", "random", "random:", "random:x", "random:-1", "random:1.5", "random:²", "7"],
)
def test_another_word_for_ties_is_refused(ties: str) -> None:
    with pytest.raises(TalerecError) as caught:
        order_ties(tiny_log([("u", "a", 1)]), ties)
    assert str(caught.value).startswith(f"ties is {ties!r}; it takes file, item or random:SEED")


# -- splits ----------------------------------------------------------------------------------------

Question = tuple[Any, list[tuple[Any, int]], Any, int]  # user, history, target, its time


def asked(split: Split, cases: Cases) -> list[Question]:
    """Cases as (user, [(item or None, time)], target or None, time), in external ids."""
    words = [*split.train.items.ids.to_list(), None]  # -1 is the last
    history = cases.histories
    return [
        (
            split.users.ids[int(cases.user[c])],
            [
                (words[history.item[r]], int(history.time[r]))
                for r in range(history.start[c], history.stop[c])
            ],
            words[cases.target[c]],
            int(cases.target_time[c]),
        )
        for c in range(len(cases))
    ]


def question(history: list[Row], target: Row, known: set[Any]) -> Question:
    past = [(item if item in known else None, time) for _, item, time in history]
    return target[0], past, target[1] if target[1] in known else None, target[2]


@quick
@given(logs(max_items=8, max_rows=40))
def test_leave_one_out_holds_back_the_last_two_rows_of_each_user(log: Log) -> None:
    histories = histories_of(rows_of(log))
    askers = {user: history for user, history in histories.items() if len(history) >= 3}
    if not askers:
        with pytest.raises(TalerecError, match="no user has three rows"):
            leave_one_out(log)
        return
    split = leave_one_out(log)
    train = [row for u, h in histories.items() for row in (h[:-2] if u in askers else h)]
    known = {item for _, item, _ in train}
    assert rows_of(split.train) == train
    assert split.train.items.ids.to_list() == sorted(known)
    assert split.train.users.ids.to_list() == sorted(histories)
    assert asked(split, split.cases("validation")) == [
        question(history[:-2], history[-2], known) for history in askers.values()
    ]
    assert asked(split, split.cases("test")) == [
        question(history[:-1], history[-1], known) for history in askers.values()
    ]


@quick
@given(logs(max_items=8, max_rows=40), st.data())
def test_a_split_at_a_moment_asks_for_the_first_row_from_then_on(
    log: Log, data: st.DataObject
) -> None:
    times = sorted(set(log.time.tolist()))
    moment = data.draw(st.sampled_from([*times, times[0] - 1, times[-1] + 1]))
    histories = histories_of(rows_of(log))
    train = [row for row in rows_of(log) if row[2] < moment]
    known = {item for _, item, _ in train}
    expected = []
    for history in histories.values():
        past = [row for row in history if row[2] < moment]
        later = [row for row in history if row[2] >= moment]
        if past and later:
            expected.append(question(past, later[0], known))
    if not expected:
        with pytest.raises(TalerecError, match="the point of the split"):
            time_split(log, moment)
        return
    split = time_split(log, moment)
    assert rows_of(split.train) == train
    assert split.train.items.ids.to_list() == sorted(known)
    assert asked(split, split.cases("test")) == expected


def test_leave_one_out_by_hand() -> None:
    log = tiny_log(
        [("u", "a", 1), ("u", "b", 2), ("u", "new", 3), ("u", "a", 4), ("v", "b", 1), ("v", "b", 2)]
    )
    split = leave_one_out(log)
    second = 10**6
    assert split.train.items.ids.to_list() == ["a", "b"]
    assert asked(split, split.cases("validation")) == [
        ("u", [("a", second), ("b", 2 * second)], None, 3 * second)
    ]
    assert asked(split, split.cases("test")) == [
        ("u", [("a", second), ("b", 2 * second), (None, 3 * second)], "a", 4 * second)
    ]


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_split_needs_rows_on_both_sides(side: str) -> None:
    log = tiny_log([("u", "a", 5), ("u", "b", 6)])
    moment = 5 * 10**6 if side == "before" else 7 * 10**6
    with pytest.raises(TalerecError, match=f"no row lies {side} the point of the split"):
        time_split(log, moment)


def test_a_split_needs_a_user_on_both_sides() -> None:
    log = tiny_log([("u", "a", 1), ("v", "b", 9)])
    with pytest.raises(TalerecError, match="no user has rows on both sides"):
        time_split(log, 5 * 10**6)


def test_a_moment_beyond_int64_is_after_every_row() -> None:
    with pytest.raises(TalerecError, match="no row lies after"):
        time_split(tiny_log([("u", "a", 1)]), 10**30)


def test_users_without_rows_ask_nothing() -> None:
    log = tiny_log(
        [(user, item, t) for user in "uvwx" for item, t in zip("abcd", range(4), strict=True)]
    )
    for gone in ("u", "v", "x", "ux", "vwx"):
        rest = log.keep(~np.isin(log.user_codes(), [ord(user) - ord("u") for user in gone]))
        left = [user for user in "uvwx" if user not in gone]
        for split in (time_split(rest, 2 * 10**6), leave_one_out(rest)):
            assert [user for user, _, _, _ in asked(split, split.test)] == left
            assert split.train.users.ids.to_list() == left


def test_one_user_and_one_item_can_be_split() -> None:
    log = tiny_log([("u", "a", t) for t in range(5)])
    split = leave_one_out(log)
    assert (split.train.rows, len(split.test), split.test.target.tolist()) == (3, 1, [0])
    assert time_split(log, 10**6).train.rows == 1


def test_a_split_keeps_the_side_table_of_what_is_learned() -> None:
    log = tiny_log([("u", "a", 1), ("u", "b", 2), ("u", "c", 3)])
    log = log.with_items(pl.DataFrame({"item_id": ["c", "b", "a"], "title": ["C", "B", "A"]}))
    info = leave_one_out(log).train.info
    assert info is not None
    assert info.rows() == [("a", "A")]


def test_cases_are_for_test_or_validation() -> None:
    log = tiny_log([("u", "a", 1), ("u", "b", 2), ("u", "a", 3)])
    with pytest.raises(TalerecError, match="on is 'train'; it takes test or validation"):
        leave_one_out(log).cases("train")
    with pytest.raises(TalerecError, match="a split at:2 has no validation rows"):
        time_split(log, "2").cases("validation")
    assert leave_one_out(log).name == "leave-one-out"


def test_time_order_decides_which_row_is_last_and_ties_break_as_they_stand() -> None:
    log = log_of([("u", "z", START), ("u", "y", START), ("u", "x", START - 1)])
    (case,) = asked(leave_one_out(log), leave_one_out(log).test)
    assert case[3] == START
    assert leave_one_out(log).train.items.ids.to_list() == ["x"]
    by_item = leave_one_out(order_ties(log, "item"))
    assert log.items.ids[int(order_ties(log, "item").item[-1])] == "z"
    assert by_item.train.items.ids.to_list() == ["x"]


@pytest.mark.parametrize(
    "moment",
    ["2020-01-02", datetime(2020, 1, 2), datetime(2020, 1, 2, tzinfo=UTC), 1577923200 * 10**6],
)
def test_a_moment_is_a_text_a_datetime_or_microseconds(moment: Any) -> None:
    day = 1577836800  # 2020-01-01
    log = tiny_log([("u", "a", day), ("u", "b", day + 86_400), ("u", "c", day + 90_000)])
    split = time_split(log, moment)
    assert split.train.items.ids.to_list() == ["a"]
    assert split.test.target_time.tolist() == [(day + 86_400) * 10**6]


# -- a span of time --------------------------------------------------------------------------------


@quick
@given(rows(), instants, instants)
def test_between_keeps_the_rows_from_start_until_end(all_rows, one, other):
    start, end = min(one, other), max(one, other)
    inside = [row for row in all_rows if start <= row[2] < end]
    if not inside:
        with pytest.raises(TalerecError, match=r"no row lies|does not lie before"):
            between(log_of(all_rows), start, end)
        return
    kept = between(log_of(all_rows), start, end)
    assert rows_of(kept) == rows_of(log_of(inside))
    assert kept.users.ids.equals(log_of(inside).users.ids)
    assert kept.items.ids.equals(log_of(inside).items.ids)


def test_between_takes_dates_datetimes_and_seconds_as_text():
    log = tiny_log(
        [("u", "a", 1_546_300_799), ("u", "b", 1_546_300_800), ("u", "c", 1_577_836_800)]
    )
    for start, end in (
        ("2019-01-01", "2020-01-01"),
        (datetime(2019, 1, 1), datetime(2020, 1, 1, tzinfo=UTC)),
        ("1546300800", "1577836800"),
    ):
        assert [item for _, item, _ in rows_of(between(log, start, end))] == ["b"]


def test_between_says_what_is_wrong_with_its_ends():
    log = tiny_log([("u", "a", 1_546_300_800), ("u", "b", 1_577_836_800)])
    with pytest.raises(TalerecError, match=r"the start \(2020-01-01\) does not lie before the end"):
        between(log, "2020-01-01", "2019-01-01")
    with pytest.raises(
        TalerecError,
        match=r"until 2011-01-01; the log goes from 2019-01-01T00:00:00.* to 2020-01-01T00:00:00",
    ):
        between(log, "2010-01-01", "2011-01-01")
    with pytest.raises(TalerecError, match="'soon' is not a time"):
        between(log, "2010-01-01", "soon")

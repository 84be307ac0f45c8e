"""Cleaning, against loops over Python lists."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logs import Row, at, histories_of, instants, log_of, logs, quick, rows, rows_of, tiny_log
from talerec.data import Log, drop_duplicates, k_core, order_ties, select_period
from talerec.data.preprocessing import duplicate_mask, expand_tie_orders
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
def test_a_core_equals_a_loop_over_lists(log: Log, k: int) -> None:
    expected = core_by_hand(rows_of(log), k)
    if not expected:
        with pytest.raises(TalerecError, match=f"nothing is left of the log after a {k}-core"):
            k_core(log, k)
        return
    core = k_core(log, k)
    assert rows_of(core) == expected
    assert core.users.ids.to_list() == sorted({user for user, _, _ in expected})
    assert core.items.ids.to_list() == sorted({item for _, item, _ in expected})


def test_dropping_rows_may_cascade_to_the_whole_log() -> None:
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
def test_the_first_of_equal_rows_is_kept(log: Log) -> None:
    given_rows = rows_of(log)
    assert rows_of(drop_duplicates(log)) == list(dict.fromkeys(given_rows))
    expected = [row in given_rows[:place] for place, row in enumerate(given_rows)]
    assert duplicate_mask(log).tolist() == expected


def test_a_log_without_duplicates_is_unchanged() -> None:
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
def test_random_ties_are_a_reproducible_permutation_of_simultaneous_rows(
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


def test_ties_in_file_order_are_unchanged() -> None:
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
def test_an_unknown_tie_order_is_refused(ties: str) -> None:
    with pytest.raises(TalerecError) as caught:
        order_ties(tiny_log([("u", "a", 1)]), ties)
    assert str(caught.value).startswith(f"ties is {ties!r}; it takes file, item or random:SEED")


# -- a span of time --------------------------------------------------------------------------------


@quick
@given(rows(), instants, instants)
def test_select_period_keeps_the_rows_from_start_until_end(all_rows, log, other):
    start, end = min(log, other), max(log, other)
    inside = [row for row in all_rows if start <= row[2] < end]
    if not inside:
        with pytest.raises(TalerecError, match=r"no row lies|does not lie before"):
            select_period(log_of(all_rows), at(start), at(end))
        return
    remaining = select_period(log_of(all_rows), at(start), at(end))
    assert rows_of(remaining) == rows_of(log_of(inside))
    assert remaining.users.ids.equals(log_of(inside).users.ids)
    assert remaining.items.ids.equals(log_of(inside).items.ids)


def test_select_period_takes_dates_datetimes_and_seconds_as_text():
    log = tiny_log(
        [("u", "a", 1_546_300_799), ("u", "b", 1_546_300_800), ("u", "c", 1_577_836_800)]
    )
    for start, end in (
        ("2019-01-01", "2020-01-01"),
        (datetime(2019, 1, 1), datetime(2020, 1, 1, tzinfo=UTC)),
        ("1546300800", "1577836800"),
    ):
        assert [item for _, item, _ in rows_of(select_period(log, start, end))] == ["b"]


def test_select_period_refuses_an_empty_or_reversed_period():
    log = tiny_log([("u", "a", 1_546_300_800), ("u", "b", 1_577_836_800)])
    with pytest.raises(TalerecError, match=r"the start \(2020-01-01\) does not lie before the end"):
        select_period(log, "2020-01-01", "2019-01-01")
    with pytest.raises(
        TalerecError,
        match=r"until 2011-01-01; the log goes from 2019-01-01T00:00:00.* to 2020-01-01T00:00:00",
    ):
        select_period(log, "2010-01-01", "2011-01-01")
    with pytest.raises(TalerecError, match="'soon' is not a time"):
        select_period(log, "2010-01-01", "soon")


def test_a_range_of_seeds_has_both_ends_and_may_be_one_seed() -> None:
    assert expand_tie_orders("random:3..5") == ["random:3", "random:4", "random:5"]
    assert expand_tie_orders("random:3..3") == ["random:3"]
    assert expand_tie_orders("item") == ["item"]
    with pytest.raises(TalerecError, match="write a range of seeds"):
        expand_tie_orders("random:3..2")

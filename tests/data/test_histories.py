"""Histories: what people hand in, as rows; and runs of a log, as they stand."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logs import at, histories_of, logs, quick, rows_of
from talerec.data import FARTHEST, Histories, Log, Vocabulary
from talerec.errors import TalerecError, UnknownIdError

ITEMS = Vocabulary(pl.Series(["a", "b", "c"]))


def items_and_times(given_histories: Any, unknown: str = "error") -> list[list[tuple[int, int]]]:
    """Return items and times; rows without a time are counted from 0 and come first."""
    return [
        [(item, time + FARTHEST if time < -FARTHEST // 2 else time) for item, time in history]
        for history in unrolled(Histories.from_ids(given_histories, ITEMS, unknown))
    ]


def unrolled(histories: Histories) -> list[list[tuple[int, int]]]:
    return [
        [(int(histories.item[r]), int(histories.time[r])) for r in range(a, b)]
        for a, b in zip(histories.start, histories.stop, strict=True)
    ]


def refusal(given_histories: Any, unknown: str = "error") -> str:
    with pytest.raises(TalerecError) as caught:
        items_and_times(given_histories, unknown)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_items_without_times_keep_their_order() -> None:
    first, second = items_and_times([["b", "a", "b"], ["c"]])
    assert [item for item, _ in first] == [1, 0, 1]
    assert [item for item, _ in second] == [2]
    times = [time for _, time in first]
    assert times == sorted(set(times))


def test_items_with_times_are_sorted_stably_by_time() -> None:
    later, sooner = at(5), at(3)
    assert items_and_times([[("a", later), ("b", sooner), ("c", later)]]) == [
        [(1, 3), (0, 5), (2, 5)]
    ]


def test_no_histories_and_empty_ones_are_allowed() -> None:
    assert items_and_times([]) == []
    assert items_and_times([[], ["a"], []]) == [[], [(0, 0)], []]
    assert Histories.from_ids([[]], ITEMS, "error").item.dtype == np.int32


def test_unknown_items_are_named_or_keep_their_place() -> None:
    assert refusal([["a"], ["b", "zz"]]) == "item 'zz' is not known to the model"
    with pytest.raises(UnknownIdError):
        Histories.from_ids([["zz"]], ITEMS)
    assert items_and_times([["a", "zz", "b"]], "skip") == [[(0, 0), (-1, 1), (1, 2)]]


NOON = datetime(2020, 1, 2, 12, 4, 5, 678901)


@pytest.mark.parametrize(
    "value",
    [
        NOON,
        NOON.replace(tzinfo=UTC),
        NOON.replace(tzinfo=timezone(timedelta(hours=2))) + timedelta(hours=2),
        pd.Timestamp(NOON),
        1_577_966_645_678_901,
        np.int64(1_577_966_645_678_901),
        1_577_966_645_678_901_000,
        np.datetime64(NOON),
        "2020-01-02T12:04:05.678901",
    ],
)
def test_a_time_is_a_datetime_its_text_or_a_number(value: Any) -> None:
    assert items_and_times([[("a", value)]]) == [[(0, 1_577_966_645_678_901)]]


@pytest.mark.parametrize(
    ("unit", "history"), [("s", 10**6), ("ms", 1000), ("us", 1), ("datetime", 10**6)]
)
def test_a_small_number_has_the_unit_of_the_log(unit: str, history: int) -> None:
    for value in (5, 5.0, np.float64(5), "5"):
        result = Histories.from_ids([[("a", value)]], ITEMS, unit=unit)
        assert result.time.tolist() == [5 * history]
    result = Histories.from_ids([[("a", 1_577_966_645_678)]], ITEMS, unit=unit)
    assert result.time.tolist() == [1_577_966_645_678_000]  # a browser's milliseconds


def test_a_date_is_midnight() -> None:
    assert items_and_times([[("a", date(1970, 1, 2))]]) == [[(0, 86_400_000_000)]]


@quick
@given(st.datetimes())
def test_datetimes_are_exact_to_the_microsecond(stamp: datetime) -> None:
    (((_, time),),) = items_and_times([[("a", stamp)]])
    assert datetime(1970, 1, 1) + timedelta(microseconds=time) == stamp


@pytest.mark.parametrize(
    "value", [True, np.True_, pd.NaT, np.datetime64("NaT"), [1], b"2020-01-01"]
)
def test_invalid_times_are_refused(value: Any) -> None:
    assert refusal([[("a", value)]]) == (
        f"{value!r} is not a time: give a datetime, 2019-10-01 as text, or a number"
    )


@pytest.mark.parametrize("value", [2**63, -(2**70), float("nan"), float("inf")])
def test_a_time_beyond_any_date_is_refused(value: float) -> None:
    assert refusal([[("a", value)]]) == f"time {value} is beyond any date"


def test_either_every_row_has_a_time_or_none() -> None:
    message = "give a time with every row of a history, or with none"
    assert refusal([[("a", 5), "b"]]) == message
    assert refusal([[("a", 5), ("b", None)]]) == message
    assert items_and_times([[("a", None), ("b", None)]]) == [[(0, 0), (1, 1)]]


@pytest.mark.parametrize("row", [("a", 1, 2), ("a",), ()])
def test_a_row_is_an_item_or_a_pair(row: tuple[Any, ...]) -> None:
    assert refusal([[row]]) == f"{row!r} is not a row of a history: write an item, or (item, time)"


@pytest.mark.parametrize(
    "given_histories",
    ["abc", ["a", "b"], [1, 2], np.array([1, 2]), 5, None, [None], {"a": 1}, [{}]],
)
def test_a_single_history_is_not_a_list_of_histories(given_histories: Any) -> None:
    assert refusal(given_histories) == "histories is a list of histories, each a list of items"


@pytest.mark.parametrize("item", [None, 1.0, True])
def test_an_item_that_is_not_an_id_is_refused(item: Any) -> None:
    assert "is not an id" in refusal([[item]], "skip")


def test_histories_may_be_arrays_and_series() -> None:
    assert items_and_times([np.array(["b", "a"]), pl.Series(["c"])]) == [[(1, 0), (0, 1)], [(2, 0)]]


@quick
@given(logs(), st.data())
def test_histories_of_users_are_their_rows(log: Log, data: st.DataObject) -> None:
    users = data.draw(st.lists(st.integers(0, len(log.users) - 1)))
    result = unrolled(Histories.of_users(log, np.array(users, np.int64)))
    by_user = histories_of(rows_of(log))
    words = log.items.ids.to_list()
    assert [[(words[i], t) for i, t in history] for history in result] == [
        [(item, time) for _, item, time in by_user[log.users.ids[u]]] for u in users
    ]


def test_histories_of_all_users_are_those_of_each() -> None:
    log = Log.from_frame(
        pl.DataFrame({"user_id": [2, 1, 2], "item_id": [1, 2, 3], "timestamp": [5, 6, 7]})
    )
    everyone = Histories.of_users(log)
    assert unrolled(everyone) == unrolled(Histories.of_users(log, np.array([0, 1])))
    assert repr(everyone) == "Histories(2 histories, 3 rows)"
    assert repr(everyone.slice(0, 1)) == "Histories(1 histories, 1 rows)"


def test_lists_of_ids_alone_need_no_checks() -> None:
    for rows in ([], [[]], [["a"]], [["b", "a"], [], ["c", "zz"]]):
        plain = Histories.untimed(rows, ITEMS, "skip")
        checked = Histories.from_ids(rows, ITEMS, "skip")
        assert unrolled(plain) == unrolled(checked)
        assert plain.item.dtype == checked.item.dtype == np.int32


@quick
@given(logs(), st.data())
def test_a_slice_is_the_same_histories_in_smaller_columns(log: Log, data: st.DataObject) -> None:
    users = data.draw(st.lists(st.integers(0, len(log.users) - 1), max_size=6))
    whole = Histories.of_users(log, np.array(users, np.int64))
    a = data.draw(st.integers(0, len(users)))
    b = data.draw(st.integers(a, len(users)))
    part = whole.slice(a, b)
    assert len(part) == b - a
    assert unrolled(part) == unrolled(whole)[a:b]
    assert len(part.item) <= len(whole.item)


def test_rows_are_separate_events_unless_they_are_joint() -> None:
    histories = Histories.from_ids([[("a", 5), ("b", 5)]], ITEMS, "error", "us")
    assert histories.moments(joint=False).tolist() == []
    assert histories.moments(joint=True).tolist() == [5, 5]


@given(logs(), st.data())
@quick
def test_before_a_time_a_history_has_its_earlier_rows(log: Log, data: st.DataObject) -> None:
    times = st.sampled_from(log.time.tolist()) | st.just(-FARTHEST) | st.just(FARTHEST)
    when = data.draw(times) + data.draw(st.integers(-1, 1))
    users = np.array(data.draw(st.lists(st.sampled_from(range(len(log.users))), max_size=9)), int)
    histories = Histories.of_users(log, users)
    cut = histories.before(when)
    assert unrolled(cut) == [[row for row in rows if row[1] < when] for rows in unrolled(histories)]
    assert cut.now is not None
    assert cut.now.tolist() == [when] * len(users)
    assert cut.item is histories.item
    assert unrolled(histories.before(None)) == unrolled(histories)


def test_rows_without_a_time_are_before_every_time() -> None:
    histories = Histories.from_ids([["a", "b"], [], ["c"]], ITEMS)
    assert unrolled(histories.before(-FARTHEST // 2)) == unrolled(histories)

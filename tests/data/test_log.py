"""The Log: rows in their order, ids in and out, and whatever a frame can get wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import talerec as tr
from logs import Row, histories_of, log_of, logs, quick, rows, rows_of, tiny_log
from talerec.data import Log
from talerec.errors import InvalidLogError

T = 1_600_000_000

# -- rows and their order --------------------------------------------------------------------------


@quick
@given(rows())
def test_rows_are_sorted_by_user_then_time_and_ties_stay_as_in_the_frame(drawn: list[Row]) -> None:
    log = log_of(drawn)
    expected = histories_of(drawn)
    assert rows_of(log) == [row for history in expected.values() for row in history]
    assert np.diff(log.ptr).tolist() == [len(history) for history in expected.values()]


def test_columns_have_the_types_that_kernels_expect() -> None:
    log = tiny_log([("u", "a", 5), ("u", "b", 3)])
    assert (log.ptr.dtype, log.item.dtype, log.time.dtype) == (np.int64, np.int32, np.int64)
    assert log.item.flags.writeable
    assert log.time.flags.writeable


@quick
@given(logs())
def test_a_log_comes_back_from_its_frame(log: Log) -> None:
    rebuilt = Log.from_frame(log.to_frame())
    assert rows_of(rebuilt) == rows_of(log)
    assert rebuilt.ptr.tolist() == log.ptr.tolist()
    assert rebuilt.users.ids.equals(log.users.ids)
    assert rebuilt.items.ids.equals(log.items.ids)


def test_one_row_is_a_log() -> None:
    log = tiny_log([("u", "a", 5)])
    assert (log.rows, log.ptr.tolist(), log.item.tolist()) == (1, [0, 1], [0])


def test_ties_stay_in_row_order_over_many_chunks() -> None:
    many = 200_000
    parts = [
        pl.DataFrame({"user_id": 1, "item_id": np.arange(a, a + 1000), "timestamp": T})
        for a in range(0, many, 1000)
    ]
    assert Log.from_frame(pl.concat(parts, rechunk=False)).item.tolist() == list(range(many))


# -- what people see -------------------------------------------------------------------------------


def test_the_repr_of_a_log_is_one_line() -> None:
    log = tiny_log([("u", "a", T), ("u", "b", T + 90_000), ("v", "a", T)])
    assert repr(log) == "Log(2 users, 2 items, 3 rows, 2020-09-13 to 2020-09-14)"
    assert repr(log.keep(np.zeros(3, bool))) == "Log(2 users, 2 items, 0 rows)"


def test_the_repr_of_a_log_works_for_distant_times() -> None:
    far = pl.DataFrame({"user_id": [1, 1], "item_id": [1, 2], "timestamp": [-(2**60), 2**61]})
    log = Log.from_frame(far, time_unit="us", any_time=True)
    assert repr(log) == "Log(1 users, 2 items, 2 rows, -34565-05-17 to 75039-04-04)"
    assert "\n" not in repr(log)


def test_the_notebook_table_has_the_first_rows_and_escapes_html() -> None:
    log = tiny_log([("<b>", "x&y", T + step) for step in range(7)])
    page = log._repr_html_()
    assert page.count("<tr>") == 7  # names, five rows, and a sign that there are more
    assert page.count("&lt;b&gt;") == page.count("x&amp;y") == 5
    assert "<b>" not in page
    assert "<caption>Log(1 users, 1 items, 7 rows, 2020-09-13 to 2020-09-13)</caption>" in page
    titled = log.with_items(pl.DataFrame({"item_id": ["x&y"], "title": ["<i>tea</i>"]}))
    assert titled._repr_html_().count("<td>&lt;i&gt;tea&lt;/i&gt;</td>") == 5
    assert "<th>title</th>" in titled._repr_html_()
    assert "…" not in log.keep(np.arange(7) < 2)._repr_html_()
    assert log.keep(np.zeros(7, bool))._repr_html_().count("<tr>") == 1


# -- parts of a log --------------------------------------------------------------------------------


@quick
@given(logs(), st.data())
def test_keep_keeps_the_masked_rows_and_both_vocabularies(log: Log, data: st.DataObject) -> None:
    mask = data.draw(st.lists(st.booleans(), min_size=log.rows, max_size=log.rows))
    remaining = log.keep(np.array(mask))
    expected = [row for row, stays in zip(rows_of(log), mask, strict=True) if stays]
    assert rows_of(remaining) == expected
    assert (len(remaining.users), len(remaining.items)) == (len(log.users), len(log.items))


@quick
@given(logs(), st.data())
def test_compact_drops_users_and_items_without_rows(log: Log, data: st.DataObject) -> None:
    mask = data.draw(st.lists(st.booleans(), min_size=log.rows, max_size=log.rows))
    remaining = log.keep(np.array(mask))
    compact = remaining.compact()
    assert rows_of(compact) == rows_of(remaining)
    assert compact.users.ids.to_list() == sorted({user for user, _, _ in rows_of(remaining)})
    assert compact.items.ids.to_list() == sorted({item for _, item, _ in rows_of(remaining)})
    assert compact.item.dtype == np.int32


def test_compact_keeps_the_item_table_aligned() -> None:
    log = tiny_log([("u", "a", 1), ("u", "b", 2), ("v", "c", 3)])
    log = log.with_items(pl.DataFrame({"item_id": ["c", "b", "a"], "title": ["C", "B", "A"]}))
    compact = log.keep(log.item != 1).compact()
    assert compact.info is not None
    assert compact.info.rows() == [("a", "A"), ("c", "C")]


@quick
@given(logs(), st.integers(0, 5))
def test_recent_marks_the_last_rows_of_each_user(log: Log, limit: int) -> None:
    expected = [
        place >= len(history) - limit
        for history in histories_of(rows_of(log)).values()
        for place in range(len(history))
    ]
    assert log.recent(limit).tolist() == expected


# -- item side tables ------------------------------------------------------------------------------


def test_an_item_table_is_put_in_item_order_and_gaps_are_null() -> None:
    log = tiny_log([("u", 10, 1), ("u", 9, 2), ("u", 8, 3)])
    side = pl.DataFrame({"title": ["ten", "eight", "other"], "item_id": [10, 8, 77]})
    info = log.with_items(side).info
    assert info is not None
    assert info.rows() == [(8, "eight"), (9, None), (10, "ten")]


@pytest.mark.parametrize("ids", [["8", "10"], [8, 10]])
@pytest.mark.parametrize("as_text", [False, True])
def test_an_item_table_may_write_ids_as_text_or_as_numbers(ids: list[Any], as_text: bool) -> None:
    log = tiny_log([("u", str(i) if as_text else i, 1) for i in (8, 10)])
    info = log.with_items(pl.DataFrame({"item_id": ids, "title": ["eight", "ten"]})).info
    assert info is not None
    assert info["item_id"].equals(log.items.ids.alias("item_id"))
    assert info["title"].to_list() == ["eight", "ten"]


def test_text_that_only_looks_like_a_number_matches_no_number() -> None:
    side = pl.DataFrame({"item_id": ["007", "7"], "title": ["Bond", "seven"]})
    info = tiny_log([("u", 7, 1)]).with_items(side).info
    assert info is not None
    assert info["title"].to_list() == ["seven"]


def test_the_first_of_two_rows_for_an_item_counts() -> None:
    side = pl.DataFrame({"item_id": ["a", "a"], "title": ["first", "second"]})
    info = tiny_log([("u", "a", 1)]).with_items(side).info
    assert info is not None
    assert info["title"].to_list() == ["first"]


def test_an_item_table_without_an_id_column_is_refused() -> None:
    log = tiny_log([("u", "a", 1)])
    with pytest.raises(InvalidLogError, match="no column 'item_id'"):
        log.with_items(pl.DataFrame({"id": ["a"]}))
    with pytest.raises(InvalidLogError, match="ids are text or whole numbers"):
        log.with_items(pl.DataFrame({"item_id": [[1]]}))


# -- the strategies of the other tests -------------------------------------------------------------


def test_tiny_logs_count_in_seconds() -> None:
    assert rows_of(tiny_log([("u", "a", 1.5)])) == [("u", "a", 1_500_000)]


@quick
@given(rows(max_users=3, max_items=2, max_rows=12))
def test_drawn_rows_keep_to_their_limits(drawn: list[Row]) -> None:
    assert 1 <= len(drawn) <= 12
    assert len({user for user, _, _ in drawn}) <= 3
    assert len({item for _, item, _ in drawn}) <= 2
    assert all(0 <= time < 4_102_444_800 * 10**6 for _, _, time in drawn)


@pytest.mark.parametrize(
    ("source", "old", "new"),
    [
        (tr.synthetic_log(20), "evenly_weighed", "normalize_weights"),
        (tr.synthetic_log(20), "ordered", "reorder"),
        (tr.Histories.of_users(tr.synthetic_log(20)), "asked", "as_of"),
        (tr.Histories.of_users(tr.synthetic_log(20)), "known", "has_known_item"),
    ],
)
def test_a_former_name_of_a_method_works_and_names_the_new_one(
    source: object, old: str, new: str
) -> None:
    with pytest.warns(DeprecationWarning, match=f"{old} is now .*{new}"):
        method = getattr(source, old)
    assert method == getattr(source, new)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(source, "nothing")  # noqa: B009


def test_a_former_name_of_a_parameter_works_and_names_the_new_one() -> None:
    items = tr.synthetic_log(20).items
    with pytest.warns(DeprecationWarning, match="given is now histories") as caught:
        histories = tr.Histories.from_ids(given=[[3, 5]], items=items)
    assert caught[0].filename == __file__
    assert histories.item.tolist() == tr.Histories.from_ids([[3, 5]], items).item.tolist()

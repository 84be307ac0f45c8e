"""The Log: rows in their order, ids in and out, and whatever a frame can get wrong."""

from __future__ import annotations

from datetime import date
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logs import Row, histories_of, log_of, logs, quick, rows, rows_of, tiny_log
from talerec.data.log import Log
from talerec.data.vocabulary import Vocabulary
from talerec.errors import TalerecError

T = 1_600_000_000


def frame(users: Any = (1, 2), items: Any = ("a", "b"), times: Any = (T, T)) -> pl.DataFrame:
    columns = {"user_id": users, "item_id": items, "timestamp": times}
    return pl.DataFrame([pl.Series(name, values) for name, values in columns.items()])


def refusal(source: Any, **options: Any) -> str:
    with pytest.raises(TalerecError) as caught:
        Log.from_frame(source, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


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
    again = Log.from_frame(log.to_frame())
    assert rows_of(again) == rows_of(log)
    assert again.ptr.tolist() == log.ptr.tolist()
    assert again.users.ids.equals(log.users.ids)
    assert again.items.ids.equals(log.items.ids)


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


# -- parts of a log --------------------------------------------------------------------------------


@quick
@given(logs(), st.data())
def test_keep_keeps_the_masked_rows_and_both_vocabularies(log: Log, data: st.DataObject) -> None:
    mask = data.draw(st.lists(st.booleans(), min_size=log.rows, max_size=log.rows))
    kept = log.keep(np.array(mask))
    expected = [row for row, stays in zip(rows_of(log), mask, strict=True) if stays]
    assert rows_of(kept) == expected
    assert (len(kept.users), len(kept.items)) == (len(log.users), len(log.items))


@quick
@given(logs(), st.data())
def test_compact_drops_users_and_items_without_rows(log: Log, data: st.DataObject) -> None:
    mask = data.draw(st.lists(st.booleans(), min_size=log.rows, max_size=log.rows))
    kept = log.keep(np.array(mask))
    compact = kept.compact()
    assert rows_of(compact) == rows_of(kept)
    assert compact.users.ids.to_list() == sorted({user for user, _, _ in rows_of(kept)})
    assert compact.items.ids.to_list() == sorted({item for _, item, _ in rows_of(kept)})
    assert compact.item.dtype == np.int32


def test_compact_keeps_the_side_table_in_step() -> None:
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


def test_a_side_table_is_put_in_item_order_and_gaps_are_null() -> None:
    log = tiny_log([("u", 10, 1), ("u", 9, 2), ("u", 8, 3)])
    side = pl.DataFrame({"title": ["ten", "eight", "other"], "item_id": [10, 8, 77]})
    info = log.with_items(side).info
    assert info is not None
    assert info.rows() == [(8, "eight"), (9, None), (10, "ten")]


@pytest.mark.parametrize("ids", [["8", "10"], [8, 10]])
@pytest.mark.parametrize("as_text", [False, True])
def test_a_side_table_may_write_ids_as_text_or_as_numbers(ids: list[Any], as_text: bool) -> None:
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


def test_a_side_table_without_ids_is_refused() -> None:
    log = tiny_log([("u", "a", 1)])
    with pytest.raises(TalerecError, match="no column 'item_id'"):
        log.with_items(pl.DataFrame({"id": ["a"]}))
    with pytest.raises(TalerecError, match="ids are text or whole numbers"):
        log.with_items(pl.DataFrame({"item_id": [[1]]}))


# -- frames ----------------------------------------------------------------------------------------

KINDS = {
    "polars": lambda f: f,
    "lazy": lambda f: f.lazy(),
    "pandas": lambda f: f.to_pandas(),
    "arrow": lambda f: f.to_arrow(),
    "batch": lambda f: f.to_arrow().combine_chunks().to_batches()[0],
    "reader": lambda f: f.to_arrow().to_reader(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_frame_gives_the_same_log(kind: str) -> None:
    source = frame(["x", "y", "x"], [3, 1, 2], [T + 1, T, T]).with_columns(z=pl.lit("extra"))
    log = Log.from_frame(KINDS[kind](source))
    second = 10**6
    assert rows_of(log) == [("x", 2, T * second), ("x", 3, (T + 1) * second), ("y", 1, T * second)]
    assert log.unit == "s"


def test_columns_may_have_other_names() -> None:
    source = frame().rename({"user_id": "who", "item_id": "what", "timestamp": "when"})
    log = Log.from_frame(source, user="who", item="what", time="when")
    assert rows_of(log) == rows_of(Log.from_frame(frame()))


def test_pandas_may_hold_other_columns_that_polars_does_not_know() -> None:
    source = frame().to_pandas()
    source["junk"] = [object(), "x"]
    assert Log.from_frame(source).rows == 2


def test_pandas_categories_and_timestamps_are_read() -> None:
    source = frame().to_pandas()
    source["item_id"] = source["item_id"].astype("category")
    source["timestamp"] = pd.to_datetime(source["timestamp"], unit="s").dt.tz_localize("UTC")
    assert rows_of(Log.from_frame(source)) == rows_of(Log.from_frame(frame()))


@pytest.mark.parametrize(
    "source",
    [None, 5, "log.csv", [1], {"user_id": [1]}, np.zeros(3), pl.Series([1]), pd.Series([1])],
)
def test_what_is_no_frame_is_refused(source: Any) -> None:
    kind = type(source).__name__
    assert refusal(source) == f"a log comes from a Polars, pandas or Arrow frame, not from {kind}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_column_is_named_with_those_that_are_there(kind: str) -> None:
    message = refusal(KINDS[kind](frame().rename({"item_id": "product"})))
    assert message == "there is no column 'item_id'; the columns are user_id, product, timestamp"


def test_a_long_list_of_columns_is_cut_short() -> None:
    message = refusal(pl.DataFrame({f"c{'x' * 100}{i}\n": [1] for i in range(1000)}))
    assert message.endswith("and 980 more")
    assert len(message) < 1200


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_without_rows_is_refused(kind: str) -> None:
    if kind != "batch":
        assert refusal(KINDS[kind](frame().head(0))) == "the log is empty: it has no rows"


def test_one_column_cannot_be_two_things() -> None:
    message = "user, item and time are three columns, but two are 'user_id'"
    assert refusal(frame(), item="user_id") == message
    assert refusal(frame().to_pandas(), time="user_id") == message


def test_two_columns_of_one_name_are_refused() -> None:
    twice = pd.concat([frame().to_pandas(), frame().to_pandas()], axis=1)
    assert refusal(twice) == "there are 2 columns 'user_id'"
    arrow = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["user_id", "user_id"])
    assert "no frame of columns" in refusal(arrow)


def test_pandas_columns_of_mixed_kinds_are_named() -> None:
    for users in ([1, "x"], [2**70, 1]):
        source = frame().to_pandas()
        source["user_id"] = pd.Series(users, dtype=object)
        assert refusal(source).startswith("column 'user_id' is not of one kind")


# -- ids -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ids",
    [["a", None], ["a", ""], ["a", "  \t"], [1, None], [1.0, float("nan")], [1.0, None]],
)
@pytest.mark.parametrize("column", ["user_id", "item_id"])
def test_an_empty_id_is_named_by_its_row(ids: list[Any], column: str) -> None:
    source = frame().with_columns(pl.Series(column, ids))
    assert refusal(source) == f"row 2: {column} is empty"


def test_a_column_of_nothing_is_empty() -> None:
    assert refusal(frame(users=[None, None])) == "row 1: user_id is empty"


def test_a_pandas_integer_column_with_a_gap_is_named_by_its_row() -> None:
    source = frame().to_pandas()
    source["user_id"] = [1, np.nan]
    assert refusal(source) == "row 2: user_id is empty"


@pytest.mark.parametrize(
    "ids", [[1.0, 2.0], [True, False], [[1], [2]], [b"a", b"b"], [date(2020, 1, 1)] * 2]
)
def test_ids_of_another_kind_are_refused(ids: list[Any]) -> None:
    message = refusal(frame(users=ids))
    assert message.startswith("column 'user_id' holds ")
    assert message.endswith("ids are text or whole numbers")


@pytest.mark.parametrize("dtype", [pl.Int8, pl.UInt8, pl.Int32, pl.UInt64, pl.Int128])
def test_integers_of_every_width_are_integers(dtype: Any) -> None:
    log = Log.from_frame(frame().with_columns(pl.col("user_id").cast(dtype)))
    assert log.users.ids.dtype == pl.Int64


def test_integers_beyond_int64_are_text_in_the_order_of_numbers() -> None:
    log = Log.from_frame(frame(users=pl.Series([2**64 - 1, 5], dtype=pl.UInt64)))
    assert log.users.ids.to_list() == ["5", "18446744073709551615"]
    assert log.users.positions([2**64 - 1, "5"], "user", "error").tolist() == [1, 0]


@pytest.mark.parametrize("dtype", [pl.Categorical, pl.Enum(["b", "a"])])
def test_categories_are_text(dtype: Any) -> None:
    log = Log.from_frame(frame().with_columns(pl.col("item_id").cast(dtype)))
    assert log.items.ids.to_list() == ["a", "b"]


# -- vocabularies ----------------------------------------------------------------------------------


def vocabulary(ids: list[Any]) -> Vocabulary:
    return Vocabulary.encode(pl.Series(ids))[0]


@pytest.mark.parametrize(
    ("ids", "ordered"),
    [
        ([10, 9, -1], [-1, 9, 10]),
        (["10", "9", "-1"], ["-1", "9", "10"]),
        (["10", "9", "x"], ["10", "9", "x"]),
        (["7", "007", "6"], ["6", "007", "7"]),
        (["é", "z", "e", "日本"], ["e", "z", "é", "日本"]),
        ([str(2**64), "9", str(2**63)], ["9", str(2**63), str(2**64)]),
        (["1.5", "10", "9"], ["1.5", "10", "9"]),
    ],
)
def test_positions_follow_numbers_where_all_are_integers_else_text(
    ids: list[Any], ordered: list[Any]
) -> None:
    assert vocabulary(ids).ids.to_list() == ordered


texts = st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=20)
numbers = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20)


@quick
@given(st.one_of(texts, numbers))
def test_encoding_gives_each_id_its_position(ids: list[Any]) -> None:
    words, codes = Vocabulary.encode(pl.Series(ids))
    assert [words.ids[int(code)] for code in codes] == ids
    assert len(words) == len(set(ids))
    assert words.positions(ids, "item", "error").tolist() == codes.tolist()
    assert codes.dtype == np.int32


@quick
@given(numbers)
def test_numbers_are_found_as_numbers_and_as_text(ids: list[int]) -> None:
    as_numbers, as_text = vocabulary(ids), vocabulary([str(i) for i in ids])
    expected = [sorted(set(ids)).index(i) for i in ids]
    for words in (as_numbers, as_text):
        assert words.positions(ids, "item", "error").tolist() == expected
        assert words.positions([str(i) for i in ids], "item", "error").tolist() == expected


def test_ids_may_come_in_any_kind_of_list() -> None:
    words = vocabulary([5, 6])
    for given_ids in ([6, 5], (6, 5), np.array([6, 5]), pl.Series([6, 5]), iter([6, 5])):
        assert words.positions(given_ids, "item", "error").tolist() == [1, 0]  # type: ignore[arg-type]


@pytest.mark.parametrize("empty", [[], np.array([]), pl.Series([], dtype=pl.Int64)])
@pytest.mark.parametrize("ids", [[5], ["a"]])
def test_no_ids_have_no_positions(empty: Any, ids: list[Any]) -> None:
    assert vocabulary(ids).positions(empty, "item", "error").tolist() == []


@pytest.mark.parametrize("ids", [[5, 6], ["5", "x"]])
@pytest.mark.parametrize("unknown", [7, "7", "007", " 5", "5.0", "", "+5", 2**70, -5, "日本"])
def test_an_unknown_id_is_named_or_skipped(ids: list[Any], unknown: Any) -> None:
    words = vocabulary(ids)
    with pytest.raises(TalerecError) as caught:
        words.positions([5, unknown, 99], "item", "error")
    assert str(caught.value) == f"item {unknown!r} is not known to the model"
    assert words.positions([unknown, "5"], "item", "skip").tolist() == [-1, 0]


def test_an_unknown_id_from_an_iterator_is_named_too() -> None:
    with pytest.raises(TalerecError, match="user 7 is not known"):
        vocabulary([5]).positions(iter([5, 7]), "user", "error")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [True, np.True_, 1.0, np.float64(1), None, b"1", (1,), [1]])
@pytest.mark.parametrize("unknown", ["error", "skip"])
def test_what_can_be_no_id_is_refused(value: Any, unknown: str) -> None:
    with pytest.raises(TalerecError) as caught:
        vocabulary([1]).positions([1, value], "item", unknown)
    assert str(caught.value) == f"item {value!r} is no id: ids are text or whole numbers"


@pytest.mark.parametrize("value", ["abc", 5, None])
def test_one_id_is_no_list_of_ids(value: Any) -> None:
    with pytest.raises(TalerecError, match="no list of user ids"):
        vocabulary([1]).positions(value, "user", "error")


def test_what_to_do_with_unknown_ids_has_two_answers() -> None:
    with pytest.raises(TalerecError, match='takes "error" or "skip"'):
        vocabulary([1]).positions([1], "item", "ignore")


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


@pytest.mark.parametrize("kind", [int, str])
def test_a_few_ids_are_found_in_a_large_vocabulary_as_many_are(kind):
    ids = pl.Series([kind(3 * i) for i in range(5000)])
    vocabulary, _ = Vocabulary.encode(ids)
    asked = [kind(i) for i in (0, 1, 2, 3, 14_997, 14_998, 7_500)]
    few = vocabulary.positions(asked, "item", "skip")
    many = vocabulary.positions(asked * 300, "item", "skip")[: len(asked)]
    assert few.tolist() == many.tolist()
    names = vocabulary.ids.to_list()
    assert [names[p] if p >= 0 else None for p in few] == [a if a in names else None for a in asked]


def test_ids_that_share_a_hash_are_told_apart(monkeypatch):
    ids = pl.Series([f"item{i}" for i in range(3000)])
    vocabulary, _ = Vocabulary.encode(ids)
    monkeypatch.setattr("talerec.data.vocabulary._keys", lambda ids: np.zeros(len(ids), np.uint64))
    assert [
        vocabulary.ids[int(p)] for p in vocabulary.positions(["item7", "item9"], "item", "error")
    ] == ["item7", "item9"]
    monkeypatch.setattr(
        "talerec.data.vocabulary._keys", lambda ids: np.arange(len(ids), dtype=np.uint64)
    )
    other, _ = Vocabulary.encode(ids)
    assert other.positions(["nothing"], "item", "skip").tolist() == [-1]

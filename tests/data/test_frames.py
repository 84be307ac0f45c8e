"""Frames of every library become the same log, and whatever one can get wrong is named."""

from __future__ import annotations

from datetime import date
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from logs import rows_of
from talerec.data import Log
from talerec.errors import InvalidLogError, MissingColumnError, TalerecError

T = 1_600_000_000


def frame(users: Any = (1, 2), items: Any = ("a", "b"), times: Any = (T, T)) -> pl.DataFrame:
    columns = {"user_id": users, "item_id": items, "timestamp": times}
    return pl.DataFrame([pl.Series(name, values) for name, values in columns.items()])


def refusal(source: Any, error: type[TalerecError] = InvalidLogError, **options: Any) -> str:
    with pytest.raises(TalerecError) as caught:
        Log.from_frame(source, **options)
    assert type(caught.value) is error
    assert "\n" not in str(caught.value)
    return str(caught.value)


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


def test_pandas_may_hold_other_columns_that_polars_does_not_support() -> None:
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
def test_objects_that_are_not_frames_are_refused(source: Any) -> None:
    kind = type(source).__name__
    assert refusal(source) == f"a log comes from a Polars, pandas or Arrow frame, not from {kind}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_column_is_named_with_the_existing_columns(kind: str) -> None:
    message = refusal(KINDS[kind](frame().rename({"item_id": "product"})), MissingColumnError)
    assert message == "there is no column 'item_id'; the columns are user_id, product, timestamp"


def test_a_long_list_of_columns_is_cut_short() -> None:
    frame = pl.DataFrame({f"c{'x' * 100}{i}\n": [1] for i in range(1000)})
    message = refusal(frame, MissingColumnError)
    assert message.endswith("and 980 more")
    assert len(message) < 1200


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_without_rows_is_refused(kind: str) -> None:
    if kind != "batch":
        assert refusal(KINDS[kind](frame().head(0))) == "the log is empty: it has no rows"


def test_one_column_cannot_have_two_roles() -> None:
    message = "user, item and time are three columns, but two are 'user_id'"
    assert refusal(frame(), TalerecError, item="user_id") == message
    assert refusal(frame().to_pandas(), TalerecError, time="user_id") == message


def test_two_columns_of_one_name_are_refused() -> None:
    twice = pd.concat([frame().to_pandas(), frame().to_pandas()], axis=1)
    assert refusal(twice) == "there are 2 columns 'user_id'"
    arrow = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["user_id", "user_id"])
    assert "is not a frame" in refusal(arrow)


def test_pandas_columns_of_mixed_types_are_named() -> None:
    for users in ([1, "x"], [2**70, 1]):
        source = frame().to_pandas()
        source["user_id"] = pd.Series(users, dtype=object)
        assert refusal(source).startswith("column 'user_id' has values of several types")


# -- ids -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ids", [["a", None], ["a", ""], ["a", "  \t"], [1, None], [1.0, float("nan")], [1.0, None]]
)
@pytest.mark.parametrize("column", ["user_id", "item_id"])
def test_an_empty_id_is_named_by_its_row(ids: list[Any], column: str) -> None:
    source = frame().with_columns(pl.Series(column, ids))
    assert refusal(source) == f"row 2: {column} is empty"


def test_a_column_of_nulls_is_empty() -> None:
    assert refusal(frame(users=[None, None])) == "row 1: user_id is empty"


def test_a_pandas_integer_column_with_a_gap_is_named_by_its_row() -> None:
    source = frame().to_pandas()
    source["user_id"] = [1, np.nan]
    assert refusal(source) == "row 2: user_id is empty"


@pytest.mark.parametrize(
    "ids", [[1.0, 2.0], [True, False], [[1], [2]], [b"a", b"b"], [date(2020, 1, 1)] * 2]
)
def test_ids_of_another_type_are_refused(ids: list[Any]) -> None:
    message = refusal(frame(users=ids))
    assert message.startswith("column 'user_id' holds ")
    assert "; ids are text or whole numbers" in message


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


@pytest.mark.parametrize(("ids", "is_said"), [([1.0, 2.0], True), ([1.0, 2.5], False)])
def test_integers_that_pandas_converted_to_floats_are_refused_with_a_fix(
    ids: list[float], is_said: bool
) -> None:
    frame = pd.DataFrame({"user_id": ids, "item_id": ["a", "b"], "timestamp": [1, 2]})
    with pytest.raises(InvalidLogError, match="ids are text or whole numbers") as caught:
        Log.from_frame(frame)
    assert ("astype('Int64')" in str(caught.value)) == is_said

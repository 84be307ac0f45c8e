"""Logs and machines that cannot be used raise an error of one line, and leave no files."""

from __future__ import annotations

import polars as pl
import pytest

import talerec
import talerec as tr
from cluster import fit, inject, skewed, write
from talerec.errors import TalerecError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning"),
]

WHOLE = skewed(60)
SOME = WHOLE[:30]
NO_TIME = pl.when(pl.int_range(30) > 2).then("timestamp").alias("timestamp")


def with_text(name: str) -> pl.DataFrame:
    return SOME.with_columns(pl.col(name).cast(pl.String))


def folder(path, *frames: pl.DataFrame):
    path.mkdir()
    for number, frame in enumerate(frames):
        frame.write_parquet(path / f"{number}.parquet")
    return path


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (
            (SOME, with_text("user_id")),
            r"/1.parquet: column 'user_id' holds BINARY values, and bigint in other files: "
            "write one type",
        ),
        (
            (with_text("item_id"), SOME),
            r"/1.parquet: column 'item_id' holds INT64 values, and string in other files",
        ),
        (
            (SOME, SOME.with_columns(pl.col("timestamp").cast(pl.Int64))),
            r"column 'timestamp' holds INT64 values, and timestamp_ntz in other files",
        ),
        ((SOME, SOME.drop("item_id")), "item_id is empty in 30 of 60 rows"),
        ((SOME, SOME.with_columns(NO_TIME)), "timestamp is empty in 3 of 60 rows"),
        (
            (SOME.with_columns(pl.concat_list("user_id")),),
            r"column 'user_id' holds array<bigint> values; ids are text or whole numbers",
        ),
        ((SOME[:0],), "the log is empty: it has no rows"),
    ],
)
def test_files_that_do_not_fit_together_are_named(session, tmp_path, frames, message):
    source = folder(tmp_path / "log", *frames)
    with pytest.raises(TalerecError, match=message) as raised:
        fit(tr.SLIST(), source, tmp_path / "m.tale", session)
    assert "\n" not in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_files_that_are_not_parquet_are_named(session, tmp_path):
    mixed, cut = folder(tmp_path / "mixed", SOME), folder(tmp_path / "cut", SOME)
    WHOLE.write_csv(mixed / "1.csv")
    (cut / "1.parquet").write_bytes((cut / "0.parquet").read_bytes()[:300])
    for source, message in (
        (mixed, r"mixed/1.csv cannot be read as Parquet: .*is not a Parquet file"),
        (cut, r"cut/1.parquet cannot be read as Parquet: .*is not a Parquet file"),
        (mixed / "1.csv", "1.csv is not a Parquet file: convert it, or work without Spark"),
        (tmp_path / "none", r"Spark: .*Path does not exist"),
    ):
        with pytest.raises(TalerecError, match=message) as raised:
            fit(tr.SLIST(), source, tmp_path / "m.tale", session)
        assert "\n" not in str(raised.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut", "mixed"]


def test_executors_with_another_version_are_refused(session, tmp_path, monkeypatch):
    version = talerec.__version__
    monkeypatch.setattr(talerec, "__version__", "9.9")
    message = f"an executor has talerec {version}, and the driver 9.9: install the same"
    with pytest.raises(TalerecError, match=message):
        fit(tr.SLIST(), write(WHOLE, tmp_path / "log"), tmp_path / "m.tale", session)
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_lists_that_fail_leave_no_folder_and_a_user_of_many_rows_is_named(
    session, tmp_path, monkeypatch
):
    from talerec import spark

    rows = skewed(600)
    source, out = write(rows, tmp_path / "log"), tmp_path / "m.tale"
    tr.SLIST().fit(tr.Log.from_frame(rows)).save(out, histories=False)
    options = {"session": session, "work": tmp_path, "task_rows": 9}
    with pytest.raises(TalerecError, match=r"user 7 has about \d+ rows, and a task holds 9"):
        spark.evaluate(tr.TALE(), source, "at:2011-01-01", **options)
    inject(monkeypatch, stopped)
    with pytest.raises(TalerecError, match="a Spark task failed: ValueError: no more"):
        spark.recommend(out, source, tmp_path / "next", session=session)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "m.tale"]


def stopped(original):
    """Return a `map_rows` whose tasks, but for the first, fail when they have written all."""

    def map_rows(frame, work, schema):
        def run(batches):
            from pyspark import TaskContext

            yield from work(batches)
            if TaskContext.get().partitionId():
                raise ValueError("no more")

        return original(frame, run, schema)

    return map_rows

"""Unusual ids, files, times and weights are read on a cluster as on one machine."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

import talerec as tr
from cluster import SMALL
from logs import DAY, START
from talerec.errors import InvalidLogError, TalerecError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning"),
]

# Text that would be a number without its line end; rows of equal times in several files.
USERS = ["5\n", "5", "7", "5", "7", "40", "40", "5", "5", "5\n"]
ITEMS = ["no number", "9", "10", "11", "9", "9", "10", "10", "9", "11"]
DAYS = [0, 3, 3, 3, 4, 5, 5, 3, 6, 9]
# The first row and the last have no weight.
WEIGHTS = [0.0, 1.0, 2.0, 1.0, 4.0, 1.0, 1.0, 3.0, 1.0, 0.0]


def odd_rows(user: str = "user_id", item: str = "item_id") -> pl.DataFrame:
    times = pl.Series([START + day * DAY for day in DAYS]).cast(pl.Datetime("us"))
    return pl.DataFrame({user: USERS, item: ITEMS, "timestamp": times, "worth": WEIGHTS})


def write_scattered(rows: pl.DataFrame, folder):
    """Write files of one row or none in many folders, with their columns in any order."""
    names = ["a b", "a%20b", "b [1]/x", "b [1]/{y}", "c=1/x", "c=1/y", "z", "é", "é/x", "é/ä"]
    paths = sorted((folder / f"{name}.parquet" for name in names), key=lambda path: path.parts)
    for number, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        some = rows[number : number + 1]
        some.select(sorted(rows.columns, reverse=number % 2 == 1)).write_parquet(path)
    rows[:0].write_parquet(folder / "0.parquet")
    return folder


def test_odd_ids_files_and_weights_give_the_weights_of_one_machine(session, tmp_path):
    from talerec import spark

    rows = odd_rows("user.id", "item`id")
    log = tr.Log.from_frame(rows, user="user.id", item="item`id", weight="worth")
    assert log.items.ids.to_list() == ["10", "11", "9"]  # text order, by an id without weight
    expected = tr.Tempo(solver="local", reg=1.0).fit(log)
    source, out = write_scattered(rows, tmp_path / "log [1]"), tmp_path / "m.tale"
    names = spark.Columns("user.id", "item`id", weight="worth")
    options = {"session": session, "names": names, "histories": True, **SMALL}
    model = spark.fit(tr.Tempo(reg=1.0), f"file:{source}", out, **options)
    assert model.item_ids.to_list() == expected.item_ids.to_list()
    assert model.fitted.training == expected.fitted.training
    np.testing.assert_allclose(model.weights.toarray(), expected.weights.toarray(), rtol=1e-5)
    loaded = tr.load(out).fitted.log
    assert loaded.to_frame().equals(log.to_frame())
    np.testing.assert_allclose(loaded.weight, log.weight)


def test_items_that_are_left_keep_the_order_of_all(session, tmp_path):
    from talerec.spark import ClusterRun, log_columns, log_stats

    rows = odd_rows().drop("worth")
    rows.write_parquet(tmp_path / "log.parquet")
    run = ClusterRun(session, tmp_path)
    options = log_stats.LogOptions(log_columns.NAMES, "file", 2, False)
    stats = log_stats.read_stats(run, tmp_path / "log.parquet", options)
    expected = tr.k_core(tr.Log.from_frame(rows), 2)
    assert stats.ids.to_list() == expected.items.ids.to_list() == ["10", "9"]
    assert stats.time_range == (int(expected.time.min()), int(expected.time.max()))


def test_a_core_is_found_in_rounds_that_keep_two_folders(session, tmp_path):
    """Rows in a chain, of which each round takes the last, beside two users of the same items."""
    from talerec.spark import ClusterRun, log_stats

    core = [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")]
    chain = [("c", "x"), ("c", "z"), ("d", "z"), ("d", "w"), ("e", "w")]
    events = session.createDataFrame(core + chain, "user string, item string")
    left = log_stats.filter_k_core(ClusterRun(session, tmp_path), events, 2)
    assert sorted((row["user"], row["item"]) for row in left.collect()) == core
    rounds = len(chain) + 1  # the last one takes nothing
    assert {path.name for path in tmp_path.iterdir()} == {
        f"core-{rounds - 2}",
        f"core-{rounds - 1}",
    }


def test_ids_in_the_names_of_folders_stay_text(session, tmp_path):
    from talerec.spark import log_columns, read

    rows, folder = odd_rows().drop("user_id"), tmp_path / "log"
    for number, user in enumerate(["007", "7", "10"]):
        (folder / f"user_id={user}").mkdir(parents=True)
        rows[number : number + 2].write_parquet(folder / f"user_id={user}" / "x.parquet")
    log = tr.read_log(folder)
    events, _ = read.read_events(session, folder, log_columns.NAMES, "file")
    rows = sorted((row["user"], row["item"], row["time"]) for row in events.collect())
    frame = log.to_frame().with_columns(pl.col("timestamp").cast(pl.Int64))
    assert rows == sorted(frame.rows())


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("item_id", ["\t", "", "\u2003\n\n\n\n\n", "é", "x"], "item_id is empty in 3 of 5 rows"),
        ("timestamp", [-(10**12), 10**9, 10**9, 10**9, 5 * 10**12], "times are of mixed units"),
        ("timestamp", [10**12, 5, 10**8, 10**12, 10**12], "times are of mixed units"),
        ("worth", [1e308] * 5, "the weights of worth add up to infinity"),
    ],
)
def test_values_that_one_machine_refuses_are_refused(session, tmp_path, column, values, message):
    from talerec.spark import Columns, read

    rows = odd_rows()[:5].with_columns(pl.Series(column, values))
    rows.write_parquet(tmp_path / "log.parquet")
    names = {"weight": "worth", "any_time": True}
    with pytest.raises(InvalidLogError):
        tr.Log.from_frame(rows, **names)
    with pytest.raises(InvalidLogError, match=message) as raised:
        read.read_events(session, tmp_path / "log.parquet", Columns(**names), "file")
    assert "\n" not in str(raised.value)


def test_one_column_is_not_two(session, tmp_path):
    from talerec.spark import Columns, read

    odd_rows().write_parquet(tmp_path / "log.parquet")
    message = "user, item and time are three columns, but two are 'user_id'"
    with pytest.raises(TalerecError, match=message):
        read.read_events(session, tmp_path / "log.parquet", Columns(item="user_id"), "file")


def test_whole_numbers_that_are_decimals_in_spark_are_not_rounded(session, tmp_path):
    from talerec.spark import log_columns, read

    times = pl.Series([START * 1000 + 1000 * x + 600 for x in range(10)], dtype=pl.UInt64)
    rows = odd_rows().with_columns(user_id=pl.int_range(10), timestamp=times)
    rows.write_parquet(tmp_path / "log.parquet")
    events, _ = read.read_events(session, tmp_path / "log.parquet", log_columns.NAMES, "file")
    ours = [row["time"] for row in sorted(events.collect(), key=lambda row: row["user"])]
    assert ours == tr.Log.from_frame(rows).time.tolist() == [START + x for x in range(10)]


def test_a_folder_whose_name_is_a_pattern_is_refused(tmp_path):
    pytest.importorskip("pyspark", reason="needs pyspark: EXTRAS=all make test")
    from talerec.spark import ClusterRun

    with pytest.raises(TalerecError, match=r"has \[ in its name, which Spark takes for a pattern"):
        ClusterRun(SimpleNamespace(), tmp_path / "a [1]")


def test_users_whose_rows_have_one_time_are_not_refused_as_oversized(session, monkeypatch):
    """Of 400 users with 40 rows each, some rows are sampled, and not all rows of some users."""
    from talerec.spark import log_stats

    monkeypatch.setattr(log_stats, "_SAMPLE_ROWS", 1)
    number = session.range(16_000).withColumnRenamed("id", "row_number")
    rows = number.selectExpr(
        "row_number % 400 as user", "row_number % 7 as item", "0L as time", "row_number"
    )
    run = SimpleNamespace(stage=lambda _: nullcontext())
    stats = SimpleNamespace(n_rows=16_000, unordered=rows, is_numeric=False)
    users = log_stats.partition_users(run, stats, 4, max_rows=1_000)
    assert users.n_partitions <= 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task_rows": 0}, "`task_rows` is 0; it takes a whole number from 1"),
        ({"task_pairs": 1.5}, "`task_pairs` is 1.5; it takes a whole number from 1"),
        ({"solve_bytes": True}, "`solve_bytes` is True; it takes a whole number from 1"),
        ({"work": "file/x"}, r"file/x/talerec-\w+ cannot be made: Not a directory"),
    ],
)
def test_limits_below_one_and_folders_that_cannot_be_made_are_refused(
    session, tmp_path, monkeypatch, options, message
):
    from talerec import spark

    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for work in (
        lambda: spark.fit(tr.TALE(), "log", "m.tale", session=session, **options),
        lambda: spark.evaluate(tr.TALE(), "log", "at:2020-01-01", session=session, **options),
    ):
        with pytest.raises(TalerecError, match=message):
            work()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_times_in_nanoseconds_as_pandas_writes_them_are_read(session, tmp_path):
    from talerec import spark

    key = "spark.sql.legacy.parquet.nanosAsLong"
    rows = odd_rows().with_columns(pl.col("timestamp").cast(pl.Datetime("ns")))
    source = tmp_path / "log.parquet"
    rows.write_parquet(source)
    options = {"session": session, **SMALL}
    model = spark.fit(tr.SLIST(), source, tmp_path / "m.tale", **options)
    local = tr.SLIST(solver="local").fit(tr.read_log(source))
    np.testing.assert_allclose(model.weights.toarray(), local.weights.toarray(), rtol=1e-6)
    assert model.fitted.training["last_time"] == local.fitted.training["last_time"]
    session.conf.set(key, "false")  # as in a session that the caller has opened
    try:
        with pytest.raises(TalerecError, match=f"which Spark reads with {key}=true"):
            spark.fit(tr.SLIST(), source, tmp_path / "m.tale", **options)
    finally:
        session.conf.set(key, "true")

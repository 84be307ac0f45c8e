"""A ranker on a cluster whose processes die, whose disk is full, and whose log is odd."""

from __future__ import annotations

import polars as pl
import pytest
from test_ranker_job import assert_same_answers, assert_same_ranker, few_trees

import talerec as tr
from cluster import filled, fit, inject, killed, skewed, write
from talerec.errors import TalerecError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning"),
]

pytest.importorskip("lightgbm")
__all__ = ["few_trees"]  # a fixture that every test here uses

PARTS = "trending,markov(recency=1)"


def with_an_item_in_every_history(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows with a further one per user, of item 901."""
    more = rows.group_by("user_id", maintain_order=True).agg(pl.col("timestamp").median())
    more = more.select("user_id", pl.lit(901).cast(pl.Int64).alias("item_id"), "timestamp")
    return pl.concat([rows, more.cast(dict(rows.schema))])


def test_a_process_killed_in_every_stage_and_an_item_in_every_history_change_nothing(
    session, tmp_path, monkeypatch
):
    rows = with_an_item_in_every_history(skewed(4_000))
    log = tr.Log.from_frame(rows)
    expected = tr.Ranker(parts=PARTS, candidates=30).fit(log)
    source = write(rows, tmp_path / "log")
    inject(monkeypatch, killed)
    model = fit(tr.Ranker(parts=PARTS, candidates=30), source, tmp_path / "m.tale", session)
    assert_same_ranker(model, expected)
    assert_same_answers(model, expected, log)
    left = ["log", "m.tale", "m.weights.parquet"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left


def test_a_disk_that_stays_full_and_a_log_without_rows_end_in_one_line(
    session, tmp_path, monkeypatch
):
    rows = skewed(2_000)
    source, empty = write(rows, tmp_path / "log"), tmp_path / "empty"
    empty.mkdir()
    rows[:0].write_parquet(empty / "0.parquet")
    with pytest.raises(TalerecError, match=r"^the log is empty: it has no rows"):
        fit(tr.Ranker(parts=PARTS), empty, tmp_path / "m.tale", session)
    inject(monkeypatch, filled(99))
    with pytest.raises(TalerecError, match=r"^\S+ cannot be written: No space left on device$"):
        fit(tr.Ranker(parts=PARTS), source, tmp_path / "m.tale", session)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "log"]

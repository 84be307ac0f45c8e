"""An evaluation on a cluster has the figures of one machine."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from typer.testing import CliRunner

import talerec as tr
from cluster import SMALL, harmed, killed, skewed, write
from figures import assert_same_figures, assert_same_json
from talerec.errors import TalerecError
from talerec.spark import evaluation_tasks as judging

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning"),
]

OURS = ("seconds", "peak_rss_mb", "params")  # of this run; the solver is set by name on one machine


def evaluate(model, source, plan, session, folder, **how):
    from talerec import spark

    return spark.evaluate(model, source, plan, session=session, work=folder, **{**SMALL, **how})


def late_items(rows: int) -> pl.DataFrame:
    """Some items come late, so that they are never learned; one of them makes ids text that is no number."""
    frame = skewed(rows).sort("timestamp").with_columns(pl.col("item_id").cast(pl.String))
    place = pl.int_range(pl.len())
    new = pl.when((place > 0.8 * rows) & (place % 50 == 0)).then(pl.lit("new ") + pl.col("item_id"))
    return frame.with_columns(item_id=new.otherwise(pl.col("item_id"))).sample(
        fraction=1, shuffle=True, seed=3
    )


def test_figures_and_cases_are_those_of_one_machine(session, tmp_path):
    """Rows with weights, ties in the order of files, targets that were never learned, several k, and every case."""
    from talerec import spark

    worth = pl.Series("worth", np.random.default_rng(2).choice([0.0, 1.0, 5.0], 6_000))
    rows, plan, ks = late_items(6_000).with_columns(worth), "at:2011-03-01", [1, 5, 20]
    source, log = write(rows, tmp_path / "log"), tr.Log.from_frame(rows, weight="worth")
    expected = tr.evaluate_log(tr.Tempo(solver="local", max_history=400), log, plan, k=ks)
    assert expected.tied > 0.01
    assert (expected.frame["target_rows"] == 0).any()
    model = tr.Tempo(max_history=400)
    found = evaluate(
        model, source, plan, session, tmp_path, k=ks, cases=tmp_path / "cases.parquet",
        names=spark.Columns(weight="worth"), task_pairs=10**6,
    )  # fmt: skip
    assert_same_figures(found, expected, *OURS)
    kept = tr.Evaluation.load(tmp_path / "cases.parquet")
    assert_same_figures(kept, found, "peak_rss_mb")
    order = ["user_id"]
    assert_frame_equal(kept.frame.sort(order), expected.frame.sort(order), rel_tol=1e-12)
    assert model._fitted is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cases.parquet", "log"]


def test_the_command_prints_the_object_of_one_machine(session, machines, tmp_path, monkeypatch):
    """Windows of validation, of which the first has no row before it; ties by item, no duplicates, seen items hidden."""
    from talerec.cli.main import app

    monkeypatch.chdir(tmp_path)
    rows = late_items(3_000)
    source = write(pl.concat([rows, rows[:90]]), tmp_path / "log")
    command = [
        "evaluate", str(source), "--model", "slist", "--split", "rolling:2010-09-10,250", "--on", "validation",
        "-k", "1,10", "--hide-seen", "--ties", "item", "--drop-duplicates", "--json",
    ]  # fmt: skip
    here = CliRunner().invoke(app, [*command, "--set", "solver=local"])
    harmed(monkeypatch, killed)  # one task in every stage
    spark = ["--engine", "spark", "--master", machines.url]
    told = [here, CliRunner().invoke(app, [*command, *spark])]
    assert [one.exit_code for one in told] == [0, 0], told[1].output
    expected, found = (json.loads(one.stdout) for one in told)
    assert_same_json(found, expected, *OURS)
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_validation_rows_begin_at_the_same_moment(session, tmp_path):
    from talerec.data.split import splits
    from talerec.spark import evaluate_job as evaluating
    from talerec.spark import log_stats as tally
    from talerec.spark import read as events
    from talerec.spark import session as sessions

    rows = skewed(900).with_columns(pl.col("timestamp") + pl.duration(microseconds=pl.int_range(900)))  # fmt: skip
    run = sessions.Run(session, tmp_path)
    known = tally.tally(run, write(rows, tmp_path / "log"), events.NAMES, "file", None, False)
    log = tr.Log.from_frame(rows)
    for when in np.quantile(log.time, [0.002, 0.9]).astype(int).tolist():
        assert evaluating._earlier(run, known, when) == splits._earlier(log, when)
    with pytest.raises(TalerecError, match="no row lies before the point of the split"):
        evaluating._earlier(run, known, int(log.time.min()))


def test_what_has_no_place_there_is_refused_in_one_line(session, tmp_path):
    source = write(skewed(200), tmp_path / "log")
    for model, plan, more, said in (
        (tr.TALE(), "leave-one-out", {}, "Spark does not split by leave-one-out; it takes splits of time"),
        (tr.EASE(), "at:2010-06-01", {}, "Spark does not fit ease"),
        (tr.TALE(), "at:2010-06-01", {"ties": "random:0"}, "on Spark it takes file or item"),
        (tr.TALE(), "at:2010-06-01", {"on": "train"}, "on is 'train'; it takes test or validation"),
        (tr.TALE(), "at:2040-01-01", {}, "no row lies after the point of the split"),
        (tr.TALE(), "rolling:2040-01-01,9", {}, "no row lies after the first window begins"),
        (tr.TALE(), "rolling:2009-01-01,9999", {}, "no window of rolling:2009-01-01,9999 has a user"),
    ):  # fmt: skip
        with pytest.raises(TalerecError, match=said):
            evaluate(model, source, plan, session, tmp_path, **more)
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


@pytest.mark.parametrize("share", [0.0, 0.33, 0.5, 0.67, 1.0])
def test_a_quantile_of_several_arrays_is_that_of_all_values(share):
    rng = np.random.default_rng(8)
    for size in (1, 2, 3, 10, 301):
        values = rng.integers(-50, 50, size) * 10**12
        parts = [np.sort(part) for part in np.array_split(values, 4)]
        assert judging.quantile(parts, share) == np.quantile(values, share)
    assert np.isnan(judging.quantile([np.empty(0, np.int64)], share))

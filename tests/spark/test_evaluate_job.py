"""An evaluation on a cluster has the figures of one machine."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import polars.selectors as cs
import pytest
from polars.testing import assert_frame_equal
from typer.testing import CliRunner

import talerec as tr
from cluster import SMALL, inject, killed, skewed, write
from figures import ONE_MACHINE, assert_same_figures, assert_same_json
from talerec.errors import TalerecError
from talerec.spark import tempo_tasks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning"),
]

# Fields that differ between runs; on one machine the solver is set by name.
OURS = ("seconds", "peak_rss_mb", "params")


def evaluate(model, source, plan, session, folder, **options):
    from talerec import spark

    options = {**SMALL, **options}
    return spark.evaluate(model, source, plan, session=session, work=folder, **options)


def late_items(rows: int) -> pl.DataFrame:
    """Return rows in which some items occur only late, so that no model knows them.

    The ids of such items are text that is not a number.
    """
    frame = skewed(rows).sort("timestamp").with_columns(pl.col("item_id").cast(pl.String))
    number = pl.int_range(pl.len())
    is_new = (number > 0.8 * rows) & (number % 50 == 0)
    new = pl.when(is_new).then(pl.lit("new ") + pl.col("item_id"))
    return frame.with_columns(item_id=new.otherwise(pl.col("item_id"))).sample(
        fraction=1, shuffle=True, seed=3
    )


def test_figures_and_cases_are_those_of_one_machine(session, tmp_path):
    """Rows with weights, ties in file order, unknown targets, several k, and all cases."""
    from talerec import spark

    worth = pl.Series("worth", np.random.default_rng(2).choice([0.0, 1.0, 5.0], 6_000))
    rows, plan, ks = late_items(6_000).with_columns(worth), "at:2011-03-01", [1, 5, 20]
    source, log = write(rows, tmp_path / "log"), tr.Log.from_frame(rows, weight="worth")
    expected = tr.evaluate_log(tr.Tempo(solver="local", max_history=400), log, plan, k=ks)
    assert expected.tied > 0.01
    assert (expected.frame["target_rows"] == 0).any()
    model = tr.Tempo(max_history=400)
    options = {"names": spark.Columns(weight="worth"), "task_pairs": 10**6}
    cases = tmp_path / "cases.parquet"
    result = evaluate(model, source, plan, session, tmp_path, k=ks, cases=cases, **options)
    assert_same_figures(result, expected, *OURS)
    loaded = tr.Evaluation.load(cases)
    assert_same_figures(loaded, result, "peak_rss_mb")
    order = ["user_id"]
    ours = expected.frame.select(~cs.starts_with(*ONE_MACHINE))
    assert_frame_equal(loaded.frame.sort(order), ours.sort(order), rel_tol=1e-12)
    assert model._fitted is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cases.parquet", "log"]


def test_the_command_prints_the_object_of_one_machine(session, machines, tmp_path, monkeypatch):
    """Validation windows, the first without training rows; ties by item, seen items hidden."""
    from talerec.cli.main import app

    monkeypatch.chdir(tmp_path)
    rows = late_items(3_000)
    source = write(pl.concat([rows, rows[:90]]), tmp_path / "log")
    command = [
        "evaluate", str(source), "--model", "slist", "--split", "rolling:2010-09-10,250",
        "--on", "validation", "-k", "1,10", "--hide-seen", "--ties", "item",
        "--drop-duplicates", "--json",
    ]  # fmt: skip
    local = CliRunner().invoke(app, [*command, "--set", "solver=local"])
    inject(monkeypatch, killed)  # one task in every stage
    spark = ["--engine", "spark", "--master", machines.url]
    results = [local, CliRunner().invoke(app, [*command, *spark])]
    assert [result.exit_code for result in results] == [0, 0], results[1].output
    expected, figures = (json.loads(result.stdout) for result in results)
    assert_same_json(figures, expected, *OURS)
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


@pytest.mark.parametrize(
    ("plan", "on", "ties"),
    [
        ("every:2011-03-01", "test", "file"),
        ("every:last:30%,100d", "test", "item"),
        ("every:2011-03-01", "validation", "file"),
        ("last:20%", "test", "file"),
    ],
)
def test_every_row_is_ranked_as_on_one_machine(session, tmp_path, monkeypatch, plan, on, ties):
    """Users who are new since the cutoff, first rows, weights, ties and tasks of few rows."""
    from talerec import spark
    from talerec.data import Histories

    def chunks(self):
        edges = list(range(0, len(self), 97))
        return zip(edges, [*edges[1:], len(self)], strict=True)

    worth = pl.Series("worth", np.random.default_rng(2).choice([0.0, 1.0, 5.0], 4_000))
    rows = late_items(4_000).with_columns(worth)
    source, log = write(rows, tmp_path / "log"), tr.Log.from_frame(rows, weight="worth")
    model, options = tr.TALE(solver="local"), {"k": [1, 20], "on": on, "ties": ties}
    expected = tr.evaluate_log(model, log, plan, **options)
    if plan.startswith("every:"):
        assert on != "test" or set(expected.frame["user"]) == {"known", "new"}
        assert expected.first_rows["cases"] > 0
    monkeypatch.setattr(Histories, "chunks", chunks)
    cases, names = tmp_path / "cases.parquet", spark.Columns(weight="worth")
    result = evaluate(tr.TALE(), source, plan, session, tmp_path, names=names, cases=cases,
                      **options)  # fmt: skip
    assert_same_figures(result, expected, *OURS)
    loaded = tr.Evaluation.load(cases)
    order = ["user_id", "window", "time", "target_rows", "rank", "novelty@20"]
    ours = expected.frame.select(~cs.starts_with(*ONE_MACHINE))
    assert_frame_equal(loaded.frame.sort(order), ours.sort(order), rel_tol=1e-12)


def test_validation_rows_begin_at_the_same_time(session, tmp_path):
    from talerec.data.split import every_row, splits
    from talerec.spark import ClusterRun, evaluate_job, log_columns, log_stats

    later = pl.col("timestamp") + pl.duration(microseconds=pl.int_range(900))
    rows = skewed(900).with_columns(later)
    run = ClusterRun(session, tmp_path)
    options = log_stats.LogOptions(log_columns.NAMES, "file", None, False)
    stats = log_stats.read_stats(run, write(rows, tmp_path / "log"), options)
    log = tr.Log.from_frame(rows)
    for when in np.quantile(log.time, [0.002, 0.9]).astype(int).tolist():
        start = evaluate_job._find_validation_start(run, stats, when)
        assert start == splits.find_earlier_cut(log, when)
    for share in (0.001, 0.1, 0.5, 0.999):
        start = evaluate_job._find_last_rows_start(run, stats, share)
        assert start == every_row.find_cutoff(log, f"last:{share:%}")
    with pytest.raises(TalerecError, match="no row lies before the point of the split"):
        evaluate_job._find_validation_start(run, stats, int(log.time.min()))


def test_unsupported_models_splits_and_options_are_refused_in_one_line(session, tmp_path):
    source = write(skewed(200), tmp_path / "log")
    not_by_time = "Spark does not split by leave-one-out; it takes splits by time"
    not_on = "`on` is 'train'; it takes test or validation"
    no_users = "no window of rolling:2009-01-01,9999 has a user"
    for model, plan, options, message in (
        (tr.TALE(), "leave-one-out", {}, not_by_time),
        (tr.EASE(), "at:2010-06-01", {}, "Spark does not fit ease"),
        (tr.TALE(), "at:2010-06-01", {"ties": "random:0"}, "on Spark it takes file or item"),
        (tr.TALE(), "at:2010-06-01", {"on": "train"}, not_on),
        (tr.TALE(), "at:2040-01-01", {}, "no row lies after the point of the split"),
        (tr.TALE(), "every:2040-01-01", {}, "no row lies after the point of the split"),
        (tr.TALE(), "every:1990-01-01", {}, "no row lies before the point of the split"),
        (tr.TALE(), "every:2040-01-01,9d", {}, "no row lies after the first window begins"),
        (tr.TALE(), "rolling:2040-01-01,9", {}, "no row lies after the first window begins"),
        (tr.TALE(), "rolling:2009-01-01,9999", {}, no_users),
    ):
        with pytest.raises(TalerecError, match=message):
            evaluate(model, source, plan, session, tmp_path, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


@pytest.mark.parametrize("share", [0.0, 0.33, 0.5, 0.67, 1.0])
def test_a_quantile_of_several_arrays_is_that_of_all_values(share):
    rng = np.random.default_rng(8)
    for size in (1, 2, 3, 10, 301):
        values = rng.integers(-50, 50, size) * 10**12
        arrays = [np.sort(part) for part in np.array_split(values, 4)]
        assert tempo_tasks.quantile(arrays, share) == np.quantile(values, share)
    assert np.isnan(tempo_tasks.quantile([np.empty(0, np.int64)], share))

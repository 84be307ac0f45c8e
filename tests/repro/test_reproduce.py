"""`talerec reproduce`: measures against slow twins, and a run that goes on where it stopped."""

from __future__ import annotations

import itertools
import json

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from scipy import sparse

import talerec as tr
from kinds import NEURAL, need_torch
from logs import histories_of, logs, quick, rows_of
from talerec.errors import TalerecError
from talerec.models import MODELS
from talerec.repro import blocks, chapters, experiments, measures, pages, paper

DAY = 86_400_000_000


def pairs_of(log):
    """(item, next item, days) by position, user by user."""
    places = {item: place for place, item in enumerate(log.items.ids.to_list())}
    for rows in histories_of(rows_of(log)).values():
        for (_, a, s), (_, b, t) in itertools.pairwise(rows):
            yield places[a], places[b], (t - s) / DAY


def mean_days(log):
    found = {}
    for a, b, days in pairs_of(log):
        found.setdefault((a, b), []).append(days)
    return {pair: float(np.mean(days)) for pair, days in found.items()}


def span_of(days):
    return next(
        name for name, edge in zip(measures.SPANS, measures.EDGES, strict=True) if days <= edge
    )


def test_results_of_another_log_with_equal_counts_are_not_used(tmp_path):
    """Rows, users, items and the sum of times are equal; two items are exchanged."""
    rows = {"user_id": [1, 1, 2, 2], "timestamp": [1, 2, 3, 4]}
    dataset = next(iter(paper.datasets().values()))
    results = []
    for number, items in enumerate(([1, 2, 1, 3], [1, 2, 3, 1])):
        log = tr.Log.from_frame(pl.DataFrame({**rows, "item_id": items}))
        study = experiments.Study(dataset, tmp_path / "log", log, None, tmp_path / "kept")
        results.append([study._cached("x", None, lambda n=number + turn: n) for turn in (0, 10)])
    assert results == [[0, 0], [1, 1]]


@given(logs(max_users=5, max_items=5, max_rows=30))
@quick
def test_co_occurrence_counts_pairs_by_their_mean_interval(log):
    means = mean_days(log)
    if not means:
        return
    found = measures.co_occurrence(log)
    for name in measures.SPANS:
        share = sum(span_of(days) == name for days in means.values()) / len(means)
        assert found[name] == pytest.approx(share)


@given(logs(max_users=5, max_items=5, max_rows=30))
@quick
def test_the_correlation_is_over_pairs_that_ever_followed_each_other(log):
    means, n = mean_days(log), len(log.items)
    rng = np.random.default_rng(n)
    weights = (rng.normal(size=(n, n)) * (rng.random((n, n)) < 0.7)).astype(np.float32)
    near = [1 / (1 + days) for days in means.values()]
    given_weights = [float(weights[pair]) for pair in means]
    if len(means) < 2 or np.std(near) < 1e-9 or np.std(given_weights) == 0:
        return
    wanted = np.corrcoef(near, given_weights)[0, 1]
    for held in (weights, sparse.csr_array(weights)):
        assert measures.interval_correlation(log, held) == pytest.approx(wanted, abs=1e-6)


@given(logs(max_users=5, max_items=5, max_rows=30))
@quick
def test_transitions_count_changes_of_the_attribute(log):
    items = log.items.ids.to_list()
    kind = {item: "ab"[place % 2] for place, item in enumerate(items)}
    table = pl.DataFrame({"item_id": log.items.ids, "genre": [kind[i] for i in items]})
    found = measures.transitions(log, table)
    seen = {name: [] for name in measures.SPANS}
    for a, b, days in pairs_of(log):
        seen[span_of(days)].append(kind[items[a]] != kind[items[b]])
    for name, changes in seen.items():
        if changes:
            assert found[name] == pytest.approx(np.mean(changes))
        else:
            assert found[name] is None


def test_weight_by_popularity_is_the_mean_column_from_the_most_popular_on():
    log = tr.synthetic_log(2000, items=60, titles=False)
    model = tr.TALE().fit(log)
    found = measures.weight_by_popularity(log, model.weights)
    rows = np.bincount(log.item, minlength=len(log.items))
    first = np.argsort(-rows, kind="stable")[: len(rows) // 40 + 1]
    dense = np.asarray(model.weights, float)
    assert found["weight"][0] == pytest.approx(dense[:, first].mean(axis=0).mean(), rel=1e-5)
    thin = measures.weight_by_popularity(log, sparse.csr_array(dense))
    np.testing.assert_allclose(thin["weight"], found["weight"], rtol=1e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A made-up log under the name of one of the paper's, with genres beside it."""
    place = tmp_path_factory.mktemp("data")
    log = tr.synthetic_log(6000, items=80, users=500, titles=False)
    frame = log.to_frame().with_columns(pl.col("timestamp").dt.epoch("s"))
    names = {"user_id": "user_id:token", "item_id": "item_id:token", "timestamp": "timestamp:float"}
    frame.rename(names).write_csv(place / "ml-1m.inter", separator="\t")
    genres = pl.DataFrame({"item_id:token": log.items.ids})
    kinds = pl.Series(
        "genre:token_seq", ["Drama War" if i % 2 else "Comedy" for i in range(len(genres))]
    )
    genres.with_columns(kinds).write_csv(place / "ml-1m.item", separator="\t")
    return place


def test_a_run_writes_everything_and_a_second_one_makes_nothing_again(
    folder, tmp_path, monkeypatch
):
    studies = experiments.run(folder, tmp_path, [])
    text, html = pages.write(studies, tmp_path)
    told = text.read_text()
    for heading in ("Table 1", "Table 2", "Table 3", "Tables 4 and 10", "Table 5", "Table 8"):
        assert f"## {heading}" in told
    assert "SASRec (paper)" in told
    assert "| TALE |" in told
    for part in ("random ties", "seen items hidden", "a time split"):
        assert f"## Beyond the paper: {part}" in told
    shown = html.read_text()
    assert shown.count("<svg") == 8  # intervals, genres, gaps, three sweeps, weights, late
    assert "the genre changes" in shown
    row = studies[0].row("TALE")
    log = paper.datasets()["ml-1m"].read(folder / "ml-1m.inter")
    split = tr.leave_one_out(log)
    model = paper.settings("ml-1m", "TALE").build(solver="exact").fit(split.train)
    assert row["metrics"] == tr.evaluate(model, split).metrics

    def never(*_, **__):
        raise AssertionError("made again")

    monkeypatch.setattr(tr.TALE, "fit", never)
    again = experiments.run(folder, tmp_path, ["ml-1m"])
    assert pages.write(again, tmp_path)[0].read_text() == told


def test_neural_rows_are_computed_where_that_is_asked_for(folder, tmp_path, monkeypatch):
    need_torch()
    small = {"dim": 8, "epochs": 2, "warmup": 1, "max_history": 6, "batch": 512}

    def smaller(self, **others):
        known = {k: v for k, v in small.items() if k in MODELS[self.model]().params}
        return (
            MODELS[self.model](**{**self.params, **known})
            if self.model in NEURAL
            else made(self, **others)
        )

    made = paper.RowSettings.build
    monkeypatch.setattr(paper.RowSettings, "build", smaller)
    monkeypatch.setattr(paper, "neural_rows", lambda dataset: ["SASRec", "TCPSRec"])
    study = experiments.Study.open(
        paper.datasets()["ml-1m"], folder / "ml-1m.inter", tmp_path, neural=True
    )
    found = {row: study.neural_row(row) for row in study.neural_rows}
    assert set(found) <= set(study.tasks())
    assert found["SASRec"]["model"] == "sasrec"
    assert found["SASRec"]["metrics"] != found["TCPSRec"]["metrics"]
    grid = chapters._neural([study])
    assert [row[1] for row in grid.rows] == ["SASRec", "TCPSRec", "TALE"]
    assert grid.rows[0][2] == f"{found['SASRec']['metrics']['NDCG@10']:.4f}"
    assert grid.rows[0][3] == "0.1496"
    assert grid.rows[0][6] == f"{found['SASRec']['metrics_hidden']['NDCG@10']:.4f}"
    assert not list((tmp_path / "kept" / "trainings").glob("*"))


def test_the_paper_s_neural_rows_are_models_here():
    for key in paper.datasets():
        rows = paper.neural_rows(key)
        assert {"SASRec", "LRURec"} <= set(rows)
        for row in rows:
            assert paper.neural_settings(key, row).build().max_history == 50


def test_an_interrupted_run_goes_on(folder, tmp_path, monkeypatch):
    real, seen = experiments.Study.row, []

    def stops(self, name):
        if name == "TALE":
            raise KeyboardInterrupt
        seen.append(name)
        return real(self, name)

    monkeypatch.setattr(experiments.Study, "row", stops)
    with pytest.raises(KeyboardInterrupt):
        experiments.run(folder, tmp_path, [])
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "kept").iterdir()}
    assert any("row-SLIST" in name for name in kept)
    monkeypatch.setattr(experiments.Study, "row", real)
    experiments.run(folder, tmp_path, [])
    for name, moment in kept.items():
        assert (tmp_path / "kept" / name).stat().st_mtime_ns == moment
    for path in (tmp_path / "kept").iterdir():
        json.loads(path.read_text())


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(TalerecError, match="has no file of ml-1m, beauty"):
        experiments.run(tmp_path, tmp_path / "out", [])
    with pytest.raises(TalerecError, match="no data set 'books'"):
        experiments.run(tmp_path, tmp_path / "out", ["books"])


@pytest.mark.parametrize(
    ("ours", "published", "cells"),
    [
        (0.0873, 0.09, ["0.0873", "0.0900", "-3.0%"]),
        (11.0, 10.0, ["11", "10", "+10.0%"]),
        (0.5, 0.0, ["0.5000", "0.0000", "–"]),
        (None, 0.5, ["–", "0.5000", "–"]),
        (12.34, None, ["12.3", "–", "–"]),
    ],
)
def test_a_difference_is_in_percent_of_the_papers_figure(ours, published, cells):
    assert blocks.compare_figures(ours, published) == cells

"""A ranker fitted on a real cluster is the ranker of one machine."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from test_fit_job import assert_same_lists
from typer.testing import CliRunner

import talerec as tr
from cluster import fit, skewed, write
from figures import assert_same_json
from logs import DAY
from talerec.errors import InvalidLogError, TalerecError
from talerec.models.core import rank_top, registry
from talerec.models.ranker import learning, linear, queries
from talerec.runtime import dense

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning"),
]

pytest.importorskip("lightgbm")


@pytest.fixture(autouse=True)
def few_trees(monkeypatch):
    """The driver learns as one machine does: few steps and one cutoff show whether they agree."""
    monkeypatch.setattr(learning, "_MAX_TREES", 6)
    monkeypatch.setattr(linear, "_STEPS", 10)
    monkeypatch.setattr(queries, "_CUTOFF_SHARES", (0.7,))


def assert_same_ranker(model, expected) -> None:
    """Trees, verdicts and times to the last bit."""
    ours, theirs = (m.fitted.weights.query_arrays for m in (model, expected))
    assert ours.keys() == theirs.keys()
    for name, values in theirs.items():
        if name.startswith("ranker_") and name != "ranker_parts":
            np.testing.assert_array_equal(ours[name], values, err_msg=name)
    assert model.item_ids.to_list() == expected.item_ids.to_list()
    assert model.fitted.training == expected.fitted.training
    assert model.describe_learned() == expected.describe_learned()


def assert_same_answers(model, expected, log) -> None:
    """Lists at two moments: right after a user's last row, and long after the end of the log."""
    histories = tr.Histories.of_users(log)
    late = int(log.time.max()) + 30 * DAY * 10**6
    for now in (log.time[log.ptr[1:] - 1], np.full(len(histories), late)):
        asked = replace(histories, now=now)
        ours, theirs = (rank_top(m, asked, 10) for m in (model, expected))
        np.testing.assert_array_equal(ours.items, theirs.items)
        np.testing.assert_allclose(ours.scores, theirs.scores, rtol=1e-12)


def test_a_skewed_log_has_the_trees_and_lists_of_one_machine(session, tmp_path):
    """A user with a sixth of the rows, an item with a third, and repeats."""
    from talerec import spark

    rows = skewed(5_000)
    log = tr.Log.from_frame(rows)
    local = "tempo(solver=local),sknn,rules,markov,trending"  # the parts of large logs
    expected = tr.Ranker(parts=local, candidates=40, seed=2).fit(log)
    arrays = expected.fitted.weights.query_arrays
    assert arrays["ranker_repeats"].tolist() == [True]
    assert {"ranker_trees0", "ranker_trees1"} <= arrays.keys()
    source, out = write(rows, tmp_path / "log"), tmp_path / "ranker.tale"
    ranker = tr.Ranker(candidates=40, seed=2)
    fit(ranker, source, out, session, histories=True, task_pairs=10**6)
    model = tr.load(out, verify=True)
    assert_same_ranker(model, expected)
    assert_same_answers(model, expected, log)
    assert set(model.fitted.seconds) >= {"read", "rows", "queries", "gram", "features", "trees"}
    assert model.fitted.log.to_frame().equals(log.to_frame())
    parts = bytes(model.fitted.weights.query_arrays["ranker_parts"]).decode()
    assert parts == "tempo,sknn,rules,markov,trending"

    lists = expected.recommend(log.users.ids, 10, hide_seen=True)
    spark.recommend(
        out, source, tmp_path / "next", session=session, hide_seen=True, task_rows=2_000
    )
    assert_same_lists(pl.read_parquet(tmp_path / "next" / "*.parquet"), lists)
    table = tmp_path / "ranker.weights.parquet"
    assert sorted(path.name for path in table.iterdir()) == ["0-tempo", "2-rules", "3-markov"]
    left = ["log", "next", "ranker.tale", "ranker.weights.parquet"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left


def test_rows_with_few_repeats_give_the_ranker_of_one_machine(session, tmp_path):
    """Seen items are hidden from most queries; one query in four is asked with them."""
    rows = skewed(6_000).unique(["user_id", "item_id"], maintain_order=True)
    log = tr.Log.from_frame(rows)
    text = "markov(recency=1),popular,trending(window=90)"
    expected = tr.Ranker(parts=text).fit(log)
    assert expected.fitted.weights.query_arrays["ranker_repeats"].tolist() == [False]
    source, out = write(rows, tmp_path / "log"), tmp_path / "ranker.tale"
    model = fit(tr.Ranker(parts=text), source, out, session)
    assert_same_ranker(model, expected)
    assert_same_answers(model, expected, log)


def test_a_log_without_enough_queries_is_answered_by_the_first_part(session, tmp_path):
    """Rows of one time: no row lies before a cutoff, and few users have queries."""
    rows = skewed(120).with_columns(timestamp=skewed(20)["timestamp"][0])
    expected = tr.Ranker(parts="rules,popular").fit(tr.Log.from_frame(rows))
    source, out = write(rows, tmp_path / "log"), tmp_path / "ranker.tale"
    model = fit(tr.Ranker(parts="rules,popular"), source, out, session)
    assert_same_ranker(model, expected)
    assert "no held-out queries were learned from" in model.describe_learned()[1]


def test_the_command_evaluates_a_ranker_as_one_machine(session, machines, tmp_path, monkeypatch):
    from talerec.cli.main import app

    monkeypatch.chdir(tmp_path)
    source = write(skewed(5_000), tmp_path / "log")
    command = [
        "evaluate", str(source), "--model", "ranker", "--set", "parts=trending,markov(recency=1)",
        "--set", "candidates=30", "--split", "last:20%", "-k", "1,10", "--json",
    ]  # fmt: skip
    spark = ["--engine", "spark", "--master", machines.url]
    results = [CliRunner().invoke(app, [*command, *engine]) for engine in ([], spark)]
    assert [result.exit_code for result in results] == [0, 0], results[1].output
    expected, figures = (json.loads(result.stdout) for result in results)
    assert_same_json(figures, expected, "seconds", "peak_rss_mb", rel=1e-9)
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


@pytest.mark.parametrize("name", ["rules", "markov", "popular", "trending", "sknn", "stan"])
def test_counts_and_neighbors_are_those_of_one_machine(session, tmp_path, name):
    """With weights of rows, where the model takes any, and only the latest rows of a user."""
    from talerec import spark

    kind = registry.LIBRARY_MODELS[name]
    weighted = kind().takes_weights
    rows = skewed(3_000).with_columns(worth=1.0 + pl.col("item_id") % 3)
    limit = {"max_history": 200} if "max_history" in kind().params else {}
    log = tr.Log.from_frame(rows, weight="worth" if weighted else None)
    expected = kind(**limit).fit(log)
    names = {"names": spark.Columns(weight="worth")} if weighted else {}
    source, out = write(rows, tmp_path / "log"), tmp_path / "m.tale"
    model = fit(kind(**limit), source, out, session, **names)
    assert model.fitted.training == expected.fitted.training
    assert_same_answers(model, expected, log)
    if name in ("rules", "markov"):
        np.testing.assert_allclose(model.weights.toarray(), dense(expected.weights), rtol=1e-6)


def test_what_a_ranker_on_spark_does_not_take_is_refused_in_one_line(session, tmp_path):
    source, out = write(skewed(300), tmp_path / "log"), tmp_path / "m.tale"
    table = pl.DataFrame({"item_id": range(900), "kind": [f"kind {x % 9}" for x in range(900)]})
    for model, options, message in (
        (tr.Ranker(parts="tempo,ease"), {}, "ease, a part of the ranker, cannot be fitted: Spark"),
        (tr.Ranker(parts="tempo,sasrec"), {}, "sasrec, a part of the ranker, cannot be fitted"),
        (tr.Ranker(parts="content"), {}, "content, a part of the ranker, cannot be fitted"),
        (
            tr.Ranker(),
            {"items": table},
            "does not take the item table into a ranker: fit it with content=off",
        ),
    ):
        with pytest.raises(TalerecError, match=message) as raised:
            fit(model, source, out, session, **options)
        assert "\n" not in str(raised.value)
    columns = {"user_id": ["a", None, " "], "item_id": [1, 2, 3], "timestamp": [5] * 3}
    empty = write(pl.DataFrame(columns), tmp_path / "empty", 1)
    with pytest.raises(InvalidLogError, match="user_id is empty in 2 of 3 rows"):
        fit(tr.Ranker(), empty, out, session)
    crowded = write(skewed(4_000).with_columns(user_id=7), tmp_path / "crowded", 1)
    with pytest.raises(TalerecError, match=r"user 7 has about .* rows, and a task holds 100"):
        fit(tr.Ranker(parts="markov"), crowded, out, session, task_rows=100)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["crowded", "empty", "log"]

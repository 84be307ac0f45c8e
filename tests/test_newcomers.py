"""What people who met the project for the first time ran into, and what it says to them now."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import talerec as tr
from command import refusal, talerec, works, write_log
from talerec.evaluation.comparison import compare
from talerec.evaluation.trials import Trial, Tuning
from talerec.reports import report
from talerec.reports.charts.plots import Series, bars, lines
from talerec.reports.charts.row_charts import stacked

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("log") / "my log.csv", users=40, rows=400)


def rows(users: int = 12, items: int = 9) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "user_id": [u for u in range(users) for _ in range(6)],
            "item_id": [f"i{(u + s * s) % items}" for u in range(users) for s in range(6)],
            "timestamp": [1_600_000_000 + 86_400 * s + u for u in range(users) for s in range(6)],
        }
    )


# -- commands --------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["-o", "best.json"], ["--ties", "item", "--set", "reg=7"]])
def test_the_next_line_of_tune_runs(
    options: list[str], log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    renamed = pl.read_csv(log).rename({"user_id": "who is it"})
    renamed.write_csv("my log.csv")
    said = works(
        "tune",
        "my log.csv",
        "--user",
        "who is it",
        "--core",
        2,
        "--model",
        "tale",
        "--trials",
        2,
        *options,
    )
    line = next(line for line in said.splitlines() if line.startswith("Next: talerec "))
    command = shlex.split(line.removeprefix("Next: talerec "))
    works(*command)
    fitted = tr.load("tale.tale")
    if "--set" in options:
        assert fitted.params["reg"] == 7
        assert fitted.fitted.training["ties"] == "item"


def test_every_extra_stands_in_the_readme() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    text = (ROOT / "README.md").read_text("utf-8")
    for name in extras["optional-dependencies"]:
        assert f"`{name}`" in text, name


def test_asking_for_torch_where_it_is_missing_is_an_error(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    said = refusal("fit", log, "-o", tmp_path / "m.tale", "--set", "solver=torch")
    assert said == "solver=torch needs the extra `torch`: pip install 'talerec[torch]'"


def test_compare_names_a_size_and_no_sign() -> None:
    split = tr.leave_one_out(tr.synthetic_log(20_000, items=300))
    one, other = (tr.evaluate(m.fit(split.train), split) for m in (tr.Popular(), tr.Rules()))
    for a, b, word in ((one, other, "better"), (other, one, "worse")):
        said = compare(a, b).verdict
        change = abs(b.metrics["NDCG@10"] / a.metrics["NDCG@10"] - 1)
        assert f"is {word} than {a.model} by {100 * change:.1f} % (" in said


def test_describe_says_where_ties_decide(log: Path, tmp_path: Path) -> None:
    tied = rows().with_columns(timestamp=pl.lit(1_600_000_000))
    tied.write_csv(tmp_path / "tied.csv")
    said = " ".join(works("describe", tmp_path / "tied.csv").split())
    assert "Note: 100% of neighbouring rows have the same time" in said
    assert "--ties random:0..4" in said
    assert "Note:" not in works("describe", log)


@pytest.mark.parametrize("ordered", [True, False])
def test_tempo_says_what_it_makes_of_simultaneous_rows(ordered: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    table = [
        (user, item, 1_600_000_000 + user)
        for user in range(300)
        for item in (range(4) if ordered else rng.permutation(4).tolist())
    ]
    pl.DataFrame(table, schema=["user_id", "item_id", "timestamp"], orient="row").write_csv(
        tmp_path / "log.csv"
    )
    said = talerec("fit", tmp_path / "log.csv", "-o", tmp_path / "m.tale").err
    assert (
        f"same_time auto: {'ordered' if ordered else 'joint'} (the order of simultaneous rows"
        in said
    )


@pytest.mark.parametrize("word", ["NULL", "nan", "None"])
def test_ids_that_look_like_missing_values_are_kept_and_mentioned(
    word: str, tmp_path: Path
) -> None:
    table = rows().with_columns(
        user_id=pl.when(pl.col("user_id") < 3)
        .then(pl.lit(word))
        .otherwise(pl.col("user_id").cast(pl.String))
    )
    table.write_csv(tmp_path / "log.csv")
    said = talerec("describe", tmp_path / "log.csv").err
    assert f"18 rows have the user_id {word!r}, which is taken for an id" in said
    works("fit", tmp_path / "log.csv", "-o", tmp_path / "m.tale", "--model", "popular")
    found = talerec("recommend", tmp_path / "m.tale", "--users", word, "-k", 1, "--json").json
    assert found[0]["user_id"] == word


# -- Python ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [lambda f: f, lambda f: f.lazy(), lambda f: f.to_pandas(), lambda f: f.to_arrow()]
)
def test_a_frame_does_where_a_log_is_meant(kind: Any) -> None:
    frame = rows()
    log = tr.Log.from_frame(frame)
    model = tr.TALE(reg=2.0).fit(kind(frame))
    assert np.array_equal(model.weights, tr.TALE(reg=2.0).fit(log).weights)
    assert tr.describe(kind(frame)) == tr.describe(log)
    assert (
        tr.evaluate_log(tr.Popular(), kind(frame)).metrics
        == tr.evaluate_log(tr.Popular(), log).metrics
    )
    assert tr.k_core(kind(frame), 2).rows == tr.k_core(log, 2).rows
    assert len(tr.leave_one_out(kind(frame)).test) == 12
    assert tr.time_split(kind(frame), datetime(2020, 9, 16)).train.rows > 0


def test_what_is_no_frame_is_refused_in_words() -> None:
    for what in ([1, 2], {"user_id": [1]}, "log.csv", None):
        with pytest.raises(
            tr.TalerecError, match="a log comes from a Polars, pandas or Arrow frame"
        ):
            tr.TALE().fit(what)
    with pytest.raises(tr.TalerecError, match="there is no column 'user_id'"):
        tr.TALE().fit(pd.DataFrame({"who": [1]}))


def test_evaluate_says_that_it_takes_a_split() -> None:
    log = tr.Log.from_frame(rows())
    for what in (log, rows(), None):
        with pytest.raises(
            tr.TalerecError,
            match=r"evaluate takes a split, such as leave_one_out\(log\); evaluate_log",
        ):
            tr.evaluate(tr.Popular().fit(log), what)


def test_a_date_is_a_moment() -> None:
    model = tr.Tempo().fit(rows())
    users = [1, 2]
    assert model.recommend(users, 3, as_of=date(2020, 9, 16)).equals(
        model.recommend(users, 3, as_of="2020-09-16")
    )
    model.recommend_histories([["i1"]], 3, as_of=date(2020, 9, 16))
    model.explain(["i1"], "i2", as_of=date(2020, 9, 16))


def test_ease_says_what_is_not_in_the_textbook_and_can_do_without_it() -> None:
    said = " ".join(works("models", "ease").split())
    assert "not in the textbook" in " ".join(tr.EASE.__doc__.split())
    assert "textbook" in said
    log = tr.Log.from_frame(rows())
    model = tr.EASE(reg=2.0, recency=float("inf")).fit(log)
    X = np.zeros((len(log.users), len(log.items)))
    X[log.user_codes(), log.item] = 1
    P = np.linalg.inv(X.T @ X + 2 * np.eye(X.shape[1]))
    B = np.eye(X.shape[1]) - P / np.diag(P)
    for user in range(3):
        found = model.recommend([user], len(log.items))
        position = log.items.positions(found["item_id"], "item", "error")
        np.testing.assert_allclose(found["score"], (X[user] @ B)[position], atol=1e-5)


# -- pages -----------------------------------------------------------------------------------------


def test_names_that_fit_are_not_cut() -> None:
    for name in ("tempo", "a", "association", "random:12", "item order"):
        chart = str(stacked({name: {"fit": 1.0}}, title="Seconds", x_label="seconds"))
        assert f">{name}<" in chart
    days = [f"2000-{month:02}-15" for month in range(1, 13)]
    series = [Series("", days, range(12))]
    for chart in (
        lines(series, title="t", x_label="from", y_label="y"),
        bars(days, series, title="t", y_label="y"),
    ):
        assert "…" not in str(chart)
        for day in days:
            assert f">{day}<" in str(chart)


@pytest.mark.parametrize(("trials", "plots"), [(8, False), (30, True)])
def test_sensitivity_is_plotted_where_there_are_trials_enough(trials: int, plots: bool) -> None:
    made = [
        Trial(n, {"reg": 1.0 + n, "decay": 2.0 + n}, n / 100, {"fit": 1.0}) for n in range(trials)
    ]
    model = tr.TALE()
    found = Tuning(
        "tale", model.params, "NDCG@10", 0.3, "leave-one-out", "file", False, ["reg", "decay"], made
    )
    page = report.tuning(found, "log.csv")
    assert ("8 trials are too few to show how much each parameter matters" in page) is not plots
    assert len(re.findall("<svg", page)) == (4 if plots else 2)


# -- the demo --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("started", "on_path", "typed"),
    [
        ("bin/talerec", False, "bin/talerec"),  # `make demo`: nothing was activated
        ("my bin/talerec", False, "'my bin/talerec'"),
        ("bin/talerec", True, "talerec"),
        ("talerec/__main__.py", False, "python -m talerec"),
        ("bin/pytest", False, "talerec"),
    ],
)
def test_the_demo_says_what_to_type_as_it_was_started(
    started: str, on_path: bool, typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from talerec.cli import demo

    program = tmp_path / started
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [started, "demo"])
    monkeypatch.setenv("PATH", str(program.parent) if on_path else str(tmp_path))
    assert demo._called() == typed

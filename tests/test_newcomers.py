"""Problems that first-time users had, and how the project helps them now."""

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
from talerec.evaluation import Tuning
from talerec.evaluation.comparison import compare
from talerec.evaluation.trials import Trial
from talerec.reports import Series, bar_chart, line_chart, report, stacked_bar_chart

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
    text = works(
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
    line = next(line for line in text.splitlines() if line.startswith("Next: talerec "))
    command = shlex.split(line.removeprefix("Next: talerec "))
    works(*command)
    fitted = tr.load("tale.tale")
    if "--set" in options:
        assert fitted.params["reg"] == 7
        assert fitted.fitted.training["ties"] == "item"


def test_the_readme_names_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    text = (ROOT / "README.md").read_text("utf-8")
    for name in extras["optional-dependencies"]:
        assert f"`{name}`" in text, name


def test_the_torch_solver_without_torch_is_an_error(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    text = refusal("fit", log, "-o", tmp_path / "m.tale", "--set", "solver=torch")
    assert text == "solver=torch needs the extra `torch`: pip install 'talerec[torch]'"


def test_compare_names_a_difference_without_sign() -> None:
    split = tr.leave_one_out(tr.synthetic_log(20_000, items=300))
    first, second = (tr.evaluate(m.fit(split.train), split) for m in (tr.Popular(), tr.Rules()))
    for a, b, word in ((first, second, "better"), (second, first, "worse")):
        text = compare(a, b).verdict
        change = abs(b.metrics["NDCG@10"] / a.metrics["NDCG@10"] - 1)
        assert f"is {word} than {a.model} by {100 * change:.1f} % (" in text


def test_describe_warns_of_many_ties(log: Path, tmp_path: Path) -> None:
    tied = rows().with_columns(timestamp=pl.lit(1_600_000_000))
    tied.write_csv(tmp_path / "tied.csv")
    text = " ".join(works("describe", tmp_path / "tied.csv").split())
    assert "Note: 100% of neighbouring rows have the same time" in text
    assert "ties random:0..4 shows how much" in text
    assert "Note:" not in works("describe", log)


@pytest.mark.parametrize("ordered", [True, False])
def test_tempo_reports_how_it_treats_simultaneous_rows(ordered: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    table = [
        (user, item, 1_600_000_000 + user)
        for user in range(300)
        for item in ((2, 0, 3, 1) if ordered else rng.permutation(4).tolist())
    ]
    pl.DataFrame(table, schema=["user_id", "item_id", "timestamp"], orient="row").write_csv(
        tmp_path / "log.csv"
    )
    text = talerec("fit", tmp_path / "log.csv", "-o", tmp_path / "m.tale").err
    state = "ordered" if ordered else "unordered"
    assert f"Rows with equal times are treated as {state}." in text


@pytest.mark.parametrize("word", ["NULL", "nan", "None"])
def test_ids_that_look_like_missing_values_are_used_and_noted(word: str, tmp_path: Path) -> None:
    table = rows().with_columns(
        user_id=pl.when(pl.col("user_id") < 3)
        .then(pl.lit(word))
        .otherwise(pl.col("user_id").cast(pl.String))
    )
    table.write_csv(tmp_path / "log.csv")
    text = talerec("describe", tmp_path / "log.csv").err
    assert f"18 rows have user_id {word!r}, treated as an id" in text
    works("fit", tmp_path / "log.csv", "-o", tmp_path / "m.tale", "--model", "popular")
    result = talerec("recommend", tmp_path / "m.tale", "--users", word, "-k", 1, "--json").json
    assert result[0]["user_id"] == word


# -- Python ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [lambda f: f, lambda f: f.lazy(), lambda f: f.to_pandas(), lambda f: f.to_arrow()]
)
def test_a_frame_is_accepted_as_a_log(kind: Any) -> None:
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


def test_values_that_are_not_frames_are_refused() -> None:
    for what in ([1, 2], {"user_id": [1]}, "log.csv", None):
        with pytest.raises(
            tr.TalerecError, match="a log comes from a Polars, pandas or Arrow frame"
        ):
            tr.TALE().fit(what)
    with pytest.raises(tr.TalerecError, match="there is no column 'user_id'"):
        tr.TALE().fit(pd.DataFrame({"who": [1]}))


def test_evaluate_refuses_a_log_and_names_evaluate_log() -> None:
    log = tr.Log.from_frame(rows())
    for what in (log, rows(), None):
        with pytest.raises(
            tr.TalerecError,
            match=r"evaluate takes a split, such as leave_one_out\(log\); evaluate_log",
        ):
            tr.evaluate(tr.Popular().fit(log), what)


def test_a_date_is_a_request_time() -> None:
    model = tr.Tempo().fit(rows())
    users = [1, 2]
    assert model.recommend(users, 3, as_of=date(2020, 9, 16)).equals(
        model.recommend(users, 3, as_of="2020-09-16")
    )
    model.recommend_histories([["i1"]], 3, as_of=date(2020, 9, 16))
    model.explain(["i1"], "i2", as_of=date(2020, 9, 16))


def test_ease_documents_its_difference_from_the_paper_and_can_switch_it_off() -> None:
    text = " ".join(works("models", "ease").split())
    assert "``recency=inf`` is as published" in " ".join(tr.EASE.__doc__.split())
    assert "as published: inf" in text
    log = tr.Log.from_frame(rows())
    model = tr.EASE(reg=2.0, recency=float("inf")).fit(log)
    X = np.zeros((len(log.users), len(log.items)))
    X[log.user_codes(), log.item] = 1
    P = np.linalg.inv(X.T @ X + 2 * np.eye(X.shape[1]))
    B = np.eye(X.shape[1]) - P / np.diag(P)
    for user in range(3):
        result = model.recommend([user], len(log.items))
        position = log.items.positions(result["item_id"], "item", "error")
        np.testing.assert_allclose(result["score"], (X[user] @ B)[position], atol=1e-5)


# -- pages -----------------------------------------------------------------------------------------


def test_names_that_fit_are_not_cut() -> None:
    for name in ("tempo", "a", "association", "random:12", "item order"):
        chart = str(stacked_bar_chart({name: {"fit": 1.0}}, title="Seconds", x_label="seconds"))
        assert f">{name}<" in chart
    days = [f"2000-{month:02}-15" for month in range(1, 13)]
    series = [Series("", days, range(12))]
    for chart in (
        line_chart(series, title="t", x_label="from", y_label="y"),
        bar_chart(days, series, title="t", y_label="y"),
    ):
        assert "…" not in str(chart)
        for day in days:
            assert f">{day}<" in str(chart)


@pytest.mark.parametrize(("trials", "plots"), [(8, False), (30, True)])
def test_sensitivity_is_plotted_if_there_are_enough_trials(trials: int, plots: bool) -> None:
    trial_list = [
        Trial(n, {"reg": 1.0 + n, "decay": 2.0 + n}, n / 100, {"fit": 1.0}) for n in range(trials)
    ]
    model = tr.TALE()
    study = Tuning(
        "tale",
        model.params,
        "NDCG@10",
        0.3,
        "leave-one-out",
        "file",
        False,
        ["reg", "decay"],
        trial_list,
    )
    page = report.render_tuning(study, "log.csv")
    assert ("8 trials are too few to show the effect of each parameter" in page) is not plots
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
def test_the_demo_prints_commands_as_it_was_started(
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
    assert demo._find_program_name() == typed

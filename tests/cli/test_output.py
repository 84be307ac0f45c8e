"""Output: JSON, tables, progress bars, pipes, and the libraries that are imported for it."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import talerec as tr
from command import PYTHONPATH, RUN, run_on_terminal, talerec, works, write_log
from talerec.cli import progress, terminal
from talerec.models.core import RecommenderModel


def test_json_has_neither_nan_nor_infinity(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_json(
        {"a": math.nan, "b": [math.inf, -math.inf, (1.5, "é")], "c": np.float64("nan")}
    )
    assert json.loads(capsys.readouterr().out) == {
        "a": None,
        "b": ["inf", "-inf", [1.5, "é"]],
        "c": None,
    }


def test_json_is_ascii_if_the_terminal_is_not_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), "latin-1", write_through=True)
    monkeypatch.setattr(sys, "stdout", out)
    terminal.print_json(["日本"])
    assert out.buffer.getvalue() == b'[\n  "\\u65e5\\u672c"\n]\n'


@pytest.mark.parametrize(
    ("days", "text"),
    [(None, "-"), (0.0, "0 seconds"), (2.5, "2.5 days"), (0.5, "12.0 hours"),
     (1 / 1440, "1.0 minutes"), (1 / 86_400, "1 seconds"), (4000, "4,000.0 days")],
)  # fmt: skip
def test_durations_have_readable_units(days: float | None, text: str) -> None:
    assert progress.format_duration(days) == text


@pytest.mark.parametrize(
    ("values", "shown"),
    [([], 4), ([0.0], 4), ([123.0, 0.001], 4), ([0.05], 4), ([-0.0012, 0.0001], 5), ([1e-30], 12)],
)
def test_small_numbers_are_shown_with_three_digits(values: list[float], shown: int) -> None:
    assert terminal.count_decimals(values) == shown


def test_columns_with_the_same_second_line_stay_in_one_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["a\nx", "b\nx", "c\ny", "d\ny"]
    monkeypatch.setattr(terminal.console(), "_width", 50)
    terminal.print_columns("Kinds", ["n"], {name: ["1234567890"] for name in names})
    text = capsys.readouterr().out
    lines = [line.split() for line in text.splitlines()]
    assert [line for line in lines if {"a", "c"} & set(line)] == [["a", "b"], ["c", "d"]]
    assert text.count("Kinds\n") == text.count("Kinds, continued\n") == 1


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": PYTHONPATH, "TERM": "xterm", "COLUMNS": "80"}


def test_bars_are_drawn_on_a_terminal_and_only_on_standard_error(model: Path) -> None:
    command = [*RUN, "recommend", str(model), "--users", "all", "--json"]
    out, drawn = run_on_terminal(command, environment())
    assert "rank" in drawn
    assert len(json.loads(out)) == 20


def test_a_closed_pipe_ends_the_command_quietly(model: Path) -> None:
    command = [*RUN, "recommend", str(model), "--users", "all", "--json"]
    with subprocess.Popen(command, env=environment(), stdout=-1, stderr=-1) as running:
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 1


def test_help_loads_no_heavy_library() -> None:
    script = (
        "import sys; from talerec.cli.main import app\n"
        "app(['fit', '--help'], standalone_mode=False)\n"
        "print(sorted({'numpy', 'numba', 'scipy', 'polars'} & sys.modules.keys()))"
    )
    run = subprocess.run([sys.executable, "-c", script], env=environment(), capture_output=True)
    assert run.stdout.decode().splitlines()[-1] == "[]"


def test_every_model_can_be_fitted_and_queried_from_the_command_line(
    log: Path, tmp_path: Path
) -> None:
    ids = tr.read_log(log).items.ids
    words = ["tea pot", "green tea", "coffee", "coffee pot", "cup"]
    texts = pl.Series("text", [words[n % 5] for n in range(len(ids))])
    items = tmp_path / "items.csv"
    pl.DataFrame([ids.alias("item_id"), texts]).write_csv(items)
    for name, kind in tr.MODELS.items():
        folder = tmp_path / f"{name}.tale"
        if kind.extra and os.environ.get("EXTRAS") != "all":
            continue
        options = {
            "torch": ["--set", "epochs=2", "--set", "dim=8"], "content": ["--items", items],
            "rank": ["--set", "parts=markov,ease"],
        }  # fmt: skip
        works("fit", log, "-o", folder, "--model", name, *options.get(kind.extra, []))
        (result,) = talerec("recommend", folder, "--users", "1", "-k", 2, "--json").json
        loaded = tr.load(folder)
        assert isinstance(loaded, kind)
        assert isinstance(loaded, RecommenderModel)
        assert [item["item_id"] for item in result["items"]] == loaded.recommend([1], 2)[
            "item_id"
        ].to_list()
        assert len(result["items"]) == 2, name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "dask"], "error: --engine is 'dask'; it takes local or spark\n"),
        (["--master", "spark://h:1"], "error: --master needs --engine spark\n"),
        (["--spark-conf", "a=b"], "error: --spark-conf needs --engine spark\n"),
        (["--work", "w"], "error: --work needs --engine spark\n"),
        (
            ["--histories"],
            "error: --histories needs --engine spark; the local engine always saves them\n",
        ),
    ],
)
def test_options_of_spark_need_spark(tmp_path: Path, options: list[str], message: str) -> None:
    outcome = talerec("fit", tmp_path / "log.csv", "-o", tmp_path / "m.tale", *options)
    assert (outcome.code, outcome.err) == (2, message)


def test_spark_without_pyspark_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("talerec.spark")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(tr, "spark", raising=False)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    outcome = talerec("fit", tmp_path / "log", "-o", tmp_path / "m.tale", "--engine", "spark")
    assert outcome.code == 2
    assert "(pyspark is missing)" in outcome.err
    assert "pip install 'talerec[spark]'" in outcome.err


@pytest.mark.parametrize("options", [[], ["--refit"]])
def test_an_evaluation_says_if_validation_rows_were_trained_on(tmp_path: Path, options) -> None:
    log = write_log(tmp_path / "log.csv")
    shown = works("evaluate", log, "--model", "popular", *options)
    assert ("fitted on training and validation rows" in shown) == bool(options)

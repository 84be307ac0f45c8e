"""What goes where: JSON, bars, pipes, and what is loaded for it."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import talerec as tr
from command import PYTHONPATH, RUN, run_on_terminal, talerec, works
from talerec.cli import tables, terminal
from talerec.models.core.base import Model


def test_json_has_neither_nan_nor_infinity(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.as_json(
        {"a": math.nan, "b": [math.inf, -math.inf, (1.5, "é")], "c": np.float64("nan")}
    )
    assert json.loads(capsys.readouterr().out) == {
        "a": None,
        "b": ["inf", "-inf", [1.5, "é"]],
        "c": None,
    }


def test_json_is_ascii_where_the_terminal_knows_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), "latin-1", write_through=True)
    monkeypatch.setattr(sys, "stdout", out)
    terminal.as_json(["日本"])
    assert out.buffer.getvalue() == b'[\n  "\\u65e5\\u672c"\n]\n'


@pytest.mark.parametrize(
    ("days", "text"),
    [(None, "-"), (0.0, "0 seconds"), (2.5, "2.5 days"), (0.5, "12.0 hours"),
     (1 / 1440, "1.0 minutes"), (1 / 86_400, "1 seconds"), (4000, "4,000.0 days")],
)  # fmt: skip
def test_durations_are_for_people(days: float | None, text: str) -> None:
    assert tables.duration(days) == text


@pytest.mark.parametrize(
    ("values", "shown"),
    [([], 4), ([0.0], 4), ([123.0, 0.001], 4), ([0.05], 4), ([-0.0012, 0.0001], 5), ([1e-30], 12)],
)
def test_small_numbers_are_shown_with_three_digits(values: list[float], shown: int) -> None:
    assert tables.decimals(values) == shown


def test_columns_of_one_kind_stand_in_one_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["a\nx", "b\nx", "c\ny", "d\ny"]
    monkeypatch.setattr(tables.out, "_width", 50)
    tables.table_of_columns("Kinds", ["n"], {name: ["1234567890"] for name in names})
    said = capsys.readouterr().out
    assert [line.split() for line in said.splitlines() if "a" in line.split() or "c" in line.split()] == [["a", "b"], ["c", "d"]]  # fmt: skip
    assert said.count("Kinds\n") == said.count("Kinds, continued\n") == 1


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": PYTHONPATH, "TERM": "xterm", "COLUMNS": "80"}


def test_bars_are_drawn_on_a_terminal_and_only_on_standard_error(model: Path) -> None:
    command = [*RUN, "recommend", str(model), "--users", "all", "--json"]
    out, drawn = run_on_terminal(command, environment())
    assert "rank" in drawn
    assert len(json.loads(out)) == 20


def test_a_reader_that_has_seen_enough_ends_the_command_quietly(model: Path) -> None:
    command = [*RUN, "recommend", str(model), "--users", "all", "--json"]
    with subprocess.Popen(command, env=environment(), stdout=-1, stderr=-1) as running:
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 1


def test_asking_for_help_loads_no_heavy_library() -> None:
    script = (
        "import sys; from talerec.cli.main import app\n"
        "app(['fit', '--help'], standalone_mode=False)\n"
        "print(sorted({'numpy', 'numba', 'scipy', 'polars'} & sys.modules.keys()))"
    )
    run = subprocess.run([sys.executable, "-c", script], env=environment(), capture_output=True)
    assert run.stdout.decode().splitlines()[-1] == "[]"


def test_every_model_can_be_fitted_and_asked_from_the_command_line(
    log: Path, tmp_path: Path
) -> None:
    for name, kind in tr.MODELS.items():
        folder = tmp_path / f"{name}.tale"
        if kind.extra == "torch" and os.environ.get("EXTRAS") != "all":
            continue
        quick = [part for one in ("epochs=2", "dim=8") for part in ("--set", one)]
        works("fit", log, "-o", folder, "--model", name, *(quick if kind.extra else []))
        (found,) = talerec("recommend", folder, "--users", "1", "-k", 2, "--json").json
        loaded = tr.load(folder)
        assert isinstance(loaded, kind)
        assert isinstance(loaded, Model)
        assert [item["item_id"] for item in found["items"]] == loaded.recommend([1], 2)[
            "item_id"
        ].to_list()
        assert len(found["items"]) == 2, name


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--engine", "dask"], "error: --engine is 'dask'; it takes local or spark\n"),
        (["--master", "spark://h:1"], "error: --master goes with --engine spark\n"),
        (["--spark-conf", "a=b"], "error: --spark-conf goes with --engine spark\n"),
        (["--work", "w"], "error: --work goes with --engine spark\n"),
        (
            ["--histories"],
            "error: --histories goes with --engine spark: the local engine keeps them anyway\n",
        ),
    ],
)
def test_options_of_spark_go_with_spark(tmp_path: Path, options: list[str], said: str) -> None:
    found = talerec("fit", tmp_path / "log.csv", "-o", tmp_path / "m.tale", *options)
    assert (found.code, found.err) == (2, said)


def test_spark_without_pyspark_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("talerec.spark")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(tr, "spark", raising=False)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    found = talerec("fit", tmp_path / "log", "-o", tmp_path / "m.tale", "--engine", "spark")
    assert found.code == 2
    assert "needs pyspark" in found.err
    assert "pip install 'talerec[spark]'" in found.err

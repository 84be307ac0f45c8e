"""Help pages, and the output of commands about logs and models."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import polars as pl
import pytest

import talerec as tr
from command import refusal, talerec, works
from talerec.cli import main, terminal
from talerec.runtime import jit

COMMANDS = [entry.name or entry.callback.__name__ for entry in main.app.registered_commands]


# -- help ------------------------------------------------------------------------------------------


def test_there_is_every_command() -> None:
    expected = "demo describe models fit evaluate compare tune reproduce"
    expected += " recommend similar explain serve verify synth"
    assert set(COMMANDS) >= set(expected.split())
    assert len(COMMANDS) == len(set(COMMANDS))


def test_help_names_every_command_and_shows_examples() -> None:
    page = works("--help")
    assert all(re.search(rf"\b{command}\b", page) for command in COMMANDS)
    assert "Usage: talerec" in page
    assert "talerec fit events.csv -o shop.tale" in page


def test_without_arguments_there_is_the_same_help() -> None:
    assert works().strip() == works("--help").strip()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help_page_with_examples(command: str) -> None:
    page = works(command, "--help")
    assert f"Usage: talerec {command}" in page
    assert f" talerec {command}" in page.partition("Examples:")[2]
    assert len(page.splitlines()) > 6


@pytest.mark.parametrize("command", ["describe", "fit", "evaluate"])
def test_commands_that_read_a_log_have_options_for_its_columns(command: str) -> None:
    page = works(command, "--help")
    assert all(flag in page for flag in ("--user ", "--item ", "--time ", "--time-unit", "--core"))


@pytest.mark.parametrize(
    "command", [(), ("explain",), ("serve",), ("events",), ("events", "export")]
)
def test_options_without_a_value_show_none(command: tuple[str, ...]) -> None:
    page = works(*command, "--help")
    assert "--help" in page
    assert "bool" not in page.lower()


def test_version() -> None:
    assert works("--version") == f"talerec {tr.__version__}\n"


def test_models_has_one_line_for_every_model() -> None:
    lines = works("models").splitlines()
    assert len(lines) < len(tr.MODELS) + 8
    for name, kind in tr.MODELS.items():
        (line,) = [line for line in lines if line.split()[:1] == [name]]
        words = line.split(name, 1)[1].split()
        assert words == [*kind.summary.split(), *([kind.extra] if kind.extra else [])]


def test_one_model_is_shown_with_its_parameters_and_what_it_needs() -> None:
    page = works("models", "tale")
    assert all(name in page for name in tr.TALE().params)
    assert tr.TALE.paper in page
    assert "pip install 'talerec[torch]'" in works("models", "sasrec")
    for name in ("tempo", "popular", "blend"):
        assert "Paper:" not in works("models", name)


def test_models_as_json_have_everything() -> None:
    kinds = {kind["model"]: kind for kind in talerec("models", "--json").json}
    assert set(kinds) == set(tr.MODELS)
    defaults = {row["name"]: row["default"] for row in kinds["tale"]["parameters"]}
    assert defaults == tr.TALE().params
    assert {name: kind["extra"] for name, kind in kinds.items()} == {
        name: kind.extra for name, kind in tr.MODELS.items()
    }


# -- describe, fit, evaluate -----------------------------------------------------------------------


def test_describe_counts(log: Path) -> None:
    page = works("describe", log)
    assert re.search(r"users +20\b", page)
    assert re.search(r"rows +200\b", page)
    facts = talerec("describe", log, "--json").json
    assert (facts["users"], facts["items"], facts["rows"]) == (20, 12, 200)


def test_describe_names_the_flag_that_drops_duplicates(log: Path, tmp_path: Path) -> None:
    assert "--drop-duplicates" not in works("describe", log)
    lines = log.read_text().splitlines()
    path = tmp_path / "twice.csv"
    path.write_text("\n".join([*lines, *lines[1:6], lines[1]]))
    note = "6 rows repeat the user, item and time of another row; --drop-duplicates keeps one"
    assert note in works("describe", path)
    assert "--drop-duplicates keeps" not in works("describe", path, "--drop-duplicates")


def test_describe_takes_other_columns_and_a_core(log: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.tsv"
    frame = pl.read_csv(log).rename({"user_id": "u", "item_id": "i", "timestamp": "t"})
    frame.write_csv(other, separator="\t")
    named = ("--user", "u", "--item", "i", "--time", "t", "--core", 2, "--drop-duplicates")
    assert talerec("describe", other, *named, "--json").json["rows"] == 200


def test_fit_prints_the_size_of_the_saved_model(log: Path, tmp_path: Path) -> None:
    page = works("fit", log, "-o", tmp_path / "m.tale")
    first = page.splitlines()[0]
    assert "m.tale: tempo from 200 rows of 20 users and 12 items" in first
    assert re.search(r"version [0-9a-f]{16}$", first)


def test_fit_prints_how_many_items_the_table_describes(log: Path, tmp_path: Path) -> None:
    table = tmp_path / "items.csv"
    for n_described, words in ((12, "describes every item of the log: 12 of 12"), (5, "5 of 12")):
        pl.DataFrame({"item_id": [f"i{n}" for n in range(n_described)]}).write_csv(table)
        fit = talerec("fit", log, "-o", tmp_path / "m.tale", "--model", "popular", "--items", table)
        assert f"{words} ids match" in fit.err


def test_timings_include_the_seconds_of_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds, text in (
        (0.0, "gram 2.00 s"),
        (1.5, "gram 2.00 s (including 1.5 s of one-time compilation"),
    ):
        monkeypatch.setattr(jit._listener, "total", jit.CompilationStats(3, seconds))
        assert terminal.format_timings({"gram": 2.0}).startswith(text)
        assert ("talerec warm" in terminal.format_timings({"gram": 2.0})) == (seconds > 0)


def test_fit_in_json_is_the_manifest(log: Path, tmp_path: Path) -> None:
    settings = (
        "--model",
        "tale",
        "--set",
        "decay=1/512",
        "--set",
        "window=inf",
        "--set",
        "trend_side=past",
    )
    manifest = talerec("fit", log, "-o", tmp_path / "m.tale", *settings, "--json").json
    assert manifest["path"] == str(tmp_path / "m.tale")
    assert manifest["params"]["decay"] == 1 / 512
    assert manifest["params"]["window"] == "inf"
    loaded = tr.load(tmp_path / "m.tale")
    assert (loaded.params["window"], loaded.params["trend_side"]) == (math.inf, "past")


def test_fit_another_model_without_histories(log: Path, tmp_path: Path) -> None:
    folder = tmp_path / "m.tale"
    works("fit", log, "-o", folder, "--model", "popular", "--no-histories", "--ties", "item")
    assert tr.load(folder).name == "popular"
    message = refusal("recommend", folder, "--users", "1")
    assert message == f"{folder} was saved without histories; use --history, not --users"
    page = works("recommend", folder, "--history", "i1", "-k", 3)
    shown = re.findall(r"^ +(\d) +(i\d+) +(\d+\.\d{4}) *$", page, re.MULTILINE)
    rows = tr.load(folder).recommend_histories([["i1"]], 3).select("rank", "item_id", "score")
    assert shown == [(str(rank), item, f"{score:.4f}") for rank, item, score in rows.rows()]
    assert len(shown) == 3


METRICS = [f"{name}@{k}" for name in ("HR", "NDCG", "MRR") for k in (1, 5, 10)]


def test_evaluate_in_json_has_every_field(log: Path) -> None:
    result = talerec("evaluate", log, "--model", "tale", "--set", "decay=1/512", "--json").json
    assert result.keys() >= {"model", "params", "solver", "split", "ties", "hide_seen", "cases",
                             "metrics", "groups", "seconds", "peak_rss_mb"}  # fmt: skip
    assert (result["model"], result["split"], result["ties"]) == ("tale", "leave-one-out", "file")
    assert result["hide_seen"] is False
    assert result["cases"] == 20
    assert result["params"]["decay"] == 1 / 512
    assert result["solver"] != "auto"
    assert list(result["metrics"]) == METRICS
    assert result["groups"].keys() == {"popularity", "gap", "length", "kind", "item_rows"}
    assert list(result["metrics_hidden"]) == list(result["intervals"]) == METRICS
    assert all(
        low <= result["metrics"][name] <= high for name, (low, high) in result["intervals"].items()
    )
    assert [order["ties"] for order in result["orders"]] == ["file"]
    assert set(result["spread"]) == set(METRICS)
    assert result["groups"]["popularity"].keys() == {"head", "tail"}
    assert result["groups"]["gap"].keys() == {"short", "mid", "long"}
    assert result["seconds"].keys() >= {"load", "gram", "solve", "score"}
    assert result["peak_rss_mb"] is None or result["peak_rss_mb"] > 10


def test_evaluate_counts_every_case_in_one_group_of_each_kind(log: Path) -> None:
    result = talerec("evaluate", log, "--json").json
    for parts in result["groups"].values():
        assert sum(part["cases"] for part in parts.values()) == result["cases"]


def test_evaluate_at_a_point_in_time(log: Path) -> None:
    result = talerec("evaluate", log, "--split", "at:2019-10-01", "--json").json
    assert result["split"] == "at:2019-10-01"
    frame = pl.read_csv(log, try_parse_dates=True)
    before = pl.col("timestamp") < pl.datetime(2019, 10, 1)
    both = frame.group_by("user_id").agg(before.any(), after=(~before).any())
    assert result["cases"] == both.filter(pl.col("timestamp") & pl.col("after")).height


def test_evaluate_on_validation_hiding_seen_with_other_cutoffs(log: Path) -> None:
    options = ("--on", "validation", "--hide-seen", "--k", "2,3", "--ties", "random:7", "--json")
    result = talerec("evaluate", log, *options).json
    assert (result["on"], result["hide_seen"], result["ties"]) == ("validation", True, "random:7")
    assert set(result["metrics"]) == {f"{m}@{k}" for m in ("HR", "NDCG", "MRR") for k in (2, 3)}


def test_evaluate_prints_a_table_that_fits(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for width in (80, 50, 30):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(terminal.console(), "_width", width)  # set when it was created
        page = works("evaluate", log)
        assert all(metric in page for metric in METRICS if metric not in ("NDCG@1", "MRR@1"))
        assert "…" not in page
        assert max(len(line) for line in page.splitlines()[1:]) <= width


def test_groups_without_cases_are_null_in_json_and_a_dash_in_print(tmp_path: Path) -> None:
    path = tmp_path / "even.csv"
    days = [f"2020-01-{day:02}" for day in range(1, 7)]
    rows = [(user, f"i{n}", day) for user in range(4) for n, day in enumerate(days)]
    pl.DataFrame(rows, ["user_id", "item_id", "timestamp"], orient="row").write_csv(path)
    groups = talerec("evaluate", path, "--json").json["groups"]
    assert groups["gap"]["long"]["cases"] == 0
    assert groups["gap"]["long"]["HR@1"] is None
    assert re.search(r"HR@1 .* - ", works("evaluate", path))


def test_several_orders_of_ties_have_a_mean_and_a_spread(log: Path) -> None:
    result = talerec("evaluate", log, "--ties", "random:0..2", "--json").json
    assert [order["ties"] for order in result["orders"]] == ["random:0", "random:1", "random:2"]
    assert result["cases"] == 60
    assert result["spread"]["HR@10"] is not None
    assert "spread over" in works("evaluate", log, "--ties", "random:0..2")


def test_rolling_windows(log: Path) -> None:
    result = talerec("evaluate", log, "--split", "rolling:2019-06-01,90", "--json").json
    assert [w["window"][:10] for w in result["windows"]] == [
        "2019-06-01",
        "2019-08-30",
        "2019-11-28",
    ]
    assert sum(w["cases"] for w in result["windows"]) == result["cases"]
    assert "By window" in works("evaluate", log, "--split", "rolling:2019-06-01,90")


def test_results_are_saved_compared_and_shown(log: Path, tmp_path: Path) -> None:
    for name in ("tale", "popular"):
        page, result = tmp_path / f"{name}.html", tmp_path / f"{name}.parquet"
        works("evaluate", log, "--model", name, "--out", result, "--report", page)
        assert page.read_text().startswith("<!DOCTYPE html>")
        assert "HR@10" in page.read_text()
    a, b, page = tmp_path / "popular.parquet", tmp_path / "tale.parquet", tmp_path / "c.html"
    comparison = talerec("compare", a, b, "--json").json
    assert comparison["users"] == 20
    assert comparison["metrics"]["NDCG@10"].keys() >= {
        "a",
        "b",
        "difference",
        "interval",
        "p",
        "effect",
    }
    assert comparison["verdict"] in works("compare", a, b, "--report", page)
    assert page.read_text().count("<svg") >= 5
    assert "not a saved result" in refusal("compare", a, log)


def test_fit_takes_the_parameters_that_tune_found(log: Path, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    best, page = tmp_path / "best.json", tmp_path / "t.html"
    search = ("--model", "tale", "--trials", 20, "--study", tmp_path / "s.db")
    assert "the best of 20 settings" in works("tune", log, *search, "-o", best, "--report", page)
    assert page.read_text().count("<svg") >= 7
    tuned = talerec("tune", log, *search, "--json").json
    assert tuned["params"] == json.loads(best.read_text())["params"]
    fitted = talerec("fit", log, "-o", tmp_path / "m.tale", "--params", best, "--json").json
    assert fitted["params"] == tuned["params"]
    changed = ("fit", log, "-o", tmp_path / "n.tale", "--params", best, "--set", "reg=7", "--json")
    assert talerec(*changed).json["params"] == {**tuned["params"], "reg": 7.0}
    assert "parameters of tale, not of slit" in refusal(
        "fit", log, "-o", tmp_path / "x.tale", "--model", "slit", "--params", best
    )
    assert "is not a result of tuning" in refusal(
        "fit", log, "-o", tmp_path / "x.tale", "--params", log
    )


def test_reproduce_names_the_missing_files(tmp_path: Path) -> None:
    assert "has no file of ml-1m, beauty" in refusal("reproduce", "--data", tmp_path)
    assert "is not a folder" in refusal("reproduce", "--data", tmp_path / "none")

"""The command as people meet it: what it prints, what it refuses, and in what words."""

from __future__ import annotations

import io
import json
import math
import os
import pty
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import talerec as tr
from talerec import cli, show
from talerec.models.base import Model

COMMANDS = ["demo", "describe", "models", "fit", "evaluate", "compare", "tune", "reproduce", "recommend", "similar", "explain",
            "verify", "synth"]  # fmt: skip
SOURCE = str(Path(cli.__file__).parents[1])
PYTHONPATH = os.pathsep.join(filter(None, [SOURCE, os.environ.get("PYTHONPATH")]))
RUN = [sys.executable, "-c", "from talerec.cli import main; main()"]


@dataclass
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is no JSON")

        assert (self.code, self.err) == (0, "")
        return json.loads(self.out, parse_constant=refuse)


def talerec(*args: object) -> Outcome:
    """Run the command in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    code: Any = 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["talerec", *map(str, args)])
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
    return Outcome(code, out.buffer.getvalue().decode(), err.buffer.getvalue().decode())


def works(*args: object) -> str:
    """What the command prints; notes such as the choice of a solver go elsewhere."""
    outcome = talerec(*args)
    assert outcome.code == 0, outcome
    assert "error" not in outcome.err
    return outcome.out


def refusal(*args: object) -> str:
    """What the command says when it refuses: one line, and nothing else anywhere."""
    outcome = talerec(*args)
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert re.fullmatch(r"error: [^\n]+\n", outcome.err), outcome.err
    return outcome.err.removeprefix("error: ").removesuffix("\n")


def write_log(path: Path, users: int = 20, items: int = 12, rows: int = 200) -> Path:
    """Dates, so that no unit is guessed; every user and item has rows."""
    rng = np.random.default_rng(5)
    start = np.datetime64("2019-01-01", "us")
    pl.DataFrame(
        {
            "user_id": np.arange(rows) % users + 1,
            "item_id": [f"i{x}" for x in (np.arange(rows) + rng.integers(0, 3, rows)) % items],
            "timestamp": start + rng.integers(0, 360 * 86_400, rows).astype("timedelta64[s]"),
        }
    ).write_csv(path)
    return path


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("log") / "log.csv")


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("items") / "items.csv"
    titles = ["Tent [red]", "Stove :fire:", "Café", "New\nline", "[/bold]"]
    ids = [f"i{n}" for n in range(5)]
    pl.DataFrame({"item_id": ids, "title": titles}).write_csv(path)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, log: Path, items: Path) -> Path:
    folder = tmp_path_factory.mktemp("model") / "shop.tale"
    works("fit", log, "-o", folder, "--items", items, "--set", "reg=2")
    return folder


# -- help ------------------------------------------------------------------------------------------


def test_help_names_every_command_and_shows_what_to_type() -> None:
    page = works("--help")
    assert all(re.search(rf"\b{command}\b", page) for command in COMMANDS)
    assert "Usage: talerec" in page
    assert "talerec fit events.csv -o shop.tale" in page


def test_without_arguments_there_is_the_same_help() -> None:
    assert works().strip() == works("--help").strip()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    page = works(command, "--help")
    assert f"Usage: talerec {command}" in page
    assert len(page.splitlines()) > 6


@pytest.mark.parametrize("command", ["describe", "fit", "evaluate"])
def test_commands_that_read_a_log_say_how_to_name_its_columns(command: str) -> None:
    page = works(command, "--help")
    assert all(flag in page for flag in ("--user ", "--item ", "--time ", "--time-unit", "--core"))


def test_version() -> None:
    assert works("--version") == f"talerec {tr.__version__}\n"


def test_models_lists_every_model_with_its_parameters() -> None:
    page = works("models")
    assert all(name in page for name in tr.MODELS)
    assert all(name in page for name in tr.TALE().params)
    kinds = {kind["model"]: kind for kind in talerec("models", "--json").json}
    assert set(kinds) == set(tr.MODELS)
    defaults = {row["name"]: row["default"] for row in kinds["tale"]["parameters"]}
    assert defaults == tr.TALE().params


# -- describe, fit, evaluate -----------------------------------------------------------------------


def test_describe_counts(log: Path) -> None:
    page = works("describe", log)
    assert re.search(r"users +20\b", page)
    assert re.search(r"rows +200\b", page)
    facts = talerec("describe", log, "--json").json
    assert (facts["users"], facts["items"], facts["rows"]) == (20, 12, 200)


def test_describe_takes_other_columns_and_a_core(log: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.tsv"
    frame = pl.read_csv(log).rename({"user_id": "u", "item_id": "i", "timestamp": "t"})
    frame.write_csv(other, separator="\t")
    named = ("--user", "u", "--item", "i", "--time", "t", "--core", 2, "--drop-duplicates")
    assert talerec("describe", other, *named, "--json").json["rows"] == 200


def test_fit_says_what_it_saved(log: Path, tmp_path: Path) -> None:
    page = works("fit", log, "-o", tmp_path / "m.tale")
    first = page.splitlines()[0]
    assert "m.tale: tale from 200 rows of 20 users and 12 items" in first
    assert re.search(r"version [0-9a-f]{16}$", first)


def test_fit_in_json_is_the_manifest(log: Path, tmp_path: Path) -> None:
    settings = ("--set", "decay=1/512", "--set", "window=inf", "--set", "trend_side=past")
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
    said = refusal("recommend", folder, "--users", "1")
    assert said == f"{folder} was saved without histories: use --history, not --users"
    assert "i" in works("recommend", folder, "--history", "i1", "-k", 3)


METRICS = [f"{name}@{k}" for name in ("HR", "NDCG", "MRR") for k in (1, 5, 10)]


def test_evaluate_in_json_has_every_field(log: Path) -> None:
    result = talerec("evaluate", log, "--set", "decay=1/512", "--json").json
    assert result.keys() >= {"model", "params", "solver", "split", "ties", "hide_seen", "cases",
                             "metrics", "groups", "seconds", "peak_rss_mb"}  # fmt: skip
    assert (result["model"], result["split"], result["ties"]) == ("tale", "leave-one-out", "file")
    assert result["hide_seen"] is False
    assert result["cases"] == 20
    assert result["params"]["decay"] == 1 / 512
    assert result["solver"] != "auto"
    assert list(result["metrics"]) == METRICS
    assert result["groups"].keys() == {"popularity", "gap", "length", "kind"}
    assert list(result["metrics_hidden"]) == list(result["intervals"]) == METRICS
    assert all(
        low <= result["metrics"][name] <= high for name, (low, high) in result["intervals"].items()
    )
    assert [order["ties"] for order in result["orders"]] == ["file"]
    assert set(result["spread"]) == set(METRICS)
    assert result["groups"]["popularity"].keys() == {"head", "tail"}
    assert result["groups"]["gap"].keys() == {"short", "mid", "long"}
    assert result["seconds"].keys() >= {"load", "gram", "solve", "score"}
    assert result["peak_rss_mb"] > 10


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


def test_windows_one_after_the_other(log: Path) -> None:
    result = talerec("evaluate", log, "--split", "rolling:2019-06-01,90", "--json").json
    assert [w["window"][:10] for w in result["windows"]] == [
        "2019-06-01",
        "2019-08-30",
        "2019-11-28",
    ]
    assert sum(w["cases"] for w in result["windows"]) == result["cases"]
    assert "By window" in works("evaluate", log, "--split", "rolling:2019-06-01,90")


def test_results_are_kept_compared_and_shown(log: Path, tmp_path: Path) -> None:
    for name in ("tale", "popular"):
        page, kept = tmp_path / f"{name}.html", tmp_path / f"{name}.parquet"
        works("evaluate", log, "--model", name, "--out", kept, "--report", page)
        assert page.read_text().startswith("<!DOCTYPE html>")
        assert "HR@10" in page.read_text()
    a, b, page = tmp_path / "popular.parquet", tmp_path / "tale.parquet", tmp_path / "c.html"
    found = talerec("compare", a, b, "--json").json
    assert found["users"] == 20
    assert found["metrics"]["NDCG@10"].keys() >= {"a", "b", "difference", "interval", "p", "effect"}
    assert found["verdict"] in works("compare", a, b, "--report", page)
    assert page.read_text().count("<svg") >= 5
    assert "no saved result" in refusal("compare", a, log)


def test_what_tune_finds_fit_takes(log: Path, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    best, page = tmp_path / "best.json", tmp_path / "t.html"
    options = ("--trials", 5, "--study", tmp_path / "s.db", "-o", best, "--report", page)
    assert "the best of 5 settings" in works("tune", log, *options)
    assert page.read_text().count("<svg") >= 7
    found = talerec("tune", log, "--trials", 5, "--study", tmp_path / "s.db", "--json").json
    assert found["params"] == json.loads(best.read_text())["params"]
    fitted = talerec("fit", log, "-o", tmp_path / "m.tale", "--params", best, "--json").json
    assert fitted["params"] == found["params"]
    again = ("fit", log, "-o", tmp_path / "n.tale", "--params", best, "--set", "reg=7", "--json")
    assert talerec(*again).json["params"] == {**found["params"], "reg": 7.0}
    assert "parameters of tale, not of slit" in refusal(
        "fit", log, "-o", tmp_path / "x.tale", "--model", "slit", "--params", best
    )
    assert "is no result of talerec tune" in refusal(
        "fit", log, "-o", tmp_path / "x.tale", "--params", log
    )


def test_reproduce_names_what_it_looks_for(tmp_path: Path) -> None:
    assert "has no file of ml-1m, beauty" in refusal("reproduce", "--data", tmp_path)
    assert "is no folder" in refusal("reproduce", "--data", tmp_path / "none")


# -- recommend, similar, explain, verify -----------------------------------------------------------


def test_recommend_for_users(model: Path) -> None:
    page = works("recommend", model, "--users", "3,7", "-k", 2)
    assert "User 3" in page
    assert "User 7" in page
    found = talerec("recommend", model, "--users", "3,7,3", "-k", 2, "--json").json
    expected = tr.load(model).recommend([3, 7], 2)
    assert [part["user_id"] for part in found] == [3, 7]
    rows = [item for part in found for item in part["items"]]
    assert [row["item_id"] for row in rows] == expected["item_id"].to_list()
    assert [row["score"] for row in rows] == expected["score"].to_list()
    assert [row["rank"] for row in rows] == [1, 2, 1, 2]


def test_recommend_for_all_users_and_for_a_file_of_users(model: Path, tmp_path: Path) -> None:
    everybody = talerec("recommend", model, "--users", "all", "-k", 1, "--json").json
    assert [part["user_id"] for part in everybody] == list(range(1, 21))
    path = tmp_path / "users.txt"
    path.write_bytes("﻿4\r\n\n 9 \n".encode())
    some = talerec("recommend", model, "--users", f"@{path}", "-k", 1, "--json").json
    assert [part["user_id"] for part in some] == [4, 9]


def test_as_of_says_when_they_ask(log: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shop.tale"
    works("fit", log, "-o", folder, "--model", "tempo")
    asked = ("recommend", folder, "--users", "3", "-k", 12, "--json")
    fitted = tr.load(folder)
    scores = {}
    for when in ("2019-02-01", "2019-06-01"):
        found = talerec(*asked, "--as-of", when).json[0]["items"]
        expected = fitted.recommend([3], 12, as_of=when)
        assert [row["score"] for row in found] == expected["score"].to_list()
        scores[when] = expected["score"].to_list()
        told = talerec(
            "explain", folder, "--history", "i1", "--item", "i2", "--as-of", when, "--json"
        )
        assert told.code == 0
    assert scores["2019-02-01"] != scores["2019-06-01"]
    assert "'soon' is not a time" in refusal(*asked[:-1], "--as-of", "soon")


def test_a_long_list_of_users_is_no_file_name(model: Path) -> None:
    many = ",".join(["1", "2"] * 500)
    assert len(talerec("recommend", model, "--users", many, "--json").json) == 2


def test_unknown_users_are_refused_or_skipped_and_named(model: Path) -> None:
    assert refusal("recommend", model, "--users", "1,nobody") == (
        "user 'nobody' is not known to the model"
    )
    skip = ("recommend", model, "--users", "1,nobody", "-k", 1, "--unknown", "skip")
    assert [part["user_id"] for part in talerec(*skip, "--json").json] == [1]
    assert talerec(*skip).err == "skipped, not known to the model: nobody\n"


def test_recommend_after_histories(model: Path) -> None:
    page = works("recommend", model, "--history", "i0,i7", "--history", "i2", "-k", 3)
    assert "After Tent [red] (i0), i7" in page
    assert "After Café (i2)" in page
    options = ("--history", "i0, i7", "--history", "i2", "-k", 3, "--json")
    found = talerec("recommend", model, *options).json
    assert [part["history"] for part in found] == [0, 1]
    assert [len(part["items"]) for part in found] == [3, 3]


def test_masks_of_the_command_line_are_those_of_the_library(model: Path) -> None:
    options = ("--hide-seen", "--deny", "i3,i4", "--allow", "i1,i2,i3,i5", "--json")
    (found,) = talerec("recommend", model, "--history", "i1,i7", "-k", 4, *options).json
    assert {item["item_id"] for item in found["items"]} == {"i2", "i5"}


def test_a_history_of_unknown_items_is_refused_or_gives_nothing_and_says_so(model: Path) -> None:
    assert refusal("recommend", model, "--history", "zzz") == (
        "item 'zzz' is not known to the model"
    )
    skip = ("recommend", model, "--history", "zzz", "--unknown", "skip")
    assert works(*skip).startswith("After zzz: nothing to recommend")
    assert talerec(*skip, "--json").json == [{"history": 0, "items": []}]


def test_similar_items(model: Path) -> None:
    assert "After Tent [red] (i0)" in works("similar", model, "i0", "-k", 3)
    found = talerec("similar", model, "i0", "-k", 3, "--json").json
    assert found["item_id"] == "i0"
    expected = tr.load(model).similar_items("i0", 3)
    assert [item["item_id"] for item in found["items"]] == expected["item_id"].to_list()
    assert "i0" not in [item["item_id"] for item in found["items"]]


def test_explanations_add_up(model: Path) -> None:
    page = works("explain", model, "--history", "i0,i1,i0", "--item", "i2")
    assert "Why Café (i2)" in page
    assert re.search(r"score +[+-]0\.\d{4}", page)
    found = talerec("explain", model, "--history", "i0,i1,i0", "--item", "i2", "--json").json
    assert (found["item_id"], found["title"]) == ("i2", "Café")
    shares = [row["contribution"] for row in found["contributions"]]
    assert sum(shares) == pytest.approx(found["score"], abs=1e-12)
    assert [row["item_id"] for row in found["contributions"]] == ["i0", "i1", "i0"]


def test_explaining_a_base_score_names_it(log: Path, tmp_path: Path) -> None:
    works("fit", log, "-o", tmp_path / "p.tale", "--model", "popular")
    page = works("explain", tmp_path / "p.tale", "--history", "i1", "--item", "i2")
    assert re.search(r"i1 +\+0\.0000\s+any history +\+\d+\.0000", page)


def test_explaining_with_unknown_items_gives_them_nothing(model: Path) -> None:
    options = ("--history", "zzz,i1", "--item", "i2", "--unknown", "skip")
    assert re.search(r"zzz +\+0\.0000", works("explain", model, *options))


def test_ids_that_are_numbers_come_back_as_numbers_and_find_their_titles(tmp_path: Path) -> None:
    frame = pl.read_csv(write_log(tmp_path / "log.csv"))
    frame = frame.with_columns(pl.col("item_id").str.slice(1).cast(pl.Int64))
    frame.write_parquet(tmp_path / "log.parquet")
    (tmp_path / "items.csv").write_text("item_id,name\n1,Kettle\n")
    folder = tmp_path / "m.tale"
    works("fit", tmp_path / "log.parquet", "-o", folder, "--items", tmp_path / "items.csv")
    assert "After Kettle (1)" in works("similar", folder, "1")
    assert talerec("similar", folder, "1", "--json").json["item_id"] == 1
    found = talerec("explain", folder, "--history", "2", "--item", "1", "--json").json
    assert (found["item_id"], found["title"]) == (1, "Kettle")


def test_titles_are_text_and_nothing_more(model: Path) -> None:
    page = works("recommend", model, "--history", "i0,i1,i3,i4", "-k", 1)
    assert "Tent [red] (i0), Stove :fire: (i1), New line (i3), [/bold] (i4)" in page


def test_verify(model: Path) -> None:
    version = json.loads((model / "manifest.json").read_text())["version"]
    assert works("verify", model) == f"{model} is whole (version {version})\n"
    assert talerec("verify", model, "--json").json == {
        "path": str(model),
        "ok": True,
        "version": version,
    }


# -- synth, demo -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["log.csv", "log.parquet"])
def test_synth_writes_a_log_that_can_be_read(name: str, tmp_path: Path) -> None:
    options = ("--rows", 500, "--items", 40, "--users", 30, "--seed", 3)
    page = works("synth", tmp_path / name, *options)
    assert page == f"{tmp_path / name}: 500 rows of 30 users and 40 items\n"
    assert talerec("describe", tmp_path / name, "--json").json["rows"] == 500
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_synth_refuses_what_it_cannot_write(tmp_path: Path) -> None:
    assert refusal("synth", tmp_path / "log.txt").endswith("log.txt must end in .parquet or .csv")
    (tmp_path / "dir.csv").mkdir()
    assert refusal("synth", tmp_path / "dir.csv").endswith("dir.csv is a folder")
    assert "its folder is not there" in refusal("synth", tmp_path / "no" / "log.csv")
    assert "rows is 0" in refusal("synth", tmp_path / "log.csv", "--rows", 0)
    assert [path.name for path in tmp_path.iterdir()] == ["dir.csv"]


def test_the_demo_compares_explains_saves_and_says_what_to_do_next(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    page = works("demo", "--rows", 5000, "-o", out)
    assert "5,000 rows" in page
    report = (out / "report.md").read_text()
    for text in (page, report):
        assert all(name in text for name in ("what is popular", "TALE without time", "because of"))
        assert re.search(r"[A-Z]\w+ [A-Z]\w+ [A-Z]\w+.* \([+-]0\.\d{3}\)", text)
        assert "Next was:" in text
    commands = re.findall(r"^  talerec ((?:recommend|similar) .*)$", page, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        assert "score" in works(*command.split())
    works("verify", out / "shop.tale")


@pytest.mark.parametrize("rows", [1, 10, 60])
def test_a_demo_too_small_to_show_anything_fails_in_one_line_or_works(
    rows: int, tmp_path: Path
) -> None:
    outcome = talerec("demo", "--rows", rows, "-o", tmp_path / "demo")
    assert outcome.code in (0, 2)
    assert outcome.err.count("error: ") == (outcome.code == 2)


def test_the_demo_refuses_a_file_before_it_starts(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    assert refusal("demo", "-o", tmp_path / "taken").endswith("the demo writes to a folder")


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["reg=0"], "reg is 0.0; it must be above 0"),
        (["reg=-1"], "reg is -1.0; it must be above 0"),
        (["reg=nan"], "reg is nan; it takes a number"),
        (["decay=0"], "decay is 0.0; it must be above 0"),
        (["decay=-1/2"], "decay is -0.5; it must be above 0"),
        (["floor=1.5"], "floor is 1.5; it must be from 0 to 1"),
        (["floor=-0.1"], "floor is -0.1; it must be from 0 to 1"),
        (["max_history=inf"], "max_history is inf; it must be at most"),
        (["max_history=2.5"], "max_history is 2.5; it takes a whole number"),
        (["trend_side=up"], "trend_side is 'up'; it takes both or past"),
        (["reg"], "--set takes name=value, not 'reg'"),
        (["reg=much"], "reg is 'much'; it takes a number such as 0.5 or 1/512"),
        (["speed=3"], "tale has no parameter 'speed'; its parameters are decay, floor"),
        (["reg=1", "reg=2"], "--set gives reg twice"),
    ],
)
@pytest.mark.parametrize("command", ["fit", "evaluate"])
def test_a_bad_parameter_is_refused_before_the_log_is_read(
    command: str, settings: list[str], said: str, tmp_path: Path
) -> None:
    options = [part for setting in settings for part in ("--set", setting)]
    target = ["-o", tmp_path / "m.tale"] if command == "fit" else []
    assert said in refusal(command, tmp_path / "no.csv", *target, *options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model", "oracle"], "there is no model 'oracle'; the models are tale, "),
        (["--ties", "coin"], "ties is 'coin'; it takes file, item or random:SEED"),
        (
            ["--split", "half"],
            "--split is 'half'; it takes leave-one-out, at:TIME or rolling:TIME,DAYS",
        ),
        (["--split", "at:noon"], "'noon' is not a time"),
        (["--split", "at:"], "is not a time"),
        (["--split", "at:1999-01-01"], "no row lies before the point of the split"),
        (["--split", "at:2031-01-01"], "no row lies after the point of the split"),
        (["--refit", "--on", "validation"], "--refit learns from the validation rows"),
        (["--split", "rolling:2019-10-01"], "rolling takes TIME,DAYS"),
        (["--split", "rolling:2019-10-01,-2"], "above 0"),
        (["--ties", "random:3..1"], "a range of seeds is such as random:0..4"),
        (["--out", "nowhere/result.parquet"], "its folder is not there"),
        (["--report", "."], "is a folder"),
        (["--params", "nothing.json"], "No such file"),
        (["--on", "train"], "on is 'train'; it takes test or validation"),
        (["--k", "0"], "k is 0; it takes a whole number from 1"),
        (["--k", "1,-5"], "k is -5; it takes a whole number from 1"),
        (["--k", "ten"], "--k is 'ten'; it takes whole numbers such as 1,5,10"),
        (["--k", ""], "--k is ''; it takes whole numbers such as 1,5,10"),
        (["--core", "0"], "core is 0; it takes a whole number from 1"),
        (["--core", "500"], "nothing is left of the log after a 500-core"),
        (["--core", "few"], "invalid value for '--core'"),
        (["--user", "who"], "there is no column 'who'; the columns are user_id, item_id, times"),
        (["--user", "who"], "--user"),
        (["--item", "what"], "--item"),
        (["--time", "when"], "--time"),
        (["--time-unit", "years"], "'years' is not one of s, ms, us, ns"),
        (["--speed", "3"], "--speed"),
        (["again.csv"], "again.csv"),
    ],
)
def test_a_bad_option_of_evaluate_is_refused_in_one_line(
    options: list[str], said: str, log: Path
) -> None:
    assert said in refusal("evaluate", log, *options)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "log.csv"),
        ("user_id,item_id,timestamp\n", "the log is empty: it has no rows"),
        ("user_id,item_id\n1,2\n", "there is no column 'timestamp'"),
        ("user_id,item_id,timestamp\n1,2,\n", "row 1: timestamp is empty"),
        ("user_id,item_id,timestamp\n1,2,soon\n", "row 1: timestamp 'soon' is not a time"),
        ("user_id,item_id,timestamp\n1,,2020-01-01\n", "row 1: item_id is empty"),
    ],
)
@pytest.mark.parametrize("command", ["describe", "fit", "evaluate"])
def test_a_bad_log_is_refused_in_one_line(
    command: str, content: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(content)
    target = ["-o", tmp_path / "m.tale"] if command == "fit" else []
    assert said in refusal(command, path, *target)
    assert list(tmp_path.iterdir()) == [path]


def test_a_log_that_is_not_there_a_folder_or_of_no_known_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("x")
    assert refusal("describe", tmp_path / "no.csv") == f"{tmp_path}/no.csv does not exist"
    assert "is a folder" in refusal("describe", tmp_path)
    assert "has no ending that talerec knows" in refusal("describe", tmp_path / "log.txt")


def test_a_mistake_is_one_line_in_a_pipe_even_when_there_was_something_to_note(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.csv"
    path.write_text("user_id,item_id,timestamp\n1,2,1600000000\n1,3,1600000001\n")
    assert "nothing is left" in refusal("describe", path, "--core", 9)
    assert talerec("describe", path).err == "times read as seconds (guessed by size)\n"
    assert talerec("describe", path, "--json").json["rows"] == 2


@pytest.mark.parametrize("rows", [1, 3, 5])
@pytest.mark.parametrize(("users", "items"), [(1, 3), (3, 1), (1, 1)])
def test_logs_of_one_user_or_one_item_work_or_are_refused_in_one_line(
    users: int, items: int, rows: int, tmp_path: Path
) -> None:
    path = write_log(tmp_path / "log.csv", users, items, rows)
    works("describe", path)
    works("fit", path, "-o", tmp_path / "m.tale")
    outcome = talerec("recommend", tmp_path / "m.tale", "--users", "1", "-k", 1)
    assert outcome.code == 0
    outcome = talerec("evaluate", path, "--json")
    assert outcome.code in (0, 2)
    if outcome.code:
        assert outcome.err == "error: no user has three rows: leave-one-out has nothing to ask\n"
    else:
        assert outcome.json["cases"] >= 1


def test_an_unwritable_target_is_refused_before_the_log_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.doc").write_text("mine")
    no_log = tmp_path / "no.csv"
    assert "file is a file" in refusal("fit", no_log, "-o", tmp_path / "file")
    assert "holds other files" in refusal("fit", no_log, "-o", tmp_path / "folder")
    monkeypatch.setattr(os, "access", lambda *args: False)
    said = refusal("fit", no_log, "-o", tmp_path / "new.tale")
    assert said == f"{tmp_path}/new.tale cannot be written: no permission in {tmp_path}"


def test_an_item_table_that_cannot_be_read_is_refused_and_nothing_is_saved(
    log: Path, tmp_path: Path
) -> None:
    table = tmp_path / "items.csv"
    table.write_text("id,name\n1,x\n")
    said = refusal("fit", log, "-o", tmp_path / "m.tale", "--items", table)
    assert "there is no column 'item_id'" in said
    assert list(tmp_path.iterdir()) == [table]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["recommend"], "give --users or --history, one of the two"),
        (["recommend", "--users", "1", "--history", "i1"], "give --users or --history, one of"),
        (["recommend", "--users", ""], "--users '' names no user"),
        (["recommend", "--users", "1", "-k", "0"], "k is 0; it takes a whole number from 1"),
        (["recommend", "--users", "1", "-k", "-3"], "k is -3; it takes a whole number from 1"),
        (["recommend", "--users", "1", "-k", "20"], "k is 20, but the model knows 12 items"),
        (["recommend", "--users", "1", "-k", "x"], "invalid value for '-k'"),
        (["recommend", "--users", "1", "--allow", "zz"], "item 'zz' is not known to the model"),
        (["recommend", "--users", "1", "--deny", "zz"], "item 'zz' is not known to the model"),
        (["recommend", "--users", "1", "--unknown", "ask"], "unknown is 'ask'; it takes"),
        (["similar", "zz"], "item 'zz' is not known to the model"),
        (["similar", "i1", "-k", "13"], "k is 13, but the model knows 12 items"),
        (["similar"], "missing argument 'ITEM'"),
        (["explain", "--history", "i1", "--item", "zz"], "item 'zz' is not known to the model"),
        (["explain", "--history", "zz", "--item", "i1"], "item 'zz' is not known to the model"),
        (["explain", "--item", "i1"], "--history"),
    ],
)
def test_a_bad_question_is_refused_in_one_line(args: list[str], said: str, model: Path) -> None:
    command, *options = args
    assert said in refusal(command, model, *options)


def test_usage_mistakes_name_the_page_that_says_more(model: Path) -> None:
    assert "talerec fit --help says more" in refusal("fit")
    assert "talerec --help says more" in refusal("fitt")
    assert "talerec verify --help says more" in refusal("verify", model, "--deep")


def test_a_users_file_that_is_no_text_is_refused(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "users.bin"
    path.write_bytes(b"\xff\xfe\x00\x80")
    assert refusal("recommend", model, "--users", f"@{path}") == (
        f"{path} is no text file of one id per line"
    )


QUESTIONS = [
    ["recommend", "--history", "i1"],
    ["similar", "i1"],
    ["explain", "--history", "i1", "--item", "i2"],
    ["verify"],
]


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_model_that_is_not_whole_is_refused_in_one_line(
    question: list[str], log: Path, tmp_path: Path
) -> None:
    command, *options = question
    folder = tmp_path / "m.tale"
    assert refusal(command, folder, *options) == f"{folder} does not exist"
    works("fit", log, "-o", folder)
    manifest = folder / "manifest.json"
    whole = manifest.read_text()
    manifest.write_text(whole.replace('"format": 1', '"format": 2'))
    assert "has format 2, and this version of talerec reads format 1" in refusal(
        command, folder, *options
    )
    manifest.write_text(whole[:-20])
    assert "manifest.json is damaged" in refusal(command, folder, *options)
    manifest.write_text(whole)
    weights = next(folder.glob("weights-*.npy"))
    weights.write_bytes(weights.read_bytes()[:-1])
    assert f"{weights.name} is damaged" in refusal(command, folder, *options)
    weights.unlink()
    assert f"{weights.name} is missing" in refusal(command, folder, *options)


def test_verify_finds_a_flipped_byte_in_every_file(log: Path, tmp_path: Path) -> None:
    folder = tmp_path / "m.tale"
    works("fit", log, "-o", folder)
    for path in [*folder.glob("*.npy"), *folder.glob("*.parquet")]:
        whole = path.read_bytes()
        for place in (0, len(whole) // 2, len(whole) - 1):
            changed = bytearray(whole)
            changed[place] ^= 1
            path.write_bytes(changed)
            said = refusal("verify", folder)
            assert said == f"{folder}: {path.name} is damaged: its hash does not match"
        path.write_bytes(whole)
    works("verify", folder)


def test_a_bad_number_of_threads_is_said_before_the_work(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALEREC_THREADS", "many")
    assert refusal("describe", log) == ("TALEREC_THREADS is 'many'; it takes a whole number from 1")


def test_too_little_memory_is_said_in_one_line(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise MemoryError

    monkeypatch.setattr(tr.TALE, "learn", fail)
    assert "not enough memory" in refusal("evaluate", log)


def test_ctrl_c_ends_quietly_and_leaves_nothing(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tr.TALE, "learn", interrupt)
    outcome = talerec("fit", log, "-o", tmp_path / "m.tale")
    assert outcome == Outcome(130, "", "")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_said_in_one_line(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    folder = tmp_path / "m.tale"
    said = refusal("fit", log, "-o", folder)
    assert said == f"{folder} cannot be written: No space left on device"
    assert not list(tmp_path.iterdir())


# -- output ----------------------------------------------------------------------------------------


def test_json_has_neither_nan_nor_infinity(capsys: pytest.CaptureFixture[str]) -> None:
    show.as_json({"a": math.nan, "b": [math.inf, -math.inf, (1.5, "é")], "c": np.float64("nan")})
    assert json.loads(capsys.readouterr().out) == {
        "a": None,
        "b": ["inf", "-inf", [1.5, "é"]],
        "c": None,
    }


def test_json_is_ascii_where_the_terminal_knows_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), "latin-1", write_through=True)
    monkeypatch.setattr(sys, "stdout", out)
    show.as_json(["日本"])
    assert out.buffer.getvalue() == b'[\n  "\\u65e5\\u672c"\n]\n'


@pytest.mark.parametrize(
    ("days", "text"),
    [(None, "-"), (0.0, "0 seconds"), (2.5, "2.5 days"), (0.5, "12.0 hours"),
     (1 / 1440, "1.0 minutes"), (1 / 86_400, "1 seconds"), (4000, "4,000.0 days")],
)  # fmt: skip
def test_durations_are_for_people(days: float | None, text: str) -> None:
    assert show.duration(days) == text


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": PYTHONPATH, "TERM": "xterm", "COLUMNS": "80"}


def test_bars_are_drawn_on_a_terminal_and_only_on_standard_error(model: Path) -> None:
    ours, theirs = pty.openpty()
    command = [*RUN, "recommend", str(model), "--users", "all", "--json"]
    with subprocess.Popen(command, env=environment(), stdout=-1, stderr=theirs) as running:
        os.close(theirs)
        drawn = b""
        try:
            while part := os.read(ours, 4096):
                drawn += part
        except OSError:  # the other end is closed
            pass
        out, _ = running.communicate()
    os.close(ours)
    assert running.returncode == 0, drawn
    assert b"rank" in drawn
    assert len(json.loads(out)) == 20


def test_a_reader_that_has_seen_enough_ends_the_command_quietly(model: Path) -> None:
    command = [*RUN, "recommend", str(model), "--users", "all", "--json"]
    with subprocess.Popen(command, env=environment(), stdout=-1, stderr=-1) as running:
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 1


def test_asking_for_help_loads_no_heavy_library() -> None:
    script = (
        "import sys; from talerec.cli import app\n"
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
        works("fit", log, "-o", folder, "--model", name)
        (found,) = talerec("recommend", folder, "--users", "1", "-k", 2, "--json").json
        assert len(found["items"]) <= 2
        assert issubclass(kind, Model)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--engine", "dask"], "error: --engine is 'dask'; it takes local or spark\n"),
        (["--master", "spark://h:1"], "error: --master goes with --engine spark\n"),
        (["--spark-conf", "a=b"], "error: --spark-conf goes with --engine spark\n"),
        (["--work", "w"], "error: --work goes with --engine spark\n"),
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

"""The command evaluates several models at once, and compares any number of files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command import refusal, talerec, works, write_log


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("log") / "events.csv")


@pytest.fixture(scope="module")
def folder(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "new" / "folder"
    works("evaluate", log, "--models", "rules,popular,markov", "-o", folder)
    return folder


def test_json_has_every_model_its_costs_and_differences_to_the_first(log, folder):
    answer = talerec(
        "evaluate", log, "--models", "rules,popular,markov", "-o", folder, "--json"
    ).json
    assert list(answer["models"]) == ["rules", "popular", "markov"]
    single = talerec("evaluate", log, "--model", "popular", "--json").json
    for name in ("metrics", "metrics_hidden", "groups", "intervals", "lists", "params", "users"):
        assert answer["models"]["popular"][name] == single[name]
    costs = {"seconds", "own_seconds", "shared_seconds", "compile_seconds", "peak_rss_mb"}
    assert costs <= set(answer["models"]["rules"])
    assert list(answer["differences"]) == ["popular", "markov"]
    pair = answer["differences"]["markov"]["metrics"]["NDCG@10"]
    assert {"a", "b", "difference", "interval", "p", "p_holm", "relative"} <= set(pair)
    assert (answer["first"], answer["headline"]) == ("rules", "NDCG@10")
    assert set(answer["order"]) == set(answer["models"])
    assert answer["advice"].startswith(f"Take {answer['choice']} (")
    assert set(answer["run_seconds"]) == {"load", "split", "total"}
    assert answer["skipped"] == []


def test_several_models_by_model_are_the_same_as_by_models(log, folder):
    command = ("evaluate", log, "-o", folder, "--json")
    by_model = talerec(*command, "--model", "rules", "--model", "popular").json
    by_models = talerec(*command, "--models", "rules,popular").json
    for answer in (by_model, by_models):
        answer.pop("run_seconds")
    assert by_model == by_models


def test_the_table_and_the_page_name_every_model(log, folder, tmp_path):
    page = tmp_path / "page.html"
    shown = works("evaluate", log, "--models", "rules,popular", "-o", folder, "--report", page)
    assert "Take " in shown.splitlines()[-1]
    for name in ("rules", "popular"):
        assert name in shown
        assert name in page.read_text(encoding="utf-8")


def test_pages_of_lists_without_seen_items_do_not_repeat_their_metrics(log, tmp_path):
    repeated = {}
    for options in ((), ("--hide-seen",)):
        page = tmp_path / "page.html"
        works("evaluate", log, "--models", "rules,popular", *options, "--report", page)
        repeated[options] = page.read_text(encoding="utf-8").count(">Seen hidden<")
    assert repeated == {(): 2, ("--hide-seen",): 0}  # accuracy and differences


def test_a_named_model_that_fails_gives_exit_code_1_and_the_others_are_shown(tmp_path):
    log = tmp_path / "log.csv"
    rows = [f"{user},{item}" for user in range(9) for item in range(user % 3, user % 3 + 4)]
    log.write_text("\n".join(["user_id,item_id", *rows]))
    outcome = talerec("evaluate", log, "--models", "rules,tale,popular")
    assert outcome.code == 1
    assert "Skipped: tale: tale needs times" in outcome.out
    assert "popular" in outcome.out
    assert talerec("evaluate", log, "--models", "linear").code == 0
    assert "there is no column 'timestamp'" in refusal("evaluate", log, "--models", "tale")


def test_reasons_of_skipped_models_name_options(log):
    outcome = talerec("evaluate", log, "--models", "rules,content")
    for text in (outcome.out, outcome.err):
        assert "content needs an item table (--items)" in " ".join(text.split())
    printed = talerec("evaluate", log, "--models", "rules,content", "--json").out
    (skipped,) = json.loads(printed)["skipped"]
    assert skipped.keys() == {"label", "reason", "is_failure"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "rules,nope"], "there is no model 'nope'"),
        (["--models", "rules,rules"], "--models has rules twice"),
        (["--models", "rules", "--set", "steps=3"], "--set needs one model"),
        (["--models", "rules", "--minutes", "0"], "--minutes is 0.0; it must be above 0"),
        (["--minutes", "3"], "--minutes needs --models"),
    ],
)
def test_a_mistake_is_one_line(log, arguments, message):
    assert refusal("evaluate", log, *arguments).startswith(message)


def test_a_mistake_in_the_models_is_found_before_the_log_is_read(tmp_path):
    assert "no model 'nope'" in refusal("evaluate", tmp_path / "none.csv", "--models", "nope")


def test_an_output_file_in_the_place_of_the_folder_is_refused(log, tmp_path):
    (tmp_path / "a.parquet").write_text("")
    message = refusal("evaluate", log, "--models", "rules,popular", "-o", tmp_path / "a.parquet")
    assert message.endswith("is a file; with --models, --out takes a folder")


def test_a_fit_takes_one_model(log, tmp_path):
    command = ("fit", log, "-o", tmp_path / "m.tale", "--model", "rules", "--model", "popular")
    assert refusal(*command) == "--model names rules and popular; this command takes one"


def test_files_are_compared_by_name(folder):
    files = sorted(folder.glob("*.parquet"))
    answer = talerec("compare", *files, "--json").json
    names = [f"{path.name.partition('-')[0]} ({path.name})" for path in files]
    assert list(answer["models"]) == names
    assert list(answer["differences"]) == names[1:]
    assert names[0] in answer["differences"][names[1]]["verdict"]
    verdict = works("compare", *files[:2]).splitlines()[-1]
    assert names[0] in verdict
    assert names[1] in verdict
    assert "compare takes two or more" in refusal("compare", files[0])
    assert "is there twice" in refusal("compare", files[0], files[0])

"""Commands that query or verify a model, and the commands synth and demo."""

from __future__ import annotations

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import polars as pl
import pytest

import talerec as tr
from command import refusal, talerec, works, write_log

# -- recommend, similar, explain, verify -----------------------------------------------------------


def test_recommend_for_users(model: Path) -> None:
    page = works("recommend", model, "--users", "3,7", "-k", 2)
    assert "User 3" in page
    assert "User 7" in page
    result = talerec("recommend", model, "--users", "3,7,3", "-k", 2, "--json").json
    expected = tr.load(model).recommend([3, 7], 2)
    assert [part["user_id"] for part in result] == [3, 7]
    rows = [item for part in result for item in part["items"]]
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


def test_as_of_sets_the_request_time(log: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shop.tale"
    works("fit", log, "-o", folder, "--model", "tempo")
    request = ("recommend", folder, "--users", "3", "-k", 12, "--json")
    fitted = tr.load(folder)
    scores = {}
    for when in ("2019-02-01", "2019-06-01"):
        items = talerec(*request, "--as-of", when).json[0]["items"]
        expected = fitted.recommend([3], 12, as_of=when)
        assert [row["score"] for row in items] == expected["score"].to_list()
        scores[when] = expected["score"].to_list()
        explained = talerec(
            "explain", folder, "--history", "i1", "--item", "i2", "--as-of", when, "--json"
        )
        assert explained.code == 0
    assert scores["2019-02-01"] != scores["2019-06-01"]
    rows = fitted.fitted.log.to_frame().filter(user_id=3)
    cut = rows["timestamp"][len(rows) // 2]
    arguments = ("explain", folder, "--user", "3", "--item", "i2", "--as-of", str(cut))
    explained = talerec(*arguments, "--json").json["contributions"]
    seen = rows.filter(rows["timestamp"] < cut)["item_id"].to_list()
    assert [row["item_id"] for row in explained if row["item_id"]] == seen
    assert 0 < len(seen) < len(rows)
    assert talerec(*arguments).code == 0
    hidden = talerec(*request[:-1], "--as-of", str(cut), "--hide-seen").out
    assert f"--hide-seen leaves out {len(set(seen))}" in hidden
    assert "'soon' is not a time" in refusal(*request[:-1], "--as-of", "soon")


def test_a_long_list_of_users_is_no_file_name(model: Path) -> None:
    many = ",".join(["1", "2"] * 500)
    assert len(talerec("recommend", model, "--users", many, "--json").json) == 2


def test_unknown_users_are_refused_or_skipped_and_named(model: Path) -> None:
    assert refusal("recommend", model, "--users", "1,nobody") == (
        "user 'nobody' is not known to the model"
    )
    skip = ("recommend", model, "--users", "1,nobody", "-k", 1, "--unknown", "skip")
    assert [part["user_id"] for part in talerec(*skip, "--json").json] == [1]
    assert talerec(*skip).err == "skipped users unknown to the model: nobody\n"


def test_recommend_after_histories(model: Path) -> None:
    page = works("recommend", model, "--history", "i0,i7", "--history", "i2", "-k", 3)
    assert "After Tent [red] (i0), i7" in page
    assert "After Café (i2)" in page
    options = ("--history", "i0, i7", "--history", "i2", "-k", 3, "--json")
    result = talerec("recommend", model, *options).json
    assert [part["history"] for part in result] == [0, 1]
    assert [len(part["items"]) for part in result] == [3, 3]


def test_masks_of_the_command_line_are_those_of_the_library(model: Path) -> None:
    options = ("--hide-seen", "--deny", "i3,i4", "--allow", "i1,i2,i3,i5", "--json")
    (result,) = talerec("recommend", model, "--history", "i1,i7", "-k", 4, *options).json
    assert {item["item_id"] for item in result["items"]} == {"i2", "i5"}


def test_a_history_of_unknown_items_is_refused_or_has_no_recommendations(model: Path) -> None:
    assert refusal("recommend", model, "--history", "zzz") == (
        "item 'zzz' is not known to the model"
    )
    skip = ("recommend", model, "--history", "zzz", "--unknown", "skip")
    reason = "12 items have no score after this history"
    assert works(*skip) == f"After zzz\nNo recommendations: {reason}.\n"
    assert talerec(*skip, "--json").json == [{"history": 0, "items": []}]


def test_a_list_that_is_shorter_than_requested_names_the_reasons(
    model: Path, log: Path, items: Path, tmp_path: Path
) -> None:
    def recommend(*options: object) -> str:
        return " ".join(works("recommend", *options).split())

    request = (model, "--history", "i1,i7,i1", "-k")
    assert "Only" not in recommend(*request, 12)
    hidden = recommend(*request, 11, "--hide-seen")
    assert "Only 10 items: --hide-seen leaves out 2." in hidden
    some = (*request, 4, "--allow", "i1,i2,i3", "--deny", "i3", "--hide-seen")
    reasons = "--allow and --deny match 2 of 12 items; --hide-seen leaves out 1."
    assert f"Only 1 item: {reasons}" in recommend(*some)
    none = recommend(*request, 2, "--where", "title = 'Nothing'")
    assert none.endswith("No recommendations: --where matches 0 of 12 items.")
    kinds = pl.DataFrame({"item_id": [f"i{n}" for n in range(12)], "kind": ["a", "b"] * 6})
    kinds.write_csv(tmp_path / "kinds.csv")
    fit = ("fit", log, "-o", tmp_path / "m.tale", "--model", "markov")
    works(*fit, "--items", tmp_path / "kinds.csv")
    two = recommend(tmp_path / "m.tale", "--history", "i1,i2", "-k", 5, "--per", "kind=1")
    assert "Only 2 items: --per allows at most 1 of each kind." in two
    rows = pl.read_csv(log).sort("user_id", "timestamp")
    followers = {
        b
        for part in rows.partition_by("user_id")
        for a, b in zip(part["item_id"], part["item_id"][1:], strict=False)
        if a == "i1"
    }
    n = len(followers)
    unscored = f"Only {n} items: {12 - n} items have no score after this history."
    assert unscored in recommend(tmp_path / "m.tale", "--history", "i1", "-k", 12)
    out = tmp_path / "lists.csv"
    assert "Some lists have fewer than 12 items" in recommend(
        model, "--users", "all", "-k", 12, "--hide-seen", "-o", out
    )


def test_similar_items(model: Path) -> None:
    assert "After Tent [red] (i0)" in works("similar", model, "i0", "-k", 3)
    result = talerec("similar", model, "i0", "-k", 3, "--json").json
    assert result["item_id"] == "i0"
    expected = tr.load(model).similar_items("i0", 3)
    assert [item["item_id"] for item in result["items"]] == expected["item_id"].to_list()
    assert "i0" not in [item["item_id"] for item in result["items"]]


def test_explanations_add_up(model: Path) -> None:
    page = works("explain", model, "--history", "i0,i1,i0", "--item", "i2")
    assert "Why Café (i2)" in page
    assert re.search(r"score +[+-]0\.\d{4}", page)
    result = talerec("explain", model, "--history", "i0,i1,i0", "--item", "i2", "--json").json
    assert (result["item_id"], result["title"]) == ("i2", "Café")
    shares = [row["contribution"] for row in result["contributions"]]
    assert sum(shares) == pytest.approx(result["score"], abs=1e-12)
    assert [row["item_id"] for row in result["contributions"]] == ["i0", "i1", "i0"]


def test_a_user_is_explained_by_the_rows_of_the_model(model: Path) -> None:
    fitted = tr.load(model)
    for user in (3, 7):
        best = fitted.recommend([user], 1)
        item, score = best["item_id"][0], best["score"][0]
        result = talerec("explain", model, "--user", user, "--item", item, "--json").json
        expected = fitted.explain_user(user, item)
        assert [row["item_id"] for row in result["contributions"]] == expected["item_id"].to_list()
        assert result["score"] == pytest.approx(score, abs=1e-12)
        page = works("explain", model, "--user", user, "--item", item)
        assert f"{score:+.4f}" in page


def test_explain_takes_either_a_user_or_a_history(model: Path, log: Path, tmp_path: Path) -> None:
    message = "use either --user or --history"
    assert refusal("explain", model, "--item", "i1") == message
    assert refusal("explain", model, "--item", "i1", "--user", 3, "--history", "i2") == message
    message = refusal("explain", model, "--item", "i1", "--user", "nobody")
    assert message == "user 'nobody' is not known to the model"
    bare = tmp_path / "bare.tale"
    works("fit", log, "-o", bare, "--model", "markov", "--no-histories")
    message = refusal("explain", bare, "--item", "i1", "--user", 3)
    assert message == f"{bare} was saved without histories; use --history, not --user"


def test_after_a_long_history_the_largest_contributions_are_shown_and_the_others_summed(
    model: Path,
) -> None:
    history = [f"i{n % 12}" for n in range(60)]
    shares = tr.load(model).explain(history, "i5")["contribution"].to_list()
    page = works("explain", model, "--history", ",".join(history), "--item", "i5")
    shown = [float(share) for share in re.findall(r" ([+-]\d\.\d{4})\s*$", page, re.MULTILINE)]
    assert re.search(r"\d+ other rows +[+-]\d %", page)
    *rows, others, score = shown
    assert 1 <= len(rows) <= 10
    assert rows == pytest.approx(sorted(shares, key=abs)[::-1][: len(rows)], abs=1e-4)
    assert sum(rows) + others == pytest.approx(sum(shares), abs=1e-3)
    assert score == pytest.approx(sum(shares), abs=1e-4)


def test_an_explanation_has_shares_and_names_the_same_item(model: Path) -> None:
    history = ["i0", "i1", "i2"]
    adds = tr.load(model).explain(history, "i2")["contribution"].to_list()
    page = works("explain", model, "--history", ",".join(history), "--item", "i2")
    percent = round(100 * adds[2] / sum(map(abs, adds)))
    assert re.search(rf"Café \(i2\), the same item +{percent:+d} %", page)
    assert page.count("the same item") == 1


def test_explaining_a_base_score_names_it(log: Path, tmp_path: Path) -> None:
    works("fit", log, "-o", tmp_path / "p.tale", "--model", "popular")
    page = works("explain", tmp_path / "p.tale", "--history", "i1", "--item", "i2")
    assert re.search(r"i1 +\+0 % +\+0\.0000\s+any history +\+100 % +\+\d+\.0000", page)


def test_explaining_with_unknown_items_gives_them_nothing(model: Path) -> None:
    options = ("--history", "zzz,i1", "--item", "i2", "--unknown", "skip")
    assert re.search(r"zzz +\+0 % +\+0\.0000", works("explain", model, *options))


def test_ids_that_are_numbers_come_back_as_numbers_and_find_their_titles(tmp_path: Path) -> None:
    frame = pl.read_csv(write_log(tmp_path / "log.csv"))
    frame = frame.with_columns(pl.col("item_id").str.slice(1).cast(pl.Int64))
    frame.write_parquet(tmp_path / "log.parquet")
    (tmp_path / "items.csv").write_text("item_id,name\n1,Kettle\n")
    folder = tmp_path / "m.tale"
    works("fit", tmp_path / "log.parquet", "-o", folder, "--items", tmp_path / "items.csv")
    assert "After Kettle (1)" in works("similar", folder, "1")
    assert talerec("similar", folder, "1", "--json").json["item_id"] == 1
    result = talerec("explain", folder, "--history", "2", "--item", "1", "--json").json
    assert (result["item_id"], result["title"]) == (1, "Kettle")


def test_titles_are_printed_literally(model: Path) -> None:
    page = works("recommend", model, "--history", "i0,i1,i3,i4", "-k", 1)
    assert "Tent [red] (i0), Stove :fire: (i1), New line (i3), [/bold] (i4)" in page


def test_verify(model: Path) -> None:
    version = json.loads((model / "manifest.json").read_text())["version"]
    assert works("verify", model) == f"{model} is intact (version {version})\n"
    assert talerec("verify", model, "--json").json == {
        "path": str(model),
        "ok": True,
        "version": version,
    }


# -- synth, demo -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["log.csv", "log.parquet"])
def test_synth_writes_a_log_that_can_be_read(name: str, tmp_path: Path) -> None:
    options = ("--rows", 500, "--items", 40, "--users", 30, "--seed", 3)
    page = works("synth", "-o", tmp_path / name, *options)
    assert page == f"{tmp_path / name}: 500 rows of 30 users and 40 items\n"
    assert talerec("describe", tmp_path / name, "--json").json["rows"] == 500
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_synth_writes_the_sessions_of_the_library(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    page = works("synth", "-o", path, "--sessions", "--rows", 300, "--seed", 3)
    assert page == f"{path}: 300 rows of 60 users and 20 items\n"
    expected = tr.synthetic_sessions(300, seed=3).to_frame()
    assert tr.read_log(path).to_frame().equals(expected)


def test_synth_refuses_what_it_cannot_write(tmp_path: Path) -> None:
    message = refusal("synth", "-o", tmp_path / "log.txt")
    assert message.endswith("log.txt must end in .parquet or .csv")
    (tmp_path / "dir.csv").mkdir()
    assert refusal("synth", "-o", tmp_path / "dir.csv").endswith("dir.csv is a folder")
    assert "its folder does not exist" in refusal("synth", "-o", tmp_path / "no" / "log.csv")
    assert "rows is 0" in refusal("synth", "-o", tmp_path / "log.csv", "--rows", 0)
    message = "synth writes one file; set --out FILE once"
    assert refusal("synth") == message
    assert refusal("synth", tmp_path / "a.csv", "-o", tmp_path / "b.csv") == message
    assert refusal("synth", tmp_path / "a.csv", tmp_path / "b.csv") == message
    assert [path.name for path in tmp_path.iterdir()] == ["dir.csv"]


def test_the_demo_compares_explains_saves_and_prints_next_commands(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    page = works("demo", "--rows", 5000, "-o", out)
    assert "5,000 rows" in page
    report = (out / "report.md").read_text()
    for text in (page, report):
        models = ["popularity", "sequential rules", "TALE without time", "TALE", "tempo"]
        for name in [*models, *(["ranker"] if find_spec("lightgbm") else [])]:
            assert re.search(rf"^[| ]+{name} [| ]*\d\.\d{{4}}", text, re.MULTILINE), name
        if "ranker" in text:  # its trees answer, with families of features as reasons
            lists = text.split("ranker recommends")[1:]
            assert len(lists) == 2
            assert all(re.search(r"what the user had\s+\d+ %", shown) for shown in lists)
        assert "tempo recommends" in text
        assert "because of" in text
        assert "tempo, the default, is TALE with time scaled to the log's pace" in " ".join(
            text.split()
        )
        assert re.search(r"[A-Z]\w+ [A-Z]\w+ [A-Z]\w+.* \([+-]0\.\d{3}\)", text)
        assert "Next was:" in text
    commands = re.findall(r"^  talerec ((?:recommend|similar|explain) .*)$", page, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        assert "score" in works(*command.split())
    shares = re.findall(r" [+-]\d\.\d{4}", works(*commands[1].split()))
    assert any(float(share) for share in shares)
    assert (out / "report.html").resolve().as_uri() in page
    assert (out / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert "talerec fit YOUR_LOG.csv" in page
    works("verify", out / "shop.tale")
    assert tr.load(out / "shop.tale").name == tr.models.DEFAULT


def test_the_demo_without_lightgbm_does_not_mention_the_ranker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)  # as if it were not installed
    page = works("demo", "--rows", 300, "-o", tmp_path / "demo")
    assert "tempo" in page
    assert "ranker" not in page + (tmp_path / "demo" / "report.md").read_text()


@pytest.mark.parametrize("rows", [1, 10, 60])
def test_a_demo_too_small_to_show_anything_fails_in_one_line_or_works(
    rows: int, tmp_path: Path
) -> None:
    outcome = talerec("demo", "--rows", rows, "-o", tmp_path / "demo")
    assert outcome.code in (0, 2)
    assert outcome.err.count("error: ") == (outcome.code == 2)


def test_the_demo_refuses_a_file_before_it_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    assert refusal("demo", "-o", tmp_path / "file").endswith("the demo writes to a folder")

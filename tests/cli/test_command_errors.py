"""Errors of the command: one line each, before anything is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import talerec as tr
from command import Outcome, refusal, talerec, works, write_log


@pytest.mark.parametrize(
    ("settings", "message"),
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
    command: str, settings: list[str], message: str, tmp_path: Path
) -> None:
    options = ["--model", "tale", *(part for setting in settings for part in ("--set", setting))]
    target = ["-o", tmp_path / "m.tale"] if command == "fit" else []
    assert message in refusal(command, tmp_path / "no.csv", *target, *options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "oracle"], "there is no model 'oracle'; the models are tempo, tale, "),
        (["--model", "tmpo"], "there is no model 'tmpo'; did you mean 'tempo'?"),
        (["--ties", "coin"], "ties is 'coin'; it takes file, item or random:SEED"),
        (
            ["--split", "half"],
            "--split is 'half'; it takes leave-one-out, at:TIME, last:10%, "
            "rolling:TIME,DAYS or every:TIME",
        ),
        (["--split", "at:noon"], "'noon' is not a time"),
        (["--split", "at:"], "is not a time"),
        (["--split", "at:1999-01-01"], "no row lies before the point of the split"),
        (["--split", "at:2031-01-01"], "no row lies after the point of the split"),
        (["--refit", "--on", "validation"], "--refit trains on the validation rows"),
        (["--split", "rolling:2019-10-01"], "rolling takes TIME,DAYS"),
        (["--split", "rolling:2019-10-01,-2"], "above 0"),
        (["--ties", "random:3..1"], "write a range of seeds as random:0..4"),
        (["--out", "nowhere/result.parquet"], "its folder does not exist"),
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
        (["--time-unit", "years"], "--time-unit is 'years'; it takes s, ms, us, ns"),
        (["--speed", "3"], "--speed"),
        (["missing.csv"], "missing.csv"),
    ],
)
def test_a_bad_option_of_evaluate_is_refused_in_one_line(
    options: list[str], message: str, log: Path
) -> None:
    assert message in refusal("evaluate", log, *options)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "log.csv"),
        ("user_id,item_id,timestamp\n", "the log is empty: it has no rows"),
        ("user_id,timestamp\n1,2\n", "there is no column 'item_id'"),
        ("user_id,item_id,timestamp\n1,2,\n", "row 1: timestamp is empty"),
        ("user_id,item_id,timestamp\n1,2,soon\n", "row 1: timestamp 'soon' is not a time"),
        ("user_id,item_id,timestamp\n1,,2020-01-01\n", "row 1: item_id is empty"),
    ],
)
@pytest.mark.parametrize("command", ["describe", "fit", "evaluate"])
def test_a_bad_log_is_refused_in_one_line(
    command: str, content: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(content)
    target = ["-o", tmp_path / "m.tale"] if command == "fit" else []
    assert message in refusal(command, path, *target)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("command", ["fit", "evaluate"])
def test_a_log_without_times_is_refused_where_times_are_needed(
    command: str, tmp_path: Path
) -> None:
    path = tmp_path / "log.csv"
    path.write_text("user_id,item_id\n1,2\n")
    target = ["-o", tmp_path / "m.tale"] if command == "fit" else []
    assert "there is no column 'timestamp'" in refusal(command, path, *target)
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_log_a_folder_and_an_unknown_format_are_refused(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("x")
    assert refusal("describe", tmp_path / "no.csv") == f"{tmp_path}/no.csv does not exist"
    assert "is a folder" in refusal("describe", tmp_path)
    assert "has no ending that talerec reads" in refusal("describe", tmp_path / "log.txt")


def test_an_error_is_one_line_in_a_pipe_even_after_notes(tmp_path: Path) -> None:
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
        assert (
            outcome.err
            == "error: no user has three rows, so leave-one-out has no case; use --split at:TIME\n"
        )
    else:
        assert outcome.json["cases"] >= 1


def test_an_unwritable_target_is_refused_before_the_log_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.doc").write_text("text")
    no_log = tmp_path / "no.csv"
    assert "file is a file" in refusal("fit", no_log, "-o", tmp_path / "file")
    assert "holds other files" in refusal("fit", no_log, "-o", tmp_path / "folder")
    monkeypatch.setattr(os, "access", lambda *args: False)
    message = refusal("fit", no_log, "-o", tmp_path / "new.tale")
    assert message == f"{tmp_path}/new.tale cannot be written: no permission in {tmp_path}"


def test_an_item_table_that_cannot_be_read_is_refused_and_nothing_is_saved(
    log: Path, tmp_path: Path
) -> None:
    table = tmp_path / "items.csv"
    table.write_text("id,name\n1,x\n")
    message = refusal("fit", log, "-o", tmp_path / "m.tale", "--items", table)
    assert "there is no column 'item_id'" in message
    assert list(tmp_path.iterdir()) == [table]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["recommend"], "use either --users or --history"),
        (["recommend", "--users", "1", "--history", "i1"], "use either --users or --history"),
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
def test_a_bad_query_is_refused_in_one_line(args: list[str], message: str, model: Path) -> None:
    command, *options = args
    assert message in refusal(command, model, *options)


def test_usage_errors_name_the_help_page(model: Path) -> None:
    assert "; see talerec fit --help" in refusal("fit")
    assert "; see talerec --help" in refusal("fitt")
    assert "; see talerec verify --help" in refusal("verify", model, "--deep")


def test_a_users_file_that_is_not_text_is_refused(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "users.bin"
    path.write_bytes(b"\xff\xfe\x00\x80")
    assert refusal("recommend", model, "--users", f"@{path}") == (
        f"{path} is not a text file with one id per line"
    )


QUERIES = [
    ["recommend", "--history", "i1"],
    ["similar", "i1"],
    ["explain", "--history", "i1", "--item", "i2"],
    ["verify"],
]


@pytest.mark.parametrize("query", QUERIES)
def test_a_damaged_model_is_refused_in_one_line(
    query: list[str], log: Path, tmp_path: Path
) -> None:
    command, *options = query
    folder = tmp_path / "m.tale"
    assert refusal(command, folder, *options) == f"{folder} does not exist"
    works("fit", log, "-o", folder)
    manifest = folder / "manifest.json"
    whole = manifest.read_text()
    manifest.write_text(whole.replace('"format": 3', '"format": 4'))
    assert "has format 4, and this version of talerec reads formats up to 3" in refusal(
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
            message = refusal("verify", folder)
            assert message == f"{folder}: {path.name} is damaged: its hash does not match"
        path.write_bytes(whole)
    works("verify", folder)


def test_a_bad_number_of_threads_is_an_error_before_the_work(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALEREC_THREADS", "many")
    assert refusal("describe", log) == ("TALEREC_THREADS is 'many'; it takes a whole number from 1")


def test_too_little_memory_is_an_error_in_one_line(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise MemoryError

    monkeypatch.setattr(tr.TALE, "learn_weights", fail)
    assert "not enough memory" in refusal("evaluate", log, "--model", "tale")


def test_ctrl_c_ends_quietly_and_leaves_nothing(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tr.TALE, "learn_weights", interrupt)
    outcome = talerec("fit", log, "-o", tmp_path / "m.tale", "--model", "tale")
    assert outcome == Outcome(130, "", "")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_an_error_in_one_line(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    folder = tmp_path / "m.tale"
    message = refusal("fit", log, "-o", folder)
    assert message == f"{folder} cannot be written: No space left on device"
    assert not list(tmp_path.iterdir())

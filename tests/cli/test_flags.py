"""One spelling of every flag, one default model, and what a shell offers for each."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import typer

import talerec as tr
from command import PYTHONPATH, RUN, refusal, talerec, works
from talerec.cli import completion, main
from talerec.models import DEFAULT
from talerec.models.core import params

# -- spellings -------------------------------------------------------------------------------------


def flags_of(command: str) -> dict[str, list[str]]:
    """The flags of a command as its help page shows them, long name -> all names."""
    shown = re.findall(r"(--[a-z][a-z-]*) +(-[a-z])?", works(command, "--help"))
    return {long: [long, short] if short else [long] for long, short in shown}


@pytest.mark.parametrize(
    "command", ["demo", "synth", "fit", "evaluate", "tune", "reproduce", "lists"]
)
def test_every_command_that_writes_names_its_output_alike(command: str) -> None:
    flags = flags_of(command)
    assert flags["--out"] == ["--out", "-o"]
    assert "--output" not in flags


@pytest.mark.parametrize("command", ["evaluate", "recommend", "similar", "lists"])
def test_every_command_with_list_lengths_names_them_alike(command: str) -> None:
    assert flags_of(command)["--k"] == ["--k", "-k"]


@pytest.mark.parametrize("old", [["--output", "PATH"], ["--output=PATH"]])
def test_fit_takes_the_old_name_of_out_with_a_warning(
    old: list[str], log: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "m.tale"
    given = [part.replace("PATH", str(folder)) for part in old]
    outcome = talerec("fit", log, *given, "--model", "popular", "--json")
    assert (outcome.code, outcome.err) == (0, "warning: --output is now --out\n")
    assert tr.load(folder).name == "popular"


def test_tune_takes_the_old_name_of_out_with_a_warning(log: Path, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    best = tmp_path / "best.json"
    options = ("--model", "trending", "--trials", 2, "--json")
    outcome = talerec("tune", log, "--output", best, *options)
    assert (outcome.code, outcome.err) == (0, "warning: --output is now --out\n")
    assert best.exists()


def test_synth_takes_the_file_by_its_place_with_a_warning(tmp_path: Path) -> None:
    outcome = talerec("synth", tmp_path / "log.csv", "--rows", 100)
    assert (outcome.code, outcome.err) == (0, "warning: synth FILE is now synth --out FILE\n")
    assert tr.read_log(tmp_path / "log.csv").rows == 100
    assert "FILE" not in works("synth", "--help").partition("Options")[0]


def test_a_command_without_output_does_not_take_its_old_name(model: Path) -> None:
    assert "--output" in refusal("verify", model, "--output", "x")


# -- the default model -----------------------------------------------------------------------------


def test_every_command_fits_tempo_unless_told_otherwise(log: Path, tmp_path: Path) -> None:
    assert DEFAULT == "tempo"
    fitted = talerec("fit", log, "-o", tmp_path / "m.tale", "--json").json
    evaluated = talerec("evaluate", log, "--json").json
    assert [fitted["model"], evaluated["model"]] == ["tempo", "tempo"]
    pytest.importorskip("optuna")
    best = tmp_path / "best.json"
    tuned = talerec("tune", log, "--trials", 2, "--set", "solver=local", "-o", best, "--json").json
    assert tuned["model"] == "tempo"
    again = talerec("fit", log, "-o", tmp_path / "m.tale", "--params", best, "--json").json
    assert (again["model"], again["params"]) == ("tempo", tuned["params"])


def test_a_file_of_parameters_names_its_model(log: Path, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"model": "tale", "params": {"reg": 5}}')
    options = ("--params", tmp_path / "p.json", "--json")
    assert talerec("evaluate", log, *options).json["model"] == "tale"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ("--model", "ease"),
            "Spark does not fit ease; it fits tempo, tale, slit, slist and blends of them (--model tempo)",
        ),
        (("--event", "kind"), "--event goes with --event-weights on Spark"),
        (
            ("--histories", "--histories-to", "rows"),
            "give --histories or --histories-to, one of the two",
        ),
    ],
)
def test_what_has_no_place_on_spark_is_refused_by_name(
    log: Path, tmp_path: Path, given: tuple[str, ...], said: str
) -> None:
    pytest.importorskip("pyspark", reason="needs pyspark: EXTRAS=all make test")
    assert refusal("fit", log, "-o", tmp_path / "m.tale", "--engine", "spark", *given) == said


def test_what_is_judged_on_spark_is_said_before_anything_runs(log: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="needs pyspark: EXTRAS=all make test")
    there = ("evaluate", log, "--engine", "spark")
    assert refusal(*there) == (
        "Spark does not split by leave-one-out; it takes splits of time: --split at:TIME or rolling:TIME,DAYS"
    )
    at = ("--split", "at:2020-06-01")
    assert refusal(*there, *at, "--model", "sasrec").startswith("Spark does not fit sasrec")
    page = ("--report", tmp_path / "page.html")
    assert refusal(*there, *at, *page) == (
        "--report goes with --engine local: from Spark only sums come back"
    )
    said = "--histories-to goes with --engine spark; talerec events import fills a store from here"
    assert refusal("fit", log, "-o", tmp_path / "m.tale", "--histories-to", "rows") == said
    assert refusal("evaluate", log, "--master", "x") == "--master goes with --engine spark"


@pytest.mark.parametrize("command", ["fit", "evaluate", "tune"])
def test_help_names_the_default_model(command: str) -> None:
    assert f"Which model; {DEFAULT} by default" in works(command, "--help")


# -- reading and titles ----------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["describe", "evaluate"])
def test_a_command_parses_its_log_once(
    command: str, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect, scans = pl.LazyFrame.collect, []

    def counted(frame: pl.LazyFrame, **options: Any) -> pl.DataFrame:
        scans.extend(re.findall(r"SCAN \[(.*?)\]", frame.explain()))
        return collect(frame, **options)

    monkeypatch.setattr(pl.LazyFrame, "collect", counted)
    model = ["--model", "popular"] if command == "evaluate" else []
    works(command, log, *model)
    assert scans == [str(log)]


def test_only_titles_that_are_shown_are_looked_up(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[list[Any]] = []
    gather = pl.Series.gather

    def counted(series: pl.Series, rows: Any) -> pl.Series:
        if series.name == "title":
            looked_up.append(list(rows))
        return gather(series, rows)

    monkeypatch.setattr(pl.Series, "gather", counted)
    page = works("recommend", model, "--history", "i0,i7", "-k", 2)
    assert "After Tent [red] (i0), i7" in page
    assert [len(rows) for rows in looked_up] == [2, 2]
    looked_up.clear()
    works("similar", model, "i0", "-k", 3)
    works("explain", model, "--history", "i0,i1,i0", "--item", "i2")
    assert [len(rows) for rows in looked_up] == [4, 3]


# -- completion ------------------------------------------------------------------------------------


def offered(line: str, shell: str = "bash") -> list[str]:
    """What a shell is offered for the last word of a command line, in this process."""
    words = line.split(" ")
    given = {"_TALEREC_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        given |= {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    else:
        given |= {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in given.items():
            patch.setenv(name, value)
        outcome = talerec()
    assert (outcome.code, outcome.err) == (0, "")
    return outcome.out.split() if shell == "bash" else outcome.out.splitlines()


def test_commands_and_flags_are_completed() -> None:
    assert set(offered("talerec ")) >= {"demo", "fit", "evaluate", "recommend", "serve"}
    assert offered("talerec eva") == ["evaluate"]
    assert offered("talerec fit --no") == ["--no-histories"]
    assert offered("talerec fit --outp") == []
    assert "--split" in offered("talerec tune log.csv --")


def test_models_are_completed() -> None:
    assert set(offered("talerec fit log.csv --model ")) == set(tr.MODELS)
    assert offered("talerec evaluate log.csv --model te") == ["tempo"]
    assert offered("talerec models sli") == ["slis", "slist", "slit"]


def names(offers: list[str]) -> list[str]:
    return list(dict.fromkeys(offer.partition("=")[0] for offer in offers))


@pytest.mark.parametrize("name", tr.MODELS)
def test_parameters_of_the_chosen_model_are_completed(name: str) -> None:
    offers = offered(f"talerec fit log.csv --model {name} --set ")
    assert names(offers) == [field.name for field in params.fields(tr.MODELS[name])]
    for field in params.fields(tr.MODELS[name]):
        values = [x.partition("=")[2] for x in offers if x.partition("=")[0] == field.name]
        assert values in ([""], list(field.metadata["choices"]))


def test_parameters_of_the_default_model_are_completed_without_a_model() -> None:
    fields = params.fields(tr.MODELS[DEFAULT])
    assert names(offered("talerec tune log.csv --set ")) == [field.name for field in fields]
    assert offered("talerec fit log.csv --set rep") == ["repeats=learned", "repeats=ignored"]
    assert offered("talerec fit log.csv --model nothing --set ") == []


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("talerec evaluate log.csv --split ", ["leave-one-out", "at:", "rolling:"]),
        ("talerec evaluate log.csv --on v", ["validation"]),
        ("talerec fit log.csv --ties ", ["file", "item", "random:"]),
        ("talerec fit log.csv --engine s", ["spark"]),
        ("talerec recommend m.tale --unknown ", ["error", "skip"]),
        ("talerec describe log.csv --time-unit ", ["s", "ms", "us", "ns"]),
        ("talerec fit log.csv --core ", []),
    ],
)
def test_values_of_flags_are_completed(line: str, offers: list[str]) -> None:
    assert offered(line) == offers


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_offered_help_too(shell: str) -> None:
    found = "\n".join(offered("talerec fit log.csv --model temp", shell))
    assert "tempo" in found
    assert "what follows the history" in found


def test_completion_loads_no_heavy_library() -> None:
    script = (
        "import os, sys\n"
        "from talerec.cli.main import app\n"
        "words = 'talerec fit log.csv --model tale --set '\n"
        "os.environ |= dict(_TALEREC_COMPLETE='complete_bash', COMP_WORDS=words, COMP_CWORD='6')\n"
        "try:\n    app(prog_name='talerec')\nexcept SystemExit:\n    pass\n"
        "print(sorted({'numpy', 'numba', 'scipy', 'polars', 'talerec.models'} & sys.modules.keys()))"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": PYTHONPATH}, capture_output=True
    )
    *offers, loaded = run.stdout.decode().splitlines()
    assert "decay=" in offers
    assert loaded == "[]"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_show_and_install_completion_write_the_script_of_a_shell(
    shell: str, tmp_path: Path
) -> None:
    environment = {
        "PYTHONPATH": PYTHONPATH,
        "HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }
    asked = [*RUN, "--show-completion", shell]
    shown = subprocess.run(asked, env=environment, capture_output=True, text=True)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "_TALEREC_COMPLETE" in shown.stdout
    asked = [*RUN, "--install-completion", shell]
    done = subprocess.run(asked, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert any("_TALEREC_COMPLETE" in text for text in written)


def test_completion_without_source_files_offers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "_FOLDER", tmp_path / "nothing")
    for cached in (completion._kinds, completion._default):
        cached.cache_clear()
    try:
        assert offered("talerec fit log.csv --model ") == []
        assert offered("talerec fit log.csv --set ") == []
    finally:
        for cached in (completion._kinds, completion._default):
            cached.cache_clear()


def test_every_flag_says_what_it_is_for() -> None:
    commands = typer.main.get_command(main.app).commands
    silent = [
        (name, part.name)
        for name, known in commands.items()
        for part in known.params
        if not part.help
    ]
    assert len(commands) >= 14
    assert silent == []


# -- defaults that are the library's ---------------------------------------------------------------


def test_defaults_of_the_command_are_those_of_the_library() -> None:
    """The command spells them out, so that it need not load the library before it knows what is asked."""
    shown = {
        command: {
            one.name: one.default
            for one in typer.main.get_command(main.app).commands[command].params
        }
        for command in ("update", "recommend", "lists")
    }
    library = inspect.signature(tr.update).parameters
    assert shown["update"]["tolerance"] == library["tolerance"].default
    asked = inspect.signature(tr.TALE.recommend).parameters
    for command in ("recommend", "lists"):
        for name in ("k", "hide_seen", "unknown"):
            assert shown[command][name] == asked[name].default

"""Names and defaults of flags, the default model, and shell completion."""

from __future__ import annotations

import ast
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
from talerec.cli.options import flag_of
from talerec.models import DEFAULT
from talerec.models.core import param_fields

# -- spellings -------------------------------------------------------------------------------------


def flags_of(command: str) -> dict[str, list[str]]:
    """Return the flags on a command's help page: long name -> all names."""
    shown = re.findall(r"(--[a-z][a-z-]*) +(-[a-z])?", works(command, "--help"))
    return {long: [long, short] if short else [long] for long, short in shown}


@pytest.mark.parametrize(
    "command", ["demo", "synth", "fit", "evaluate", "tune", "reproduce", "lists"]
)
def test_every_command_with_an_output_names_it_out(command: str) -> None:
    flags = flags_of(command)
    assert flags["--out"] == ["--out", "-o"]
    assert "--output" not in flags


@pytest.mark.parametrize("command", ["evaluate", "recommend", "similar", "lists"])
def test_every_command_with_list_lengths_names_them_k(command: str) -> None:
    assert flags_of(command)["--k"] == ["--k", "-k"]


@pytest.mark.parametrize("old", [["--output", "PATH"], ["--output=PATH"]])
def test_fit_takes_the_old_name_of_out_with_a_warning(
    old: list[str], log: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "m.tale"
    output = [part.replace("PATH", str(folder)) for part in old]
    outcome = talerec("fit", log, *output, "--model", "popular", "--json")
    assert (outcome.code, outcome.err) == (0, "warning: --output is now --out\n")
    assert tr.load(folder).name == "popular"


def test_tune_takes_the_old_name_of_out_with_a_warning(log: Path, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    best = tmp_path / "best.json"
    options = ("--model", "trending", "--trials", 2, "--json")
    outcome = talerec("tune", log, "--output", best, *options)
    assert (outcome.code, outcome.err) == (0, "warning: --output is now --out\n")
    assert best.exists()


def test_synth_takes_the_file_as_an_argument_with_a_warning(tmp_path: Path) -> None:
    outcome = talerec("synth", tmp_path / "log.csv", "--rows", 100)
    assert (outcome.code, outcome.err) == (0, "warning: synth FILE is now synth --out FILE\n")
    assert tr.read_log(tmp_path / "log.csv").rows == 100
    assert "FILE" not in works("synth", "--help").partition("Options")[0]


def test_a_command_without_output_does_not_take_its_old_name(model: Path) -> None:
    assert "--output" in refusal("verify", model, "--output", "x")


# -- the default model -----------------------------------------------------------------------------


def test_every_command_fits_tempo_by_default(log: Path, tmp_path: Path) -> None:
    assert DEFAULT == "tempo"
    fitted = talerec("fit", log, "-o", tmp_path / "m.tale", "--json").json
    evaluated = talerec("evaluate", log, "--json").json
    assert [fitted["model"], evaluated["model"]] == ["tempo", "tempo"]
    pytest.importorskip("optuna")
    best = tmp_path / "best.json"
    tuned = talerec("tune", log, "--trials", 2, "--set", "solver=local", "-o", best, "--json").json
    assert tuned["model"] == "tempo"
    refitted = talerec("fit", log, "-o", tmp_path / "m.tale", "--params", best, "--json").json
    assert (refitted["model"], refitted["params"]) == ("tempo", tuned["params"])


def test_a_file_of_parameters_names_its_model(log: Path, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"model": "tale", "params": {"reg": 5}}')
    options = ("--params", tmp_path / "p.json", "--json")
    assert talerec("evaluate", log, *options).json["model"] == "tale"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--model", "ease"),
            "Spark does not fit ease; it fits tempo, tale, slit, slist, rules, markov, trending, "
            "popular, sknn and stan, blends and rankers of these, and content",
        ),
        (("--event", "kind"), "on Spark, --event needs --event-weights"),
        (("--histories", "--histories-to", "rows"), "use --histories or --histories-to, not both"),
    ],
)
def test_options_that_spark_does_not_support_are_refused(
    log: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    pytest.importorskip("pyspark", reason="needs pyspark: EXTRAS=all make test")
    fit = ("fit", log, "-o", tmp_path / "m.tale", "--engine", "spark")
    assert refusal(*fit, *options) == message


def test_evaluations_that_spark_does_not_support_are_refused_before_anything_runs(
    log: Path, tmp_path: Path
) -> None:
    pytest.importorskip("pyspark", reason="needs pyspark: EXTRAS=all make test")
    evaluate = ("evaluate", log, "--engine", "spark")
    assert refusal(*evaluate) == (
        "Spark does not split by leave-one-out; it takes splits by time: "
        "at:TIME, last:10%, rolling:TIME,DAYS or every:TIME"
    )
    at = ("--split", "at:2020-06-01")
    assert refusal(*evaluate, *at, "--model", "sasrec").startswith("Spark does not fit sasrec")
    page = ("--report", tmp_path / "page.html")
    assert refusal(*evaluate, *at, *page) == (
        "--report needs --engine local; Spark returns only sums"
    )
    message = "--histories-to needs --engine spark; talerec events import fills a store from here"
    assert refusal("fit", log, "-o", tmp_path / "m.tale", "--histories-to", "rows") == message
    assert refusal("evaluate", log, "--master", "x") == "--master needs --engine spark"


@pytest.mark.parametrize("command", ["fit", "evaluate", "tune"])
def test_help_names_the_default_model(command: str) -> None:
    assert f"Model (default {DEFAULT})" in works(command, "--help")


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
    """Return the values that a shell is offered for the last word of a command line."""
    words = line.split(" ")
    variables = {"_TALEREC_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        variables |= {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    else:
        variables |= {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
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
    assert names(offers) == [field.name for field in param_fields(tr.MODELS[name])]
    for field in param_fields(tr.MODELS[name]):
        values = [x.partition("=")[2] for x in offers if x.partition("=")[0] == field.name]
        assert values in ([""], list(field.metadata["choices"]))


def test_parameters_of_the_default_model_are_completed_without_a_model() -> None:
    fields = param_fields(tr.MODELS[DEFAULT])
    assert names(offered("talerec tune log.csv --set ")) == [field.name for field in fields]
    assert offered("talerec fit log.csv --set rep") == ["repeats=learned", "repeats=ignored"]
    assert offered("talerec fit log.csv --model nothing --set ") == []


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        (
            "talerec evaluate log.csv --split ",
            ["leave-one-out", "at:", "last:", "rolling:", "every:"],
        ),
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
    offers = "\n".join(offered("talerec fit log.csv --model temp", shell))
    assert "tempo" in offers
    assert "what follows the history" in offers


def test_completion_loads_no_heavy_library() -> None:
    script = (
        "import os, sys\n"
        "from talerec.cli.main import app\n"
        "words = 'talerec fit log.csv --model tale --set '\n"
        "os.environ |= dict(_TALEREC_COMPLETE='complete_bash', COMP_WORDS=words, COMP_CWORD='6')\n"
        "try:\n    app(prog_name='talerec')\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'numba', 'scipy', 'polars', 'talerec.models'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
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
    command = [*RUN, "--show-completion", shell]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "_TALEREC_COMPLETE" in shown.stdout
    command = [*RUN, "--install-completion", shell]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert any("_TALEREC_COMPLETE" in text for text in written)


def test_completion_without_source_files_offers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "_FOLDER", tmp_path / "nothing")
    for cached in (completion._read_model_sources, completion._find_default_model):
        cached.cache_clear()
    try:
        assert offered("talerec fit log.csv --model ") == []
        assert offered("talerec fit log.csv --set ") == []
    finally:
        for cached in (completion._read_model_sources, completion._find_default_model):
            cached.cache_clear()


def test_every_flag_has_a_help_text() -> None:
    commands = typer.main.get_command(main.app).commands
    without_help = [
        (name, part.name)
        for name, command in commands.items()
        for part in command.params
        if not part.help
    ]
    assert len(commands) >= 14
    assert without_help == []


# -- defaults and parameters of the library --------------------------------------------------------


def test_defaults_of_the_command_are_those_of_the_library() -> None:
    """The command repeats them, so that it need not import the library to parse its options."""
    shown = {
        command: {
            param.name: param.default
            for param in typer.main.get_command(main.app).commands[command].params
        }
        for command in ("update", "recommend", "lists")
    }
    library = inspect.signature(tr.update).parameters
    assert shown["update"]["tolerance"] == library["tolerance"].default
    method = inspect.signature(tr.TALE.recommend).parameters
    for command in ("recommend", "lists"):
        for name in ("k", "hide_seen", "unknown"):
            assert shown[command][name] == method[name].default


def listed_parameters() -> set[str]:
    """Return the parameters that errors and notes of the library list, found in its source."""
    names: set[str] = set()
    source = Path(tr.__file__).parent
    for path in source.rglob("*.py"):
        if path.relative_to(source).parts[0] in ("cli", "serve"):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ERRORS:
                names |= {arg.value for arg in node.args[1:] if isinstance(arg, ast.Constant)}
            elif isinstance(node, ast.Dict) and ast.unparse(node).startswith("{'parameters':"):
                names |= {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
    return names - {"parameters"}


ERRORS = ("TalerecError", "InvalidLogError", "MissingColumnError")
#: Parameters without an option of their own: of Spark jobs, of `explain`, and `folder`.
PYTHON_ONLY = {"task_pairs", "task_rows", "by", "folder"}


def test_every_parameter_in_an_error_of_the_library_has_a_flag() -> None:
    commands = [*typer.main.get_command(main.app).commands.values()]
    commands += [each for group in commands for each in getattr(group, "commands", {}).values()]
    declared = {flag for command in commands for param in command.params for flag in param.opts}
    parameters = listed_parameters()
    assert parameters >= {"time_unit", "sep", "item_key", "time_split"}
    without_flag = {name for name in parameters if flag_of(name).split()[0] not in declared}
    assert without_flag <= PYTHON_ONLY


def test_flags_are_those_of_declared_options_and_other_names_stay() -> None:
    assert flag_of("time_unit") == "--time-unit"
    assert flag_of("any_order") == "--ties item"
    assert flag_of("time_split") == "--split at:TIME"
    assert flag_of("cases") == "--out"
    assert flag_of("no_option") == "no_option"

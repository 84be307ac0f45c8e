"""Several models in one command: `evaluate --models`, and their printed table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from talerec.cli.completion import complete_values
from talerec.cli.options import MODEL, flag_of, option
from talerec.cli.terminal import format_number, print_columns, print_line, print_note
from talerec.errors import TalerecError, spell_parameters

if TYPE_CHECKING:
    from talerec.cli.groups import LogSource, ModelChoice
    from talerec.cli.item_tables import ItemTableOptions
    from talerec.data.split import SplitPlan
    from talerec.evaluation import Leaderboard, Result


@dataclass(frozen=True)
class ManyModels:
    """Options that evaluate several models at once."""

    models: Annotated[
        list[str],
        option(
            "--models",
            "linear|all|NAME,...",
            "Evaluate several models on one split and compare them with the first:"
            " tempo,ease(reg=500).",
            MODEL,
            complete=complete_values("linear", "all"),
        ),
    ] = field(default_factory=list)
    minutes: Annotated[
        float | None,
        option(
            "--minutes",
            "N",
            "With --models: start no model that would exceed so many minutes in all.",
            MODEL,
        ),
    ] = None

    def names(self, choice: ModelChoice, folder: Path | None) -> list[str] | None:
        """Return the texts that name several models; None if the command is about one model.

        Two --model are the same as --models with both names. TalerecError for a model that does not
        exist, for options that go with one model alone, and if `folder`, for results, is a file.
        """
        texts = [*choice.model, *self.models]
        if not self.models and len(texts) < 2:
            if self.minutes is not None:
                raise TalerecError("--minutes needs --models")
            return None
        if choice.set or choice.params is not None:
            flag = "--set" if choice.set else "--params"
            raise TalerecError(
                f"{flag} needs one model; with several, write settings as ease(reg=500)"
            )
        from talerec.evaluation import list_models

        list_models(texts)
        if folder is not None and folder.exists() and not folder.is_dir():
            raise TalerecError(f"{folder} is a file; with --models, --out takes a folder")
        return texts


def evaluate_many(
    names: list[str],
    many: ManyModels,
    source: LogSource,
    table: ItemTableOptions,
    plan: SplitPlan,
    folder: Path | None,
    settings: dict[str, Any],
) -> Leaderboard:
    """Evaluate several models on this machine, and return their table.

    names: texts that name the models. many: has the time budget. `source` and `table`
    have the options to read the log and the item table; `plan` is how the log is split; `folder` is
    for finished models, None for none; `settings` are the arguments on, k, hide_seen and ties of
    `evaluate_models`. The seconds of the run include those of reading the log.
    """
    from talerec.evaluation import evaluate_models, list_models
    from talerec.runtime import Clock

    listed = list_models(names)
    needs_time = all(entry.model.needs_time for entry in listed)
    clock = Clock()
    with clock("load"):
        items = table.read(source.item)
        log = source.read(any_order=settings["ties"] != "file", needs_time=needs_time)
        log = table.attach(log, items)
    options = {**settings, "baskets": source.basket is not None}
    board = evaluate_models(log, names, plan, minutes=many.minutes, folder=folder, **options)
    seconds = {**clock.seconds, **board.run_seconds}
    seconds["total"] += clock.seconds["load"]
    return replace(board, run_seconds=seconds)


def name_results(paths: Sequence[Path], evaluations: Sequence[Result]) -> list[str]:
    """Return what sentences call the results in several files: the model and the file's name.

    tempo (new.parquet); with the path if two files have one name. TalerecError for a file that is
    there twice.
    """
    names = [path.name for path in paths]
    shown = [str(path) if names.count(path.name) > 1 else path.name for path in paths]
    for text in shown:
        if shown.count(text) > 1:
            raise TalerecError(f"{text} is there twice; compare takes different files")
    return [f"{result.model} ({text})" for result, text in zip(evaluations, shown, strict=True)]


def exit_code(result: Result | Leaderboard) -> int:
    """Return the exit code of an evaluation: 1 if one of several named models failed, else 0.

    A model that is left out for lack of time is not a failure, nor is one of the lists linear and
    all that lacks a library.
    """
    return 1 if any(entry.is_failure for entry in getattr(result, "skipped", ())) else 0


def print_leaderboard(board: Leaderboard) -> None:
    """Print a table of models, best first, what was skipped, and which model to take.

    Columns: the headline metric with its 95 % interval, the difference to the first model with its
    interval, the p-value after Holm's correction, the hit rate, own and shared seconds, memory.
    """
    from talerec.evaluation import format_p_value

    result, metric = board.results[board.first], board.headline
    rows = list(board.frame.iter_rows(named=True))
    low, high = f"{metric} low", f"{metric} high"
    columns = {
        metric: [format_number(row[metric]) for row in rows],
        "95 % interval": [_format_interval(row[low], row[high]) for row in rows],
        f"less\n{board.first}": [_format_change(row["difference"]) for row in rows],
        "95 % interval ": [
            _format_interval(row["difference low"], row["difference high"], "+") for row in rows
        ],
        "p": ["-" if row["p (Holm)"] is None else format_p_value(row["p (Holm)"]) for row in rows],
        metric.replace("NDCG", "HR"): [
            format_number(row[metric.replace("NDCG", "HR")]) for row in rows
        ],
        "own\nseconds": [f"{row['own seconds']:.2f}" for row in rows],
        "shared\nseconds": [f"{row['shared seconds']:.2f}" for row in rows],
        "peak\nMB": [f"{row['peak MB']:,.0f}" if row["peak MB"] else "-" for row in rows],
    }
    hidden = ", seen items hidden" if result.hide_seen else ""
    title = f"{result.split}: {result.description}{hidden}"
    print_columns(title, [row["model"] for row in rows], columns)
    print_note(
        "p: sign-flip test over users, corrected by Holm's method for the number of models, which "
        "intervals are not; seconds: without one-time "
        "compilation; shared: of steps that several models use; peak: high-water mark of memory, "
        "reset before each model"
    )
    for entry in board.skipped:
        reason = spell_parameters(entry.reason, entry.parameters, flag_of)
        print_line(f"Skipped: {entry.label}: {reason}")
    for remark in board.notes:
        print_line(f"Note: {remark}")
    if board.run_seconds:
        steps = ", ".join(f"{name} {value:.2f} s" for name, value in board.run_seconds.items())
        print_note(steps)
    print_line(board.advice)


def _format_change(value: float | None) -> str:
    """Return a difference with its sign and four decimals; a dash for None."""
    return "-" if value is None else f"{value:+.4f}"


def _format_interval(low: float | None, high: float | None, sign: str = "") -> str:
    """Return the ends of an interval as text, with signs if `sign` is "+"; a dash for None."""
    if low is None or high is None:
        return "-"
    return f"{low:{sign}.4f} to {high:{sign}.4f}"

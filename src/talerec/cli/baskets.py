"""Evaluation on baskets (--basket), and its printed results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from talerec.cli.terminal import (
    format_number,
    format_settings,
    format_timings,
    print_columns,
    print_json,
    print_line,
    print_note,
    reporting,
)
from talerec.errors import TalerecError

if TYPE_CHECKING:
    from talerec.cli.groups import LogSource
    from talerec.data.split import SplitPlan
    from talerec.evaluation import BasketEvaluation
    from talerec.models.core import Model


def evaluate_next_baskets(
    model: Model,
    source: LogSource,
    plan: SplitPlan,
    others: Sequence[Path | None],
    settings: dict[str, Any],
    json: bool,
) -> None:
    """Evaluate an unfitted model on the next baskets of a log, and print the result.

    `source` has the options to read the log, and `plan` is how it is split; `settings` has the
    arguments on, k and hide_seen of `evaluate_baskets`, and ties. `others` are options that do not
    go with baskets: TalerecError if one is set, or ties are in several orders.
    """
    from talerec.evaluation import evaluate_baskets

    ties = settings.pop("ties")
    if any(option is not None for option in others) or ".." in ties:
        raise TalerecError("--basket takes no --out, --report, --items, and one order of ties")
    with reporting(json):
        result = evaluate_baskets(model, source.read(ties), plan, **settings)
    if json:
        print_json(result.to_dict())
    else:
        _print_baskets(result)


def _print_baskets(result: BasketEvaluation) -> None:
    """Print an evaluation on baskets: metrics of all items, of repeats and of new items.

    Repeats are items of a basket that the user's history has. A second table has baskets by their
    share of repeats.
    """
    suffix = ", seen items hidden" if result.hide_seen else ""
    names = list(result.metrics)
    has_intervals = not result.notes  # the only note is that there are too few users for them
    columns = {
        "mean": [format_number(result.metrics[name]) for name in names],
        "95 % interval": [
            " to ".join(map(format_number, interval)) if has_intervals else "too few users"
            for interval in result.intervals.values()
        ],
    }
    for part, values in result.parts.items():
        columns[f"{part} items"] = [format_number(values["metrics"][name]) for name in names]
    print_columns(f"{result.model}, {result.split}: {result.description}{suffix}", names, columns)
    (shares,) = result.groups.values()
    rows_by_share = {
        f"{name}\nrepeats": [
            f"{values['cases']:,}", *(format_number(values["metrics"][n]) for n in names)
        ]
        for name, values in shares.items()
    }  # fmt: skip
    print_columns("By share of repeats in the basket", ["baskets", *names], rows_by_share)
    for text in result.notes:
        print_line(f"Note: {text}")
    print_note(format_settings(result.params))
    print_note(format_timings(result.seconds))

"""Printed results of an evaluation on next baskets (--basket)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from talerec.cli.terminal import (
    format_number,
    format_settings,
    format_timings,
    print_columns,
    print_line,
    print_note,
)

if TYPE_CHECKING:
    from talerec.evaluation import BasketEvaluation


def print_baskets(result: BasketEvaluation) -> None:
    """Print an evaluation on baskets: metrics of all items, of repeats and of new items.

    Repeats are items of a basket that the user's history has. A second table has baskets by their
    share of repeats.
    """
    suffix = ", seen items hidden" if result.hide_seen else ""
    names = list(result.metrics)
    columns = {
        "mean": [format_number(result.metrics[name]) for name in names],
        "95 % interval": [result.describe_interval(name) for name in names],
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

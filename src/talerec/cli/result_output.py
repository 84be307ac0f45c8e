"""Output of commands with a result: checks before the work, tables or JSON after it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from talerec.cli.baskets import print_baskets
from talerec.cli.evaluate_models import print_leaderboard
from talerec.cli.terminal import print_json


def check_outputs(outputs: Sequence[Path | None], inputs: Sequence[str | Path | None]) -> None:
    """Raise TalerecError if an output file cannot be written or is one of the inputs.

    Nothing is read; entries that are None stand for options that are not set.
    """
    from talerec.data.read import refuse_overwriting
    from talerec.runtime import check_writable

    for path in outputs:
        if path is not None:
            check_writable(path)
    refuse_overwriting(outputs, inputs)


def print_result(kind: str, result: Any, json: bool, *details: Any) -> None:
    """Print a result as JSON if `json`, else as tables.

    `kind` says what the result is: evaluation, baskets, leaderboard, tuning or comparison.
    `details` are further arguments of the function that prints its tables.
    """
    from talerec.cli import results

    if json:
        print_json(result.to_dict())
    else:
        others: dict[str, Any] = {"leaderboard": print_leaderboard, "baskets": print_baskets}
        show = others.get(kind) or getattr(results, f"print_{kind}")
        show(result, *details)

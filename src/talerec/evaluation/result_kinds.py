"""Results of either kind: of single next items, or of next baskets."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from talerec.evaluation.baskets import BasketEvaluation
from talerec.evaluation.result import Evaluation
from talerec.evaluation.saved_results import is_of_baskets, read_file

#: The result of one model: of single next items, or of next baskets.
Result: TypeAlias = Evaluation | BasketEvaluation


def read_any_result(path: str | Path) -> Result:
    """Return a saved result, of whichever kind it is.

    path: a file of `Evaluation.save` or `BasketEvaluation.save`; TalerecError for others.
    """
    kind = BasketEvaluation if is_of_baskets(read_file(path)[1]) else Evaluation
    return kind.load(path)

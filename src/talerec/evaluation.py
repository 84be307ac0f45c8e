"""How good is a model? Full ranking of every case, one row per case, then means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from talerec import columns, memory, metrics
from talerec.arrays import Array
from talerec.clock import Clock
from talerec.errors import TalerecError
from talerec.models.base import Model
from talerec.prepare import Cases, Split

HEAD_SHARE = 0.2  # of the items, by training rows
_GROUPS = {"popularity": ("head", "tail"), "gap": ("short", "mid", "long")}


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The result: one row per case in `frame`, and what is said of them."""

    model: str
    params: dict[str, Any]
    solver: str | None
    split: str
    ties: str
    on: str
    hide_seen: bool
    ks: tuple[int, ...]
    frame: pl.DataFrame
    seconds: dict[str, float]

    @property
    def metrics(self) -> dict[str, float | None]:
        """Means over all cases."""
        return _means(self.frame, self.ks)

    @property
    def groups(self) -> dict[str, dict[str, dict[str, float | None]]]:
        """Means by group of cases, with the number of cases in each."""
        return {
            column: {name: self._group(column, name) for name in parts}
            for column, parts in _GROUPS.items()
        }

    def _group(self, column: str, name: str) -> dict[str, float | None]:
        part = self.frame.filter(pl.col(column) == name)
        return {"cases": len(part), **_means(part, self.ks)}

    def to_dict(self) -> dict[str, Any]:
        """The object that `talerec evaluate --json` prints."""
        return {
            "model": self.model,
            "params": self.params,
            "solver": self.solver,
            "split": self.split,
            "on": self.on,
            "ties": self.ties,
            "hide_seen": self.hide_seen,
            "cases": len(self.frame),
            "metrics": self.metrics,
            "groups": self.groups,
            "seconds": self.seconds,
            "peak_rss_mb": round(memory.peak_rss_mb(), 1),
        }


def _means(frame: pl.DataFrame, ks: Sequence[int]) -> dict[str, float | None]:
    row = frame.select(expression.mean() for expression in metrics.per_case(ks)).row(0, named=True)
    return {name: value if value is None else float(value) for name, value in row.items()}


def evaluate(
    model: Model,
    split: Split,
    *,
    on: str = "test",
    k: Sequence[int] = (1, 5, 10),
    hide_seen: bool = False,
) -> Evaluation:
    """Rank every case of `split` with a model that was fitted on `split.train`.

    A target that the model does not know, or a repeat when seen items are hidden, is a miss.
    """
    metrics.per_case(k)
    cases = split.cases(on)
    known = model.item_ids
    if len(known) != len(split.train.items) or not known.equals(split.train.items.ids):
        raise TalerecError("the model was not fitted on this split's training rows (split.train)")
    clock = Clock()
    with clock("score"):
        ranks = model.rank_targets(cases.histories, cases.target, hide_seen=hide_seen)
    seconds = {"load": 0.0, "gram": 0.0, "solve": 0.0, **model.fitted.seconds, **clock.seconds}
    return Evaluation(
        model=model.name,
        params=model.params,
        solver=model.fitted.solver,
        split=split.name,
        ties=split.train.ties,
        on=on,
        hide_seen=hide_seen,
        ks=tuple(sorted(set(k))),
        frame=_case_frame(split, cases, ranks),
        seconds=seconds,
    )


def _case_frame(split: Split, cases: Cases, ranks: Array) -> pl.DataFrame:
    last = cases.histories.time[cases.histories.stop - 1]
    gap = cases.target_time - last
    return pl.DataFrame(
        {
            columns.USER: split.users.ids.gather(cases.user),
            metrics.RANK: ranks,
            "popularity": _popularity(split, cases.target),
            "gap": _thirds(gap),
            "gap_us": gap,
        }
    )


def _popularity(split: Split, target: Array) -> Array:
    """Head: the top fifth of the items by training rows. Items that were never seen are tail."""
    counts = np.bincount(split.train.item, minlength=len(split.train.items))
    head = np.zeros(len(counts) + 1, bool)  # the last entry answers for target -1
    head[np.argsort(-counts, kind="stable")[: round(HEAD_SHARE * len(counts))]] = True
    return np.where(head[target], "head", "tail")


def _thirds(gap: Array) -> Array:
    """Short <= q33 < mid <= q67 < long, by value: equal gaps are never in two groups."""
    low, high = np.quantile(gap, [0.33, 0.67])
    return np.where(gap <= low, "short", np.where(gap <= high, "mid", "long"))

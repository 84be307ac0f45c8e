"""The result of an evaluation: one row per case, and the figures that are computed from these rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from talerec import columns
from talerec.data.summary import tie_note
from talerec.errors import TalerecError
from talerec.evaluation import intervals as significance
from talerec.evaluation import metrics, saving
from talerec.evaluation.metrics import RANK, RANK_HIDDEN
from talerec.evaluation.queries import (
    CASES,
    GROUPS,
    HISTORY_ROWS,
    LIST_ROWS,
    NOVELTY,
    TIES,
    WINDOW,
)
from talerec.runtime import memory
from talerec.runtime.arrays import Array

UNIT = (columns.USER, WINDOW)  # what is resampled: a user's case, whatever the order of ties

Means = dict[str, float | None]


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """What `evaluate` found: one row per case, and means, intervals and groups of these rows.

    Each figure is computed when it is first asked for, and kept. With several orders of ties, or with
    rolling windows, `frame` has the cases of all of them; its columns `ties` and `window` tell them apart.

    Parameters
    ----------
    model, params, solver
        The model's name, its parameters, and the solver that ran (None: no system was solved).
    split, on, refit
        How rows were held back, which of them were the targets (test or validation), and whether the
        validation rows were training rows too.
    ties, tied
        The order of rows with the same time, and the share of neighbouring training rows that have it.
    hide_seen
        Whether items of the history were left out of the ranking.
    ks
        The lengths of the lists.
    coverage, seconds
        The share of the catalogue in some list, by k; and the time that each step took.
    beside
        With several random orders of ties: the metrics in file order and in item order.
    frame
        One row per case: user, time, rank of the target, groups. From a cluster, one row for cases that are alike, with their number.
    without
        Of a split with a target event: users who have none, and are not asked.

    Examples
    --------
    >>> import talerec as tr
    >>> split = tr.leave_one_out(tr.synthetic_log(2000, items=50))
    >>> result = tr.evaluate(tr.Popular().fit(split.train), split)
    >>> result
    Evaluation(popular, leave-one-out, 153 test cases: HR@10 0.5490, NDCG@10 0.2759)
    >>> round(result.metrics["HR@10"], 4)
    0.549
    >>> result.frame["rank"].head(3).to_list()
    [17, 9, 21]
    """

    model: str
    params: dict[str, Any]
    solver: str | None
    split: str
    refit: bool
    ties: str
    tied: float
    on: str
    hide_seen: bool
    ks: tuple[int, ...]
    coverage: dict[str, float]
    seconds: dict[str, float]
    beside: dict[str, Means]
    frame: pl.DataFrame
    without: int = 0

    # -- figures --

    @cached_property
    def cases(self) -> int:
        """How many cases there are."""
        return _size(self.frame)

    @cached_property
    def metrics(self) -> Means:
        """Means over all cases."""
        return _means(self.frame, self.ks)

    @cached_property
    def metrics_hidden(self) -> Means:
        """Means over all cases, where items of the history are left out of the ranking."""
        return _means(self.frame, self.ks, RANK_HIDDEN)

    @cached_property
    def lists(self) -> Means:
        """What the recommended lists are like: coverage, novelty, and popularity relative to the histories."""
        wanted = [f"{name}@{k}" for name in (NOVELTY, LIST_ROWS) for k in self.ks]
        means = (_mean(self.frame, pl.col(name)) for name in (HISTORY_ROWS, *wanted))
        row = self.frame.select(means).row(0, named=True)
        own = row[HISTORY_ROWS]
        novelty = {f"novelty@{k}": row[f"{NOVELTY}@{k}"] for k in self.ks}
        rows = {k: row[f"{LIST_ROWS}@{k}"] for k in self.ks}
        lift = {f"lift@{k}": mean / own if own and mean else None for k, mean in rows.items()}
        return {**self.coverage, **novelty, **lift}

    @cached_property
    def intervals(self) -> dict[str, list[float]]:
        """The 95 % bootstrap interval of each metric, over users."""
        return self.intervals_of(self.frame)

    @cached_property
    def intervals_hidden(self) -> dict[str, list[float]]:
        """The 95 % bootstrap interval of each metric with seen items hidden, over users."""
        return self.intervals_of(self.frame, RANK_HIDDEN)

    def intervals_of(self, part: pl.DataFrame, rank: str = RANK) -> dict[str, list[float]]:
        """The 95 % bootstrap interval of each metric over some of the cases."""
        if CASES in part.columns:
            alike = part.select(metrics.per_case(self.ks, rank))
            bounds = significance.bootstrap_means(alike.to_numpy(), users=part[CASES].to_numpy())
            return _spans(alike.columns, *bounds)
        values = part.select(*UNIT, *metrics.per_case(self.ks, rank))
        units = values.group_by(UNIT, maintain_order=True).agg(pl.exclude(UNIT).sum(), pl.len())
        cases = units["len"].to_numpy().astype(float)
        sums = units.drop(*UNIT, "len")
        return _spans(sums.columns, *significance.bootstrap_means(sums.to_numpy(), cases))

    @cached_property
    def orders(self) -> list[dict[str, Any]]:
        """Means for each order of simultaneous rows."""
        return self._by(TIES)

    @cached_property
    def windows(self) -> list[dict[str, Any]]:
        """Means for each rolling window, by the time at which it begins."""
        return self._by(WINDOW)

    def _by(self, column: str) -> list[dict[str, Any]]:
        parts = self.frame.partition_by(column, as_dict=True, maintain_order=True)
        return [
            {
                column: str(key[0]),
                "cases": _size(part),
                "metrics": _means(part, self.ks),
                "metrics_hidden": _means(part, self.ks, RANK_HIDDEN),
            }
            for key, part in parts.items()
        ]

    @cached_property
    def spread(self) -> Means:
        """The standard deviation of each metric over the orders of ties; None with one order."""
        found = [order["metrics"] for order in self.orders]
        if len(found) < 2:
            return dict.fromkeys(self.metrics)
        return {name: float(np.std([m[name] for m in found], ddof=1)) for name in found[0]}

    @cached_property
    def groups(self) -> dict[str, dict[str, Means]]:
        """Means by group of cases, with the number of cases in each."""
        return {
            column: {name: self._group(column, name) for name in parts}
            for column, parts in GROUPS.items()
        }

    def _group(self, column: str, name: str) -> Means:
        part = self.group(column, name)
        return {"cases": _size(part), **_means(part, self.ks)}

    def group(self, column: str, name: str) -> pl.DataFrame:
        """The cases of one group, such as `popularity`, `head`."""
        return self.frame.filter(pl.col(column) == name)

    @cached_property
    def notes(self) -> list[str]:
        """Sentences that a reader of the figures should know."""
        lacking = f"{self.without:,} users have no such row to ask for: they are not asked"
        ties = self.tie_sentence or tie_note(self.tied, self.ties)
        return list(filter(None, [ties, lacking if self.without else None]))

    @cached_property
    def tie_sentence(self) -> str | None:
        """How much the order of simultaneous rows matters; None where only one order was tried."""
        metric = f"NDCG@{self.ks[-1]}"
        mean, spread = self.metrics[metric], self.spread[metric]
        known = {order: found[metric] for order, found in self.beside.items()}
        if not known or mean is None or spread is None:
            return None
        best = max(value or 0.0 for value in known.values())
        fixed = ", ".join(f"{value:.4f} in {order} order" for order, value in known.items())
        share = f": {1 - mean / best:.0%} of the better figure rests on an order that the log does not hold"
        return (
            f"{self.tied:.0%} of neighbouring rows have the same time. {self.model} with these in random order: {metric} is {mean:.4f} ± {spread:.4f}"
            f" ({len(self.orders)} orders); but {fixed}{share if best > mean else ''}"
        )

    # -- showing --

    def __repr__(self) -> str:
        headline = (f"{name}@{max(self.ks)}" for name in ("HR", "NDCG"))
        shown = ", ".join(f"{name} {_written(self.metrics[name])}" for name in headline)
        return f"Evaluation({self._about}: {shown})"

    def _repr_html_(self) -> str:
        """A table of the metrics with their intervals, for notebooks."""
        spans = {name: " to ".join(map(_written, ends)) for name, ends in self.intervals.items()}
        rows = "".join(
            f"<tr><th>{name}</th><td>{_written(value)}</td><td>{spans[name]}</td></tr>"
            for name, value in self.metrics.items()
            if not metrics.is_double(name)
        )
        head = "<tr><th>metric</th><th>mean</th><th>95 % interval</th></tr>"
        return f"<table><caption>{escape(self._about)}</caption><thead>{head}</thead><tbody>{rows}</tbody></table>"

    @property
    def _about(self) -> str:
        return f"{self.model}, {self.split}, {self.asked}"

    @property
    def asked(self) -> str:
        """How many cases there are and, where users have several, of how many users and why."""
        cases = self.cases
        users = self.frame[columns.USER].n_unique() if columns.USER in self.frame.columns else cases
        said = f"{cases:,} {self.on} cases"
        if users == cases:
            return said
        kinds = {"orders of ties": len(self.orders), "windows": len(self.windows)}
        several = " and ".join(f"{number} {what}" for what, number in kinds.items() if number > 1)
        return f"{said} of {users:,} users" + (f" in {several}" if several else "")

    def to_dict(self) -> dict[str, Any]:
        """The object that ``talerec evaluate --json`` prints."""
        return {
            **self.facts(),
            "cases": self.cases,
            "metrics": self.metrics,
            "metrics_hidden": self.metrics_hidden,
            "intervals": self.intervals,
            "intervals_hidden": self.intervals_hidden,
            "lists": self.lists,
            "groups": self.groups,
            "orders": self.orders,
            "spread": self.spread,
            "windows": self.windows if self.frame[WINDOW].n_unique() > 1 else [],
            "notes": self.notes,
            "peak_rss_mb": _rounded(memory.peak_rss_mb()),
        }

    def facts(self) -> dict[str, Any]:
        """All fields but the cases."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "frame"}

    # -- saving --

    def save(self, path: str | Path) -> Path:
        """Write the result to a Parquet file that `Evaluation.load` reads.

        Parameters
        ----------
        path
            The file to write; the cases are its rows, the other fields are in its metadata.

        Returns
        -------
        Path
            The file that was written.
        """
        if CASES in self.frame.columns:
            raise TalerecError("this result has sums alone: evaluate with cases=FILE to keep them")
        return saving.write(path, self.facts(), [self.frame])

    @classmethod
    def load(cls, path: str | Path) -> Evaluation:
        """Read a result that `save` (or ``talerec evaluate --out``) has written.

        Parameters
        ----------
        path
            The Parquet file.

        Returns
        -------
        Evaluation
            The result, with all of its cases.

        Raises
        ------
        TalerecError
            If there is no such file, or it is not a saved result.

        Examples
        --------
        >>> import tempfile, talerec as tr
        >>> split = tr.leave_one_out(tr.synthetic_log(2000, items=50))
        >>> result = tr.evaluate(tr.Popular().fit(split.train), split)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     again = tr.Evaluation.load(result.save(f"{folder}/popular.parquet"))
        >>> again.metrics == result.metrics
        True
        """
        table, facts = saving.read(path)
        known = {f.name for f in fields(cls)} - {"frame"}
        if missing := known - set(facts):
            raise TalerecError(
                f"{path} was written by another version of talerec: it has no {min(missing)};"
                " evaluate again"
            )
        facts = {name: facts[name] for name in known}
        frame = pl.DataFrame(table.replace_schema_metadata(None))
        return cls(**{**facts, "ks": tuple(facts["ks"])}, frame=frame)


def _written(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _means(frame: pl.DataFrame, ks: Sequence[int], rank: str = RANK) -> Means:
    wanted = (_mean(frame, expression) for expression in metrics.per_case(ks, rank))
    row = frame.select(wanted).row(0, named=True)
    return {name: value if value is None else float(value) for name, value in row.items()}


def _mean(frame: pl.DataFrame, value: pl.Expr) -> pl.Expr:
    """The mean of a value over all cases that have one."""
    if CASES not in frame.columns:
        return value.mean()
    having = pl.when(value.is_not_null()).then(pl.col(CASES))
    return ((value * having).sum() / having.sum()).fill_nan(None)


def _size(frame: pl.DataFrame) -> int:
    """The number of cases in a frame."""
    return int(frame[CASES].sum()) if CASES in frame.columns else len(frame)


def _spans(names: Sequence[str], low: Array, high: Array) -> dict[str, list[float]]:
    return {name: [a, b] for name, a, b in zip(names, low.tolist(), high.tolist(), strict=True)}


def per_unit(frame: pl.DataFrame, ks: Sequence[int], rank: str = RANK) -> pl.DataFrame:
    """Each metric for each user (and window): the mean over the orders of ties."""
    values = frame.select(*UNIT, *metrics.per_case(ks, rank))
    return values.group_by(UNIT, maintain_order=True).mean()


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)

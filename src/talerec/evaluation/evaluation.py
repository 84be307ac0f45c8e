"""How good is a model? Full ranking of every case, one row per case, then means."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from talerec import columns
from talerec.data import preprocessing
from talerec.data.histories import Histories
from talerec.data.log import Log
from talerec.data.splits import Cases, Plan, Split
from talerec.data.summary import many_ties, tie_note, tied
from talerec.errors import TalerecError
from talerec.evaluation import metrics, significance
from talerec.evaluation.metrics import RANK, RANK_HIDDEN
from talerec.models import asking
from talerec.models.base import Model
from talerec.runtime import memory
from talerec.runtime.arrays import Array
from talerec.runtime.clock import Clock, summed
from talerec.runtime.files import atomic_write

HEAD_SHARE = 0.2  # of the items, by training rows
_THIRDS = ("short", "mid", "long")
GROUPS = {
    "popularity": ("head", "tail"),
    "gap": _THIRDS,
    "length": _THIRDS,
    "kind": ("repeat", "new"),
}
TIES, WINDOW, TIME = "ties", "window", "time"
_UNIT = (columns.USER, WINDOW)  # what is resampled: a user's case, whatever the order of ties
NOVELTY, LIST_ROWS = "novelty", "list_rows"
HISTORY_ROWS, TARGET_ROWS = "history_rows", "target_rows"  # training rows of an item, as a mean

Means = dict[str, float | None]


_FACTS = b"talerec"  # the key of the facts in the metadata of a saved result


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The result: one row per case in `frame`, and what is said of them.

    With several orders of ties, or rolling windows, the cases of all of them are in the frame, and
    the columns `ties` and `window` tell them apart.
    """

    model: str
    params: dict[str, Any]
    solver: str | None
    split: str
    refit: bool
    ties: str
    tied: float  # share of neighbouring training rows with the same time
    on: str
    hide_seen: bool
    ks: tuple[int, ...]
    coverage: dict[str, float]
    seconds: dict[str, float]
    beside: dict[
        str, Means
    ]  # with several random orders: the metrics in orders that are not random
    frame: pl.DataFrame

    @property
    def metrics(self) -> Means:
        """Means over all cases."""
        return _means(self.frame, self.ks)

    @property
    def metrics_hidden(self) -> Means:
        """The same with seen items hidden."""
        return _means(self.frame, self.ks, RANK_HIDDEN)

    @property
    def lists(self) -> Means:
        """What the recommended lists are like: coverage, novelty, and popularity against the histories'."""
        wanted = [f"{name}@{k}" for name in (NOVELTY, LIST_ROWS) for k in self.ks]
        row = self.frame.select(pl.col(HISTORY_ROWS, *wanted).mean()).row(0, named=True)
        own = row[HISTORY_ROWS]
        found: Means = dict(self.coverage)
        found |= {f"novelty@{k}": row[f"{NOVELTY}@{k}"] for k in self.ks}
        lift = {k: row[f"{LIST_ROWS}@{k}"] for k in self.ks}
        return found | {f"lift@{k}": v / own if own and v else None for k, v in lift.items()}

    @property
    def intervals(self) -> dict[str, list[float]]:
        """The 95 % bootstrap interval of each metric, over users."""
        return self.intervals_of(self.frame)

    @property
    def intervals_hidden(self) -> dict[str, list[float]]:
        return self.intervals_of(self.frame, RANK_HIDDEN)

    def intervals_of(self, part: pl.DataFrame, rank: str = RANK) -> dict[str, list[float]]:
        """The same for some of the cases."""
        named = part.select(*_UNIT, *metrics.per_case(self.ks, rank))
        units = named.group_by(_UNIT, maintain_order=True).agg(pl.exclude(_UNIT).sum(), pl.len())
        cases = units["len"].to_numpy().astype(float)
        sums = units.drop(*_UNIT, "len")
        low, high = significance.bootstrap_means(sums.to_numpy(), cases)
        found = zip(sums.columns, low.tolist(), high.tolist(), strict=True)
        return {name: [a, b] for name, a, b in found}

    @property
    def orders(self) -> list[dict[str, Any]]:
        """Means for each order of simultaneous rows."""
        return self._by(TIES)

    @property
    def windows(self) -> list[dict[str, Any]]:
        """Means for each rolling window, by the time at which it begins."""
        return self._by(WINDOW)

    def _by(self, column: str) -> list[dict[str, Any]]:
        parts = self.frame.partition_by(column, as_dict=True, maintain_order=True)
        return [
            {
                column: str(key[0]),
                "cases": len(part),
                "metrics": _means(part, self.ks),
                "metrics_hidden": _means(part, self.ks, RANK_HIDDEN),
            }
            for key, part in parts.items()
        ]

    @property
    def spread(self) -> Means:
        """The standard deviation of each metric over the orders of ties; None with one order."""
        found = [order["metrics"] for order in self.orders]
        if len(found) < 2:
            return dict.fromkeys(self.metrics)
        return {name: float(np.std([m[name] for m in found], ddof=1)) for name in found[0]}

    @property
    def groups(self) -> dict[str, dict[str, Means]]:
        """Means by group of cases, with the number of cases in each."""
        return {
            column: {name: self._group(column, name) for name in parts}
            for column, parts in GROUPS.items()
        }

    def _group(self, column: str, name: str) -> Means:
        part = self.group(column, name)
        return {"cases": len(part), **_means(part, self.ks)}

    def group(self, column: str, name: str) -> pl.DataFrame:
        return self.frame.filter(pl.col(column) == name)

    @property
    def notes(self) -> list[str]:
        """What a reader of the figures must know."""
        return list(filter(None, [self.tie_sentence or tie_note(self.tied, self.ties)]))

    @property
    def tie_sentence(self) -> str | None:
        """What the order of simultaneous rows is worth, where several were tried."""
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

    def to_dict(self) -> dict[str, Any]:
        """The object that `talerec evaluate --json` prints."""
        return {
            **self.facts(),
            "cases": len(self.frame),
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
            "peak_rss_mb": round(memory.peak_rss_mb(), 1),
        }

    def facts(self) -> dict[str, Any]:
        """Everything but the cases."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "frame"}

    # -- keeping --

    def save(self, path: str | Path) -> Path:
        """Write the cases as Parquet, with the facts in the file's metadata; `load` reads it."""
        import pyarrow.parquet as pq

        path, facts = Path(path), {_FACTS: json.dumps(self.facts())}
        table = self.frame.to_arrow()
        with atomic_write(path) as unfinished:
            pq.write_table(table.replace_schema_metadata(facts), unfinished)
        return path

    @classmethod
    def load(cls, path: str | Path) -> Evaluation:
        """An evaluation that was saved."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(path)
            facts = json.loads(table.schema.metadata[_FACTS])
        except FileNotFoundError:
            raise TalerecError(f"there is no file {path}") from None
        except (pa.ArrowException, KeyError, TypeError, ValueError, OSError):
            raise TalerecError(
                f"{path} is no saved result; `talerec evaluate ... --out {path}` makes one"
            ) from None
        known = {f.name for f in fields(cls)} - {"frame"}
        if known - set(facts):
            raise TalerecError(
                f"{path} was written by another version: it lacks {min(known - set(facts))}"
            )
        facts = {name: facts[name] for name in known}
        frame = pl.DataFrame(table.replace_schema_metadata(None))
        return cls(**{**facts, "ks": tuple(facts["ks"])}, frame=frame)


def _means(frame: pl.DataFrame, ks: Sequence[int], rank: str = RANK) -> Means:
    wanted = (expression.mean() for expression in metrics.per_case(ks, rank))
    row = frame.select(wanted).row(0, named=True)
    return {name: value if value is None else float(value) for name, value in row.items()}


def per_unit(frame: pl.DataFrame, ks: Sequence[int], rank: str = RANK) -> pl.DataFrame:
    """Each metric for each user (and window): the mean over the orders of ties."""
    named = frame.select(*_UNIT, *metrics.per_case(ks, rank))
    return named.group_by(_UNIT, maintain_order=True).mean()


# -- running ---------------------------------------------------------------------------------------


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
    ks = metrics.cutoffs(k)
    cases = split.cases(on)
    known = model.item_ids
    if len(known) != len(split.train.items) or not known.equals(split.train.items.ids):
        raise TalerecError("the model was not fitted on this split's training rows (split.train)")
    clock = Clock()
    with clock("score"):
        ranks = asking.places(model, cases.histories, cases.target)
    with clock("lists"):
        longest = min(ks[-1], len(known))
        lists, _, _ = asking.top(model, cases.histories, longest, hide_seen=hide_seen)
    frame = _case_frame(split, cases, ranks, hide_seen)
    return Evaluation(
        model=model.name,
        params=model.params,
        solver=model.fitted.solver,
        split=split.name,
        refit=split.refit,
        ties=split.train.ties,
        tied=tied(split.train),
        on=on,
        hide_seen=hide_seen,
        ks=tuple(ks),
        coverage={f"coverage@{k}": metrics.coverage(lists[:, :k], len(known)) for k in ks},
        seconds={"load": 0.0, "gram": 0.0, "solve": 0.0, **model.fitted.seconds, **clock.seconds},
        beside={},
        frame=frame.with_columns(_list_columns(split, cases, lists, ks)),
    )


def evaluate_log(
    model: Model,
    log: Log,
    plan: Plan | str = "leave-one-out",
    *,
    ties: str = "file",
    on: str = "test",
    k: Sequence[int] = (1, 5, 10),
    hide_seen: bool = False,
) -> Evaluation:
    """Split, fit and evaluate, once for every order of ties (such as random:0..4) and every window."""
    plan = Plan(plan) if isinstance(plan, str) else plan
    metrics.cutoffs(k)

    def found(order: str) -> list[Evaluation]:
        return [
            evaluate(model.fit(split.train), split, on=on, k=k, hide_seen=hide_seen)
            for split in plan.splits(preprocessing.order_ties(log, order), on)
        ]

    orders = preprocessing.tie_orders(ties)
    result = joined([part for order in orders for part in found(order)])
    fixed = ("file", "item") if len(orders) > 1 and many_ties(result.tied) else ()
    beside = {order: joined(found(order)).metrics for order in fixed}
    return replace(result, ties=ties, beside=beside)


def joined(results: Sequence[Evaluation]) -> Evaluation:
    """The cases of evaluations of one model that differ in the order of ties or in the window."""
    first = results[0]
    if len(results) == 1:
        return first
    names = first.coverage
    return replace(
        first,
        coverage={name: float(np.mean([r.coverage[name] for r in results])) for name in names},
        seconds=summed(r.seconds for r in results),
        frame=pl.concat([r.frame for r in results], rechunk=True),
    )


# -- one row per case ------------------------------------------------------------------------------


def _case_frame(split: Split, cases: Cases, ranks: Array, hide_seen: bool) -> pl.DataFrame:
    histories = cases.histories
    gap = cases.target_time - histories.time[histories.stop - 1]
    length = histories.stop - histories.start
    return pl.DataFrame(
        {
            columns.USER: split.users.ids.gather(cases.user),
            TIES: pl.repeat(split.train.ties, len(cases), eager=True),
            WINDOW: pl.repeat(split.window, len(cases), eager=True),
            TIME: pl.Series(cases.target_time).cast(pl.Datetime("us")),
            RANK: ranks[:, 1 if hide_seen else 0],
            RANK_HIDDEN: ranks[:, 1],
            "popularity": _popularity(split, cases.target),
            "gap": _thirds(gap),
            "length": _thirds(length),
            "kind": np.where(_repeated(cases), "repeat", "new"),
            "gap_us": gap,
            "history_length": length,
        }
    )


def _list_columns(split: Split, cases: Cases, lists: Array, ks: Sequence[int]) -> list[pl.Series]:
    """How popular the lists are, and the histories that they answer, by training rows."""
    rows = _training_rows(split).astype(float)
    known = np.append(rows, 0.0)  # the last entry answers for item -1
    target = pl.Series(TARGET_ROWS, known[cases.target])
    owned = _per_history(cases.histories, lambda item, _: known[item])
    length = _per_history(cases.histories, lambda item, _: item >= 0)
    own = np.divide(owned, length, out=np.full(len(owned), np.nan), where=length > 0)
    found = [target, pl.Series(HISTORY_ROWS, own)]
    for k in ks:
        found.append(pl.Series(f"{NOVELTY}@{k}", metrics.novelty(lists[:, :k], rows)))
        found.append(pl.Series(f"{LIST_ROWS}@{k}", metrics.row_means(lists[:, :k], rows)))
    return [column.fill_nan(None) for column in found]


def _per_history(histories: Histories, value: Callable[[Array, Array], Array]) -> Array:
    """The sum over each history's rows of value(item, number of the history)."""
    start, length = histories.start, histories.stop - histories.start
    ends = np.cumsum(length)
    rows = np.arange(ends[-1] if len(ends) else 0) + np.repeat(start - (ends - length), length)
    owner = np.repeat(np.arange(len(start)), length)
    return np.bincount(owner, value(histories.item[rows], owner), minlength=len(start))


def _repeated(cases: Cases) -> Array:
    """Is the target an item of its own history?"""
    again = _per_history(cases.histories, lambda item, case: item == cases.target[case])
    return (again > 0) & (cases.target >= 0)


def _training_rows(split: Split) -> Array:
    return np.bincount(split.train.item, minlength=len(split.train.items))


def _popularity(split: Split, target: Array) -> Array:
    """Head: the top fifth of the items by training rows. Items that were never seen are tail."""
    counts = _training_rows(split)
    head = np.zeros(len(counts) + 1, bool)  # the last entry answers for target -1
    head[np.argsort(-counts, kind="stable")[: round(HEAD_SHARE * len(counts))]] = True
    return np.where(head[target], "head", "tail")


def _thirds(values: Array) -> Array:
    """Short <= q33 < mid <= q67 < long, by value: equal values are never in two groups."""
    low, high = np.quantile(values, [0.33, 0.67])
    return np.where(values <= low, "short", np.where(values <= high, "mid", "long"))

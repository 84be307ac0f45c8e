"""Evaluation of a model on baskets: lists after each history, and the next basket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from talerec import columns
from talerec.data import Log, as_log, expand_tie_orders, name_tie_order
from talerec.data.split import Split, SplitPlan
from talerec.errors import TalerecError
from talerec.evaluation.basket_metrics import SHARES, basket_metric_names, measure_baskets
from talerec.evaluation.intervals import describe_few_users, mean_intervals
from talerec.evaluation.log_splits import LogSplits
from talerec.evaluation.metrics import check_cutoffs
from talerec.evaluation.queries import TIME, WINDOW
from talerec.evaluation.reportable import Reportable
from talerec.evaluation.result_text import format_metric, metrics_table
from talerec.evaluation.saved_results import (
    BASKET_FACT,
    find_model_class,
    is_of_baskets,
    read_file,
    write_result,
)
from talerec.evaluation.user_sums import sum_users
from talerec.models.core import ItemFilter, Model, add_former_names, rank_top, use_current_names
from talerec.runtime import Array, Clock, memory, sum_seconds

REPEAT_SHARE = "repeat_share"


@dataclass(frozen=True, eq=False, repr=False)
class BasketEvaluation(Reportable):
    """The result of `evaluate_baskets`: one row per basket, and means and intervals of them.

    Attributes
    ----------
    model, params, solver : str, dict, str or None
        The model's name and parameters, and the solver that ran (None: no solver).
    split, on, hide_seen : str, str, bool
        How baskets were held out, and whether items of the history were left out of lists.
    ks, seconds : tuple of int, dict of str to float
        The cutoffs, and the time of each step.
    frame : DataFrame
        One row per basket: user, time, sizes, and metrics such as recall@10; those of repeats and
        new items are null for baskets without any.
    ties, refit : str, bool
        The order of rows with equal times, and whether validation baskets were training baskets.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.evaluate_baskets(tr.Popular(), tr.synthetic_log(2000, items=50), k=[10])
    BasketEvaluation(popular, leave-one-out, 151 baskets of 151 users: recall@10 0.5430)
    """

    model: str
    params: dict[str, Any]
    solver: str | None
    split: str
    on: str
    hide_seen: bool
    ks: tuple[int, ...]
    seconds: dict[str, float]
    frame: pl.DataFrame
    ties: str = "file"
    refit: bool = False

    @property
    def users(self) -> int:
        """The number of users with baskets: the observations of intervals."""
        return self.frame[columns.USER].n_unique()

    @cached_property
    def metrics(self) -> dict[str, float | None]:
        """Means over baskets by name: recall@k, precision@k, HR@k, NDCG@k and F1@k."""
        return self._describe(self.frame)["metrics"]  # type: ignore[no-any-return]

    @cached_property
    def intervals(self) -> dict[str, list[float]]:
        """[low, high] of each metric by name: its 95 % interval, clustered by user."""
        return self._describe(self.frame)["intervals"]  # type: ignore[no-any-return]

    @cached_property
    def parts(self) -> dict[str, dict[str, Any]]:
        """For repeats and for new items as targets: cases (baskets that have any) and metrics."""
        return {part: self._describe(self.frame, f"{part}_") for part in ("repeat", "new")}

    @cached_property
    def groups(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Cases and metrics of baskets by their share of repeats: none, up to half ... all."""
        parts = {name: self.frame.filter(pl.col(REPEAT_SHARE) == name) for name in SHARES}
        return {REPEAT_SHARE: {name: self._describe(part) for name, part in parts.items()}}

    def _describe(self, frame: pl.DataFrame, part: str = "") -> dict[str, Any]:
        """Return the number of baskets, and metrics and intervals by name, of rows of `frame`.

        part: the prefix of the metrics, repeat_ or new_ for targets of that part; baskets without
        such targets do not count.
        """
        names = basket_metric_names(self.ks)
        values = frame.select(columns.USER, *(f"{part}{name}" for name in names)).drop_nulls()
        users = values.group_by(columns.USER, maintain_order=True).agg(pl.all().sum(), pl.len())
        sums = sum_users(users.drop(columns.USER, "len").to_numpy(), users["len"].to_numpy())
        ends = np.column_stack(mean_intervals(sums)).tolist()
        means = [None] * len(names) if values.is_empty() else sums.means.tolist()
        return {
            "cases": len(values),
            "metrics": dict(zip(names, means, strict=True)),
            "intervals": dict(zip(names, ends, strict=True)),
        }

    @property
    def notes(self) -> list[str]:
        """Sentences for readers of the metrics: on users who are too few for intervals."""
        return list(filter(None, [describe_few_users(self.users)]))

    def describe_interval(self, name: str) -> str:
        """Return a metric's interval as text: "0.1012 to 0.1134", or "too few users" below 10."""
        if describe_few_users(self.users):
            return "too few users"
        return " to ".join(map(format_metric, self.intervals[name]))

    def _repr_html_(self) -> str:
        """Return a table of the metrics with their intervals, for notebooks."""
        rows = ((n, format_metric(v), self.describe_interval(n)) for n, v in self.metrics.items())
        return metrics_table(f"{self.model}, {self.split}, {self.description}", rows)

    def __repr__(self) -> str:
        name = f"recall@{self.ks[-1]}"
        return (
            f"BasketEvaluation({self.model}, {self.split}, {self.description}: "
            f"{name} {self.metrics[name]:.4f})"
        )

    @property
    def description(self) -> str:
        """The number of baskets and users as text: 300 baskets of 100 users."""
        return f"{len(self.frame):,} baskets of {self.users:,} users"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of `evaluate` on baskets: fields, metrics, parts, groups."""
        sizes = self.frame.select(pl.col("basket_size", "repeats").sum()).row(0)
        peak = memory.peak_rss_mb()
        return {
            **self.facts(),
            "cases": len(self.frame),
            "users": self.users,
            "basket_size": sizes[0] / len(self.frame),
            REPEAT_SHARE: sizes[1] / sizes[0],
            **self._describe(self.frame),
            **self.parts,
            "groups": self.groups,
            "notes": self.notes,
            "peak_rss_mb": None if peak is None else round(peak, 1),
        }

    def facts(self) -> dict[str, Any]:
        """Return all fields but the frame, and `unit`, by which files of baskets are recognised.

        Parameters of the model that were renamed are there under their former names, too.
        """
        facts = {**BASKET_FACT, **{name: getattr(self, name) for name in _FACTS}}
        kind = find_model_class(self.model)
        return {**facts, "params": add_former_names(kind, self.params) if kind else self.params}

    def save(self, path: str | Path) -> Path:
        """Write the result to a Parquet file that `load` reads; return the path.

        Parameters
        ----------
        path
            The file; the baskets are its rows, the other fields are in its metadata.
        """
        return write_result(path, self.facts(), [self.frame])

    @classmethod
    def load(cls, path: str | Path) -> BasketEvaluation:
        """Read a result that `save` (or the command `evaluate` with `--basket`) wrote.

        Parameters
        ----------
        path
            The Parquet file. TalerecError if it does not exist, or is no saved result of baskets.

        Examples
        --------
        >>> import tempfile, talerec as tr
        >>> result = tr.evaluate_baskets(tr.Popular(), tr.synthetic_log(2000, items=50), k=[10])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     loaded = type(result).load(result.save(f"{folder}/popular.parquet"))
        >>> loaded.metrics == result.metrics
        True
        """
        frame, facts = read_file(path)
        if not is_of_baskets(facts) or not facts.keys() >= set(_FACTS):
            raise TalerecError(f"{path} is no result of next baskets")
        values = {name: facts[name] for name in _FACTS}
        if kind := find_model_class(values["model"]):
            values["params"] = use_current_names(kind, values["params"])
        return cls(**{**values, "ks": tuple(values["ks"])}, frame=frame)


#: Fields of a `BasketEvaluation` that are saved as metadata: all but the frame.
_FACTS = tuple(part.name for part in fields(BasketEvaluation) if part.name != "frame")


def evaluate_baskets(
    model: Model | str,
    log: Log,
    plan: SplitPlan | str = "leave-one-out",
    *,
    ties: str = "file",
    on: str = "test",
    k: Sequence[int] = (1, 5, 10),
    hide_seen: bool = False,
) -> BasketEvaluation:
    """Split a log of baskets, fit a model to the training rows, and evaluate it on baskets.

    A basket is a user's rows of one time; see `join_baskets`. Tempo and the ranker learn to predict
    next baskets. The list after a user's earlier baskets is compared with all items of the next
    one. An item that is unknown to the model is a target that is missed.

    Parameters
    ----------
    model, log
        The model, which is fitted here, or its name, such as ``"ease(reg=500)"``; and all rows.
    plan
        How to split, as for `evaluate_log`; leave-one-out holds out each user's last basket.
    ties
        The order of rows with equal times: "file", "item" or "random:SEED". It decides which item
        of a basket was the last one, for models that distinguish it.
    on
        The baskets that are targets: "test" or "validation".
    k, hide_seen
        The lengths of the lists, and whether they leave out items of the history.

    Returns
    -------
    BasketEvaluation
        Metrics and intervals: of all items, of repeats and of new items, and by share of repeats.

    Raises
    ------
    TalerecError
        If an option is not valid, or the plan leaves no baskets or no training rows.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, items=50)
    >>> result = tr.evaluate_baskets(tr.Rules(), log, "every:last:20%")
    >>> round(result.parts["new"]["metrics"]["recall@10"], 3)
    0.408
    """
    if isinstance(model, str):
        from talerec.evaluation.model_lists import single_model  # imports all families of models

        model = single_model(model)
    plan = SplitPlan(plan) if isinstance(plan, str) else plan
    splits = LogSplits(as_log(log), plan, on, baskets=True)
    return evaluate_basket_splits(model, splits, ties=ties, on=on, k=k, hide_seen=hide_seen)


def evaluate_basket_splits(
    model: Model, splits: LogSplits, *, ties: str, on: str, k: Sequence[int], hide_seen: bool
) -> BasketEvaluation:
    """Fit a model to the training rows of every split, and evaluate it on held-out baskets.

    splits: of a log of baskets. Other parameters and the result are those of `evaluate_baskets`.
    """
    check_basket_order(ties)
    ks, seconds, frames = check_cutoffs(k), [], []
    for split in splits.fit_on_each(model, ties):
        clock = Clock()
        with clock("score"):
            frames.append(_evaluate_split(model, splits.log, split, on, ks, hide_seen))
        seconds.append({**model.fitted.seconds, **clock.seconds})
        name, refit = split.name, split.refit
    return BasketEvaluation(
        model.name, model.params, model.fitted.solver, name, on, hide_seen, tuple(ks),
        sum_seconds(seconds), pl.concat(frames), name_tie_order(splits.log, ties), refit,
    )  # fmt: skip


def check_basket_order(ties: str) -> None:
    """Raise TalerecError if `ties` is not one order of rows with equal times, such as "item"."""
    if len(expand_tie_orders(ties)) > 1:
        raise TalerecError(f"`ties` is {ties!r}; baskets are evaluated in one order", "ties")


def _evaluate_split(
    model: Model, log: Log, split: Split, on: str, ks: Sequence[int], hide_seen: bool
) -> pl.DataFrame:
    """Return a row per held-out basket: user, time, window, sizes and metrics of its list.

    `model` is fitted to the training rows of `split`, a split of `log`; `on` says which baskets are
    held out. `ks` are the cutoffs; with `hide_seen`, lists leave out items of the history.
    """
    cases, queries = split.cases(on), split.cases(on, catalogue=model.scores_catalogue)
    longest, item_filter = min(ks[-1], len(model.item_ids)), ItemFilter(hide_seen=hide_seen)
    position = log.items.codes(log.items.cast_ids(model.item_ids))  # of each model item, in `log`
    frames = []
    for a, b in cases.histories.chunks():
        top = rank_top(model, queries.histories.slice(a, b), longest, item_filter)
        listed: Array = np.where(top.items >= 0, position[top.items], -1)
        part = cases.take(np.arange(a, b))
        who: Mapping[str, Any] = {
            columns.USER: split.user_ids.gather(part.user),
            TIME: pl.Series(part.target_time).cast(pl.Datetime("us")),
            WINDOW: pl.repeat(split.window, len(part), eager=True),
        }
        frames.append(pl.DataFrame(who).hstack(measure_baskets(log, part, listed, ks)))
    return pl.concat(frames)

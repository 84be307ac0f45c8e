"""The result of an evaluation: one row per case, and metrics computed from these rows."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from talerec import columns
from talerec.data import tie_warning
from talerec.errors import TalerecError, forward_renamed
from talerec.evaluation import result_text
from talerec.evaluation.intervals import describe_few_users, mean_intervals
from talerec.evaluation.list_metrics import mean_list_columns
from talerec.evaluation.metrics import RANK, RANK_HIDDEN, is_redundant
from talerec.evaluation.queries import (
    CASES,
    HISTORY_ROWS,
    LIST_ROWS,
    NOVELTY,
    TIES,
    WINDOW,
    Means,
    case_groups,
    count_cases,
    mean_columns,
    mean_metrics,
)
from talerec.evaluation.reportable import Reportable
from talerec.evaluation.result_text import format_metric
from talerec.evaluation.saved_results import find_model_class, read_result, write_result
from talerec.evaluation.user_sums import ALL_CASES, UserSums, select_user_sums, sum_case_users
from talerec.models.core import add_former_names, use_current_names
from talerec.runtime import memory

#: Fields of `Evaluation` whose names in JSON and in saved results differ.
_JSON_NAMES = {"fixed_order_metrics": "beside", "users_without_target": "without"}
_FRAMES = ("frame", "user_sums", "first_row_ranks", "list_means")  # fields that are not facts
#: Attributes that were renamed in version 0.3: old name -> new name.
_FORMER = {"asked": "description", **{old: new for new, old in _JSON_NAMES.items()}}


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation(Reportable):
    """The result of `evaluate`: one row per case, and means, intervals and groups of them.

    A case is one evaluated query: a history and the held-out item that came next, its target. Each
    statistic is computed on first use, and cached. With several orders of ties, or with rolling
    windows, `frame` has the cases of all of them; its columns `ties` and `window` tell them apart.

    Parameters
    ----------
    model, params, solver
        The model's name, its parameters, and the solver that ran (None: nothing was solved).
    split, on, refit
        How rows were held out, which of them were targets (test or validation), and whether the
        validation rows were training rows too.
    ties, tied
        The order of rows with equal times, and the share of neighbouring training rows with equal
        times.
    hide_seen
        Whether items of the history were left out of the ranking.
    ks
        The lengths of the lists.
    coverage, seconds
        The share of the items in some list and the Gini of exposure, by k; the time of each step.
    list_means
        If `frame` has sums of cases: the means of new@k, diversity@k and calibration@k.
    fixed_order_metrics
        With several random orders of ties: the metrics in file order and in item order; in item
        order alone if the log was not in the order of its file.
    frame
        One row per case: user, time, rank of the target (null if it has no rank, a miss), groups.
        From a cluster, one row for equal cases, with their number.
    users_without_target
        For a split with a target event: users without such an event, who are excluded.
    user_sums
        From a cluster: sums over users, for the intervals (see `tabulate_user_sums`).
    first_row_ranks
        For a split of every row: ranks of first rows (`rank_first_rows_by_trend`). Not saved.

    Examples
    --------
    >>> import talerec as tr
    >>> split = tr.leave_one_out(tr.synthetic_log(2000, items=50))
    >>> result = tr.evaluate(tr.Popular().fit(split.train), split)
    >>> result
    Evaluation(popular, leave-one-out, 153 test cases: HR@10 0.5490, NDCG@10 0.2759)
    >>> result.metrics["HR@10"], result.frame["rank"].head(3).to_list()
    (0.5490196078431373, [17, 9, 21])
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
    fixed_order_metrics: dict[str, Means]
    frame: pl.DataFrame
    users_without_target: int = 0
    user_sums: pl.DataFrame | None = None
    first_row_ranks: pl.DataFrame | None = None
    list_means: Means = field(default_factory=dict)

    if not TYPE_CHECKING:  # former names
        __getattr__ = forward_renamed(_FORMER)

    @cached_property
    def cases(self) -> int:
        """The number of cases: held-out queries, each with one target item."""
        return count_cases(self.frame)

    @cached_property
    def users(self) -> int:
        """The number of users with cases: of independent observations, for intervals and tests.

        A case is one evaluated query. Results from a cluster have sums over users instead of cases.
        """
        if self.user_sums is not None:
            return int(select_user_sums(self.user_sums).n_users[0])
        return self.frame[columns.USER].n_unique()

    @cached_property
    def metrics(self) -> Means:
        """Means over all cases, by name (HR@k, NDCG@k, MRR@k); a case is one held-out query."""
        return mean_metrics(self.frame, self.ks)

    @cached_property
    def metrics_hidden(self) -> Means:
        """Means by name (HR@k, ...) over all cases, with items of the history not ranked."""
        return mean_metrics(self.frame, self.ks, RANK_HIDDEN)

    @cached_property
    def lists(self) -> Means:
        """Statistics of the top k lists by name: coverage@k, gini@k, novelty@k, lift@k, new@k ...

        Coverage is the share of items in any list, novelty the mean -log2 of an item's share of
        training rows, lift the mean number of training rows of listed items over that of history
        items; `list_metrics` describes gini, new and, with item tables, diversity and calibration.
        """
        names = [f"{name}@{k}" for name in (NOVELTY, LIST_ROWS) for k in self.ks]
        means_by_column = mean_columns(self.frame, [HISTORY_ROWS, *names])
        history = means_by_column[HISTORY_ROWS]
        novelty = {f"novelty@{k}": means_by_column[f"{NOVELTY}@{k}"] for k in self.ks}
        popularity = ((f"lift@{k}", means_by_column[f"{LIST_ROWS}@{k}"]) for k in self.ks)
        lift = {name: mean / history if history and mean else None for name, mean in popularity}
        list_means = self.list_means or mean_list_columns(self.frame, self.ks)
        return {**self.coverage, **novelty, **lift, **list_means}

    @cached_property
    def intervals(self) -> dict[str, list[float]]:
        """[low, high] of each metric by name: its 95 % interval, clustered by user."""
        return self.group_intervals(*ALL_CASES)

    @cached_property
    def intervals_hidden(self) -> dict[str, list[float]]:
        """The 95 % interval of each metric with seen items hidden, clustered by user."""
        return self.group_intervals(*ALL_CASES, RANK_HIDDEN)

    def group_intervals(self, column: str, name: str, rank: str = RANK) -> dict[str, list[float]]:
        """Return the 95 % interval [low, high] of each metric of one group, by metric name.

        A group is a label of cases, such as column `popularity`, name `head`; "all", "all" for all
        cases. `rank` is the column of ranks: `rank`, or `rank_hidden` for seen items hidden.
        """
        if self.user_sums is not None:
            return self._intervals(select_user_sums(self.user_sums, rank, (column, name)))
        whole = (column, name) == ALL_CASES
        return self.intervals_of(self.frame if whole else self.group(column, name), rank)

    def intervals_of(self, part: pl.DataFrame, rank: str = RANK) -> dict[str, list[float]]:
        """Return [low, high] of each metric: 95 % interval, clustered by user, of cases `part`.

        rank: the column of ranks. TalerecError if the result has only sums of cases.
        """
        if CASES in part.columns:
            raise TalerecError("sums of cases do not tell users apart; use `group_intervals`")
        return self._intervals(sum_case_users(part, self.ks, rank))

    def _intervals(self, sums: UserSums) -> dict[str, list[float]]:
        """Return the 95 % interval [low, high] of each metric by name, from sums over users."""
        ends = (values.tolist() for values in mean_intervals(sums))
        return {name: [low, high] for name, low, high in zip(self.metrics, *ends, strict=True)}

    def describe_interval(self, name: str, rank: str = RANK) -> str:
        """Return a metric's interval as text, such as "0.1012 to 0.1134" or "too few users".

        name: such as HR@10. rank: "rank", or "rank_hidden" for seen items hidden. Fewer than 10
        users are too few.
        """
        if describe_few_users(self.users):
            return "too few users"
        intervals = self.intervals if rank == RANK else self.intervals_hidden
        return " to ".join(map(format_metric, intervals[name]))

    @cached_property
    def orders(self) -> list[dict[str, Any]]:
        """For each order of rows with equal times: ties, cases, metrics, metrics_hidden."""
        return self._metrics_by(TIES)

    @cached_property
    def windows(self) -> list[dict[str, Any]]:
        """For each rolling window: window (its start), cases, metrics, metrics_hidden."""
        return self._metrics_by(WINDOW)

    def _metrics_by(self, column: str) -> list[dict[str, Any]]:
        """Return, per value of a column of the cases: a dict of value, cases and mean metrics."""
        parts = self.frame.partition_by(column, as_dict=True, maintain_order=True)
        return [
            {
                column: str(key[0]),
                "cases": count_cases(part),
                "metrics": mean_metrics(part, self.ks),
                "metrics_hidden": mean_metrics(part, self.ks, RANK_HIDDEN),
            }
            for key, part in parts.items()
        ]

    @cached_property
    def spread(self) -> Means:
        """The standard deviation of each metric over the orders of ties; None with one order.

        Ties are rows with equal times, which may be evaluated in several random orders.
        """
        orders = [order["metrics"] for order in self.orders]
        if len(orders) < 2:
            return dict.fromkeys(self.metrics)
        return {name: float(np.std([m[name] for m in orders], ddof=1)) for name in orders[0]}

    @cached_property
    def groups(self) -> dict[str, dict[str, Means]]:
        """Grouping (popularity, ...) -> group -> number of cases and mean metrics."""
        return {
            column: {name: self._group_means(column, name) for name in parts}
            for column, parts in case_groups(self.frame).items()
        }

    def _group_means(self, column: str, name: str) -> Means:
        """Return the number of cases (queries) and mean metrics of one group: popularity, head."""
        part = self.group(column, name)
        return {"cases": count_cases(part), **mean_metrics(part, self.ks)}

    def group(self, column: str, name: str) -> pl.DataFrame:
        """Return the cases of one group, such as `popularity`, `head`."""
        return self.frame.filter(pl.col(column) == name)

    @cached_property
    def first_rows(self) -> dict[str, Any]:
        """Metrics of trending items for the first events of new users (cold start), if measured."""
        if self.first_row_ranks is None:
            return {}
        from talerec.evaluation.first_rows import describe_first_rows

        return describe_first_rows(self.first_row_ranks, self.ks)

    @cached_property
    def notes(self) -> list[str]:
        """Sentences for readers of the metrics: on ties (rows with equal times), and on users."""
        n_users = self.users_without_target
        excluded = f"{n_users:,} users have no target event and are excluded" if n_users else None
        ties = self.tie_sentence or tie_warning(self.tied, self.ties)
        return list(filter(None, [ties, excluded, describe_few_users(self.users)]))

    @cached_property
    def tie_sentence(self) -> str | None:
        """A sentence on how random orders of ties compare with fixed ones; None if not measured.

        Ties are rows with equal times; compared is the NDCG at the largest k.
        """
        metric = f"NDCG@{self.ks[-1]}"
        mean, spread = self.metrics[metric], self.spread[metric]
        fixed = {order: means[metric] or 0.0 for order, means in self.fixed_order_metrics.items()}
        if not fixed or mean is None or spread is None:
            return None
        values = result_text.RandomOrders(metric, mean, spread, len(self.orders))
        return result_text.describe_ties(self.model, self.tied, values, fixed)

    def __repr__(self) -> str:
        """Return the model, the split, the number of cases, and HR and NDCG at the largest k."""
        headline = (f"{name}@{max(self.ks)}" for name in ("HR", "NDCG"))
        shown = ", ".join(f"{name} {format_metric(self.metrics[name])}" for name in headline)
        return f"Evaluation({self.model}, {self.split}, {self.description}: {shown})"

    def _repr_html_(self) -> str:
        """Return a table of the metrics with their intervals, for notebooks."""
        shown = ((name, value) for name, value in self.metrics.items() if not is_redundant(name))
        rows = ((name, format_metric(v), self.describe_interval(name)) for name, v in shown)
        return result_text.metrics_table(f"{self.model}, {self.split}, {self.description}", rows)

    @property
    def description(self) -> str:
        """The numbers of ranked held-out rows, and of their users (who may have several)."""
        counts = {"orders of ties": len(self.orders), "windows": len(self.windows)}
        return result_text.describe_cases(self.cases, self.on, self.users, counts)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of the command `evaluate`: fields, metrics, groups, notes."""
        peak = memory.peak_rss_mb()
        return {
            **self.facts(),
            "cases": self.cases,
            "users": self.users,
            "metrics": self.metrics,
            "metrics_hidden": self.metrics_hidden,
            "intervals": self.intervals,
            "intervals_hidden": self.intervals_hidden,
            "lists": self.lists,
            "groups": self.groups,
            "first_rows": self.first_rows,
            "orders": self.orders,
            "spread": self.spread,
            "windows": self.windows if self.frame[WINDOW].n_unique() > 1 else [],
            "notes": self.notes,
            "peak_rss_mb": None if peak is None else round(peak, 1),
        }

    def facts(self) -> dict[str, Any]:
        """Return all fields except the frames, by their names in JSON.

        Parameters of the model that were renamed are there under their former names, too.
        """
        facts = {json_name: getattr(self, name) for name, json_name in _list_fact_names().items()}
        kind = find_model_class(self.model)
        return {**facts, "params": add_former_names(kind, self.params) if kind else self.params}

    def save(self, path: str | Path) -> Path:
        """Write the result to a Parquet file that `Evaluation.load` reads.

        Parameters
        ----------
        path
            The file; the cases are its rows, the other fields are in its metadata.

        Returns
        -------
        Path
            The file.
        """
        if CASES in self.frame.columns:
            message = "this result has only sums of cases: evaluate with `cases` to keep them"
            raise TalerecError(message, "cases")
        return write_result(path, self.facts(), [self.frame])

    @classmethod
    def load(cls, path: str | Path) -> Evaluation:
        """Read a result that `save` (or the command `evaluate`) wrote.

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
            If the file does not exist, or is not a saved result.

        Examples
        --------
        >>> import tempfile, talerec as tr
        >>> split = tr.leave_one_out(tr.synthetic_log(2000, items=50))
        >>> result = tr.evaluate(tr.Popular().fit(split.train), split)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     loaded = tr.Evaluation.load(result.save(f"{folder}/popular.parquet"))
        >>> loaded.metrics == result.metrics
        True
        """
        frame, facts = read_result(path)
        names = _list_fact_names()
        if missing := set(names.values()) - set(facts):
            raise TalerecError(
                f"{path} was written by another version of talerec: it has no {min(missing)};"
                " evaluate again"
            )
        values = {name: facts[json_name] for name, json_name in names.items()}
        if kind := find_model_class(values["model"]):
            values["params"] = use_current_names(kind, values["params"])
        return cls(**{**values, "ks": tuple(values["ks"])}, frame=frame)


def _list_fact_names() -> dict[str, str]:
    """Return the fields of an evaluation, except its frames: name -> name in JSON."""
    names = (entry.name for entry in fields(Evaluation))
    return {name: _JSON_NAMES.get(name, name) for name in names if name not in _FRAMES}

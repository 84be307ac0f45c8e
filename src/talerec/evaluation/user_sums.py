"""Sums over users, from which means and confidence intervals of metrics are computed.

The statistical unit is the user: all cases of a user (in all rolling windows and all orders of
ties) are summed before anything is squared. The sums of disjoint sets of users add up, so that
partitions of users on a cluster can be summed apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from talerec import columns
from talerec.evaluation.metrics import RANK, RANK_HIDDEN, metric_expressions
from talerec.evaluation.queries import GROUPS, SPLIT_GROUPS, case_groups
from talerec.runtime import Array

ALL_CASES = ("all", "all")  # the grouping and the group of a table's rows for all cases
_ROUNDING = 1e-12  # relative to yy: smaller deviations are rounding errors
_KEYS = ("list", "column", "group", "metric")  # columns that identify a row of a table


class UserSums(NamedTuple):
    """Sums over users: y is a metric summed over a user's cases, m the number of these cases.

    A case is one evaluated query. Each field has one entry per metric. The values of a case lie in
    [0, 1], or in [-1, 1] if they are differences of two models.
    """

    n_users: Array  # users with cases
    n_nonzero: Array  # users with y != 0
    m: Array  # cases
    mm: Array  # m * m
    y: Array  # the metric
    yy: Array  # y * y
    ym: Array  # y * m

    @property
    def means(self) -> Array:
        """The mean of each metric over all cases (evaluated queries); NaN without cases.

        y has each metric summed over all users' cases, m the number of cases.
        """
        with np.errstate(invalid="ignore"):
            return np.asarray(self.y / self.m)

    @property
    def squared_deviations(self) -> Array:
        """For each metric the sum of (y - mean * m)**2 over users; 0 without cases.

        Of a user, y is the metric summed over its cases (evaluated queries), and m their number;
        the fields yy, ym and mm sum their products over users. Rounding errors become 0.
        """
        mean = np.nan_to_num(self.means)
        squares = self.yy - 2 * mean * self.ym + mean**2 * self.mm
        return np.where(squares > _ROUNDING * self.yy, squares, 0.0)


def sum_users(values: Array, cases: Array | None = None) -> UserSums:
    """Return sums over users of each metric, for means and confidence intervals.

    values (users x metrics): each metric summed over a user's cases (evaluated queries); cases: the
    number of cases of each user, by default 1.
    """
    n_users, n_metrics = values.shape
    m = np.ones(n_users) if cases is None else cases.astype(float)
    n, m_sum, mm_sum = (np.full(n_metrics, total) for total in (n_users, m.sum(), (m * m).sum()))
    nonzero = np.count_nonzero(values, axis=0)
    products = ((values**2).sum(axis=0), (m[:, None] * values).sum(axis=0))  # BLAS starts threads
    return UserSums(n, nonzero, m_sum, mm_sum, values.sum(axis=0), *products)


def sum_case_users(frame: pl.DataFrame, ks: Sequence[int], rank: str = RANK) -> UserSums:
    """Return sums over the users of a frame of cases, for each metric at each k of `ks`.

    A case is one evaluated query, a row of `frame`; metrics are HR, NDCG and MRR. `rank` is the
    column of the target's rank: with all items ranked, or with seen items hidden.
    """
    values = frame.select(columns.USER, *metric_expressions(ks, rank))
    users = values.group_by(columns.USER, maintain_order=True).agg(pl.all().sum(), pl.len())
    sums = users.drop(columns.USER, "len").to_numpy()
    return sum_users(sums, users["len"].to_numpy())


# -- tables of sums, for results without single cases ----------------------------------------------


def user_sum_columns(names: Iterable[str]) -> list[str]:
    """Return those columns of a frame of cases that `tabulate_user_sums` needs."""
    needed = {columns.USER, RANK, RANK_HIDDEN, *GROUPS, *SPLIT_GROUPS}
    return [name for name in names if name in needed]


def tabulate_user_sums(frame: pl.DataFrame, ks: Sequence[int]) -> pl.DataFrame:
    """Return sums over the users of a frame of cases, of both lists and of every group.

    A case is one evaluated query; lists have all items ranked (column `rank`), or seen items hidden
    (`rank_hidden`). One row per list, grouping (such as kind), group (such as new) and metric;
    ("all", "all") stands for all cases. The other columns are the fields of `UserSums`.
    """
    parts = {ALL_CASES: frame}
    for column, names in case_groups(frame).items():
        parts |= {(column, name): frame.filter(pl.col(column) == name) for name in names}
    tables = []
    for rank in (RANK, RANK_HIDDEN):
        metrics = [expression.meta.output_name() for expression in metric_expressions(ks, rank)]
        for (column, name), part in parts.items():
            keys = zip(_KEYS, ([rank], [column], [name], metrics), strict=True)
            series = {key: values * (len(metrics) // len(values)) for key, values in keys}
            tables.append(pl.DataFrame(series | sum_case_users(part, ks, rank)._asdict()))
    return pl.concat(tables)


def merge_user_sums(tables: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return one table of sums over users from tables of disjoint sets of users."""
    return pl.concat(tables).group_by(_KEYS, maintain_order=True).sum()


def select_user_sums(
    table: pl.DataFrame, rank: str = RANK, group: tuple[str, str] = ALL_CASES
) -> UserSums:
    """Return the sums over users of all metrics, for one group of cases and one kind of list.

    table: from `tabulate_user_sums`, a row per kind of list, group and metric. `rank` is the kind
    of list by its column of ranks: with all items, or with seen items hidden; `group` is a grouping
    and a group, such as (kind, new).
    """
    keys = dict(zip(_KEYS, (rank, *group), strict=False))
    rows = table.filter(pl.col(name) == value for name, value in keys.items())
    return UserSums(*(rows[name].to_numpy() for name in UserSums._fields))

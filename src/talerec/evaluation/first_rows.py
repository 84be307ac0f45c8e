"""First rows of new users: queries without a history, which a fallback answers.

No model of histories can rank items for them. A service shows such users the items that were
popular in the last days, and so does the evaluation: `trending`, fitted on the training rows. The
cases do not count among those of the evaluated model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from talerec import columns
from talerec.data.split import Split
from talerec.evaluation.intervals import mean_intervals
from talerec.evaluation.metrics import RANK, metric_expressions
from talerec.evaluation.user_sums import UserSums, sum_case_users
from talerec.models.core import rank_targets
from talerec.models.counting import Trending

_SUMS = "sums"


def evaluate_first_rows(split: Split, ks: Sequence[int]) -> dict[str, Any]:
    """Return how trending items answer the first rows of new users; empty without such rows.

    The dict has `cases` and `users` (their numbers), `metrics` and `intervals` by name such as
    HR@10, and `sums`, from which results of several splits are joined. `ks` are the cutoffs.
    """
    cases = split.first_rows
    if cases is None or not len(cases):
        return {}
    ranks = rank_targets(Trending().fit(split.train), cases.histories, cases.target).ranks[:, 0]
    frame = pl.DataFrame({columns.USER: cases.user, RANK: ranks})
    names = [expression.meta.output_name() for expression in metric_expressions(ks)]
    return _describe_sums(names, sum_case_users(frame, ks))


def join_first_rows(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the joined results of several splits (`evaluate_first_rows`) with distinct users.

    A user is new in one test period alone. Empty if all are.
    """
    filled = [part for part in parts if part]
    if not filled:
        return {}
    tables = [np.array(list(part[_SUMS].values())).T for part in filled]
    return _describe_sums(list(filled[0][_SUMS]), UserSums(*sum(tables[1:], tables[0])))


def _describe_sums(names: Sequence[str], sums: UserSums) -> dict[str, Any]:
    """Return the dict of `evaluate_first_rows` from sums over users, an entry per metric name."""
    low, high = mean_intervals(sums)
    table = np.array(sums, float).T.tolist()
    return {
        "cases": int(sums.m[0]),
        "users": int(sums.n_users[0]),
        "metrics": dict(zip(names, sums.means.tolist(), strict=True)),
        "intervals": dict(zip(names, np.column_stack([low, high]).tolist(), strict=True)),
        _SUMS: dict(zip(names, table, strict=True)),
    }

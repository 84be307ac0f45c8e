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
from talerec.data.split import Cases, Split
from talerec.evaluation.intervals import mean_intervals
from talerec.evaluation.metrics import RANK, metric_expressions
from talerec.evaluation.user_sums import sum_case_users
from talerec.models.core import Model, rank_targets
from talerec.models.counting import Trending


def rank_first_rows_by_trend(split: Split) -> pl.DataFrame:
    """Return how trending items rank the first rows of new users, which the split must have.

    A frame with a row per case: the user's id, and the rank of its item (0: none).
    """
    assert split.first_rows is not None
    return rank_first_rows(Trending().fit(split.train), split.first_rows, split.user_ids)


def rank_first_rows(model: Model, cases: Cases, users: pl.Series) -> pl.DataFrame:
    """Return how a model ranks the targets of cases without a history.

    users: the ids of all users. The frame has a row per case: the user's id, and the rank of its
    item (0: none).
    """
    ranks = rank_targets(model, cases.histories, cases.target).ranks[:, 0]
    return pl.DataFrame({columns.USER: users.gather(cases.user), RANK: ranks})


def describe_first_rows(frame: pl.DataFrame, ks: Sequence[int]) -> dict[str, Any]:
    """Return a summary of ranks of first rows (`rank_first_rows_by_trend`).

    The dict has `cases` and `users` (their numbers), and `metrics` and `intervals` by name such as
    HR@10. `ks` are the cutoffs.
    """
    names = [expression.meta.output_name() for expression in metric_expressions(ks)]
    sums = sum_case_users(frame, ks)
    ends = np.column_stack(mean_intervals(sums)).tolist()
    return {
        "cases": len(frame),
        "users": int(sums.n_users[0]),
        "metrics": dict(zip(names, sums.means.tolist(), strict=True)),
        "intervals": dict(zip(names, ends, strict=True)),
    }

"""Splits of a log of baskets: the next basket of a user, all of its rows, is held out.

A basket is a user's rows of one time (`join_baskets` gives the rows of a basket one time).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from talerec.data import Log, basket_starts, basket_stops
from talerec.data.split.cases import Cases
from talerec.data.split.plans import SplitPlan
from talerec.data.split.splits import Split, hold_out
from talerec.data.split.windows import TEST
from talerec.errors import InvalidLogError, TalerecError
from talerec.runtime import Array


def basket_splits(plan: SplitPlan, log: Log, on: str = TEST) -> Iterator[Split]:
    """Yield the splits of a log of baskets, one or several; each case's target is a basket.

    A case is a user's baskets before a basket, its history, and that basket: its rows are
    `target_row` to `basket_stop` of the cases. With leave-one-out, the test is each user's last
    basket, and the validation the previous one, of users with three baskets at least; with a split
    by time it is each user's first basket in the test period, or (every:) each basket in it that
    has a history. `on` is "test" or "validation". The training rows are a log of baskets, from
    which tempo and the ranker learn to predict baskets. TalerecError if there is no case, or the
    plan has a target event.
    """
    if plan.target is not None:
        raise TalerecError("`target` does not go with baskets", "target")
    plan.check(on)
    log = replace(log, has_baskets=True)
    splits = plan.splits(log, on) if plan.text != "leave-one-out" else [_leave_out(log, plan.refit)]
    stop = basket_stops(log)
    for split in splits:
        test, validation = (
            None if cases is None else _merge_basket_cases(cases, stop)
            for cases in (split.test, split.validation)
        )
        yield replace(split, test=test, validation=validation)


def _leave_out(log: Log, refit: bool) -> Split:
    """Return the split that holds out the last two baskets of users with three or more.

    With `refit`, the validation baskets are for training too. A basket is rows of one time.
    """
    if log.unit == "none":
        raise InvalidLogError("baskets need times, and the log has none")
    first = np.unique(basket_starts(log))
    user = log.user_codes()[first]
    n_baskets = np.bincount(user, minlength=len(log.users))
    ends = np.cumsum(n_baskets)
    has_case = n_baskets >= _MIN_BASKETS
    if not has_case.any():
        message = "no user has three baskets, so leave-one-out has no case; split by time"
        raise InvalidLogError(message)
    last, before = np.full((2, len(n_baskets)), -1, np.int64)
    last[has_case], before[has_case] = (first[ends[has_case] - back] for back in (1, 2))
    return hold_out(log, "leave-one-out", last, before, refit)


_MIN_BASKETS = 3  # of a user with cases, as leave-one-out needs three rows


def _merge_basket_cases(cases: Cases, stop: Array) -> Cases:
    """Return one case per basket instead of one per row of it.

    It is the case of the basket's first row, to which `basket_stop` is added. cases: of single
    rows, whose histories end where their baskets begin. stop: for each row of the log, the row
    after its basket.
    """
    is_first = cases.target_row == cases.histories.stop
    baskets = cases.take(is_first)
    return replace(baskets, basket_stop=stop[baskets.target_row])

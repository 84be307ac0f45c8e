"""How good is a model? Rank every item for every case, and see where the item that came next is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from talerec.data import preprocessing
from talerec.data.log import Log, as_log
from talerec.data.split.splits import Cases, Plan, Split
from talerec.data.summary import many_ties, tied
from talerec.errors import TalerecError
from talerec.evaluation import metrics
from talerec.evaluation.queries import case_frame
from talerec.evaluation.result import Evaluation
from talerec.models.core import inference as asking
from talerec.models.core.base import Model
from talerec.runtime.arrays import Array
from talerec.runtime.clock import Clock, summed


def evaluate(
    model: Model,
    split: Split,
    *,
    on: str = "test",
    k: Sequence[int] = (1, 5, 10),
    hide_seen: bool = False,
) -> Evaluation:
    """Rank all items for every case of a split, with a model that was fitted on `split.train`.

    A target that the model does not know is a miss. So is an item of the history when seen items are hidden.

    Parameters
    ----------
    model
        A fitted model.
    split
        What `leave_one_out` or `time_split` gives, or one of those of `rolling_split`.
    on
        The rows that are asked for: "test" or "validation".
    k
        The lengths of the lists, such as 10 for HR@10.
    hide_seen
        Leave the items of a history out of its ranking.

    Returns
    -------
    Evaluation
        Metrics, their intervals, groups, and one row per case.

    Raises
    ------
    TalerecError
        If the model was fitted on other rows, the split has no such rows, or a k is not a whole number from 1.

    Examples
    --------
    >>> import talerec as tr
    >>> split = tr.leave_one_out(tr.synthetic_log(2000, items=50))
    >>> result = tr.evaluate(tr.Popular().fit(split.train), split, k=[1, 10])
    >>> round(result.metrics["HR@10"], 3)
    0.549
    """
    _refuse_others(model, split)
    ks, cases = metrics.cutoffs(k), split.cases(on)
    clock, items = Clock(), len(model.item_ids)
    ranks, lists = _answers(model, cases, min(ks[-1], items), hide_seen, clock)
    result = _without_cases(model, split, ks, on, hide_seen)
    return replace(
        result,
        coverage={f"coverage@{k}": metrics.coverage(lists[:, :k], items) for k in ks},
        seconds={**result.seconds, **clock.seconds},
        frame=case_frame(split, cases, ranks, lists, ks, hide_seen=hide_seen),
    )


def _refuse_others(model: Model, split: Split) -> None:
    """An error unless the model was fitted on the training rows of what is a split."""
    if not isinstance(split, Split):
        raise TalerecError(
            "evaluate takes a split, such as leave_one_out(log); evaluate_log(model, log) splits and fits by itself"
        )
    if not model.item_ids.equals(split.train.items.ids):
        raise TalerecError(
            "the model was not fitted on this split's training rows: call model.fit(split.train)"
        )


def _answers(
    model: Model, cases: Cases, k: int, hide_seen: bool, clock: Clock
) -> tuple[Array, Array]:
    """The two places of each case's target, and the first k items of its list (`asking.judge`)."""
    with clock("score"):
        found = asking.judge(model, cases.histories, cases.target, k, hide_seen=hide_seen)
    clock.seconds["lists"] = 0.0  # they come with the places, in one pass
    return found.places, found.items


def _without_cases(
    model: Model, split: Split, ks: Sequence[int], on: str, hide_seen: bool
) -> Evaluation:
    """What is known of a result before anything is ranked."""
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
        coverage={},
        seconds={"load": 0.0, "gram": 0.0, "solve": 0.0, **model.fitted.seconds},
        beside={},
        frame=pl.DataFrame(),
        without=split.without,
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
    """Split a log, fit a model on the training rows, and evaluate it.

    This is done once for every order of ties and every rolling window; the result has the cases of all.

    Parameters
    ----------
    model, log
        The model, which is fitted here, and all rows.
    plan
        How to split: "leave-one-out", "at:TIME" or "rolling:TIME,DAYS".
    ties
        The order of rows with the same time: "file", "item", "random:SEED", or several random orders such
        as "random:0..4".
    on, k, hide_seen
        As in `evaluate`.

    Returns
    -------
    Evaluation
        Metrics, their intervals, groups, and one row per case.

    Raises
    ------
    TalerecError
        If an option is not understood, or the plan leaves nothing to ask or to learn from.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, items=50)
    >>> result = tr.evaluate_log(tr.Popular(), log, ties="random:0..2")
    >>> [order["ties"] for order in result.orders]
    ['random:0', 'random:1', 'random:2']
    """
    plan = Plan(plan) if isinstance(plan, str) else plan
    log = as_log(log)
    ks = metrics.cutoffs(k)

    def results(order: str) -> list[Evaluation]:
        return [
            evaluate(model.fit(split.train), split, on=on, k=ks, hide_seen=hide_seen)
            for split in plan.splits(preprocessing.order_ties(log, order), on)
        ]

    orders = preprocessing.tie_orders(ties)
    result = joined([part for order in orders for part in results(order)])
    fixed = ("file", "item") if len(orders) > 1 and many_ties(result.tied) else ()
    beside = {order: joined(results(order)).metrics for order in fixed}
    return replace(result, ties=ties, beside=beside)


def joined(results: Sequence[Evaluation]) -> Evaluation:
    """One result with the cases of several, of one model, that differ in the order of ties or in the window."""
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

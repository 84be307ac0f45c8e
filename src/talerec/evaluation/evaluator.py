"""Evaluation of a model: rank all items for every held-out query (case)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from talerec.data import Log, as_log, expand_tie_orders, has_many_ties, name_tie_order, tie_share
from talerec.data.split import Split, SplitPlan
from talerec.errors import TalerecError
from talerec.evaluation.case_file import CaseFile
from talerec.evaluation.leakage import check_training_rows
from talerec.evaluation.list_metrics import ExposureCounter, build_list_columns, read_categories
from talerec.evaluation.log_splits import LogSplits
from talerec.evaluation.metrics import check_cutoffs
from talerec.evaluation.queries import build_case_context, build_case_rows
from talerec.evaluation.result import Evaluation
from talerec.models.core import Model, rank_targets
from talerec.runtime import Clock, sum_seconds


def evaluate(
    model: Model,
    split: Split,
    *,
    on: str = "test",
    k: Sequence[int] = (1, 5, 10),
    hide_seen: bool = False,
) -> Evaluation:
    """Evaluate a model that was fitted to `split.train`: rank all items for every case.

    A case is a history and the held-out item that came next, its target. An unknown target is a
    miss; so is an item of the history if seen items are hidden.

    Parameters
    ----------
    model
        A fitted model.
    split
        From `leave_one_out` or `time_split`, or one split of `rolling_split` or `every_row_split`.
    on
        The rows that are targets: "test" or "validation".
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
        If the model was fitted to other items or to the rows that are targets, the split has no
        such rows, or a k is not a whole number from 1.

    Examples
    --------
    >>> import talerec as tr
    >>> split = tr.leave_one_out(tr.synthetic_log(2000, items=50))
    >>> result = tr.evaluate(tr.Popular().fit(split.train), split, k=[1, 10])
    >>> round(result.metrics["HR@10"], 3)
    0.549
    """
    frames: list[pl.DataFrame] = []
    result = _evaluate_chunks(model, split, frames.append, on, check_cutoffs(k), hide_seen)
    return replace(result, frame=pl.concat(frames, rechunk=True))


def _evaluate_chunks(
    model: Model,
    split: Split,
    add: Callable[[pl.DataFrame], object],
    on: str,
    ks: Sequence[int],
    hide_seen: bool,
) -> Evaluation:
    """Evaluate a model on the cases of a split; return the result with an empty frame.

    A case is one evaluated query. Cases are ranked in chunks, so that the memory for lists and rows
    does not grow with their number; `add` takes the frame of each chunk, a row per case. Other
    parameters are those of `evaluate`, with the cutoffs as `ks`.
    """
    _check_fitted_to(model, split)
    cases, queries = (split.cases(on, catalogue=c) for c in (False, model.scores_catalogue))
    check_training_rows(model, split, cases)
    clock, exposure = Clock(), ExposureCounter(ks, len(model.item_ids))
    longest, categories = min(ks[-1], len(model.item_ids)), read_categories(split.train)
    context = build_case_context(split, cases)
    for a, b in queries.histories.chunks():
        part = queries.slice(a, b)
        with clock("score"):
            ranked = rank_targets(model, part.histories, part.target, longest, hide_seen=hide_seen)
        exposure.add(ranked.items)
        frame = build_case_rows(
            context, split.user_ids, cases.slice(a, b), ranked.ranks, ranked.items, ks,
            hide_seen=hide_seen,
        )  # fmt: skip
        columns = build_list_columns(part.histories, ranked.items, categories, ks)
        add(frame.with_columns(**columns))
    result = _build_result(model, split, exposure, ks, on, hide_seen=hide_seen)
    seconds = {**result.seconds, **clock.seconds, "lists": 0.0}  # lists come with the ranks
    return replace(result, seconds=seconds)


def _build_result(
    model: Model,
    split: Split,
    exposure: ExposureCounter,
    ks: Sequence[int],
    on: str,
    *,
    hide_seen: bool,
) -> Evaluation:
    """Return the result of an evaluation, still without its frame of cases (it is empty).

    A case is one evaluated query. `exposure` has how often items were recommended. `ks` are the
    cutoffs, `on` (test or validation) says which rows were targets, and `hide_seen` whether items
    of the history were left out.
    """
    return Evaluation(
        model=model.name,
        params=model.params,
        solver=model.fitted.solver,
        split=split.name,
        refit=split.refit,
        ties=split.train.ties,
        tied=tie_share(split.train),
        on=on,
        hide_seen=hide_seen,
        ks=tuple(ks),
        coverage=exposure.summarize(),
        seconds={"load": 0.0, "gram": 0.0, "solve": 0.0, **model.fitted.seconds},
        fixed_order_metrics={},
        frame=pl.DataFrame(),
        users_without_target=split.without,
        first_row_ranks=_rank_first_rows(split),
    )


def _rank_first_rows(split: Split) -> pl.DataFrame | None:
    """Return how trending items rank the first rows of new users; None without such rows."""
    if split.first_rows is None or not len(split.first_rows):
        return None
    from talerec.evaluation.first_rows import rank_first_rows_by_trend  # with a model of its own

    return rank_first_rows_by_trend(split)


def _check_fitted_to(model: Model, split: Split) -> None:
    """Raise TalerecError unless the model was fitted to the training rows of the split.

    The model's item ids must equal those of the split's training rows; those of a model that
    scores items of the item table without rows have these items, too.
    """
    if not isinstance(split, Split):
        raise TalerecError(
            "evaluate takes a split, such as leave_one_out(log); "
            "evaluate_log(model, log) splits and fits"
        )
    train = split.train.with_catalogue() if model.scores_catalogue else split.train
    if not model.item_ids.equals(train.items.ids):
        raise TalerecError(
            "the model was not fitted to this split's training rows: call model.fit(split.train)"
        )


def evaluate_log(
    model: Model | str,
    log: Log,
    plan: SplitPlan | str = "leave-one-out",
    *,
    ties: str = "file",
    on: str = "test",
    k: Sequence[int] = (1, 5, 10),
    hide_seen: bool = False,
    cases: str | Path | None = None,
) -> Evaluation:
    """Split a log, fit a model to the training rows, and evaluate it.

    This is done for every order of ties and every rolling window; the result has all their cases.

    Parameters
    ----------
    model, log
        The model, which is fitted here, or its name, such as ``"ease(reg=500)"``; and all rows.
    plan
        How to split: "leave-one-out", "every:TIME" or another text of `SplitPlan`.
    ties
        The order of rows with equal times: "file" (that of the log, which `order_ties` may have
        set), "item", "random:SEED", or several random orders such as "random:0..4".
    on, k, hide_seen
        As in `evaluate`.
    cases
        A file for the cases, which `Evaluation.load` reads: the result then has sums over them, and
        memory does not grow with their number.

    Returns
    -------
    Evaluation
        Metrics, their intervals, groups, and one row per case.

    Raises
    ------
    TalerecError
        If an option is not valid, or the plan leaves no cases or no training rows.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, items=50)
    >>> result = tr.evaluate_log(tr.Popular(), log, ties="random:0..2")
    >>> [order["ties"] for order in result.orders]
    ['random:0', 'random:1', 'random:2']
    """
    if isinstance(model, str):
        from talerec.evaluation.model_lists import single_model  # imports all families of models

        model = single_model(model)
    plan = SplitPlan(plan) if isinstance(plan, str) else plan
    splits = LogSplits(as_log(log), plan, on)
    options: dict[str, Any] = {"ties": ties, "on": on, "k": k, "hide_seen": hide_seen}
    if cases is None:
        return evaluate_splits(model, splits, **options)
    with CaseFile.open(cases, check_cutoffs(k)) as file:
        return file.finish(evaluate_splits(model, splits, **options, add=file.add))


def evaluate_splits(
    model: Model,
    splits: LogSplits,
    *,
    ties: str,
    on: str,
    k: Sequence[int],
    hide_seen: bool,
    add: Callable[[pl.DataFrame], object] | None = None,
) -> Evaluation:
    """Fit a model to the training rows of every split of a log, and evaluate it on all cases.

    splits: of the log, by any order of ties (rows with equal times). add: takes the frame of each
    chunk of cases; the frame of the result is empty then. Other parameters and the result are those
    of `evaluate_log`.
    """
    log, ks = splits.log, check_cutoffs(k)

    def results(
        order: str, add: Callable[[pl.DataFrame], object] | None = None
    ) -> Iterator[Evaluation]:
        """Yield the result of each split, with ties in the order "file", "item" or "random:N".

        add: takes the frame of each chunk of cases, such as a writer of files; see above.
        """
        for split in splits.fit_on_each(model, order):
            if add is None:
                yield evaluate(model, split, on=on, k=ks, hide_seen=hide_seen)
            else:
                yield _evaluate_chunks(model, split, add, on, ks, hide_seen)

    orders = expand_tie_orders(ties)
    result = join_results([part for order in orders for part in results(order, add)])
    fixed_orders = _list_fixed_orders(log) if len(orders) > 1 and has_many_ties(result.tied) else []
    metrics = {order: join_results(list(results(order))).metrics for order in fixed_orders}
    return replace(result, ties=name_tie_order(log, ties), fixed_order_metrics=metrics)


def _list_fixed_orders(log: Log) -> list[str]:
    """Return the fixed orders that rows with equal times of a log can be put in.

    "file": as in the log's file; "item": by item id. A log that was put in another order
    (`log.ties`) has lost the order of its file.
    """
    return ["file", "item"] if log.ties == "file" else ["item"]


def join_results(results: Sequence[Evaluation]) -> Evaluation:
    """Return one result with the cases of several results of one model.

    A case is one evaluated query, a row of `frame`. The results differ in the order of ties (rows
    with equal times) or the time window. Coverage is averaged and seconds are added up. First rows
    of new users, which do not depend on ties, are those of the first order; other fields are those
    of the first result.
    """
    first = results[0]
    if len(results) == 1:
        return first
    names = first.coverage
    ranks = [result.first_row_ranks for result in results if result.ties == first.ties]
    first_rows = [frame for frame in ranks if frame is not None]
    return replace(
        first,
        coverage={name: float(np.mean([r.coverage[name] for r in results])) for name in names},
        seconds=sum_seconds(r.seconds for r in results),
        frame=pl.concat([r.frame for r in results], rechunk=True),
        first_row_ranks=pl.concat(first_rows) if first_rows else None,
    )

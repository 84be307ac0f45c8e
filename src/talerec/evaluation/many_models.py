"""Evaluate several models on one split of a log, and share the steps that are equal."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from talerec.data import Log, as_log, expand_tie_orders
from talerec.data.split import SplitPlan
from talerec.errors import TalerecError
from talerec.evaluation.baskets import check_basket_order, evaluate_basket_splits
from talerec.evaluation.evaluator import evaluate_splits
from talerec.evaluation.finished_models import FinishedModels
from talerec.evaluation.leaderboard import Leaderboard, ModelCost, SkippedModel
from talerec.evaluation.log_splits import LogSplits
from talerec.evaluation.metrics import check_cutoffs
from talerec.evaluation.model_lists import ListedModel, list_models
from talerec.evaluation.result_kinds import Result
from talerec.evaluation.time_estimates import TimeEstimates
from talerec.models.core import Model, SharedUse
from talerec.runtime import memory, stage, sum_seconds, time_without_compilation

logger = logging.getLogger(__name__)

_WITHOUT_PEAKS = (
    "memory was not measured: this system does not let a process reset its high-water mark"
)


class EvaluationOptions(TypedDict, total=False):
    """Options of each model's evaluation: keyword arguments of `evaluate_log`, all optional.

    baskets: hold out next baskets, as `evaluate_baskets` does, and not single rows.
    """

    ties: str
    on: str
    k: Sequence[int]
    hide_seen: bool
    baskets: bool


def evaluate_models(
    log: Log,
    models: str | Sequence[str | Model],
    plan: SplitPlan | str = "leave-one-out",
    *,
    minutes: float | None = None,
    folder: str | Path | None = None,
    **options: Unpack[EvaluationOptions],
) -> Leaderboard:
    """Evaluate several models on the same split of a log, and compare them with the first.

    The log is split once, and models that need the same Gram or the same solution share it; every
    figure is that of `evaluate_log` with one model, to the last bit. A model that cannot be fitted
    to the log is skipped, and the others go on.

    Parameters
    ----------
    log
        All rows.
    models
        "linear", "all", or names such as ``tempo,ease(reg=500)``; or a sequence of such names and
        of unfitted models. Others are compared with the first that can be evaluated.
    plan
        How to split: as in `evaluate_log`.
    minutes
        A time budget: a model that would exceed it, by an estimate from the size of the log and
        from the models before it, is not started. The models of "linear" and "all" come in the
        order of `PROMISING`; a running model is not stopped.
    folder
        A folder for finished models, a Parquet file each. Models that it has for the same log,
        split, settings and version are not evaluated again.
    **options
        ties, on, k, hide_seen: as in `evaluate_log`. baskets: if true, next baskets are held out,
        as in `evaluate_baskets`.

    Returns
    -------
    Leaderboard
        The results, with differences to the first, seconds and memory; ``.report()`` is a page,
        ``.plot()`` a chart.

    Raises
    ------
    TalerecError
        If an option or a model's name is not valid, the plan leaves no cases, or no model could be
        evaluated.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, items=50)
    >>> board = tr.evaluate_models(log, "markov,rules,popular", k=[10])
    >>> board.frame["model"].to_list()
    ['rules', 'markov', 'popular']
    """
    listed = list_models(models)
    if minutes is not None and not minutes > 0:
        raise TalerecError(f"`minutes` is {minutes}; it must be above 0", "minutes")
    plan = SplitPlan(plan) if isinstance(plan, str) else plan
    return _ModelRun(as_log(log), plan, options, folder).evaluate(listed, minutes)


class _ModelRun:
    """One run of several models over the splits of a log.

    results, costs: of evaluated models, by label. uses: by label, the results that each model of
    this run took from the caches or put there. skipped: models that were not evaluated, and why.
    """

    def __init__(
        self, log: Log, plan: SplitPlan, options: EvaluationOptions, folder: str | Path | None
    ) -> None:
        """Check the options; the log is split when the first model needs it.

        plan: how to split. folder: of finished models, None for none.
        """
        self.options: dict[str, Any] = {
            "ties": options.get("ties", "file"),
            "on": options.get("on", "test"),
            "k": check_cutoffs(options.get("k", (1, 5, 10))),
            "hide_seen": options.get("hide_seen", False),
        }
        plan.check(self.options["on"])
        self.baskets = options.get("baskets", False)
        if self.baskets:
            check_basket_order(self.options["ties"])
        self.splits = LogSplits(log, plan, self.options["on"], is_shared=True, baskets=self.baskets)
        self.estimates = TimeEstimates(log)
        self.finished = FinishedModels(folder, log, plan, {**self.options, "baskets": self.baskets})
        self.results: dict[str, Result] = {}
        self.costs: dict[str, ModelCost] = {}
        self.uses: dict[str, list[SharedUse]] = {}
        self.skipped: list[SkippedModel] = []
        self._split_seconds = 0.0

    def evaluate(self, listed: Sequence[ListedModel], minutes: float | None) -> Leaderboard:
        """Return the leaderboard of the listed models; minutes: the time budget, None for none."""
        start = time.monotonic()
        deadline = None if minutes is None else start + 60 * minutes
        tick = stage("models", float(len(listed)))
        for entry in listed:
            self._evaluate_or_skip(entry, deadline)
            tick(1.0, entry.label)
        total = time.monotonic() - start
        notes = list(dict.fromkeys(note for r in self.results.values() for note in r.notes))
        if any(cost.peak_mb is None for cost in self.costs.values()):
            notes.append(_WITHOUT_PEAKS)
        seconds = {"split": self._split_seconds, "total": total}
        return Leaderboard(
            self.results, self._separate_shared_costs(), tuple(self.skipped), seconds, notes
        )

    def _evaluate_or_skip(self, entry: ListedModel, deadline: float | None) -> None:
        """Evaluate one model, take its result from the folder, or note why it is skipped.

        deadline: the time of `time.monotonic` that the model must not exceed; None for none.
        """
        if (stored := self.finished.find(entry)) is not None:
            self.results[entry.label], self.costs[entry.label] = stored
            return
        if deadline is not None and (estimate := self.estimates.estimate(entry.model)):
            left = deadline - time.monotonic()
            if estimate > left:
                reason = f"not started: it would take about {estimate:,.0f} s of {left:,.0f} s left"
                self.skipped.append(SkippedModel(entry.label, reason, False))
                return
        self._prepare_splits()
        try:
            entry.model.check_ready()
            self._fit_and_evaluate(entry)
        except TalerecError as error:
            names = error.parameters
            self.skipped.append(SkippedModel(entry.label, str(error), entry.is_named, names))
            extra = {"parameters": names}
            logger.warning("%s is skipped: %s", entry.label, error, extra=extra)

    def _prepare_splits(self) -> None:
        """Split the log, unless that is done; errors are raised here, as no model causes them."""
        start = time.monotonic()
        for order in expand_tie_orders(self.options["ties"]):
            self.splits.splits_and_caches(order)
        self._split_seconds += time.monotonic() - start

    def _fit_and_evaluate(self, entry: ListedModel) -> None:
        """Fit and evaluate a model on all splits; keep its result and costs, in the folder too."""
        has_mark = memory.reset_high_water()
        start = time_without_compilation()
        evaluate = evaluate_basket_splits if self.baskets else evaluate_splits
        result: Result = evaluate(entry.model, self.splits, **self.options)
        elapsed = time_without_compilation() - start
        compile_seconds = max(sum(result.seconds.values()) - elapsed, 0.0)  # in the timed steps
        peak_mb = memory.high_water_mb() if has_mark else None
        entry.model.set_fitted(None)
        uses = [use for cache in self.splits.caches for use in cache.take_uses()]
        reused = _sum_uses([use for use in uses if use.is_reused])
        result = replace(result, seconds=sum_seconds([result.seconds, reused]))
        self.estimates.add_measured(entry.model, elapsed + sum(reused.values()))
        self.results[entry.label], self.uses[entry.label] = result, uses
        self.costs[entry.label] = ModelCost(result.seconds, {}, peak_mb, compile_seconds)
        self.finished.save(entry, result, self._separate_shared_costs()[entry.label])

    def _separate_shared_costs(self) -> dict[str, ModelCost]:
        """Return the costs of all models, with shared steps and other steps apart.

        A result that may be shared, such as a Gram, counts as shared for each model that used it,
        by `uses`, if a second model did, whichever of them computed it. Models whose results were
        found in the folder have the costs that are stored there.
        """
        used = ({use.number for use in uses} for uses in self.uses.values())
        n_models = Counter(number for result_numbers in used for number in result_numbers)
        costs = dict(self.costs)
        for label, uses in self.uses.items():
            shared = _sum_uses([use for use in uses if n_models[use.number] > 1])
            seconds = self.results[label].seconds
            rest = {step: value - shared.get(step, 0.0) for step, value in seconds.items()}
            costs[label] = self.costs[label]._replace(own_seconds=rest, shared_seconds=shared)
        return costs


def _sum_uses(uses: Sequence[SharedUse]) -> dict[str, float]:
    """Return the seconds of shared results by the step of the fit that used them."""
    return sum_seconds({use.step: use.seconds} for use in uses)

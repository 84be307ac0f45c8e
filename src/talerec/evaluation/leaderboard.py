"""Results of several models on the same cases: table, differences to the first, advice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import polars as pl

from talerec.errors import TalerecError
from talerec.evaluation.baskets import BasketEvaluation
from talerec.evaluation.comparison import ALPHA, Comparison, compare
from talerec.evaluation.intervals import PairedComparison, adjust_p_values
from talerec.evaluation.reportable import Reportable
from talerec.evaluation.result_kinds import Result

_TIME_FACTOR_PER_PERCENT = 2.0  # a model that is 1 % better may take twice as long
_MIN_SECONDS = 1.0  # models that take less are equally fast


class ModelCost(NamedTuple):
    """The cost of the evaluation of one model.

    own_seconds, shared_seconds: by step, of steps that this model alone needs, and of steps that
    other models use too, whichever of them computed it. peak_mb: the most memory that the process
    had meanwhile, in MB; None if unknown. compile_seconds: of the own seconds, those that compiled
    kernels, which happens once per machine.
    """

    own_seconds: dict[str, float]
    shared_seconds: dict[str, float]
    peak_mb: float | None = None
    compile_seconds: float = 0.0


class SkippedModel(NamedTuple):
    """A model that was not evaluated: its label, why, and whether that is a failure.

    A model that a time budget leaves no room for, or one of a list such as "all" that lacks a
    library, is not a failure. parameters: those that the reason names in backticks.
    """

    label: str
    reason: str
    is_failure: bool
    parameters: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return label, reason and is_failure for JSON."""
        return {"label": self.label, "reason": self.reason, "is_failure": self.is_failure}


@dataclass(frozen=True, eq=False, repr=False)
class Leaderboard(Reportable):
    """Several models evaluated on the same cases; see `evaluate_models` and `compare_all`.

    Parameters
    ----------
    results
        The evaluation of each model by its label, such as ``ease(reg=500)``; the first is the one
        that others are compared with.
    costs
        Seconds and memory of each model, by label; empty for results that were read from files.
    skipped
        Models that were not evaluated, and why.
    run_seconds
        Of the whole run: split (dividing the log), total, and load where a file was read.
    notes
        Sentences about the run.

    Examples
    --------
    >>> import talerec as tr
    >>> board = tr.evaluate_models(tr.synthetic_log(2000, items=50), ["rules", "popular"])
    >>> board.order
    ['rules', 'popular']
    >>> board.significant
    {'popular': False}
    """

    results: dict[str, Result]
    costs: dict[str, ModelCost] = field(default_factory=dict)
    skipped: Sequence[SkippedModel] = ()
    run_seconds: Mapping[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Raise TalerecError if there is no result."""
        if not self.results:
            reasons = "; ".join(f"{entry.label}: {entry.reason}" for entry in self.skipped)
            raise TalerecError(f"no model could be evaluated: {reasons}")

    @property
    def first(self) -> str:
        """The label of the model that others are compared with."""
        return next(iter(self.results))

    @property
    def headline(self) -> str:
        """The metric of the order and of the tests: NDCG at the largest k that all results have."""
        common = set.intersection(*(set(result.ks) for result in self.results.values()))
        if not common:
            raise TalerecError("the results share no k: evaluate all with the same k")
        return f"NDCG@{max(common)}"

    @cached_property
    def order(self) -> list[str]:
        """The labels of the models, the best in the headline metric first."""
        values = {label: result.metrics[self.headline] for label, result in self.results.items()}
        return sorted(self.results, key=lambda label: -(values[label] or 0.0))

    @cached_property
    def differences(self) -> dict[str, Comparison]:
        """The paired comparison of each further model (B) with the first one (A), by label.

        The metrics at the largest k are compared.
        Their p-values are those of single tests; see `adjusted`. TalerecError unless all results
        are about the same cases.
        """
        results = iter(self.results.items())
        first = next(results)
        return {
            label: compare(first[1], result, names=(first[0], label), largest_k=True)
            for label, result in results
        }

    @cached_property
    def adjusted(self) -> dict[str, dict[str, float]]:
        """Per list, "metrics" or "metrics_hidden", and label: p of the headline metric by Holm.

        The correction is for as many tests as there are models besides the first one. Results of
        baskets have no "metrics_hidden".
        """
        lists = ("metrics", "metrics_hidden") if self.has_hidden_lists else ("metrics",)
        return {name: self.adjust(name, self.headline) for name in lists}

    @property
    def has_hidden_lists(self) -> bool:
        """Whether results have metrics with seen items hidden, too; those of baskets have not."""
        return not any(isinstance(result, BasketEvaluation) for result in self.results.values())

    def adjust(self, name: str, metric: str) -> dict[str, float]:
        """Return the p-value of each difference in one metric by label, corrected by Holm.

        name: "metrics", or "metrics_hidden" for lists without seen items. metric: such as HR@10.
        """
        pairs = {label: getattr(c, name)[metric] for label, c in self.differences.items()}
        adjusted = adjust_p_values([pair.p for pair in pairs.values()])
        return dict(zip(pairs, adjusted, strict=True))

    @property
    def significant(self) -> dict[str, bool]:
        """Whether each model differs from the first one in the headline metric, at the 5 % level.

        By label; p-values are corrected for the number of models by Holm's method.
        """
        return {label: p < ALPHA for label, p in self.adjusted["metrics"].items()}

    def seconds(self, label: str) -> float:
        """Return the seconds of one model: fitting and ranking, shared steps included, no reading.

        As long as it would take alone, once the log is read and split and kernels are compiled.
        """
        steps = self.results[label].seconds
        total = sum(value for step, value in steps.items() if step != "load")
        cost = self.costs.get(label)
        return max(total - cost.compile_seconds, 0.0) if cost else total

    @cached_property
    def choice(self) -> str:
        """The label of the model to take: 1 % in the headline metric is worth twice the time.

        Of all models, the one with the highest ln(metric) / ln(1.01) - log2(seconds); seconds below
        one count as one.
        """

        def value(label: str) -> float:
            """Return the logarithm of a model's metric in percents less that of its seconds."""
            metric = self.results[label].metrics[self.headline] or 0.0
            if metric <= 0:
                return -math.inf
            seconds = max(self.seconds(label), _MIN_SECONDS)
            return math.log(metric) / math.log(1.01) - math.log(seconds, _TIME_FACTOR_PER_PERCENT)

        return max(self.order, key=value)

    @cached_property
    def advice(self) -> str:
        """A sentence on the model to take, and on how the best other one compares with it.

        It has the headline metric and the seconds of the model, and differences in both.
        """
        choice, best = self.choice, self.order[0]
        metric = self.results[choice].metrics[self.headline]
        text = (
            f"Take {choice} ({self.headline} {metric:.4f}, {_format_seconds(self.seconds(choice))})"
        )
        if len(self.results) == 1:
            return f"{text}: no other model was evaluated."
        if choice == best:
            other = self.order[1]
            leads = self._compare_headline(other, choice).p < ALPHA
            reason = "it is the most accurate" if leads else f"its {self.headline} is the highest"
            return f"{text}: {reason}; {self._describe(other, choice)}."
        return f"{text}: {self._describe(best, choice)}."

    def _compare_headline(self, label: str, reference: str) -> PairedComparison:
        """Return the paired comparison of a model with another one in the headline metric."""
        if reference == self.first:
            return self.differences[label].metrics[self.headline]
        results = (self.results[reference], self.results[label])
        return compare(*results, largest_k=True).metrics[self.headline]

    def _describe(self, label: str, reference: str) -> str:
        """Return how much better or worse a model is than another, and how long it takes."""
        pair = self._compare_headline(label, reference)
        size = f"{100 * abs(pair.difference) / pair.a:.1f} %" if pair.a else "much"
        word = "better" if pair.difference > 0 else "worse"
        accuracy = (
            f"is {size} {word}" if pair.p < ALPHA else "does not differ measurably in accuracy"
        )
        times = max(self.seconds(label), 0.001) / max(self.seconds(reference), 0.001)
        if times >= 1.2:
            times_text = f"{times:,.0f}" if times >= 10 else f"{times:.1f}"
            return f"{label} {accuracy} and takes {times_text} times as long"
        if times <= 1 / 1.2:
            return f"{label} {accuracy} and takes {100 * times:.0f} % of the time"
        return f"{label} {accuracy} and takes as long"

    @property
    def frame(self) -> pl.DataFrame:
        """The table as a Polars frame: a row per model, the best in the headline metric first."""
        return pl.DataFrame([self._row(label) for label in self.order], infer_schema_length=None)

    def _row(self, label: str) -> dict[str, Any]:
        """Return a model's row of the table: metrics, difference to the first, seconds, memory."""
        result, metric = self.results[label], self.headline
        pair = self.differences[label].metrics[metric] if label != self.first else None
        cost = self.costs.get(label)
        shared_seconds = sum(cost.shared_seconds.values()) if cost else 0.0
        low, high = result.intervals[metric]
        return {
            "model": label,
            **{name: result.metrics[name] for name in (metric, metric.replace("NDCG", "HR"))},
            f"{metric} low": low,
            f"{metric} high": high,
            "difference": pair.difference if pair else None,
            "difference low": pair.interval[0] if pair else None,
            "difference high": pair.interval[1] if pair else None,
            "p (Holm)": self.adjusted["metrics"][label] if pair else None,
            "own seconds": max(self.seconds(label) - shared_seconds, 0.0),
            "shared seconds": shared_seconds,
            "peak MB": cost.peak_mb if cost else None,
        }

    def __repr__(self) -> str:
        return f"Leaderboard({', '.join(self.order)}: {self.advice.removesuffix('.')})"

    def _repr_html_(self) -> str:
        """Return the table for notebooks."""
        return self.frame._repr_html_()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of `evaluate` with several models; docs/evaluation.md lists it."""
        return {
            "models": {label: self._model_dict(label) for label in self.results},
            "differences": {label: self._difference(label) for label in self.differences},
            "first": self.first,
            "headline": self.headline,
            "order": self.order,
            "choice": self.choice,
            "advice": self.advice,
            "skipped": [entry.to_dict() for entry in self.skipped],
            "run_seconds": dict(self.run_seconds),
            "notes": self.notes,
        }

    def _model_dict(self, label: str) -> dict[str, Any]:
        """Return the result of one model for JSON: as that of one model, with its costs."""
        cost = self.costs.get(label)
        facts = self.results[label].to_dict()
        if cost is None:
            return facts
        peak = None if cost.peak_mb is None else round(cost.peak_mb, 1)
        seconds = {"own_seconds": cost.own_seconds, "shared_seconds": cost.shared_seconds}
        compilation = {"compile_seconds": round(cost.compile_seconds, 3)}
        return {**facts, **seconds, **compilation, "peak_rss_mb": peak}

    def _difference(self, label: str) -> dict[str, Any]:
        """Return a model's difference to the first one for JSON, with p-values of Holm."""
        comparison = self.differences[label]
        lists = {}
        for name in ("metrics", "metrics_hidden"):
            lists[name] = {
                metric: {**pair.to_dict(), "p_holm": self.adjust(name, metric)[label]}
                for metric, pair in getattr(comparison, name).items()
            }
        return {
            **lists,
            "users": comparison.metrics[self.headline].users,
            "significant": self.significant[label],
            "verdict": comparison.verdict,
        }


def compare_all(results: Mapping[str, Result]) -> Leaderboard:
    """Compare several results on the same cases with the first one, user by user.

    Parameters
    ----------
    results
        Results of `evaluate` or `Evaluation.load` by name, for the same log, split and order of
        ties (rows with equal times); or of `evaluate_baskets`.

    Returns
    -------
    Leaderboard
        Differences to the first result, with p-values corrected by Holm's method, and advice.

    Raises
    ------
    TalerecError
        If there are fewer than two results, or they are not about the same cases.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, items=50)
    >>> results = {m.name: tr.evaluate_log(m, log) for m in (tr.Popular(), tr.Rules())}
    >>> compare_all(results).order
    ['rules', 'popular']
    """
    if len(results) < 2:
        raise TalerecError("a comparison takes two or more results")
    board = Leaderboard(dict(results))
    notes = [note for comparison in board.differences.values() for note in comparison.notes]
    return replace(board, notes=list(dict.fromkeys(notes)))


def _format_seconds(seconds: float) -> str:
    """Return a duration as text: 0.42 s, 12 s, 3.5 min."""
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min"

"""Paired comparison of two evaluation results on the same cases, user by user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from talerec import columns
from talerec.errors import TalerecError
from talerec.evaluation.basket_metrics import basket_metric_names
from talerec.evaluation.baskets import BasketEvaluation
from talerec.evaluation.intervals import PairedComparison, compare_pairs, format_p_value
from talerec.evaluation.metrics import RANK, RANK_HIDDEN, metric_expressions
from talerec.evaluation.queries import CASES, WINDOW
from talerec.evaluation.reportable import Reportable
from talerec.evaluation.result_kinds import Result

ALPHA = 0.05
_SHARED = ("split", "on", "ties")  # fields that must be equal for the cases to be the same
_B_SUFFIX = " of b"  # suffix of B's columns in a frame with both results


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Reportable):
    """Model B compared with model A, metric by metric, over the same users; see `compare`.

    a, b: the results of their evaluations; names: what sentences call them. `metrics` and
    `metrics_hidden` map names such as NDCG@10 to a paired comparison; hidden: with the items of the
    history left out of the ranking, empty for results of baskets, which are about one kind of list.
    `notes` are sentences about both results.
    """

    a: Result
    b: Result
    metrics: dict[str, PairedComparison]
    metrics_hidden: dict[str, PairedComparison]
    notes: list[str]
    names: tuple[str, str] = ("A", "B")

    @property
    def headline(self) -> str:
        """The metric of the verdict: NDCG at the largest common k, so that one test decides.

        a, b: the two results; `ks` are the lengths of their lists.
        """
        return f"NDCG@{max(set(self.a.ks) & set(self.b.ks))}"

    @property
    def significant(self) -> bool:
        """Whether the difference in the headline metric is significant at the 5 % level."""
        return self.metrics[self.headline].p < ALPHA

    @property
    def significant_hidden(self) -> bool:
        """Whether it is significant at the 5 % level with seen items hidden; False for baskets."""
        return bool(self.metrics_hidden) and self.metrics_hidden[self.headline].p < ALPHA

    @property
    def verdict(self) -> str:
        """Whether B is better or worse in the headline metric, by how much, and p.

        B and A are the compared results; the headline is NDCG at the largest common k, and p that
        of a paired test. A sentence for the lists that were evaluated, and a second one for lists
        with seen items hidden, unless both results are about such lists.
        """
        a, b = self.names
        pair, hidden = self.metrics[self.headline], self.metrics_hidden.get(self.headline)
        word, amount = self._describe_change(pair)
        first = f"{b} is {word} than {a} by {amount}"
        first = first if word else f"No difference between {a} and {b} can be shown"
        first = f"{first} ({self._describe_figures(pair)})"
        if self.a.hide_seen and self.b.hide_seen:
            return f"{first}, with seen items hidden."
        if hidden is None:
            return f"{first}."
        word_hidden, amount = self._describe_change(hidden)
        second = f"{b} is {word_hidden} by {amount}"
        second = second if word_hidden else "no difference can be shown"
        condition = f"{'With' if word == word_hidden else 'But with'} seen items hidden"
        return f"{first}. {condition}, {second} ({self._describe_figures(hidden)})."

    def _describe_change(self, pair: PairedComparison) -> tuple[str, str]:
        """Return "better" or "worse", or "" if p is not below 5 %, and the size of the change.

        pair: means of A and B in one metric, their difference B - A, and p of a paired test. The
        size is text: a percentage of A's mean, or the difference if that is 0.
        """
        size = abs(pair.difference)
        amount = f"{100 * size / pair.a:.1f} %" if pair.a else f"{size:.4f}"
        word = "better" if pair.difference > 0 else "worse"
        return (word if pair.p < ALPHA else ""), amount

    def _describe_figures(self, pair: PairedComparison) -> str:
        """Return the headline metric of A and B and p as text: NDCG@10 0.1 -> 0.2, p = 0.01.

        pair: the comparison of A and B in that metric. A p below 0.0001 is "p < 0.0001".
        """
        p = f"p {format_p_value(pair.p, '= ')}"
        return f"{self.headline} {pair.a:.4f} -> {pair.b:.4f}, {p}"

    def __repr__(self) -> str:
        return f"Comparison({self.verdict.removesuffix('.')})"

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as the JSON object that the command `compare` prints.

        Keys: a, b (facts of both results), users, headline, significant, significant_hidden,
        verdict, metrics, metrics_hidden (by name such as NDCG@10), notes.
        """
        return {
            "a": self.a.facts(),
            "b": self.b.facts(),
            "users": self.metrics[self.headline].users,
            "headline": self.headline,
            "significant": self.significant,
            "significant_hidden": self.significant_hidden,
            "verdict": self.verdict,
            "metrics": {name: pair.to_dict() for name, pair in self.metrics.items()},
            "metrics_hidden": {n: pair.to_dict() for n, pair in self.metrics_hidden.items()},
            "notes": self.notes,
        }


def compare(
    a: Result,
    b: Result,
    *,
    seed: int = 0,
    names: tuple[str, str] | None = None,
    largest_k: bool = False,
) -> Comparison:
    """Compare two results on the same cases (evaluated queries), user by user.

    Parameters
    ----------
    a, b
        Results of `evaluate` or `Evaluation.load` for the same log, split and order of ties (rows
        with equal times); or two of `evaluate_baskets`.
    seed
        Without effect since version 0.3: the test is computed without random signs.
    names
        What the verdict calls the two results; by default the names of their models, or A and B if
        these are equal.
    largest_k
        Compare only the metrics at the largest common k, which takes less time.

    Returns
    -------
    Comparison
        Difference, interval, p-value and effect size of every common metric, and a verdict. The
        unit is the user: all cases of a user, in all windows and orders of ties, are one.

    Raises
    ------
    TalerecError
        If the results are not about the same cases, or have no k in common.

    Examples
    --------
    >>> import talerec as tr
    >>> split = tr.leave_one_out(tr.synthetic_log(2000, items=50))
    >>> models = (tr.Popular(), tr.Rules())
    >>> results = [tr.evaluate(model.fit(split.train), split) for model in models]
    >>> comparison = tr.compare(*results)
    >>> comparison.significant, comparison.significant_hidden
    (False, False)
    >>> print(comparison.verdict.split(". ")[0])
    No difference between popular and rules can be shown (NDCG@10 0.2759 -> 0.3015, p = 0.14)
    """
    ks = _find_common_cutoffs(a, b)
    ks = ks[-1:] if largest_k else ks
    metrics = _compare_metrics(a, b, ks, RANK)
    is_of_cases = not isinstance(a, BasketEvaluation)
    hidden = _compare_metrics(a, b, ks, RANK_HIDDEN) if is_of_cases else {}
    if names is None:
        names = (a.model, b.model) if a.model != b.model else ("A", "B")
    return Comparison(a, b, metrics, hidden, _collect_notes(a, b), names)


def _find_common_cutoffs(a: Result, b: Result) -> list[int]:
    """Return the list lengths k that two results have in common, ascending.

    TalerecError if there are none, or if the results are of other splits, orders of ties, or held-
    out rows, or have only sums of cases, or one is of next items and the other of next baskets.
    """
    if isinstance(a, BasketEvaluation) != isinstance(b, BasketEvaluation):
        raise TalerecError("one result is of next baskets and the other of single next items")
    if any(CASES in result.frame.columns for result in (a, b)):
        message = "one result has only sums of cases: evaluate with `cases`, and load that file"
        raise TalerecError(message, "cases")
    ks = sorted(set(a.ks) & set(b.ks))
    if not ks:
        raise TalerecError(
            f"the results share no k: A has {list(a.ks)}, B {list(b.ks)}; "
            "evaluate both with the same k"
        )
    for name in _SHARED:
        left, right = getattr(a, name), getattr(b, name)
        if left != right:
            message = f"the results are not comparable: {name} is {left!r} in A and {right!r} in B"
            raise TalerecError(message)
    return ks


def _compare_metrics(
    a: Result, b: Result, ks: list[int], rank_column: str
) -> dict[str, PairedComparison]:
    """Return the comparison of each metric at each k of `ks`, paired by user.

    `rank_column` has the ranks among all items, or with seen items hidden. TalerecError if the
    results are not about the same cases.
    """
    left, right = (_sum_by_window(result, ks, rank_column) for result in (a, b))
    types = [frame[columns.USER].dtype for frame in (left, right)]
    if types[0] != types[1]:
        raise TalerecError(
            f"the results are of different logs: user ids are {types[0]} in A and {types[1]} in B"
        )
    keys = (columns.USER, WINDOW, CASES)
    both = left.join(right, on=keys, suffix=_B_SUFFIX, maintain_order="left")
    if not len(both) == len(left) == len(right):
        missing = max(len(left), len(right)) - len(both)
        raise TalerecError(
            f"the results are of different cases: {missing:,} in one are not in the other;"
            " evaluate both on the same log"
        )
    users = both.drop(WINDOW).group_by(columns.USER, maintain_order=True).sum()
    values = {name: users[name].to_numpy() for name in users.columns if name != columns.USER}
    return {
        name: compare_pairs(values[name], values[f"{name}{_B_SUFFIX}"], values[CASES])
        for name in left.columns
        if name not in keys
    }


def _sum_by_window(result: Result, ks: list[int], rank: str) -> pl.DataFrame:
    """Return sums of each metric and the number of cases, per user and rolling window.

    `result.frame` has one row per case, or basket: a user may have several in a window, one for
    each order of ties. `rank` is the column of ranks; baskets have their metrics in columns.
    """
    is_of_baskets = isinstance(result, BasketEvaluation)
    metrics = basket_metric_names(ks) if is_of_baskets else metric_expressions(ks, rank)
    windows = result.frame.select(columns.USER, WINDOW, *metrics).group_by(
        columns.USER, WINDOW, maintain_order=True
    )
    return windows.agg(pl.all().sum(), pl.len().alias(CASES))


def _collect_notes(a: Result, b: Result) -> list[str]:
    """Return the notes of both results, and sentences on settings or times that differ.

    Notes are sentences for readers of the metrics; equal ones appear once.
    """
    notes = list(dict.fromkeys([*a.notes, *b.notes]))
    different = [name for name in ("hide_seen", "refit") if getattr(a, name) != getattr(b, name)]
    notes += [f"{name.replace('_', ' ')} is on for one of the two only" for name in different]
    times = (result.frame.select(pl.col("time").sort().hash().sum()).item() for result in (a, b))
    if len(set(times)) > 1:
        notes.append("the targets are not at the same times: are these results of one log?")
    return notes

"""Does one model beat another? Two results on the same cases, compared user by user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from talerec import columns
from talerec.errors import TalerecError
from talerec.evaluation.intervals import Paired, paired
from talerec.evaluation.metrics import RANK, RANK_HIDDEN
from talerec.evaluation.queries import CASES
from talerec.evaluation.result import UNIT, Evaluation, per_unit

ALPHA = 0.05
_LEAST_P = 0.0001  # the test draws too few signs to tell smaller p-values apart
_SHARED = ("split", "on", "ties")  # fields that must be equal for the cases to be the same
_OF_B = " of b"  # ends the names of B's columns where both results are in one frame


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """B against A, metric by metric, over the same users."""

    a: Evaluation
    b: Evaluation
    metrics: dict[str, Paired]
    metrics_hidden: dict[str, Paired]
    notes: list[str]

    @property
    def headline(self) -> str:
        """The metric of the verdict: NDCG at the largest k that both have. One test, not nine."""
        return f"NDCG@{max(set(self.a.ks) & set(self.b.ks))}"

    @property
    def significant(self) -> bool:
        """Whether the difference in the headline metric is significant at the 5 % level."""
        return self.metrics[self.headline].p < ALPHA

    @property
    def verdict(self) -> str:
        """The outcome in one sentence."""
        found = self.metrics[self.headline]
        b, a = self.b.model, self.a.model
        if a == b:
            b, a = "B", "A"
        p = f"p = {found.p:.2g}" if found.p >= _LEAST_P else f"p < {_LEAST_P:g}"
        figures = f"{self.headline} {found.a:.4f} -> {found.b:.4f}, {p}"
        if not self.significant:
            return f"No difference between {a} and {b} can be shown ({figures})."
        word = "better" if found.difference > 0 else "worse"
        size = abs(found.difference)
        change = f"{100 * size / found.a:.1f} %" if found.a else f"{size:.4f}"
        return f"{b} is {word} than {a} by {change} ({figures})."

    def __repr__(self) -> str:
        return f"Comparison({self.verdict.removesuffix('.')})"

    def to_dict(self) -> dict[str, Any]:
        """The object that `talerec compare --json` prints."""
        return {
            "a": self.a.facts(),
            "b": self.b.facts(),
            "users": self.metrics[self.headline].users,
            "headline": self.headline,
            "significant": self.significant,
            "verdict": self.verdict,
            "metrics": {name: found.to_dict() for name, found in self.metrics.items()},
            "metrics_hidden": {n: found.to_dict() for n, found in self.metrics_hidden.items()},
            "notes": self.notes,
        }


def compare(a: Evaluation, b: Evaluation, *, seed: int = 0) -> Comparison:
    """Compare two results on the same cases, user by user.

    Parameters
    ----------
    a, b
        What `evaluate` or `Evaluation.load` gave, for the same log, split and order of ties.
    seed
        The seed of the intervals and of the test.

    Returns
    -------
    Comparison
        Difference, interval, p-value and effect size of every metric that both have, and a verdict.

    Raises
    ------
    TalerecError
        If the results are not about the same cases, or have no k in common.

    Examples
    --------
    >>> import talerec as tr
    >>> split = tr.leave_one_out(tr.synthetic_log(2000, items=50))
    >>> popular, rules = (tr.evaluate(m.fit(split.train), split) for m in (tr.Popular(), tr.Rules()))
    >>> print(tr.compare(popular, rules).verdict)
    No difference between popular and rules can be shown (NDCG@10 0.2759 -> 0.3015, p = 0.14).
    """
    if any(CASES in result.frame.columns for result in (a, b)):
        raise TalerecError(
            "one of the results has sums alone: evaluate with cases=FILE, and load it"
        )
    ks = sorted(set(a.ks) & set(b.ks))
    if not ks:
        raise TalerecError(
            f"the results share no k: A has {list(a.ks)}, B {list(b.ks)}; evaluate both with the same k"
        )
    for name in _SHARED:
        left, right = getattr(a, name), getattr(b, name)
        if left != right:
            raise TalerecError(
                f"the results answer different questions: {name} is {left!r} in A and {right!r} in B"
            )
    return Comparison(
        a,
        b,
        _paired(a, b, ks, RANK, seed),
        _paired(a, b, ks, RANK_HIDDEN, seed),
        _notes(a, b),
    )


def _paired(a: Evaluation, b: Evaluation, ks: list[int], rank: str, seed: int) -> dict[str, Paired]:
    left, right = (per_unit(result.frame, ks, rank) for result in (a, b))
    types = [frame[columns.USER].dtype for frame in (left, right)]
    if types[0] != types[1]:
        raise TalerecError(
            f"the results are of different logs: user ids are {types[0]} in A and {types[1]} in B"
        )
    both = left.join(right, on=UNIT, suffix=_OF_B, maintain_order="left")
    if not len(both) == len(left) == len(right):
        missing = max(len(left), len(right)) - len(both)
        raise TalerecError(
            f"the results are of different cases: {missing:,} in one are not in the other;"
            " evaluate both on the same log"
        )
    return {
        name: paired(both[name].to_numpy(), both[f"{name}{_OF_B}"].to_numpy(), seed=seed)
        for name in left.columns
        if name not in UNIT
    }


def _notes(a: Evaluation, b: Evaluation) -> list[str]:
    found = list(dict.fromkeys([*a.notes, *b.notes]))
    uneven = [name for name in ("hide_seen", "refit") if getattr(a, name) != getattr(b, name)]
    found += [f"{name.replace('_', ' ')} is on for one of the two only" for name in uneven]
    times = (result.frame.select(pl.col("time").sort().hash().sum()).item() for result in (a, b))
    if len(set(times)) > 1:
        found.append("the questions are not at the same times: are these results of one log?")
    return found

"""Does one model beat another? Two saved results of the same cases, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from talerec import columns
from talerec.errors import TalerecError
from talerec.evaluation.evaluation import WINDOW, Evaluation, per_unit
from talerec.evaluation.metrics import RANK, RANK_HIDDEN
from talerec.evaluation.significance import Paired, paired

ALPHA = 0.05
_LEAST_P = 0.0001  # below it a p-value of so many flips says no more
_SHARED = ("split", "on", "ties")  # what must be the same for the cases to be
_KEY = [columns.USER, WINDOW]


@dataclass(frozen=True, eq=False)
class Comparison:
    """B against A, metric by metric, over the users that both were asked about."""

    a: Evaluation
    b: Evaluation
    metrics: dict[str, Paired]
    metrics_hidden: dict[str, Paired]
    notes: list[str]

    @property
    def headline(self) -> str:
        """The metric that the verdict is about: NDCG at the largest k. One test, not nine."""
        return f"NDCG@{max(self.a.ks)}"

    @property
    def significant(self) -> bool:
        return self.metrics[self.headline].p < ALPHA

    @property
    def verdict(self) -> str:
        """One sentence."""
        found = self.metrics[self.headline]
        names = (self.b.model, self.a.model)
        if self.b.model == self.a.model:
            names = ("B", "A")
        chance = f"p = {found.p:.2g}" if found.p >= _LEAST_P else f"p < {_LEAST_P:g}"
        told = f"{self.headline} {found.a:.4f} -> {found.b:.4f}, {chance}"
        if not self.significant:
            return f"No difference between {names[1]} and {names[0]} can be shown ({told})."
        word = "better" if found.difference > 0 else "worse"
        change = f"{found.difference / found.a:+.1%}" if found.a else f"{found.difference:+.4f}"
        return f"{names[0]} is {word} than {names[1]} by {change} ({told})."

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
    """Paired, user by user: difference, interval, p and effect size of every metric that both have."""
    ks = sorted(set(a.ks) & set(b.ks))
    if not ks:
        raise TalerecError(f"the results share no k: {list(a.ks)} and {list(b.ks)}")
    for name in _SHARED:
        left, right = getattr(a, name), getattr(b, name)
        if left != right:
            raise TalerecError(
                f"the results answer different questions: {name} {left!r}, {right!r}"
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
    if left[columns.USER].dtype != right[columns.USER].dtype:
        raise TalerecError("the results are of different logs: their user ids are of other kinds")
    both = left.join(right, on=_KEY, suffix=_OTHER, maintain_order="left")
    if not len(both) == len(left) == len(right):
        missing = max(len(left), len(right)) - len(both)
        raise TalerecError(
            f"the results are of different cases: {missing:,} are in one of them only"
        )
    names = [name for name in left.columns if name not in _KEY]
    return {
        name: paired(both[name].to_numpy(), both[f"{name}{_OTHER}"].to_numpy(), seed=seed)
        for name in names
    }


_OTHER = " of b"


def _notes(a: Evaluation, b: Evaluation) -> list[str]:
    found = list(dict.fromkeys([*a.notes, *b.notes]))
    uneven = [name for name in ("hide_seen", "refit") if getattr(a, name) != getattr(b, name)]
    found += [f"{name.replace('_', ' ')} is on for one of the two only" for name in uneven]
    times = (result.frame.select(pl.col("time").sort().hash().sum()).item() for result in (a, b))
    if len(set(times)) > 1:
        found.append("the questions are not at the same times: are these results of one log?")
    return found

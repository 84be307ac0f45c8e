"""Numbers that a log chooses: small changes, one after the other, each kept only where held-back questions gain by it.

Scores are sums of parts, and what is sought is how much each part counts. For every question some items that could
come first are written down with their parts; a change of numbers is then judged by adding, without asking the model
again. A change is kept where the rank of what came next gains on all questions by more than chance, and neither
kind of questions loses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from talerec.runtime.arrays import Array
from talerec.runtime.jit import kernel
from talerec.runtime.threads import even, run_chunks

_CHUNK = 2048  # questions that a thread takes at a time
_HARM = 1.0  # standard errors that one kind of list may lose by a change that its questions gain by
_FEW = 150  # questions of a kind, below which it is not asked


@dataclass(frozen=True, eq=False)
class Parts:
    """Questions of one kind, and what the scores of their candidates are made of.

    value    part x question x candidate (float32); candidate 0 is what came next
    count    how many candidates each question has
    seen     question x candidate: is it in the asker's history?
    group    the class that each question is in: numbers are chosen for each class
    appeal   question x candidate: the logarithm of how popular it is, against the mean
    """

    value: Array
    count: Array
    seen: Array
    group: Array
    appeal: Array

    def __len__(self) -> int:
        return len(self.count)


class Choice(NamedTuple):
    """How much each part counts in each class of questions (class x part), and the power of popularity for parts that bend."""

    weight: Array
    lift: float


@dataclass(eq=False)
class Scale:
    """Where the questions stand under the present choice.

    bends: which parts are multiplied by popularity ** lift.
    repeats: whether lists with seen items count beside lists without them.
    length: how many places of a list count.
    """

    parts: Sequence[Parts]
    choice: Choice
    bends: Array
    repeats: bool
    length: int
    kinds: list[_Kind] = field(init=False)

    def __post_init__(self) -> None:
        enough = [one for one in self.parts if len(one) >= _FEW]
        worth = 1 / np.log2(np.arange(self.length) + 2)
        self.kinds = [_Kind(one, self.choice, self.bends, self.repeats, worth) for one in enough]

    def take_best(self, choices: Iterable[Choice], sure: float) -> int | None:
        """Take the choice that gains most and for sure: its number; None where none does."""
        best: tuple[float, int, Choice, list[_Trial]] | None = None
        for number, choice in enumerate(choices):
            trials = [kind.tried(self.choice, choice) for kind in self.kinds]
            gain = self._gain(trials, sure)
            if gain is not None and (best is None or gain > best[0]):
                best = (gain, number, choice, trials)
        if best is None:
            return None
        _, number, self.choice, taken = best
        for kind, trial in zip(self.kinds, taken, strict=True):
            kind.take(trial)
        return number

    def _gain(self, trials: list[_Trial], sure: float) -> float | None:
        """What the questions gain that a change touches, in standard errors; None where that may be chance, or some lose."""
        touched = [trial.steps for trial in trials if any(error > 0 for _, error in trial.steps)]
        if not touched or any(map(_loses, touched)):
            return None
        sureness = _sureness([step for steps in touched for step in steps])
        if sureness <= sure:
            return None
        in_all = (k.compared(k.first, t.values) for k, t in zip(self.kinds, trials, strict=True))
        return None if any(map(_loses, in_all)) else sureness


def _sureness(steps: list[tuple[float, float]]) -> float:
    """What is gained in all, in standard errors; each gain counts by how exactly it is known."""
    known = np.array([step for step in steps if step[1] > 0])
    if not len(known):
        return 0.0
    gains, errors = known.T
    return float((gains / errors**2).sum() / np.linalg.norm(1 / errors))


def _loses(steps: list[tuple[float, float]]) -> bool:
    """Does one kind of questions lose by a change: over both kinds of lists, or by one of them beyond a standard error?"""
    return _sureness(steps) < 0 or any(gain < -_HARM * error for gain, error in steps)


class _Trial(NamedTuple):
    """Scores and values under another choice, what that gains against the last one, and the errors of that."""

    score: Array
    values: Array
    steps: list[tuple[float, float]]


class _Kind:
    """Questions of one kind, scored."""

    def __init__(
        self, parts: Parts, choice: Choice, bends: Array, repeats: bool, worth: Array
    ) -> None:
        self.parts, self.bends, self.repeats, self.worth = parts, bends, repeats, worth
        self._bends: dict[float, Array] = {}
        none = choice._replace(weight=np.zeros_like(choice.weight))
        self.score = np.zeros(parts.seen.shape, np.float32)
        self.values = np.zeros((len(parts), 2))
        self.score, self.values = self._scored(none, choice)
        self.first = self.values
        self.level = np.maximum(self.values.mean(axis=0), 1e-4)

    def tried(self, old: Choice, new: Choice) -> _Trial:
        """What another choice would give."""
        score, values = self._scored(old, new)
        return _Trial(score, values, self.compared(self.values, values))

    def take(self, trial: _Trial) -> None:
        """Go on from a trial."""
        self.score, self.values = trial.score, trial.values

    def compared(self, old: Array, new: Array) -> list[tuple[float, float]]:
        """How much is gained, as a share of what there was at first, and its standard error, for each kind of list."""
        gained = (new - old) / self.level
        found = []
        for column in range(2 if self.repeats else 1):
            mine = gained[:, column]
            mean = float(mine.mean())
            spread = max(float(mine @ mine) / len(mine) - mean * mean, 0.0)
            found.append((mean, float(np.sqrt(spread / len(mine)))))
        return found

    def _scored(self, old: Choice, new: Choice) -> tuple[Array, Array]:
        parts, other_lift = self.parts, old.lift != new.lift
        changed = np.flatnonzero((old.weight != new.weight).any(axis=0) | (other_lift & self.bends))
        score = np.empty_like(self.score)
        values = np.empty((len(parts), 2))
        work = _Work(
            parts.value,
            parts.count,
            parts.seen,
            parts.group,
            self._bend(old.lift),
            self._bend(new.lift),
            changed,
            old.weight[:, changed].astype(np.float32),
            new.weight[:, changed].astype(np.float32),
            self.bends[changed],
        )

        def run(a: int, b: int) -> None:
            _judge(
                work,
                self.score,
                self.values,
                other_lift,
                self.repeats,
                self.worth,
                a,
                b,
                score,
                values,
            )

        run_chunks("weigh", run, even(len(parts), _CHUNK))
        return score, values

    def _bend(self, lift: float) -> Array:
        """What parts that bend are multiplied by."""
        if lift not in self._bends:
            self._bends[lift] = np.exp(np.float32(lift) * self.parts.appeal)
        return self._bends[lift]


class _Work(NamedTuple):
    """What a change of numbers is judged by (`Parts`), which parts change, and how much they counted and will count."""

    value: Array
    counts: Array
    seen: Array
    group: Array
    old_bend: Array
    new_bend: Array
    changed: Array
    old: Array
    new: Array
    bends: Array


@kernel
def _judge(
    work: _Work,
    before: Array,
    values_before: Array,
    other_lift: bool,
    repeats: bool,
    worth: Array,
    a: int,
    b: int,
    score: Array,
    values: Array,
) -> None:
    """Scores after a change, and what the place of candidate 0 is worth: with seen items ranked, and without them."""
    for q in range(a, b):
        group, count = work.group[q], work.counts[q]
        mine = score[q]
        for c in range(count):
            mine[c] = before[q, c]
        touched = False
        for j in range(len(work.changed)):
            old, new = work.old[group, j], work.new[group, j]
            touched = touched or other_lift or old != new
        if not touched:
            values[q, 0], values[q, 1] = values_before[q, 0], values_before[q, 1]
            continue
        for j in range(len(work.changed)):
            old, new, part = work.old[group, j], work.new[group, j], work.value[work.changed[j], q]
            if work.bends[j]:
                for c in range(count):
                    change = new * work.new_bend[q, c] - old * work.old_bend[q, c]
                    mine[c] += change * part[c]
            elif old != new:
                for c in range(count):
                    mine[c] += (new - old) * part[c]
        shown, unseen = 0, 0
        for c in range(1, count):
            if mine[c] >= mine[0]:
                shown += 1
                unseen += not work.seen[q, c]
        hidden = work.seen[q, 0]
        shown = shown if repeats else (len(worth) if hidden else unseen)
        values[q, 0] = worth[shown] if shown < len(worth) else 0.0
        values[q, 1] = worth[unseen] if unseen < len(worth) and not hidden else 0.0

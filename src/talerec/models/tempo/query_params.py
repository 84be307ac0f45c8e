"""The numbers of tempo's queries: what a place is worth, a repeat, and what is popular; by default, or as a log chose them.

Askers are in classes, by how long they have been away and whether they ask from behind the end of the rows. Every number
has a value for each class.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from talerec.models.core import checks
from talerec.models.tempo.popularity import LENGTHS, USUAL
from talerec.models.tempo.search import Choice
from talerec.runtime.arrays import Array

#: Places at which the learner tells rows apart; between them it interpolates, by the logarithm of the place.
KNOTS = 2.0 ** np.arange(8) - 1
OCTAVES = len(KNOTS)  # of places, for repeats
#: Places in which a row's part in "how often lately" falls to 1/e, for each of the two memories of that.
OFTEN = (10.0, 100.0)

RECENCY, NOW = 6.0, 0.3  # where nothing is learned


@dataclass(frozen=True, eq=False)
class Numbers:
    """What a query is made by, for each class of askers (rows).

    edges    absences (microseconds) at which the classes part; as many classes again are for askers behind the end of the rows
    recency  places in which a row's weight falls to 1/e
    lasting  the least weight of a row, however far back
    again    what a repeat counts, times how often such repeats came
    fading   by how much (as a power of e) it counts less with every octave of places
    often    what the share of an item in the history counts, by each of two memories
    now      what each memory of what is popular counts
    lift     the power of an item's popularity by which what leads to it is multiplied (one for all classes)
    """

    edges: Array
    recency: Array
    lasting: Array
    again: Array
    fading: Array
    often: Array
    now: Array
    lift: Array

    @classmethod
    def usual(cls, edges: Array, memories: int = len(LENGTHS), at: int = USUAL) -> Numbers:
        """The defaults."""
        classes = 2 * (len(edges) + 1)
        now = np.zeros((classes, memories))
        now[:, at] = NOW
        one, none = np.ones(classes), np.zeros(classes)
        often = np.zeros((classes, len(OFTEN)))
        recency = np.full(classes, RECENCY)
        return cls(edges, recency, none, one, none, often, now, np.zeros(1))

    def arrays(self) -> dict[str, Array]:
        """What an artifact keeps."""
        return {f"{_PREFIX}{f.name}": getattr(self, f.name) for f in fields(self)}

    @classmethod
    def restored(cls, arrays: dict[str, Array]) -> Numbers | None:
        """What `arrays` gave; None where nothing was learned."""
        if f"{_PREFIX}recency" not in arrays:
            return None
        return cls(**{f.name: arrays[f"{_PREFIX}{f.name}"] for f in fields(cls)})

    def check(self, memories: int) -> None:
        """Refuse numbers that came from an artifact and fit no classes of askers, or not so many memories."""
        classes = 2 * (len(self.edges) + 1)
        for name, shape in _shapes(classes, memories).items():
            found = getattr(self, name).shape
            checks.need(found == shape, f"{_PREFIX}{name} has the shape {found}, not {shape}")
        checks.need((self.recency > 0).all(), f"{_PREFIX}recency is not above 0")

    def place_weights(self, places: Array) -> Array:
        """What places are worth, class x place."""
        found: Array = np.maximum(np.exp(-places / self.recency[:, None]), self.lasting[:, None])
        return found

    def choice(self, repeat_rates: Array) -> Choice:
        """The numbers as weights of the learner's parts: knots, octaves of repeats, shares of the history, memories."""
        parts = [self.place_weights(KNOTS)]
        if len(repeat_rates):
            parts += [self.repeat_weights(repeat_rates[:OCTAVES]), self.often]
        return Choice(np.concatenate([*parts, self.now], axis=1), float(self.lift[0]))

    def repeat_weights(self, rates: Array) -> Array:
        """What a repeat is worth, class x octave, given how often such repeats came."""
        fades = np.exp(-self.fading[:, None] * np.minimum(np.arange(len(rates)), OCTAVES - 1))
        worth: Array = rates * (fades * self.again[:, None])
        return worth

    def with_recency(self, recency: float) -> Numbers:
        """The same with a recency that somebody set."""
        none = np.zeros_like(self.lasting)
        return replace(self, recency=np.full_like(self.recency, recency), lasting=none)

    def with_now(self, weight: float, at: int) -> Numbers:
        """The same with a weight of what is popular that somebody set: that of the usual memory, number `at`."""
        now = np.zeros_like(self.now)
        now[:, at] = weight
        return replace(self, now=now)

    def among_all(self, lengths: list[float]) -> Numbers:
        """Numbers that know memories of these lengths alone, as numbers of all memories."""
        now = np.zeros((len(self.now), len(LENGTHS)))
        now[:, [LENGTHS.index(one) for one in lengths]] = self.now
        return replace(self, now=now)

    def kept_memories(self) -> list[int]:
        """The memories that count in any class, and the usual one, which a weight that somebody sets is for."""
        return [m for m in range(self.now.shape[1]) if m == USUAL or self.now[:, m].any()]

    # -- other numbers --

    def changes(self, name: str, column: int | None, classes: list[int]) -> Iterator[Numbers]:
        """These numbers with one of them changed in some classes, to each value that may be tried next."""
        values = getattr(self, name)
        at: Any = (classes, column) if column is not None else (classes,)
        for step in _STEPS[name]:
            changed = values.copy()
            changed[at] = [step(value) for value in values[at]]
            if not np.array_equal(changed, values):
                yield replace(self, **{name: changed})


_PREFIX = "number_"


def _shapes(classes: int, memories: int) -> dict[str, tuple[int, ...]]:
    """The shape of each number's values."""
    each = dict.fromkeys(("recency", "lasting", "again", "fading"), (classes,))
    often, now = (classes, len(OFTEN)), (classes, memories)
    return {**each, "often": often, "now": now, "lift": (1,)}


def _times(factor: float, start: float) -> Any:
    """Multiply by a factor; from 0, go to a first value."""
    return lambda value: value * factor if value else start


def _to(target: float) -> Any:
    return lambda value: target


def _plus(step: float) -> Any:
    return lambda value: value + step


#: What may be tried next for each number.
_STEPS: dict[str, list[Any]] = {
    "recency": [_times(factor, RECENCY) for factor in (0.5, 1 / 1.3, 1.3, 2.0)],
    "lasting": [_to(value) for value in (0.0, 0.01, 0.03, 0.08, 0.2)],
    "again": [_times(factor, 1.0) for factor in (0.5, 1 / 1.3, 1.3, 2.0)],
    "fading": [_plus(step) for step in (-0.3, -0.1, 0.1, 0.3)],
    "often": [_to(0.0), _times(1 / 3, 0.003), _times(3.0, 0.01), _times(1.5, 0.03), _times(6, 0.1)],
    "now": [
        _to(0.0), _times(1 / 3, 0.03), _times(1 / 1.6, 0.1), _times(1.6, 0.3), _times(3.0, 1.0),
    ],
    "lift": [_plus(step) for step in (-0.1, -0.05, 0.05, 0.1)],
}  # fmt: skip

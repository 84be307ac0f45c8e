"""Blend: models side by side, each counting as much as it helps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from talerec.data.histories import Histories
from talerec.data.log import Log
from talerec.errors import TalerecError
from talerec.models.blend import parts as _parts
from talerec.models.blend import trainings as _elsewhere
from talerec.models.core import checks, params
from talerec.models.core.base import Model
from talerec.models.core.params import param
from talerec.models.core.persistence import Fitted
from talerec.models.tempo import log_statistics as _habits
from talerec.models.tempo.holdout import held_back
from talerec.ranking.weights import Query, Weights
from talerec.runtime.arrays import Array
from talerec.runtime.clock import Clock

_TRAININGS = "_trainings"  # of parts that were trained elsewhere, while a blend is fitted by them


@dataclass(eq=False, kw_only=True)
class Blend(Model):
    """Scores are the sum of the parts' scores, each times a weight that the log's own questions chose.

    The parts are fitted on rows that leave some out, asked about those, and then fitted on all rows. A part that does
    not help gets weight 0.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> model = tr.Blend(parts="markov, ease(reg=50)").fit(log)
    >>> len(model.part_weights)
    2
    """

    name: ClassVar[str] = "blend"
    good_for: ClassVar[str] = "Several models at once, each as far as it helps"
    weighs_items: ClassVar[bool] = False
    grows: ClassVar[bool] = False

    parts: str = param(
        "tempo,ease",
        "the models, by name, each with settings if need be: tempo,ease(reg=500; recency=4)",
        text=True,
    )

    weights_of_parts: str = param(
        "auto", "what each part counts, such as 1,0.3; auto: what helps", text=True
    )

    #: Every model that can be a part, by name; `talerec.models` fills it.
    known: ClassVar[dict[str, type[Model]]] = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        self._given_weights(len(self.made()))

    def made(self) -> list[Model]:
        """The parts, not fitted."""
        found = []
        for name, settings in _parts.named(self.parts):
            if name not in self.known:
                names = ", ".join(self.known)
                raise TalerecError(f"parts names {name!r}; the models that blend are {names}")
            kind = self.known[name]
            found.append(params.build(kind, params.parse(kind, settings)))
        given: dict[int, list[Any]] = self.__dict__.get(_TRAININGS, {})
        for number, trainings in given.items():
            vars(found[number])[_TRAININGS] = trainings
        return found

    def _given_weights(self, parts: int) -> Array | None:
        """The weights that were set; None where the log chooses."""
        if self.weights_of_parts.strip() == params.AUTO:
            return None
        try:
            weight = np.array([float(one) for one in self.weights_of_parts.split(",")])
        except ValueError:
            weight = np.empty(0)
        if len(weight) != parts or not np.isfinite(weight).all() or not weight.any():
            raise TalerecError(
                f"weights_of_parts is {self.weights_of_parts!r}; it takes auto, or a number for each of {parts} parts"
            )
        return weight

    @property
    def needs_time(self) -> bool:
        return any(part.needs_time for part in self.made())

    @property
    def takes_weights(self) -> bool:
        return all(part.takes_weights for part in self.made())

    # -- learning --

    @staticmethod
    def first_rows(log: Log) -> Log | None:
        """The rows on which parts are fitted first, to be asked about the others; None where a log is too small.

        Examples
        --------
        >>> import talerec as tr
        >>> log = tr.synthetic_log(6000, seed=1)
        >>> tr.Blend.first_rows(log).rows < log.rows
        True
        """
        held = held_back(log, every_item=True)
        return None if held is None else held.train

    @classmethod
    def from_trainings(cls, log: Log, trainings: Sequence[Any], **params: Any) -> Self:
        """The fitted blend of neural parts that were trained elsewhere, and of others that are fitted here.

        Parameters
        ----------
        log : Log
            The rows of the blend.
        trainings : list of Training, or of paths
            For each neural part one on the rows of `log`; where the log chooses the weights, also one on
            those of `first_rows(log)`, with the same parameters.
        **params
            Parameters of the blend. What a neural part does not say of itself is taken from its training.

        Returns
        -------
        Blend
            The fitted blend.

        Raises
        ------
        TalerecError
            Where a part has no training on its rows or more than one, or a training is no part's.

        Examples
        --------
        >>> import talerec as tr
        >>> log = tr.synthetic_log(2000, seed=1)
        >>> tr.Blend.from_trainings(log, [], parts="markov").part_weights.tolist()
        [1.0]
        """
        blend = cls(**params)
        alone = len(_parts.named(blend.parts)) == 1
        chosen = blend._given_weights(len(blend.made())) is None and not alone
        first = cls.first_rows(log) if chosen else None
        text, found = _elsewhere.taken(blend.parts, cls.known, trainings, log, first)
        made = cls(**{**params, "parts": text})
        made.__dict__[_TRAININGS] = found
        try:
            return made.fit(log)
        finally:
            del made.__dict__[_TRAININGS]

    def learn_weights(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        parts = self.made()
        for part in parts:
            part.check_ready()
        with clock("weigh"):
            weight, enough = self.weighed(parts, lambda: _by_questions(parts, log))
        with clock("parts"):
            fitted = [
                _parts.fitted(part, log) if counts else None
                for part, counts in zip(self.made(), weight, strict=True)
            ]
        return stacked(fitted, weight, enough), None

    def weighed(self, parts: list[Model], ask: Callable[[], Array | None]) -> tuple[Array, bool]:
        """What each part counts, and whether that is known: `ask` finds it out; the first one alone where a log is too small to tell."""
        if (given := self._given_weights(len(parts))) is not None:
            return given, True
        alone = (np.arange(len(parts)) == 0).astype(np.float64)
        if len(parts) == 1:
            return alone, True
        found = ask()
        return (alone, False) if found is None else (found, True)

    def _check_loaded(self) -> None:
        known, parts = self.fitted.weights.query_arrays, len(self.made())
        for name in ("part_weight", "part_blocks"):
            checks.need(known[name].shape == (parts,), f"{name} has not {parts} numbers")
        checks.inside("part_blocks", known["part_blocks"], 0, 2**31)
        blocks, said = len(self.fitted.weights.blocks), int(known["part_blocks"].sum())
        checks.need(said == blocks, f"the parts have {said} blocks, not {blocks}")
        for _, part in self._fitted_parts:
            part._check_loaded()

    # -- asking --

    @property
    def part_weights(self) -> Array:
        """What the scores of each part are multiplied by."""
        return self.fitted.weights.query_arrays["part_weight"]

    @property
    def _fitted_parts(self) -> list[tuple[float, Model]]:
        """The parts that count, each with its weight and its share of what was fitted."""
        held: Any = self.__dict__.get("_held")
        if held is None or held[0] is not self.fitted:
            held = (self.fitted, _unstacked(self.made(), self.fitted))
            self.__dict__["_held"] = held
        found: list[tuple[float, Model]] = held[1]
        return found

    def __getstate__(self) -> dict[str, Any]:
        aside = ("_held", _TRAININGS)
        return {name: value for name, value in self.__dict__.items() if name not in aside}

    def query(self, histories: Histories) -> Query:
        asked, first = [], 0
        for weight, part in self._fitted_parts:
            x = part.query(histories)
            asked.append(Query(x.ptr, x.source + first, x.weight * weight))
            first += sum(block.sources for block in part.fitted.weights.blocks)
        return asked[0] if len(asked) == 1 else _side_by_side(asked, len(histories))

    def contributions(self, x: Query, history: Histories, targets: Array) -> Array:
        given = np.zeros((len(targets), len(history.item)))
        for weight, part in self._fitted_parts:
            given += weight * part.contributions(part.query(history), history, targets)
        return given

    def base_score(self, history: Histories, target: int) -> float | None:
        found = [(weight, part.base_score(history, target)) for weight, part in self._fitted_parts]
        bases = [weight * base for weight, base in found if base is not None]
        return sum(bases) if bases else None

    def row_weights(self, history: Histories) -> Array | None:
        return None

    def chosen(self) -> list[str]:
        known = self.fitted.weights.query_arrays
        names = [part.name for part in self.made()]
        if not known["part_learned"][0]:
            return [f"The log is too small to weigh the parts: {names[0]} counts alone."]
        lines = []
        for name, weight in zip(names, known["part_weight"], strict=True):
            lines.append(
                f"{name} counts {weight:.3g}."
                if weight
                else f"{name} gets no weight: it does not help."
            )
        for _, part in self._fitted_parts:
            lines += [f"{part.name}: {line}" for line in part.chosen()]
        return lines


def _by_questions(parts: list[Model], log: Log) -> Array | None:
    """What each part counts, by questions about rows that its first fit has not seen; None where a log is too small."""
    held = held_back(log, every_item=True)
    if held is None:
        return None
    fitted = [_parts.fitted(part, held.train) for part in parts]
    repeats = bool(_habits.repeat_weights(held.train)[0] > _habits.NEVER)
    asked = (held.fresh, held.late)
    return _parts.weights_of(fitted, asked, len(held.train.items), repeats=repeats)


def stacked(parts: list[Model | None], weight: Array, learned: bool) -> Weights:
    """The weights of all parts that count, on top of each other; what their queries need, by the part's number."""
    blocks: list[Any] = []
    arrays = {"part_weight": weight, "part_learned": np.array([learned])}
    counts, base = np.zeros(len(parts), np.int64), None
    for number, part in enumerate(parts):
        if part is None:
            continue
        mine = part.fitted.weights
        blocks += mine.blocks
        counts[number] = len(mine.blocks)
        arrays |= {f"part{number}_{name}": array for name, array in mine.query_arrays.items()}
        if mine.base is not None:
            arrays[f"part{number}_base"] = np.nan_to_num(mine.base)
        base = _added(base, None if mine.base is None else mine.base * weight[number])
    return Weights(blocks, base, {**arrays, "part_blocks": counts})


def _added(one: Array | None, other: Array | None) -> Array | None:
    """Base scores of two parts together: an item has one if either gives it one."""
    if one is None or other is None:
        return other if one is None else one
    both: Array = np.nan_to_num(one) + np.nan_to_num(other)
    return np.where(np.isnan(one) & np.isnan(other), np.nan, both)


def _unstacked(parts: list[Model], fitted: Fitted) -> list[tuple[float, Model]]:
    """The parts as they were before `_stacked`, as far as their queries and reasons go."""
    known, found, first = fitted.weights.query_arrays, [], 0
    for number, part in enumerate(parts):
        count = int(known["part_blocks"][number])
        if not count:
            continue
        mine = f"part{number}_"
        arrays = {
            name.removeprefix(mine): array for name, array in known.items() if name.startswith(mine)
        }
        blocks = list(fitted.weights.blocks[first : first + count])
        base = arrays.pop("base", None)
        own = copy.copy(part)
        own._fitted = replace(fitted, weights=Weights(blocks, base, arrays))
        found.append((float(known["part_weight"][number]), own))
        first += count
    return found


def _side_by_side(asked: list[Query], histories: int) -> Query:
    """Queries of several parts as one: for each history, the sources of the first part, then of the second, ..."""
    lengths = np.array([np.diff(x.ptr) for x in asked])  # part x history
    ptr = np.concatenate([[0], np.cumsum(lengths.sum(axis=0))])
    source, weight = np.empty(ptr[-1], np.int64), np.empty(ptr[-1])
    before = ptr[:-1].copy()
    for x, length in zip(asked, lengths, strict=True):
        at = np.arange(len(x.source)) + np.repeat(before - x.ptr[:-1], length)
        source[at], weight[at] = x.source, x.weight
        before += length
    return Query(ptr, source, weight)

"""Blend: a weighted sum of the scores of several models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from talerec.data import Histories, Log
from talerec.errors import TalerecError
from talerec.models.blend.parts import (
    assign_trainings,
    fit_part,
    learn_part_weights,
    parse_parts,
    part_class,
)
from talerec.models.blend.stacking import join_queries, stack_parts, unstack_parts
from talerec.models.core import (
    AUTO,
    Fitted,
    Model,
    build_model,
    check_range,
    param,
    parse_settings,
    require,
    split_holdout,
)
from talerec.models.networks import NeuralModel
from talerec.models.tempo import allows_repeats, measure_repeat_rates
from talerec.ranking import Query, Weights
from talerec.runtime import Array, Clock


class _BlendState(Model):
    """Caches of a blend, which are neither parameters nor saved.

    A blend is a weighted sum of models, its parts. Trainings are networks of neural parts that were
    trained elsewhere.
    """

    #: Trainings from elsewhere by part number, while a blend is fitted with them.
    _trainings: dict[int, list[Any]] | None = None
    #: The fitted parts, and what they were made from.
    _parts_cache: tuple[Fitted, list[tuple[float, Model]]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes to pickle: all but the caches."""
        transient = ("_parts_cache", "_trainings")
        return {name: value for name, value in vars(self).items() if name not in transient}


@dataclass(eq=False, kw_only=True)
class Blend(_BlendState):
    """Scores are the sum of the parts' scores, each times a weight learned by validation.

    The parts are fitted on some rows, ranked on held-out rows, and then fitted on all rows. A part
    that does not improve the ranking gets weight 0.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> model = tr.Blend(parts="markov, ease(reg=50)").fit(log)
    >>> len(model.part_weights)
    2
    """

    name = "blend"
    summary = "Several models at once, each as far as it helps"
    sources_are_items = False
    supports_update = False

    parts: str = param(
        "tempo,ease", "names of models, with settings: tempo,ease(reg=500; recency=4)", text=True
    )

    weights_of_parts: str = param(
        "auto", "weight of each part, such as 1,0.3; auto: learned by validation", text=True
    )

    def __post_init__(self) -> None:
        """Check the parameters; TalerecError if parts or their weights cannot be used."""
        super().__post_init__()
        self._fixed_weights(len(self.build_parts()))

    def build_parts(self) -> list[Model]:
        """Return new, unfitted models of the parts, as the parameter `parts` names them.

        Neural parts for which trainings (networks trained elsewhere) were assigned get these.
        TalerecError for a name or a setting that is not valid.
        """
        parts: list[Model] = []
        for name, settings in parse_parts(self.parts):
            kind = part_class(name)
            parts.append(build_model(kind, parse_settings(kind, settings)))
        for number, trainings in (self._trainings or {}).items():
            part = parts[number]
            assert isinstance(part, NeuralModel)
            part.use_trainings(trainings)
        return parts

    def _fixed_weights(self, n_parts: int) -> Array | None:
        """Return the weights that `weights_of_parts` sets; None if it is "auto" (learned).

        A weight is the factor of a part's scores. TalerecError unless there are `n_parts` finite
        numbers, not all 0.
        """
        if self.weights_of_parts.strip() == AUTO:
            return None
        try:
            weights = np.array([float(text) for text in self.weights_of_parts.split(",")])
        except ValueError:
            weights = np.empty(0)
        if len(weights) != n_parts or not np.isfinite(weights).all() or not weights.any():
            raise TalerecError(
                f"weights_of_parts is {self.weights_of_parts!r}; "
                f"it takes auto, or a number for each of {n_parts} parts"
            )
        return weights

    @property
    def needs_time(self) -> bool:
        """Whether any part (model of the blend) uses times, and not only the order of rows."""
        return any(part.needs_time for part in self.build_parts())

    @property
    def takes_weights(self) -> bool:
        """Whether all parts (models of the blend) use the weights of rows."""
        return all(part.takes_weights for part in self.build_parts())

    # -- fitting --

    def check_ready(self) -> None:
        """Raise TalerecError, before a fit, if a library that a part needs is not installed."""
        for part in self.build_parts():
            part.check_ready()

    @staticmethod
    def first_rows(log: Log) -> Log | None:
        """Return the rows that parts are first fitted on, to be ranked on the other rows.

        None if the log is too small.

        Examples
        --------
        >>> import talerec as tr
        >>> log = tr.synthetic_log(6000, seed=1)
        >>> tr.Blend.first_rows(log).rows < log.rows
        True
        """
        holdout = split_holdout(log, every_item=True)
        return None if holdout is None else holdout.train

    @classmethod
    def from_trainings(cls, log: Log, trainings: Sequence[Any], **params: Any) -> Self:
        """Fit a blend whose neural parts were trained elsewhere; other parts are fitted here.

        Parameters
        ----------
        log : Log
            The rows of the blend.
        trainings : list of Training, or of paths
            For each neural part one on the rows of `log`; if the weights are learned, also one on
            those of `first_rows(log)`, with the same parameters.
        **params
            Parameters of the blend. Settings that a neural part does not name are its training's.

        Returns
        -------
        Blend
            The fitted blend.

        Raises
        ------
        TalerecError
            If a part has no training on its rows or several, or a training fits no part.

        Examples
        --------
        >>> import talerec as tr
        >>> log = tr.synthetic_log(2000, seed=1)
        >>> tr.Blend.from_trainings(log, [], parts="markov").part_weights.tolist()
        [1.0]
        """
        blend = cls(**params)
        n_parts = len(parse_parts(blend.parts))
        learns_weights = n_parts > 1 and blend._fixed_weights(n_parts) is None
        rows = {"the log": log}
        if learns_weights and (first := cls.first_rows(log)) is not None:
            rows["the first fit (`first_rows`)"] = first
        text, assigned = assign_trainings(blend.parts, trainings, rows)
        blend = cls(**{**params, "parts": text})
        blend._trainings = assigned
        try:
            return blend.fit(log)
        finally:
            blend._trainings = None

    def learn_weights(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        """Return the stacked weights of all parts, each fitted to the log; no solver is named.

        A part is a model of the blend. The factors of the parts' scores are learned first, unless
        they are fixed; a part with factor 0 is not fitted. clock: adds up the seconds of each
        stage.
        """
        parts = self.build_parts()
        self.check_ready()
        with clock("weigh"):
            weights, is_learned = self.choose_weights(parts, lambda: _validate_parts(parts, log))
        with clock("parts"):
            fitted = [
                fit_part(part, log) if weight else None
                for part, weight in zip(self.build_parts(), weights, strict=True)
            ]
        return stack_parts(fitted, weights, is_learned), None

    def choose_weights(
        self, parts: list[Model], validate: Callable[[], Array | None]
    ) -> tuple[Array, bool]:
        """Return the weight of each part, and False if the log is too small to learn weights.

        validate: returns learned weights, or None if the log is too small; the first part then has
        weight 1, and the others 0. It is called only for several parts without fixed weights.
        """
        if (fixed := self._fixed_weights(len(parts))) is not None:
            return fixed, True
        first_only = (np.arange(len(parts)) == 0).astype(np.float64)
        if len(parts) == 1:
            return first_only, True
        weights = validate()
        return (first_only, False) if weights is None else (weights, True)

    def _check_loaded(self) -> None:
        """Raise TalerecError if arrays of the parts, loaded from an artifact, are inconsistent.

        part_weight and part_blocks have a number per part: the factor of its scores, and how many
        of the stored weight blocks are its own.
        """
        arrays, n_parts = self.fitted.weights.query_arrays, len(self.build_parts())
        for name in ("part_weight", "part_blocks"):
            require(arrays[name].shape == (n_parts,), f"{name} has not {n_parts} numbers")
        check_range("part_blocks", arrays["part_blocks"], 0, 2**31)
        blocks, in_parts = len(self.fitted.weights.blocks), int(arrays["part_blocks"].sum())
        require(in_parts == blocks, f"the parts have {in_parts} blocks, not {blocks}")
        for _, part in self._fitted_parts:
            part._check_loaded()

    # -- queries --

    @property
    def part_weights(self) -> Array:
        """The factor of each part's scores."""
        return self.fitted.weights.query_arrays["part_weight"]

    @property
    def _fitted_parts(self) -> list[tuple[float, Model]]:
        """The parts whose weight is not 0, as (weight, fitted part); cached for the fit.

        A part is a model of the blend; its weights are a slice of the blend's stacked weights.
        """
        if self._parts_cache is None or self._parts_cache[0] is not self.fitted:
            self._parts_cache = (self.fitted, unstack_parts(self.build_parts(), self.fitted))
        return self._parts_cache[1]

    def query(self, histories: Histories) -> Query:
        """Return x of each history: the queries of the parts, joined, times the parts' weights.

        A source of x is a row of the stacked weights of all parts, in the order of the parts.
        """
        queries, first_source = [], 0
        for weight, part in self._fitted_parts:
            x = part.query(histories)
            queries.append(Query(x.ptr, x.source + first_source, x.weight * weight))
            first_source += sum(block.sources for block in part.fitted.weights.blocks)
        return queries[0] if len(queries) == 1 else join_queries(queries)

    def contributions(self, x: Query, history: Histories, targets: Array) -> Array:
        """Return what each row of a history (column) adds to targets' scores (rows), over parts.

        targets: item positions. Each part (model of the blend) contributes times its weight; `x` is
        not used.
        """
        total = np.zeros((len(targets), len(history.item)))
        for weight, part in self._fitted_parts:
            total += weight * part.contributions(part.query(history), history, targets)
        return total

    def base_scores(self, history: Histories, targets: Array) -> Array | None:
        """Return the weighted sums of the parts' base scores; None if no part has any.

        A base score is the part of an item's score that no history row contributes. targets: item
        positions.
        """
        bases = ((w, part.base_scores(history, targets)) for w, part in self._fitted_parts)
        weighted = [weight * base for weight, base in bases if base is not None]
        return sum(weighted, np.zeros(len(targets))) if weighted else None

    def describe_learned(self) -> list[str]:
        """Return sentences on the weights of the parts (models), and on what each part learned."""
        arrays = self.fitted.weights.query_arrays
        names = [part.name for part in self.build_parts()]
        if not arrays["part_learned"][0]:
            return [f"The log is too small to learn weights of parts: only {names[0]} is used."]
        lines = []
        for name, weight in zip(names, self.part_weights, strict=True):
            reason = "." if weight else ": it does not improve the ranking."
            lines.append(f"{name} has weight {weight:.3g}{reason}")
        for _, part in self._fitted_parts:
            lines += [f"{part.name}: {line}" for line in part.describe_learned()]
        return lines


def _validate_parts(parts: list[Model], log: Log) -> Array | None:
    """Return the weights of parts learned on held-out queries; None if the log is too small.

    Parts are fitted to rows of the log and ranked on users' next rows, which were held out.
    """
    holdout = split_holdout(log, every_item=True)
    if holdout is None:
        return None
    fitted = [fit_part(part, holdout.train) for part in parts]
    repeats = allows_repeats(measure_repeat_rates(holdout.train))
    query_sets, n_items = (holdout.current, holdout.delayed), len(holdout.train.items)
    return learn_part_weights(fitted, query_sets, n_items, repeats=repeats)

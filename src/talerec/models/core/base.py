"""The contract that every model keeps: Log -> weights -> scores -> ranks, ids outside, positions inside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from talerec.artifact import format as artifact
from talerec.data.histories import Histories
from talerec.data.log import Log, as_log
from talerec.errors import NotFittedError, TalerecError
from talerec.models.core import checks, params
from talerec.models.core import inference as asking
from talerec.models.core import persistence as keeping
from talerec.models.core import registry as own
from talerec.models.core.cache import FitCache
from talerec.models.core.persistence import Fitted
from talerec.models.core.recommender import Recommends
from talerec.models.core.update_state import Settled, settled_trends
from talerec.ranking.weights import Query, Weights
from talerec.runtime.arrays import Array
from talerec.runtime.clock import Clock


class Model(params.HasParams, Recommends, ABC):
    """A recommender: it is fitted on a log, and then says what comes next.

    Subclasses are dataclasses whose fields are the hyper-parameters. They define `learn_weights` and `query`; where a source
    of a query is not an item of the history (`weighs_items` is false), `contributions` too.

    Examples
    --------
    >>> import talerec as tr
    >>> model = tr.Markov().fit(tr.synthetic_log(users=50, items=20))
    >>> model.recommend_histories([[model.item_ids[0]]], k=1).columns
    ['history', 'item_id', 'score', 'rank']
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""  # where it was published, if it was
    good_for: ClassVar[str] = ""  # in a few words, for the list of models
    weighs_items: ClassVar[bool] = True  # sources stand for items of the history
    extra: ClassVar[str | None] = None  # the optional library that it needs
    grows: ClassVar[bool] = True  # `update` can add rows to it
    _fitted: Fitted | None = None
    _cache: FitCache | None = None
    _kept: Any = None  # what an earlier fit settled, while rows are added to it

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        own.adopt(cls)

    # -- what a model defines --

    @abstractmethod
    def learn_weights(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        """Weights from a log, and the name of the solver that made them (None: no system was solved).

        Parameters
        ----------
        log : Log
            The rows to learn from.
        clock : Clock
            Takes the time of steps: `with clock("gram"): ...`.
        """

    @abstractmethod
    def query(self, histories: Histories) -> Query:
        """How much each source counts for each history: the rows x of scores x @ B.

        Parameters
        ----------
        histories : Histories
            What is known of each asker.
        """

    def contributions(self, x: Query, history: Histories, targets: Array) -> Array:
        """What each row of one history (column) gives to the scores of items (rows), given the history's query.

        An item's last row gets what the item's sources give.
        """
        weights = self.fitted.weights
        parts, items = weights.contributions(x, targets), weights.source_items(x)
        shares = np.zeros((len(targets), len(history.item)))
        for block in range(len(weights.blocks)):
            mine = (items >= 0) & self._in_block(x, block)
            shares[:, asking.last_rows(history, items[mine])] += parts[:, mine]
        return shares

    def base_score(self, history: Histories, target: int) -> float | None:
        """What an item scores whatever is in the history; None for a model that has no such scores."""
        weights = self.fitted.weights
        others = self.weighs_items and any(map(_stands_for_nothing, weights.blocks))
        if weights.base is None and not others:
            return None
        base = 0.0 if weights.base is None else float(np.nan_to_num(weights.base[target]))
        if not others:
            return base
        x = self.query(history)
        parts = weights.contributions(x, np.array([target]))[0, weights.source_items(x) < 0]
        return base + float(parts.sum())

    def row_weights(self, history: Histories) -> Array | None:
        """How much each row of one history counts, by its place; None where rows are not what the model weighs."""
        if not self.weighs_items:
            return None
        x = self.query(history)
        first = self._in_block(x, 0)
        left = np.zeros(len(history.item))
        left[asking.last_rows(history, x.source[first])] = x.weight[first]
        return left

    def _in_block(self, x: Query, block: int) -> Array:
        """Which sources of a query are in a block."""
        low = self.fitted.weights.first_source(block)
        inside: Array = (x.source >= low) & (
            x.source < low + self.fitted.weights.blocks[block].sources
        )
        return inside

    def check_ready(self) -> None:
        """Refuse, before anything is fitted, where something that the model needs is not installed."""

    def chosen(self) -> list[str]:
        """What the fit chose by itself, in sentences; none where everything was given."""
        return []

    def _upgraded(self, fitted: Fitted) -> Fitted:
        """What an artifact of an earlier version holds, in today's form."""
        return fitted

    def _check_loaded(self) -> None:
        """Raise TalerecError where arrays of this model alone, come from an artifact, do not fit the others."""
        if self.weighs_items:
            checks.check_item_sources(self.fitted)

    # -- fitting --

    def fit(self, log: Log | Any, *, cache: FitCache | None = None) -> Self:
        """Learn from every row of a log.

        Parameters
        ----------
        log : Log, or a frame
            The rows to learn from; a frame is what `Log.from_frame` takes.
        cache : FitCache, optional
            What it holds from an earlier fit of the same rows is not computed again.

        Returns
        -------
        Model
            The model itself.

        Raises
        ------
        TalerecError
            Where the log has no rows, or the model cannot be fitted to them.
        """
        log = as_log(log).evenly_weighed()
        self._refuse(log)
        clock = Clock()
        self._cache = cache
        try:
            weights, solver = self.cached(params.SOLVE, log, lambda: self.learn_weights(log, clock))
        finally:
            self._cache = None
        facts = keeping.training_facts(log)
        self._fitted = Fitted(weights, log.items, log.info, log, solver, clock.seconds, facts)
        if own.is_own(type(self)):
            self._check_loaded()
        return self

    @property
    def needs_time(self) -> bool:
        """Does the model look at times, and not only at the order of rows?"""
        return False

    @property
    def takes_weights(self) -> bool:
        """Does the model count rows by their weights?"""
        return False

    def _refuse(self, log: Log) -> None:
        """An error where the model cannot be fitted to a log."""
        if not log.rows:
            raise TalerecError("the log is empty: it has no rows to learn from")
        if log.weight is not None and not self.takes_weights:
            raise TalerecError(
                f"{self.name} takes no weights of rows (with these parameters); tempo, tale, rules, markov and popular do"
            )
        if log.unit == "none" and self.needs_time:
            raise TalerecError(
                f"{self.name} needs times, and the log has none; ease, rules, association and popular do without"
            )

    def cached(self, stage: str, log: Log, make: Callable[[], Any]) -> Any:
        """What a step of the fit makes of the log, unless an earlier fit has left exactly that."""
        if self._cache is None:
            return make()
        known = (type(self), log, params.until(self, stage))
        return self._cache.cached(stage, known, make)

    @property
    def fitted(self) -> Fitted:
        """What fitting left behind; NotFittedError before that."""
        if self._fitted is None:
            raise NotFittedError(f"this {self.name} model is not fitted yet: call fit(log) first")
        return self._fitted

    # -- parameters --

    def _forget_fit(self) -> None:
        self._fitted = None

    def with_params(self, **changes: Any) -> Self:
        """The fitted model with other parameters for its queries, such as `recency`; nothing is learned again."""
        other: Self = params.build(type(self), {**self.params, **changes})
        other._fitted = self.fitted
        return other

    # -- what is known --

    @property
    def weights(self) -> Any:
        """B, source (row) x target item (column): a NumPy array or a SciPy CSR array. Sources are items, as a rule."""
        return self.fitted.weights.matrix

    def _repr_html_(self) -> str:
        """The model as a small table, for notebooks."""
        rows = [f"<tr><th>{escape(k)}</th><td>{escape(str(v))}</td></tr>" for k, v in self._card()]
        return f"<table><caption>{escape(self.name)}</caption>{''.join(rows)}</table>"

    def _card(self) -> list[tuple[str, Any]]:
        shown = list(self.params.items())
        if self._fitted is None:
            return [*shown, ("fitted", "no")]
        counts = self._fitted.training
        said = ", ".join(f"{counts[name]:,} {name}" for name in ("users", "items", "rows"))
        return [*shown, ("fitted on", said)]

    # -- keeping --

    def save(
        self,
        path: str | Path,
        *,
        histories: bool = True,
        metrics: dict[str, float | None] | None = None,
        updatable: bool = False,
    ) -> Path:
        """Write the model to a folder, whole or not at all.

        Parameters
        ----------
        path : path
            The folder, NAME.tale.
        histories : bool
            Keep the training histories, so that `recommend` works after loading.
        metrics : dict, optional
            What an evaluation found, for the model's card.
        updatable : bool
            Keep what `update` needs, too.

        Returns
        -------
        Path
            The folder.
        """
        own.check_named(type(self))
        fitted = self._settled() if updatable and histories else keeping.not_updatable(self.fitted)
        kept = keeping.bundle(self.name, self.params, fitted, histories=histories)
        kept.facts["chosen"] = self.chosen()
        keeping.say_size(fitted)
        if metrics is not None:
            kept.facts["metrics"] = {
                name: float(value) for name, value in metrics.items() if value is not None
            }
        return artifact.write(path, kept)

    # -- updating --

    def _settled(self) -> Fitted:
        """What fitting left behind, with what an update needs."""
        fitted = self.fitted
        if fitted.log is None or fitted.settled is not None:
            return fitted
        log = replace(fitted.log, trends=settled_trends(self.params, fitted.log))
        training = {**fitted.training, "updatable": True}
        return replace(fitted, log=log, training=training, settled=self.settle(log))

    def settle(self, log: Log) -> Settled:
        """What the fit settled besides the trend counts, which the log has."""
        return Settled()

    def as_settled(self, settled: Settled) -> Self:
        """The model as it learns from rows that come later: what the fit settled stays."""
        return self


def restore(model: Model, kept: artifact.Bundle, *, verify: bool = False) -> Model:
    """Put what `save` kept back into a model with the same parameters, if it is what such a model can have."""
    fitted = keeping.restored(kept)
    checks.check_fitted(fitted, verify=verify)
    model._fitted = model._upgraded(fitted)
    model._check_loaded()
    return model


def _stands_for_nothing(block: Any) -> bool:
    """Are a block's sources no items of a history?"""
    return block.source_item is not None and bool((block.source_item < 0).any())

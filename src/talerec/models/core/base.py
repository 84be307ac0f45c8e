"""The contract of all models, and its implementation for linear models.

`RecommenderModel` is the contract: what a model defines (`learn_from`, `rank_masked`,
`explain_targets`, `base_score`) and what it gets for nothing (fit, lists, explanations, save,
update). `Model` implements it for scores x @ B: a linear model defines `learn_weights` (B) and
`query` (x).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from talerec.artifact import Bundle, write_artifact
from talerec.data import Histories, Log, as_log
from talerec.errors import NotFittedError, TalerecError
from talerec.models.core import registry
from talerec.models.core.checks import check_fitted, check_item_sources
from talerec.models.core.inference import TopItems, join_reasons
from talerec.models.core.params import SOLVE, HasParams, params_until, use_current_names
from talerec.models.core.persistence import FitCache, Fitted, UpdateState, count_trends
from talerec.models.core.recommender import Recommender
from talerec.ranking import (
    ExplainedLists,
    Mask,
    Query,
    Ranked,
    Weights,
    explain_queries,
    rank_queries,
)
from talerec.runtime import Array, Clock


class RecommenderModel(HasParams, Recommender):
    """A model that is fitted to a log and recommends the next items of a history.

    Subclasses are dataclasses whose fields are the hyper-parameters. They define `learn_from` and
    the operations of `Scorer`: `rank_masked`, `explain_targets` and `base_score`.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""  # where it was published, if it was
    summary: ClassVar[str] = ""  # what it is good for, in a few words, for the list of models
    extra: ClassVar[str | None] = None  # the optional library that it needs
    supports_update: ClassVar[bool] = True  # whether `update` can add rows to it
    good_for = registry.FormerAttribute("good_for")
    grows = registry.FormerAttribute("grows")
    chosen = registry.FormerAttribute("chosen")
    _fitted: Fitted | None = None
    _cache: FitCache | None = None
    _update_state: UpdateState | None = None  # while it learns for an update

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        registry.register(cls)

    @abstractmethod
    def learn_from(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        """Return the weights learned from a log, and the solver's name; `clock` times steps."""

    @property
    def needs_time(self) -> bool:
        """Whether the model uses times, and not only the order of rows."""
        return False

    @property
    def takes_weights(self) -> bool:
        """Whether the model uses the weights of rows."""
        return False

    def check_ready(self) -> None:
        """Raise an error, before a fit, if an optional library that the model needs is missing."""

    def describe_learned(self) -> list[str]:
        """Return sentences on what the fit learned beyond weights; empty if nothing."""
        return []

    def row_weights(self, history: Histories) -> Array | None:
        """Return the weight of each row of one history; None if the model weighs no rows."""
        return None

    def _upgrade_fitted(self, fitted: Fitted) -> Fitted:
        """Return a fit read from an artifact of an earlier version in today's form."""
        return fitted

    def _check_loaded(self) -> None:
        """Raise TalerecError if arrays of this model, loaded from an artifact, are inconsistent."""

    def fit(self, log: Log | Any, *, cache: FitCache | None = None) -> Self:
        """Learn from every row of a log.

        Parameters
        ----------
        log : Log, or a frame
            The training rows; a frame is converted by `Log.from_frame`.
        cache : FitCache, optional
            Results of an earlier fit to the same rows that need not be computed again.

        Returns
        -------
        Model
            The model itself.

        Raises
        ------
        TalerecError
            If the log has no rows, or the model cannot be fitted to them.
        """
        log = as_log(log).normalize_weights()
        self._check_log(log)
        clock = Clock()
        self._cache = cache
        try:
            weights, solver = self.cached(SOLVE, log, lambda: self.learn_from(log, clock))
        finally:
            self._cache = None
        self._fitted = Fitted.from_log(log, weights, solver, clock.seconds)
        if registry.is_third_party(type(self)):
            self._check_loaded()
        return self

    def _check_log(self, log: Log) -> None:
        """Raise TalerecError if the model cannot be fitted to a log."""
        if not log.rows:
            raise TalerecError("the log is empty: it has no rows to learn from")
        if log.weight is not None and not self.takes_weights:
            raise TalerecError(
                f"{self.name} takes no weights of rows (with these parameters); "
                "tempo, tale, rules, markov and popular do"
            )
        if log.unit == "none" and self.needs_time:
            raise TalerecError(
                f"{self.name} needs times, and the log has none; "
                "ease, rules, association and popular do without"
            )

    def cached(self, stage: str, log: Log, make: Callable[[], Any]) -> Any:
        """Return `make()`, or its earlier result if the fit cache has one for the same inputs.

        The inputs are the class, the log and all parameters up to `stage`, a step of the fit.
        """
        if self._cache is None:
            return make()
        return self._cache.cached(stage, (type(self), log, params_until(self, stage)), make)

    @property
    def fitted(self) -> Fitted:
        """The result of the fit; NotFittedError before `fit`."""
        if self._fitted is None:
            raise NotFittedError(f"this {self.name} model is not fitted yet: call fit(log) first")
        return self._fitted

    @property
    def is_fitted(self) -> bool:
        """Whether the model is fitted."""
        return self._fitted is not None

    def set_fitted(self, fitted: Fitted | None) -> Self:
        """Set the result of a fit made elsewhere (loaded, updated, on a cluster); return self."""
        self._fitted = fitted
        return self

    def _forget_fit(self) -> None:
        self._fitted = None

    def with_params(self, **changes: Any) -> Self:
        """Return a fitted copy with other query parameters, such as `recency`, without a fit."""
        changed = use_current_names(type(self), changes, warn=True)
        return self._copy_with(changed).set_fitted(self.fitted)

    def _repr_html_(self) -> str:
        """Return the parameters and the size of the training log as a table, for notebooks."""
        values = {**self.params, "fitted": "no"}
        if self._fitted is not None:
            counts = self._fitted.training
            text = ", ".join(f"{counts[name]:,} {name}" for name in ("users", "items", "rows"))
            values = {**self.params, "fitted on": text}
        cells = ((escape(name), escape(str(value))) for name, value in values.items())
        rows = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in cells)
        return f"<table><caption>{escape(self.name)}</caption>{rows}</table>"

    def save(
        self, path: str | Path, *, histories: bool = True,
        metrics: dict[str, float | None] | None = None, updatable: bool = False,
    ) -> Path:  # fmt: skip
        """Write the model to a folder, which appears only once it is complete.

        Parameters
        ----------
        path : path
            The folder, NAME.tale.
        histories : bool
            Store the training histories, which `recommend` needs after loading.
        metrics : dict, optional
            Metrics of an evaluation, for the model's card.
        updatable : bool
            Store what `update` needs, too.

        Returns
        -------
        Path
            The folder.
        """
        registry.check_has_name(type(self))
        with_state = updatable and histories
        fitted = self.prepare_update() if with_state else self.fitted.without_update_state()
        bundle = fitted.store(self.name, self.params, histories=histories)
        bundle.facts["chosen"] = self.describe_learned()
        if metrics is not None:
            finite = {name: value for name, value in metrics.items() if value is not None}
            bundle.facts["metrics"] = {name: float(value) for name, value in finite.items()}
        return write_artifact(path, bundle)

    def prepare_update(self) -> Fitted:
        """Return the fit with trend counts and `UpdateState`, which `update` needs.

        Without training histories, or if the state is there already, the fit is returned as it is.
        """
        fitted = self.fitted
        if fitted.log is None or fitted.update_state is not None:
            return fitted
        log = replace(fitted.log, trends=count_trends(self.params, fitted.log))
        training = {**fitted.training, "updatable": True}
        return replace(fitted, log=log, training=training, update_state=self.update_state(log))

    def update_state(self, log: Log) -> UpdateState:
        """Return what an update continues from, such as a stored G, besides the log's rows."""
        return UpdateState()

    def for_update(self, state: UpdateState) -> Self:
        """Return a copy that learns from old and new rows; `state`: what the fit stored for it."""
        other = copy(self)
        other._update_state = state
        return other


class Model(RecommenderModel):
    """A linear model: the score of an item is x @ B for a history's query x and weights B.

    Subclasses are dataclasses whose fields are the hyper-parameters. They define `learn_weights`
    and `query`; if the sources of a query are not items of the history (`sources_are_items` is
    false), `contributions` too.

    Examples
    --------
    >>> import talerec as tr
    >>> model = tr.Markov().fit(tr.synthetic_log(users=50, items=20))
    >>> model.recommend_histories([[model.item_ids[0]]], k=1).columns
    ['history', 'item_id', 'score', 'rank']
    """

    sources_are_items: ClassVar[bool] = True  # rows of B stand for items of the history
    weighs_items = registry.FormerAttribute("weighs_items")

    @abstractmethod
    def learn_weights(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        """Return the weights for a log, and the name of the solver (None: nothing was solved).

        Parameters
        ----------
        log : Log
            The training rows.
        clock : Clock
            Measures the time of steps: `with clock("gram"): ...`.
        """

    @abstractmethod
    def query(self, histories: Histories) -> Query:
        """Return the weight of each source for each history: the rows x of scores x @ B.

        Parameters
        ----------
        histories : Histories
            The items and times of each history, and the request times.
        """

    @property
    def weights(self) -> Any:
        """B, a NumPy or SciPy CSR array: rows are sources (mostly items), columns items."""
        return self.fitted.weights.matrix

    def learn_from(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        """Return `learn_weights` of the log."""
        return self.learn_weights(log, clock)

    def rank_masked(
        self, histories: Histories, mask: Mask, k: int, targets: Array | None = None
    ) -> Ranked:
        """Return the top k items that a mask allows, and ranks of `targets` (one per history)."""
        return rank_queries(self.fitted.weights, self.query(histories), mask, k, targets)

    def rank_masked_with_reasons(
        self, histories: Histories, mask: Mask, k: int, n_reasons: int
    ) -> ExplainedLists:
        """Return the top k items that a mask allows, each with `n_reasons` history items."""
        query, weights = self.query(histories), self.fitted.weights
        if self.sources_are_items:
            return explain_queries(weights, query, mask, k, n_reasons)
        lists = TopItems(*rank_queries(weights, query, mask, k)[:3])
        contributions = self._explain_query(query, histories, lists.listed())
        return join_reasons(histories, lists, contributions, n_reasons)

    def explain_targets(self, histories: Histories, targets: Sequence[Array]) -> Iterator[Array]:
        """Yield, per history, what each row (column) adds to the scores of its targets (rows)."""
        return self._explain_query(self.query(histories), histories, targets)

    def _explain_query(
        self, query: Query, histories: Histories, targets: Sequence[Array]
    ) -> Iterator[Array]:
        """Yield the `contributions` to each history's targets; `query` holds all histories' x."""
        for h, items in enumerate(targets):
            yield self.contributions(query.select(h), histories.slice(h, h + 1), items)

    def contributions(self, x: Query, history: Histories, targets: Array) -> Array:
        """Return what each row of one history (column) contributes to targets' scores (rows).

        `x` is the history's query. The contribution of an item is in the item's last row.
        """
        weights = self.fitted.weights
        parts, items = weights.contributions(x, targets), weights.source_items(x)
        contributions = np.zeros((len(targets), len(history.item)))
        for block in range(len(weights.blocks)):
            in_block = (items >= 0) & self._in_block(x, block)
            contributions[:, last_rows(history, items[in_block])] += parts[:, in_block]
        return contributions

    def base_score(self, history: Histories, target: int) -> float | None:
        """Return the part of an item's score that no history row contributes; None without one."""
        weights = self.fitted.weights
        has_other_sources = self.sources_are_items and any(
            block.source_item is not None and bool((block.source_item < 0).any())
            for block in weights.blocks
        )
        if weights.base is None and not has_other_sources:
            return None
        base = 0.0 if weights.base is None else float(np.nan_to_num(weights.base[target]))
        if not has_other_sources:
            return base
        x = self.query(history)
        parts = weights.contributions(x, np.array([target]))[0, weights.source_items(x) < 0]
        return base + float(parts.sum())

    def row_weights(self, history: Histories) -> Array | None:
        """Return the query weight of each row of one history; None if sources are not items."""
        if not self.sources_are_items:
            return None
        x = self.query(history)
        in_first = self._in_block(x, 0)
        weights = np.zeros(len(history.item))
        weights[last_rows(history, x.source[in_first])] = x.weight[in_first]
        return weights

    def _in_block(self, x: Query, block: int) -> Array:
        """Return a flag per source of a query: whether it is a row of block number `block` of B.

        B is stored as blocks of rows; sources are numbered through all blocks.
        """
        sources = x.source - self.fitted.weights.first_source(block)
        in_block: Array = (sources >= 0) & (sources < self.fitted.weights.blocks[block].sources)
        return in_block

    def _check_loaded(self) -> None:
        """Raise TalerecError if sources are items, but B does not have one row per item."""
        if self.sources_are_items:
            check_item_sources(self.fitted)


def restore_model(model: RecommenderModel, bundle: Bundle, *, verify: bool = False) -> None:
    """Set the fit that an artifact stores on a model with the artifact's parameters.

    Raises TalerecError if arrays are inconsistent; `verify` checks numbers of large arrays, too.
    """
    fitted = Fitted.restore(bundle)
    check_fitted(fitted, verify=verify)
    model.set_fitted(model._upgrade_fitted(fitted))
    model._check_loaded()


def last_rows(history: Histories, items: Array) -> list[int]:
    """Return, for each item position, its last row in one history (row 0 is the oldest).

    All items must occur in the history.
    """
    last = {item: row for row, item in enumerate(history.item.tolist())}
    return [last[item] for item in items.tolist()]

"""The contract of all models: what a model defines, and what it gets for nothing.

A model defines `learn_from`, `rank_masked`, `explain_targets` and `base_score`; fit, lists,
explanations, save and update come with `RecommenderModel`. `base` has its implementation for linear
models.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable
from copy import copy
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from talerec.artifact import write_artifact
from talerec.data import Histories, Log, as_log
from talerec.errors import NotFittedError, TalerecError
from talerec.models.core import registry
from talerec.models.core.params import SOLVE, HasParams, params_until, use_current_names
from talerec.models.core.persistence import (
    UNSEEN_ITEMS,
    FitCache,
    Fitted,
    UpdateState,
    count_trends,
)
from talerec.models.core.recommender import Recommender
from talerec.ranking import Weights
from talerec.runtime import Array, Clock

if TYPE_CHECKING:
    import polars as pl


class RecommenderModel(HasParams, Recommender):
    """A model that is fitted to a log and recommends the next items of a history.

    Subclasses are dataclasses whose fields are the hyper-parameters. They define `learn_from` and
    the operations of `Scorer`: `rank_masked`, `explain_targets` and `base_score`. A log is a table
    of rows (user, item, time); a subclass with a `name` can be found by it, and saved.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""  # where it was published, if it was
    summary: ClassVar[str] = ""  # what it is good for, in a few words, for the list of models
    extra: ClassVar[str | None] = None  # the optional library that it needs
    supports_update: ClassVar[bool] = True  # whether `update` can add rows to it
    refit_after: ClassVar[int] = 0  # updates after which a service that learns refits it; 0: never
    good_for = registry.FormerAttribute("good_for")
    grows = registry.FormerAttribute("grows")
    chosen = registry.FormerAttribute("chosen")
    _fitted: Fitted | None = None  # the result of the fit
    _cache: FitCache | None = None  # while it is fitted with a cache
    _update_state: UpdateState | None = None  # while it learns for an update

    def __init_subclass__(cls, **options: Any) -> None:
        """Add a new subclass to the registry, in which loading finds model classes by name."""
        super().__init_subclass__(**options)
        registry.register(cls)

    @abstractmethod
    def learn_from(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        """Return the weights learned from a log, and the solver's name (None: nothing was solved).

        clock: `with clock("solve"): ...` adds the seconds of its block to a step of this name.
        """

    @property
    def needs_time(self) -> bool:
        """Whether the model uses times, and not only the order of rows."""
        return False

    @property
    def takes_weights(self) -> bool:
        """Whether the model uses the weights of rows."""
        return False

    @property
    def scores_catalogue(self) -> bool:
        """Whether the model scores items that the item table has and the log has not.

        Its vocabulary then has these items after all others; that of other models does not.
        """
        return False

    def add_items(self, table: pl.DataFrame) -> Self:
        """Return a copy of the fitted model with scores for more items, without a new fit.

        table: rows of the item table, with ids in item_id. A row of an item that the model has
        replaces its row. Only models that score items by their content (`scores_catalogue`) define
        it: TalerecError for all others.
        """
        raise TalerecError(f"{self.name} does not score items by their content: refit it")

    def encode_catalogue(self, log: Log) -> Weights:
        """Return the weights with scores for all items of a log, whose item table has changed.

        log: the training rows, with the items of the fit and then new ones, and their item table. A
        model of ids has its weights as they are.
        """
        return self.fitted.weights

    def check_ready(self) -> None:
        """Raise an error, before a fit, if an optional library that the model needs is missing."""

    def describe_learned(self) -> list[str]:
        """Return sentences on what the fit learned beyond weights; empty if nothing."""
        return []

    def describe_content(self) -> list[str]:
        """Return sentences on whether the item table's content is used; empty without one."""
        return []

    def row_weights(self, history: Histories) -> Array | None:
        """Return how much each row of one history counts for its scores; None without weights.

        history: the rows of one user, oldest first. The array has one number per row.
        """
        return None

    def _upgrade_fitted(self, fitted: Fitted) -> Fitted:
        """Return a fit read from an artifact of an earlier version in today's form.

        An artifact is a saved model. Subclasses override this; here the fit is returned as it is.
        """
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
        n_items = len(log.items)
        if self.scores_catalogue:
            log = log.with_catalogue()
        self._check_log(log)
        clock = Clock()
        self._cache = cache
        try:
            weights, solver = self.cached(SOLVE, log, lambda: self.learn_from(log, clock))
        finally:
            self._cache = None
        if log.context and not self.takes_context:
            log = replace(log, context=())
        self._fitted = Fitted.from_log(log, weights, solver, clock.seconds)
        if n_unseen := len(log.items) - n_items:
            self._fitted.training[UNSEEN_ITEMS] = n_unseen
        if registry.is_third_party(type(self)):
            self._check_loaded()
        return self

    def _check_log(self, log: Log) -> None:
        """Raise TalerecError if the model cannot be fitted to a log.

        It has no rows, has row weights that the model does not take, or has no times (unit "none")
        that the model needs.
        """
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

        stage: the step of the fit that `make` computes: "learn" (a Gram matrix), "solve" or
        "score". The inputs are the class, the log and all parameters up to this stage. Without a
        cache (`fit` got none), `make` is always called.
        """
        if self._cache is None:
            return make()
        return self._cache.cached(stage, (type(self), log, params_until(self, stage)), make)

    def shared(self, step: str, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return `make()`, or the result of an equal step of another model's fit to the same log.

        step: the step of the fit that `make` belongs to, as `clock` names it. key: everything that
        the result depends on. Only fits with a `SharedFits` as cache share steps; nobody may change
        the result.
        """
        return make() if self._cache is None else self._cache.shared(step, key, make)

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
        """Return a fitted copy with other query parameters, such as `recency`, without a new fit.

        changes: values by parameter name. The copy shares the fit of this model; NotFittedError if
        it has none.
        """
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
        replaces: str | None = None,
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
        replaces : str, optional
            Version of the saved model that this one was computed from. If another version is at
            `path` by now, ReplacedArtifactError, and nothing is written.

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
        return write_artifact(path, bundle, replaces=replaces)

    def prepare_update(self) -> Fitted:
        """Return the fit with trend counts and `UpdateState`, from which `update` continues.

        A trend count is the number of rows of an item around one of its rows; the state has, for
        example, a stored Gram matrix. The fit is returned as it is if it has no training histories,
        or has the state already.
        """
        fitted = self.fitted
        if fitted.log is None or fitted.update_state is not None:
            return fitted
        log = replace(fitted.log, trends=count_trends(self.params, fitted.log))
        training = {**fitted.training, "updatable": True}
        return replace(fitted, log=log, training=training, update_state=self.update_state(log))

    def update_state(self, log: Log) -> UpdateState:
        """Return what an update continues from besides the log's rows, such as a Gram matrix.

        log: the training rows. Subclasses override this; here the state is empty, and an update
        refits.
        """
        return UpdateState()

    def update_obstacle(self) -> str | None:
        """Return why `update` cannot add rows to the model, as a sentence; None if it can."""
        return None if self.supports_update else f"{self.name} cannot be updated: refit it"

    def for_update(self, state: UpdateState) -> Self:
        """Return a copy of the model that learns from old and new rows together.

        state: what the fit stored for updates (`UpdateState`), such as a Gram matrix to add to.
        """
        other = copy(self)
        other._update_state = state
        return other


def is_ready(model: RecommenderModel) -> bool:
    """Return whether the optional libraries that a model needs for a fit can be loaded."""
    try:
        model.check_ready()
    except TalerecError:
        return False
    return True

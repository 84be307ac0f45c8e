"""Ranker: gradient-boosted trees over the candidates of several models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from talerec.data import Histories, Log
from talerec.errors import TalerecError, UndescribedItemsError
from talerec.models.blend import assign_trainings, without_catalogue
from talerec.models.core import AUTO, Fitted, Model, TopItems, param
from talerec.models.networks import log_rows, read_training
from talerec.models.ranker.candidates import Requests
from talerec.models.ranker.catalogue import CatalogueModel
from talerec.models.ranker.content import CONTENT_PART, find_content, takes_content
from talerec.models.ranker.explaining import (
    ItemExplanations,
    are_candidates,
    explain_by_part,
    explain_by_trees,
    join_explanations,
)
from talerec.models.ranker.fitting import AssignedTrainings, FitPlan, fit_ranker, learning_rounds
from talerec.models.ranker.lightgbm_library import require_lightgbm
from talerec.models.ranker.parts import build_parts, default_parts
from talerec.models.ranker.queries import default_rows_back
from talerec.models.ranker.second_stage import select_mask
from talerec.models.ranker.state import CURRENT, DELAYED, KINDS, RankerState
from talerec.ranking import ExplainedLists, FamilyShare, Mask, Ranked, Weights
from talerec.runtime import Array, Clock


class _RankerState(CatalogueModel):
    """Caches of a ranker, which are neither parameters nor saved.

    They are the fitted parts and trees, and networks that were trained elsewhere.
    """

    _state_cache: tuple[Fitted, RankerState] | None = None
    #: Trainings from elsewhere, while a ranker is fitted with them.
    _assigned: AssignedTrainings | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes to pickle: all but the caches."""
        transient = ("_state_cache", "_assigned")
        return {name: value for name, value in vars(self).items() if name not in transient}


@dataclass(eq=False, kw_only=True)
class Ranker(_RankerState):
    """Several models propose candidates, and a linear score with boosted trees orders them.

    They learn from held-out rows what to make of the models' scores, of popularity in recent
    windows, of the user's pace and of repeats. Where they do not beat the best model by two
    standard errors on users that took no part in learning, that model ranks.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> model = tr.Ranker(parts="markov,ease").fit(log)  # doctest: +SKIP
    """

    name = "ranker"
    summary = "Trees that order the lists of other models"
    extra = "rank"
    needs_time = True
    refit_after = 10

    parts: str = param(
        AUTO, "names of models, with settings: tempo,ease(reg=500); auto: by the log's size",
        text=True,
    )  # fmt: skip
    candidates: int = param(
        150, "items of the parts' lists that are ordered", low=10, high=1000, search=(60, 400)
    )
    rows_back: int = param(
        0, "last rows of a user to learn from; 0: 2 to 4, more for few users", low=0, high=20
    )
    seed: int = param(0, "seed of the division of users", low=0)
    content: str = param(
        "auto", "use the item table, list new items; off: ids alone", choices=("auto", "off")
    )

    def __post_init__(self) -> None:
        """Check the parameters; TalerecError if parts cannot be used."""
        super().__post_init__()
        if self.parts.strip() != AUTO:
            build_parts(self.parts)

    @property
    def takes_weights(self) -> bool:
        """Whether all parts use the weights of rows; those chosen by the log's size do not."""
        is_auto = self.parts.strip() == AUTO
        return not is_auto and all(part.takes_weights for part in build_parts(self.parts))

    @property
    def takes_context(self) -> bool:
        """Whether the model uses context columns of the log: it does."""
        return True

    @property
    def context_columns(self) -> list[tuple[str, bool]]:
        """The name of each context column of the fit, and whether it has numbers."""
        encoders = self._state.first.context.encoders
        return [(encoder.name, encoder.is_number) for encoder in encoders]

    def check_ready(self) -> None:
        """Raise TalerecError, before a fit, if a library that is needed is not installed."""
        require_lightgbm()
        for part in () if self.parts.strip() == AUTO else build_parts(self.parts):
            part.check_ready()

    # -- fitting --

    def learn_from(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        """Return the stacked weights of the parts, with trees and times of rows; no solver.

        During an update, the parts learn from all rows and the trees stay.
        """
        if self._update_state is not None:
            return self._state.update_parts(log, clock), None
        self.check_ready()
        rows_back = self.rows_back or default_rows_back(log)
        plan = FitPlan(self._parts_for(log), self.candidates, rows_back, self.seed)
        if self._assigned is not None:
            return fit_ranker(plan._replace(assigned=self._assigned), log, clock), None
        if self.content == AUTO and takes_content(log):
            try:
                return fit_ranker(_with_content(plan), log, clock), None
            except TalerecError as error:
                if not isinstance(error.__cause__, UndescribedItemsError):
                    raise  # else the item table says nothing of some training rows
        return fit_ranker(plan, log, clock), None

    def _parts_for(self, log: Log) -> str:
        """Return the parts as text: the parameter, or those chosen by the log's size."""
        return default_parts(log) if self.parts.strip() == AUTO else self.parts

    def training_rows(self, log: Log) -> dict[str, Log]:
        """Return the rows that each part is fitted to: "all", "current", "delayed 1" and so on.

        Parts are fitted to all rows to answer. So that trees learn from queries for rows that the
        parts do not know, parts are also fitted without the last rows of users ("current"), and to
        the rows before each of some cutoffs ("delayed").

        Parameters
        ----------
        log : Log
            The rows of the ranker.

        Returns
        -------
        dict
            The rows by name; too small a log has "all" alone.

        Examples
        --------
        >>> import talerec as tr
        >>> list(tr.Ranker().training_rows(tr.synthetic_log(6000, seed=1)))
        ['all', 'current', 'delayed 1', 'delayed 2', 'delayed 3']
        """
        log = without_catalogue(log)
        current, delayed = learning_rounds(log, self.rows_back or default_rows_back(log))
        names = [CURRENT] * len(current) + [f"{DELAYED} {n + 1}" for n in range(len(delayed))]
        trains = (held_out.train for held_out in [*current, *delayed])
        return {"all": log, **dict(zip(names, trains, strict=True))}

    @classmethod
    def from_trainings(cls, log: Log, trainings: Sequence[Any], **params: Any) -> Self:
        """Fit a ranker whose neural parts were trained elsewhere; other parts are fitted here.

        Such a ranker uses no item features (`content="off"`): networks know the items of the log.

        Parameters
        ----------
        log : Log
            The rows of the ranker.
        trainings : list of Training, or of paths
            For each neural part one on each of the `training_rows`, with the same parameters. Those
            on the delayed rows may be left out, all of them: then the first part ranks for delayed
            requests.
        **params
            Parameters of the ranker. Settings that a neural part does not name are its training's.

        Returns
        -------
        Ranker
            The fitted ranker.

        Raises
        ------
        TalerecError
            If a part has no training on its rows or several, or a training fits no part.
        """
        model = cls(**params)
        available = [read_training(training) for training in trainings]
        trained_rows = {training.facts["rows"] for training in available}
        rows, n_kinds = model.training_rows(log), len(KINDS)
        delayed = {name: each for name, each in rows.items() if name.startswith(DELAYED)}
        needed = {log_rows(each).fingerprint() for each in delayed.values()}
        if trained_rows and trained_rows.isdisjoint(needed):
            rows, n_kinds = {name: each for name, each in rows.items() if name not in delayed}, 1
        named = {f"`training_rows`, {name}": each for name, each in rows.items()}
        text, assigned = assign_trainings(model._parts_for(log), available, named, "ranker")
        model = cls(**{**params, "parts": text, "content": "off"})
        model._assigned = AssignedTrainings(assigned, n_kinds)
        try:
            return model.fit(log)
        finally:
            model._assigned = None

    def update_obstacle(self) -> str | None:
        """Return why the model cannot be updated, naming the parts that cannot; None if it can."""
        parts: list[Model] = []  # those that the log's size chooses can be updated
        if self.is_fitted:
            parts = [part for part in self._state.first.parts if part is not self._content_part]
        elif self.parts.strip() != AUTO:
            parts = build_parts(self.parts)
        names = [part.name for part in parts if not part.supports_update]
        text = ", ".join(names)
        return f"{text}, a part of the ranker, cannot be updated: refit it" if names else None

    @property
    def _state(self) -> RankerState:
        """The fitted parts, the trees and the verdicts; cached for the fit."""
        if self._state_cache is None or self._state_cache[0] is not self.fitted:
            self._state_cache = (self.fitted, RankerState.restore(self.fitted, self.candidates))
        return self._state_cache[1]

    def _check_loaded(self) -> None:
        """Raise TalerecError if trees or arrays, loaded from an artifact, cannot be used."""
        self._state.check()

    # -- queries --

    def _requests(self, histories: Histories) -> tuple[Requests, Array]:
        """Return requests with times, and the kind of each (0: current, 1: delayed).

        Histories without request times are queried right after the end of the log and of their
        rows. Delayed is a request after the log's end of a user without rows after it.
        """
        last, last_rows = self.fitted.training["last_time"], histories.last()
        now = histories.now
        if now is None:
            now = np.maximum(last_rows, last) + 1
        known_until = np.full(len(histories), last + 1, np.int64)
        kind = ((now > last) & (last_rows <= last)).astype(np.int64)
        return Requests(histories, now, known_until), kind

    def rank_masked(
        self, histories: Histories, mask: Mask, k: int, targets: Array | None = None
    ) -> Ranked:
        """Return the top k items that a mask allows, and ranks of `targets` (one per history).

        mask: which items may be listed for each history. targets: item positions; None: no ranks.
        Trees order the candidates; where they did not beat the best part, that part ranks.
        """
        requests, kinds = self._requests(histories)
        n = len(histories)
        items, scores = np.full((n, k), -1, np.int32), np.full((n, k), np.nan)
        counts, ranks = np.zeros(n, np.int64), np.zeros((0 if targets is None else n, 2), np.int64)
        for kind in range(len(KINDS)):
            rows = np.flatnonzero(kinds == kind)
            if not rows.size:
                continue
            some, shown = requests.take(rows), select_mask(mask, rows)
            some_targets = None if targets is None else targets[rows]
            for hide_seen in (False, True):
                if hide_seen != mask.hide_seen and targets is None:
                    continue
                length = k if hide_seen == mask.hide_seen else 0
                which = shown._replace(hide_seen=hide_seen)
                ranked = self._rank_kind(kind, some, which, length, some_targets)
                if hide_seen == mask.hide_seen:
                    items[rows], scores[rows], counts[rows] = ranked[:3]
                if targets is not None:
                    ranks[rows, int(hide_seen)] = ranked.ranks
        return Ranked(items, scores, counts, ranks)

    def _rank_kind(
        self, kind: int, requests: Requests, mask: Mask, k: int, targets: Array | None
    ) -> Ranked:
        """Return the lists of requests of one kind; ranks has one column, for the mask's lists."""
        second = self._state.find_second(kind, hide_seen=mask.hide_seen)
        if second is not None:
            return Ranked(*second.rank(requests, mask, k, targets))
        part = self._state.best_part(kind, hide_seen=mask.hide_seen)
        top = part.rank_masked(requests.histories, mask, k, targets)
        return top if targets is None else top._replace(ranks=top.ranks[:, int(mask.hide_seen)])

    def row_weights(self, history: Histories) -> Array | None:
        """Return how much each row of one history counts for the first part; None if unknown."""
        return self._state.first.parts[0].row_weights(history)

    # -- explanations --

    def rank_masked_with_reasons(
        self, histories: Histories, mask: Mask, k: int, n_reasons: int
    ) -> ExplainedLists:
        """Return the top k items that a mask allows, each with the history items that add most."""
        if len(histories) == 1:  # features of the ranking explain it, too
            requests, kinds = self._requests(histories)
            second = self._state.find_second(int(kinds[0]), hide_seen=mask.hide_seen)
            if second is not None:
                lists, scored = second.rank_request(requests, mask, k)
                items = lists.listed()[0]
                is_scored = np.arange(len(items)) < len(scored.items)
                each = explain_by_trees(second, requests, items, is_scored, scored)
                return join_explanations(histories, lists, [each], n_reasons)
        lists = TopItems(*self.rank_masked(histories, mask, k)[:3])
        return self.explain_lists(histories, lists, n_reasons, hide_seen=mask.hide_seen)

    def explain_lists(
        self, histories: Histories, lists: TopItems, n_reasons: int,
        boosts: Array | None = None, *, hide_seen: bool,
    ) -> ExplainedLists:  # fmt: skip
        """Return lists that this model ranked, with reasons: history items, and families.

        n_reasons: history items per listed item. boosts: what boosts added to each score of the
        lists; None: nothing. hide_seen: whether the lists leave out seen items. The share of a
        history item is of the sum of the families' absolute contributions.
        """
        kinds, listed = self._requests(histories)[1], lists.listed()
        scores = lists.scores if boosts is None else lists.scores - boosts
        flags = []
        for h, items in enumerate(listed):
            second = self._state.find_second(int(kinds[h]), hide_seen=hide_seen)
            floor = -np.inf if second is None else second.floor
            flags.append(scores[h, : len(items)] > floor)
        explained = list(self._explain(histories, listed, flags, hide_seen=hide_seen))
        return join_explanations(histories, lists, explained, n_reasons)

    def explain_targets(self, histories: Histories, targets: Sequence[Array]) -> Iterator[Array]:
        """Yield, per history, what each row (column) adds to the scores of its targets (rows).

        targets: an array of item positions per history. Explained are lists with seen items, the
        default. The contributions of families of features that stand for rows of the history are
        divided among these rows.
        """
        explained = self._explain(histories, targets, None, hide_seen=False)
        return (each.rows[:, :-1] for each in explained)

    def base_score(self, history: Histories, target: int) -> float | None:
        """Return the part of an item's score that no history row contributes; None without one."""
        kinds = self._requests(history)[1]
        kind = int(kinds[0])
        if self._state.find_second(kind, hide_seen=False) is None:
            part = self._state.best_part(kind, hide_seen=False)
            return part.base_score(history, target)
        targets = [np.array([target])]
        explained = next(self._explain(history, targets, None, hide_seen=False))
        return float(explained.rows[0, -1])

    def explain_families(self, history: Histories, target: int) -> list[FamilyShare] | None:
        """Return what each family of features adds to an item's score; they add up to the score.

        history: one history. target: an item position. None if a part ranks, or the item is not a
        candidate: then trees do not decide its score.
        """
        targets = [np.array([target])]
        return next(self._explain(history, targets, None, hide_seen=False)).families[0]

    def _explain(
        self, histories: Histories, targets: Sequence[Array], flags: list[Array] | None, *,
        hide_seen: bool,
    ) -> Iterator[ItemExplanations]:  # fmt: skip
        """Yield, per history, what explains the scores of its targets.

        flags: of each target, whether it is a candidate; None: it is if it is one without filters.
        hide_seen: whether the lists that are explained leave out seen items.
        """
        state = self._state
        for h, items in enumerate(targets):
            history = histories.slice(h, h + 1)
            requests, kinds = self._requests(history)
            second = state.find_second(int(kinds[0]), hide_seen=hide_seen)
            if second is not None:
                is_candidate = flags[h] if flags else are_candidates(second, requests, items)
                yield explain_by_trees(second, requests, items, is_candidate)
                continue
            part = state.best_part(int(kinds[0]), hide_seen=hide_seen)
            rows = next(iter(part.explain_targets(history, [items])))
            yield explain_by_part(rows)

    def describe_learned(self) -> list[str]:
        """Return sentences on which parts and trees rank, and what decides the order."""
        return self._state.describe() + self.describe_content()


def _with_content(plan: FitPlan) -> FitPlan:
    """Return a plan that uses item features, with a content model among the parts."""
    parts = plan.parts
    if find_content(build_parts(parts)) is None:
        parts = f"{parts},{CONTENT_PART}"
    return plan._replace(parts=parts, takes_content=True)

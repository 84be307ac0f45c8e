"""Tempo: TALE's parts, set by the log's own pace, and three things that a log knows besides."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from talerec.data.histories import Histories
from talerec.data.log import Log
from talerec.errors import TalerecError
from talerec.gram.builders import tale_columns, tale_summand, tied_weight
from talerec.gram.gram import Gram
from talerec.gram.row_weights import counted, newest_rows
from talerec.gram.terms import Summand
from talerec.models.core import checks
from talerec.models.core.cache import FitCache
from talerec.models.core.params import AUTO, LEARN, SCORE, SOLVE, is_auto, param
from talerec.models.core.persistence import Fitted
from talerec.models.core.update_state import Settled
from talerec.models.linear.base import Solved, dropout_penalty
from talerec.models.tempo import log_statistics as _habits
from talerec.models.tempo.blocks import POPULAR, Kept, assembled, lift, other_blocks, times
from talerec.models.tempo.descriptions import in_words
from talerec.models.tempo.holdout import held_back
from talerec.models.tempo.learning import FirstFit, first_memories, learned
from talerec.models.tempo.log_statistics import Habits
from talerec.models.tempo.popularity import InTime, Memories, memories
from talerec.models.tempo.query import (
    Asked,
    Moments,
    Plan,
    absences,
    made_queries,
    remaining,
    rules,
)
from talerec.models.tempo.query_params import OFTEN, Numbers
from talerec.ranking import places
from talerec.ranking.blocks import Block, block_of
from talerec.ranking.weights import Query, Weights
from talerec.runtime.arrays import Array, Matrix, readonly
from talerec.runtime.clock import Clock
from talerec.solvers.solver import Solution, solve
from talerec.solvers.triangle import halved

logger = logging.getLogger("talerec")


@dataclass(eq=False, kw_only=True)
class Tempo(Solved):
    """Scores are x @ [B; I; P]: what follows the history, what it repeats, what is popular at the time.

    B = (G + diag(reg + p/(1-p) diag(G)))^-1 (K + c K'), G and K of TALE with joint instants;
    c as far as the direction of pairs is chance.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.Tempo().fit(log).recommend([1], k=3)["item_id"].to_list()
    [31, 16, 94]
    """

    name: ClassVar[str] = "tempo"
    good_for: ClassVar[str] = "Start here: it sets itself by the log"
    by_target: ClassVar[bool] = True

    pace: float = param(
        16.0, "median intervals of the log in which a source's weight falls to 1/e", above=0,
        search=(0.25, 64),
    )  # fmt: skip
    floor: float = param(
        0.15, "least weight of a source, however old", low=0, high=1, search=(0.0, 0.8)
    )
    window: float = param(180.0, "days around a row in which its item's rows count", low=0)
    trend: float = param(
        0.1, "power of that count which divides a row; 0: off", low=0, high=10, search=(0.0, 0.3)
    )
    same_time: str = param(
        "auto",
        "rows of one user at one instant: each other's source and target, in order, or by what their order says",
        choices=("auto", "joint", "ordered"),
    )
    span: float = param(
        1.0, "rows per item in which what is popular falls to 1/e", above=0, high=1e6
    )
    even: float = param(
        0.75, "how far the two directions of a pair are evened out where chance set them apart",
        low=0, high=10, search=(0.0, 2.0),
    )  # fmt: skip
    dropout: float = param(
        0.5, "share of a history that is dropped (p)", low=0, high=0.99, search=(0.0, 0.7),
        stage=SOLVE,
    )  # fmt: skip
    reg: float = param(300.0, "ridge penalty", above=0, high=1e12, search=(50, 2000), stage=SOLVE)
    recency: float = param(
        "auto", "places in which a history row's weight falls to 1/e", above=0, auto=True,
        stage=SCORE,
    )  # fmt: skip
    neighbors: int = param(60, "sources per target (local solver)", low=1, stage=SOLVE)
    now: float = param(
        "auto", "weight of what is popular at the moment of asking", low=0, auto=True, stage=SCORE
    )
    repeats: str = param(
        "learned",
        "a seen item scores how often such items come again, or like any other",
        choices=("learned", "ignored"),
        stage=SCORE,
    )
    learn: str = param(
        "auto",
        "whether the log chooses what a place, a repeat and what is popular count; off: the defaults",
        choices=("auto", "off"),
        stage=SOLVE,
    )

    @property
    def needs_time(self) -> bool:
        return True

    @property
    def takes_weights(self) -> bool:
        return True

    # -- learning --

    def gram(self, log: Log) -> Gram:
        rows, joint = self._counted(log), self._joint(log)
        if self._kept is not None:
            made = tale_summand(rows, **self._weighing(self._kept.decay, joint))
            return made.gram(self.budget).with_turned(self._kept.turned)
        made, tied = self.one_way(rows, _habits.interval(log), joint)
        return made.gram(self.budget).two_way(self.even, tied)

    def one_way(self, rows: Log, interval: float, joint: bool) -> tuple[Summand, float]:
        """The pairs of rows whose pace is known, and what simultaneous rows have in K: those of parts of a log add up."""
        made = tale_summand(rows, **self._weighing(self.pace * interval, joint))
        return made, self._tied(rows, joint)

    def _counted(self, log: Log) -> Log:
        return counted(newest_rows(log, self.max_history), self.window, self.trend, "both")

    def _weighing(self, decay: float, joint: bool) -> dict[str, Any]:
        """By what pairs of rows weigh; `decay`: days in which a source's weight falls to 1/e."""
        return {
            "decay": decay,
            "floor": self.floor,
            "window": self.window,
            "trend": self.trend,
            "trend_side": "both",
            "same_time": "joint" if joint else "ordered",
            "max_history": self.max_history,
        }

    def _tied(self, rows: Log, joint: bool) -> float:
        """What simultaneous rows have in K."""
        return tied_weight(rows, self.window, self.trend, self.max_history) if joint else 0.0

    def _joint(self, log: Log) -> bool:
        if self._kept is not None:
            return bool(self._kept.joint)
        return self.is_joint(lambda: _habits.are_ordered(log))

    def is_joint(self, are_ordered: Callable[[], bool]) -> bool:
        """Are simultaneous rows each other's source and target? Where `auto` decides, it asks whether they are ordered."""
        if self.same_time != "auto":
            return self.same_time == "joint"
        ordered = are_ordered()
        why = "says something" if ordered else "is no more than chance"
        chosen = "ordered" if ordered else "joint"
        logger.info("same_time auto: %s (the order of simultaneous rows %s)", chosen, why)
        return not ordered

    def habits(self, log: Log) -> Habits:
        """What the rows of a log say of its users."""
        return Habits(_habits.interval(log), self._joint(log), _habits.repeat_weights(log))

    def penalty(self, own: Array) -> Array:
        return dropout_penalty(own, self.reg, self.dropout)

    def solution(self, gram: Gram, wanted: Array | None = None) -> Solution:
        """Weights from the Gram, to all targets or to the wanted ones."""
        penalty = self.penalty(np.asarray(gram.G.diagonal()))
        return solve(gram, penalty, solver=self.solver, neighbors=self.neighbors, wanted=wanted)

    def learn_weights(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        found, solver = super().learn_weights(log, clock)
        return self.completed(found.matrix, log, clock), solver

    def completed(self, item_weights: Matrix, log: Log, clock: Clock) -> Weights:
        numbers = self._chosen(log, clock)
        with clock("habits"):
            return self.assembled(
                block_of(item_weights),
                self.habits(log),
                numbers,
                log.counts(),
                lambda lengths: memories(InTime.of(log), self.span, lengths),
            )

    def assembled(
        self,
        leads: Block,
        habits: Habits,
        numbers: Numbers | None,
        counts: Array,
        remembered: Callable[[list[float]], Memories],
    ) -> Weights:
        """All blocks of the weights, and what queries are made by (see `_blocks.assembled`)."""
        decay = self.pace * habits.interval if self._kept is None else self._kept.decay
        return assembled(leads, habits, decay, numbers, counts, remembered)

    def _chosen(self, log: Log, clock: Clock) -> Numbers | None:
        """The numbers that queries are made by; None: the defaults."""
        if self._kept is not None:
            return Kept._make(self._kept).numbers
        return self._numbers(log, clock) if self.learn == AUTO else None

    def _numbers(self, log: Log, clock: Clock) -> Numbers | None:
        """The numbers that the log chooses; None where it is too small to ask enough questions."""
        cache = FitCache() if self._cache is None else self._cache
        every = bool(
            _habits.repeat_weights(log)[0] > _habits.NEVER
        )  # seen items are few: ask for all
        held = cache.cached("held back", log, lambda: held_back(log, every_item=every))
        if held is None:
            return None
        first = self.first_fit()
        first._cache = cache.cached("first fit", log, FitCache)
        with clock("learn"):
            gram = first.cached(LEARN, held.train, lambda: first.gram(held.train))
            found = block_of(first.solution(gram, held.wanted).weights)
            train = held.train
            popular = first_memories(InTime.of(train), self.span)
            span = (int(train.time.min()), int(train.time.max()))
            known = self.known(found, self.habits(train), popular, train.counts(), span)
            return learned(known, (held.fresh, held.late), held.wanted)

    def first_fit(self) -> Tempo:
        """The model that questions are asked of."""
        return replace(self, learn="off", neighbors=min(self.neighbors, _FIRST_NEIGHBORS))

    def known(
        self,
        leads: Block, habits: Habits, popular: Memories, counts: Array, time: tuple[int, int],
    ) -> FirstFit:  # fmt: skip
        """What a first fit says; `counts` and `time` are of its rows."""
        return FirstFit(
            leads=leads,
            repeat_rates=habits.repeats if habits.does_repeat else habits.repeats[:0],
            joint=habits.joint,
            decay=self.pace * habits.interval,
            floor=self.floor,
            max_history=self.max_history,
            popular=popular,
            counts=counts,
            time=time,
        )

    # -- updating --

    @property
    def keeps_half(self) -> bool:
        return True

    def target_columns(self, log: Log, targets: Array) -> Matrix:
        assert self._kept is not None
        weighing = self._weighing(self._kept.decay, bool(self._kept.joint))
        weighing |= {"turned": self._kept.turned, "memory": self.budget}
        return tale_columns(self._counted(log), targets, **weighing)

    def settle(self, log: Log) -> Settled:
        known = self.fitted.weights.query_arrays
        if "lengths" not in known:
            raise TalerecError("this tempo was fitted by an earlier version: fit it anew")
        rows, kept = self._counted(log), self._as_kept(0.0)
        gram = tale_summand(rows, **self._weighing(kept.decay, kept.joint)).gram(self.budget)
        turned = gram.turned_share(self.even, self._tied(rows, kept.joint))
        if self.fitted.solver != "local":
            return Settled(turned=turned)
        entries = gram.with_turned(turned).K.nnz if gram.is_sparse else gram.items**2
        return Settled(halved(gram.G), int(entries), turned, np.zeros(len(log.items)))

    def as_settled(self, settled: Settled) -> Self:
        own = super().as_settled(settled)
        own._kept = self._as_kept(settled.turned)
        return own

    def _as_kept(self, turned: float) -> Kept:
        known = self.fitted.weights.query_arrays
        numbers = Numbers.restored(known)
        return Kept(
            float(known["decay"][0]), bool(known["joint"][0]), turned,
            None if numbers is None else numbers.among_all(known["lengths"].tolist()),
        )  # fmt: skip

    def item_weights(self) -> Matrix:
        fitted = self.fitted
        numbers = Numbers.restored(fitted.weights.query_arrays)
        if numbers is None or fitted.log is None:
            return fitted.weights.matrix
        return times(fitted.weights.blocks[0], 1 / lift(fitted.log.counts(), numbers)).matrix

    def _upgraded(self, fitted: Fitted) -> Fitted:
        """Version 0.1 stored all three blocks, the one of seen items too, as one matrix."""
        weights = fitted.weights
        if len(weights.blocks) > 1:
            return fitted
        n, whole = weights.items, weights.blocks[0]
        blocks = [whole.rows(0, n), *other_blocks(whole.rows(2 * n, whole.sources))]
        return replace(fitted, weights=Weights(blocks, query_arrays=weights.query_arrays))

    def _check_loaded(self) -> None:
        super()._check_loaded()
        blocks, known = self.fitted.weights.blocks, self.fitted.weights.query_arrays
        _habits.check_arrays(known)
        memories = self._memories
        memories.check(blocks[POPULAR].sources)
        usual = known.get("usual", _FIRST)
        checks.inside("usual", usual, 0, max(len(memories.lifetime), 1))
        if (numbers := Numbers.restored(known)) is not None:
            numbers.check(len(memories.lifetime))
        if "lengths" in known:  # version 0.1 had none
            memories.check_lengths(known["lengths"], int(usual[0]))

    # -- asking --

    def query(self, histories: Histories) -> Query:
        weights, plan = self.fitted.weights, self._plan
        rows = histories.moments(joint=plan.joint)
        found = places.last_places(weights, histories, rows, self.max_history)
        last, now = histories.last(), histories.now
        if now is None:
            now = np.maximum(last, plan.moments.end) + 1
        absence = absences(last, now)
        left = remaining(absence, plan.decay, self.floor)
        asked = Asked(
            *found, histories.start, histories.stop, readonly(histories.item), absence, now, left
        )
        room = np.zeros((len(OFTEN), weights.items)) if plan.numbers.often.size else _NO_ROOM
        x = Query(
            *made_queries(asked, plan.numbers, plan.moments, weights.items, self.max_history, room)
        )
        if histories.weight is not None:
            own = x.source < weights.items
            x.weight[own] *= places.row_worth(weights, histories, self.max_history)
        return x

    @property
    def _plan(self) -> Plan:
        """By what queries are made; it is kept as long as the fit and the parameters stay."""
        made_from = (self.fitted, self.recency, self.now, self.repeats, self.learn)
        kept: tuple[Any, Plan] | None = self.__dict__.get("_kept_plan")
        if kept is None or kept[0] != made_from:
            kept = (made_from, self._new_plan())
            self.__dict__["_kept_plan"] = kept
        return kept[1]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_kept_plan"}

    def _new_plan(self) -> Plan:
        weights, facts = self.fitted.weights, self.fitted.training
        known, memories = weights.query_arrays, self._memories
        usual = int(known.get("usual", _FIRST)[0])
        numbers = Numbers.restored(known) if self.learn == AUTO else None
        if numbers is None:
            numbers = Numbers.usual(np.empty(0), len(memories.lifetime), usual)
        if not is_auto(self.recency):
            numbers = numbers.with_recency(self.recency)
        if not is_auto(self.now):
            numbers = numbers.with_now(self.now, usual)
        rates = known["repeats"] if self.repeats == "learned" else known["repeats"][:0]
        moments = Moments(
            readonly(memories.moments), readonly(memories.ptr), readonly(memories.lifetime),
            weights.first_source(POPULAR), facts["first_time"], facts["last_time"],
        )  # fmt: skip
        return Plan(
            rules(numbers, rates), moments, float(known["decay"][0]), bool(known["joint"][0])
        )

    @property
    def _memories(self) -> Memories:
        return Memories.restored(None, self.fitted.weights.query_arrays)

    def base_score(self, history: Histories, target: int) -> float | None:
        """What the target scores for being popular now; None where that does not count."""
        counts = self.now != 0 and len(self._memories.lifetime) > 0
        return super().base_score(history, target) if counts else None

    def chosen(self) -> list[str]:
        known = self.fitted.weights.query_arrays
        if self.learn != AUTO or "lifetime" not in known:  # version 0.1 did not ask
            return []
        left = {name for name in ("recency", "now") if is_auto(getattr(self, name))}
        left |= {"repeats"} if self.repeats == "learned" else set()
        return in_words(Numbers.restored(known), self._memories.lifetime, left)


_NO_ROOM = np.empty((0, 0))
_FIRST = np.zeros(1, np.int64)
_FIRST_NEIGHBORS = 30  # of the first fit: it only has to say how much its answers are worth

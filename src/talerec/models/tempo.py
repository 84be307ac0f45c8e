"""Tempo: TALE's parts, set by the log's own pace, and three things that a log knows besides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from talerec.data.histories import UNTIMED, Histories
from talerec.data.log import Log
from talerec.data.times import DAY
from talerec.gram.builders import tale_gram, tied_weight
from talerec.gram.gram import Gram
from talerec.gram.row_weights import counted, newest_rows
from talerec.models import _habits
from talerec.models._habits import octave
from talerec.models.keeping import Fitted
from talerec.models.linear import Solved, dropout_penalty
from talerec.models.params import SCORE, SOLVE, param
from talerec.ranking import places
from talerec.ranking.blocks import Block, IdentityBlock, block_of
from talerec.ranking.weights import Query, Weights
from talerec.runtime.arrays import Array
from talerec.runtime.clock import Clock
from talerec.runtime.jit import kernel
from talerec.solvers.solve import Solution, solve

_LEAST = 0.01  # what is left of a history of any age, against what is popular now


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
    paper: ClassVar[str] = "- (TALE's parts; docs/tempo.md)"

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
        6.0, "places in which a history row's weight falls to 1/e", above=0, search=(1, 32),
        stage=SCORE,
    )  # fmt: skip
    neighbors: int = param(60, "sources per target (local solver)", low=1, stage=SOLVE)
    now: float = param(
        0.3, "weight of what is popular at the moment of asking", low=0, search=(0.0, 1.0),
        stage=SCORE,
    )  # fmt: skip
    repeats: str = param(
        "learned",
        "a seen item scores how often such items come again, or like any other",
        choices=("learned", "ignored"),
        stage=SCORE,
    )

    # -- learning --

    def gram(self, log: Log) -> Gram:
        rows = counted(newest_rows(log, self.max_history), self.window, self.trend, "both")
        joint = self._joint(log)
        made = tale_gram(
            rows,
            decay=self.pace * _habits.interval(log),
            floor=self.floor,
            window=self.window,
            trend=self.trend,
            trend_side="both",
            same_time="joint" if joint else "ordered",
            max_history=self.max_history,
            memory=self.budget,
        )
        tied = tied_weight(rows, self.window, self.trend, self.max_history) if joint else 0.0
        return made.two_way(self.even, tied)

    def _joint(self, log: Log) -> bool:
        return self.same_time == "joint" or (
            self.same_time == "auto" and not _habits.are_ordered(log)
        )

    def solution(self, gram: Gram) -> Solution:
        penalty = dropout_penalty(gram, self.reg, self.dropout)
        return solve(gram, penalty, solver=self.solver, neighbors=self.neighbors)

    def learn(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        found, solver = super().learn(log, clock)
        with clock("habits"):
            popular, moments = _habits.snapshots(log, self.span)
            query_arrays = {
                "moments": moments,
                "repeats": _habits.repeat_weights(log),
                "decay": np.array([self.pace * _habits.interval(log)]),
                "joint": np.array([self._joint(log)]),
            }
            blocks = [*found.blocks, *_other_blocks(block_of(popular))]
            return Weights(blocks, query_arrays=query_arrays), solver

    def _upgraded(self, fitted: Fitted) -> Fitted:
        """Version 0.1 stored all three blocks, the one of seen items too, as one matrix."""
        weights = fitted.weights
        if len(weights.blocks) > 1:
            return fitted
        n, whole = weights.items, weights.blocks[0]
        blocks = [whole.rows(0, n), *_other_blocks(whole.rows(2 * n, whole.sources))]
        return replace(fitted, weights=Weights(blocks, query_arrays=weights.query_arrays))

    def _check_loaded(self) -> None:
        super()._check_loaded()
        blocks, known = self.fitted.weights.blocks, self.fitted.weights.query_arrays
        _habits.check_arrays(known, blocks[_POPULAR].sources)

    # -- asking --

    def query(self, histories: Histories) -> Query:
        weights = self.fitted.weights
        known = weights.query_arrays
        rows = histories.moments(joint=bool(known["joint"][0]))
        found = places.last_places(weights, histories, rows, self.max_history)
        repeats = known["repeats"] if self.repeats == "learned" else known["repeats"][:0]
        snapshot, count = self._popular(histories)
        return Query(*_joined(*found, weights.items, self.recency, repeats, snapshot, count))

    def _popular(self, histories: Histories) -> tuple[Array, Array]:
        """The last snapshot before the moment of asking (a source, or -1), and its weight: the older a history, the more."""
        known = self.fitted.weights.query_arrays
        last, first = histories.last(), self.fitted.weights.first_source(_POPULAR)
        now = histories.now
        if now is None:
            now = np.maximum(last, self.fitted.training["last_time"]) + 1
        age = np.where(last > UNTIMED, np.maximum(now - last, 0), 0)
        left = np.maximum(np.exp(-age / (known["decay"][0] * DAY)), max(self.floor, _LEAST))
        snapshot = np.searchsorted(known["moments"], now, side="left") - 1
        there = (snapshot >= 0) & (self.now > 0)
        return np.where(there, first + snapshot, -1), self.now / left

    def base_score(self, history: Histories, target: int) -> float | None:
        """What the target scores for being popular now; None where that does not count."""
        return super().base_score(history, target) if self.now else None


@kernel
def _joined(
    ptr: Array,
    item: Array,
    place: Array,
    n: int,
    recency: float,
    repeats: Array,
    popular: Array,
    weight: Array,
) -> tuple[Array, Array, Array]:
    """x of every history: what is popular, what it has seen (where that has weights, by octaves), what it leads to."""
    room = len(popular) + (2 if len(repeats) else 1) * len(item)
    starts, source, x = np.zeros(len(ptr), np.int64), np.empty(room, np.int64), np.empty(room)
    end = 0
    for q in range(len(popular)):
        if popular[q] >= 0:
            source[end], x[end] = popular[q], weight[q]
            end += 1
        for r in range(ptr[q], ptr[q + 1] if len(repeats) else ptr[q]):
            source[end], x[end] = n + item[r], repeats[octave(place[r])]
            end += 1
        for r in range(ptr[q], ptr[q + 1]):
            source[end], x[end] = item[r], np.exp(-place[r] / recency)
            end += 1
        starts[q + 1] = end
    return starts, source[:end], x[:end]


#: The number of the block of what is popular, after the item-item weights and the items as things seen.
_POPULAR = 2


def _other_blocks(popular: Block) -> list[Block]:
    """Seen items, each a source of itself, and moments: what was popular at each stands for no item of a history."""
    nothing = np.full(popular.sources, -1, np.int32)
    return [IdentityBlock(items=popular.items), replace(popular, source_item=nothing)]

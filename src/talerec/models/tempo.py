"""Tempo: TALE's parts, set by the log's own pace, and three things that a log knows besides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from talerec.data.histories import UNTIMED, Histories
from talerec.data.log import Log
from talerec.data.times import DAY
from talerec.gram.builders import tale_gram, tied_weight
from talerec.gram.gram import Gram
from talerec.gram.row_weights import counted, newest_rows
from talerec.models import _habits
from talerec.models._habits import octave
from talerec.models.base import last_rows
from talerec.models.linear import Solved, dropout_penalty
from talerec.models.params import SCORE, SOLVE, param
from talerec.ranking import weights
from talerec.ranking.weights import Query, Weights
from talerec.runtime.arrays import Array, is_sparse
from talerec.runtime.clock import Clock
from talerec.runtime.jit import kernel
from talerec.solvers.solve import Solution, solve

_LEAST = 0.01  # what is left of a history of any age, against what is popular now


@dataclass(eq=False, kw_only=True)
class Tempo(Solved):
    """Scores are x @ [B; I; P]: what follows the history, what it repeats, what is popular at the time.

    B = (G + diag(reg + p/(1-p) diag(G)))^-1 (K + c K'), G and K of TALE with joint instants;
    c as far as the direction of pairs is chance.
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
            return Weights(_stacked(found.matrix, popular), query_arrays=query_arrays), solver

    # -- asking --

    def query(self, histories: Histories, marks: Array) -> Query:
        n, known = self.fitted.weights.items, self.fitted.weights.query_arrays
        rows = histories.moments(joint=bool(known["joint"][0]))
        found = weights.last_places(histories, rows, self.max_history, marks)
        repeats = known["repeats"] if self.repeats == "learned" else known["repeats"][:0]
        return Query(*_joined(*found, n, self.recency, repeats, *self._popular(histories)))

    def _popular(self, histories: Histories) -> tuple[Array, Array]:
        """The last snapshot before the moment of asking (a source, or -1), and its weight: the older a history, the more."""
        known = self.fitted.weights.query_arrays
        last, n = histories.last(), self.fitted.weights.items
        now = histories.now
        if now is None:
            now = np.maximum(last, self.fitted.training["last_time"]) + 1
        age = np.where(last > UNTIMED, np.maximum(now - last, 0), 0)
        left = np.maximum(np.exp(-age / (known["decay"][0] * DAY)), max(self.floor, _LEAST))
        snapshot = np.searchsorted(known["moments"], now, side="left") - 1
        there = (snapshot >= 0) & (self.now > 0)
        return np.where(there, 2 * n + snapshot, -1), self.now / left

    def given(self, x: Query, history: Histories, targets: Array) -> Array:
        """As for every model, and to the last row of a target itself what a repeat is worth."""
        n = self.fitted.weights.items
        shares = np.zeros((len(targets), len(history.item)))
        for first in (0, n):  # what follows, and what is repeated
            block = _block(x, first, n)
            rows = last_rows(history, block.item - np.int32(first))
            shares[:, rows] += self.fitted.weights.parts(block, targets)
        return shares

    def row_weights(self, history: Histories) -> Array | None:
        """What its place leaves of each row, for what follows it."""
        x = _block(self._query(history), 0, self.fitted.weights.items)
        left = np.zeros(len(history.item))
        left[last_rows(history, x.item)] = x.weight
        return left

    def besides(self, history: Histories, target: int) -> float | None:
        """What the target scores for being popular now."""
        if not self.now:
            return None
        x, n = self._query(history), self.fitted.weights.items
        snapshot = _block(x, 2 * n, self.fitted.weights.matrix.shape[0] - 2 * n)
        return float(self.fitted.weights.parts(snapshot, np.array([target])).sum())


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
    starts, source, x = np.zeros(len(ptr), np.int64), np.empty(room, np.int32), np.empty(room)
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


def _block(x: Query, first: int, size: int) -> Query:
    """Of one query, the sources first..first + size."""
    inside = (x.item >= first) & (x.item < first + size)
    return Query(np.array([0, inside.sum()]), x.item[inside], x.weight[inside])


def _stacked(B: Any, popular: Any) -> Any:
    """[B; I; P]: sources are the items, the items as things seen, and the snapshots."""
    n = B.shape[0]
    if is_sparse(B):
        own = sparse.eye_array(n, dtype=np.float32, format="csr")
        made = sparse.vstack([B, own, popular], format="csr")
        made.sort_indices()
        return made
    out = np.zeros((2 * n + popular.shape[0], n), np.float32)
    out[:n], out[2 * n :] = B, popular.toarray()
    out[np.arange(n, 2 * n), np.arange(n)] = 1
    return out

"""Linear autoencoders: EASE, its dropout EDLAE, and RDLAE with a relaxed diagonal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from talerec.data.log import Log
from talerec.gram.builders import slis_gram
from talerec.gram.gram import Gram
from talerec.models.core.params import SCORE, SOLVE, param
from talerec.models.linear.base import Solved, dropout_penalty
from talerec.runtime.arrays import Array
from talerec.solvers.solver import Solution, solve_bounded


@dataclass(eq=False, kw_only=True)
class EASE(Solved):
    """The items of a user predict each other, and none itself: B = I - P diag(1 / P_jj), P = (X'X + reg I)^-1.

    X is user x item, 1 where the user has the item. The textbook's scores are the sum over a history's items;
    here newer rows count more. ``recency=inf`` is the textbook.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.EASE().fit(log).recommend([1], k=3)["item_id"].to_list()
    [17, 4, 37]
    """

    name: ClassVar[str] = "ease"
    good_for: ClassVar[str] = "Logs without order or time; a strong simple baseline"
    paper: ClassVar[str] = "Embarrassingly Shallow Autoencoders for Sparse Data, WWW 2019"

    recency: float = param(
        2.0,
        "places in which a history row's weight falls to 1/e; not in the textbook, where all rows count alike (inf)",
        above=0,
        search=(0.5, 32),
        stage=SCORE,
    )

    def gram(self, log: Log) -> Gram:
        return slis_gram(log, max_history=self.max_history, memory=self.budget)

    def solution(self, gram: Gram) -> Solution:
        return self._bounded(gram, self.reg, 0.0)

    def _bounded(self, gram: Gram, penalty: Any, most: float) -> Solution:
        return solve_bounded(gram, penalty, most, solver=self.solver, neighbors=self.neighbors)


@dataclass(eq=False, kw_only=True)
class EDLAE(EASE):
    """EASE fitted as if a share of every history were dropped at random, in closed form.

    The ridge penalty grows by p / (1 - p) diag(G), so that popular items are held back more.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.EDLAE().fit(log).recommend([1], k=3)["item_id"].to_list()
    [17, 4, 37]
    """

    name: ClassVar[str] = "edlae"
    good_for: ClassVar[str] = "As ease, for sparse logs that it overfits"
    paper: ClassVar[str] = "Autoencoders that don't overfit towards the Identity, NeurIPS 2020"

    dropout: float = param(
        0.3,
        "share of a history that is dropped (p)",
        low=0,
        high=0.99,
        search=(0.0, 0.9),
        stage=SOLVE,
    )

    def penalty(self, own: Array) -> Array:
        return dropout_penalty(own, self.reg, self.dropout)

    def solution(self, gram: Gram) -> Solution:
        return self._bounded(gram, self.penalty(np.asarray(gram.G.diagonal())), 0.0)


@dataclass(eq=False, kw_only=True)
class RDLAE(EDLAE):
    """EDLAE in which an item may predict itself, by a weight of at most `xi`.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.RDLAE().fit(log).recommend([1], k=3)["item_id"].to_list()
    [86, 11, 17]
    """

    name: ClassVar[str] = "rdlae"
    good_for: ClassVar[str] = "As edlae, where people come back to items"
    paper: ClassVar[str] = (
        "It's Enough: Relaxing Diagonal Constraints in Linear Autoencoders, SIGIR 2023"
    )

    xi: float = param(
        0.3, "the most that an item may weigh for itself", low=0, search=(0.0, 1.0), stage=SOLVE
    )

    def solution(self, gram: Gram) -> Solution:
        return self._bounded(gram, self.penalty(np.asarray(gram.G.diagonal())), self.xi)

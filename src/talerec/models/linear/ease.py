"""Linear autoencoders: EASE, its dropout EDLAE, and RDLAE with a relaxed diagonal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from talerec.data import Log
from talerec.gram import Gram, slis_gram
from talerec.models.core import SCORE, SOLVE, param
from talerec.models.linear.base import RidgeModel, dropout_penalty
from talerec.runtime import Array
from talerec.solvers import Solution, solve_bounded


@dataclass(eq=False, kw_only=True)
class EASE(RidgeModel):
    """A user's items predict each other: B = I - P diag(1 / P_jj), P = (X'X + reg I)^-1.

    X is user x item, 1 where the user has the item; the diagonal of B is 0. As published, scores
    sum over all items of a history; here newer rows weigh more. ``recency=inf`` is as published.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.EASE().fit(log).recommend([1], k=3)["item_id"].to_list()
    [17, 4, 37]
    """

    name = "ease"
    summary = "Logs without order or time; a strong simple baseline"
    paper = "Embarrassingly Shallow Autoencoders for Sparse Data, WWW 2019"

    recency: float = param(
        2.0,
        "decay length of history weights, in rows; as published: inf",
        above=0,
        search=(0.5, 32),
        stage=SCORE,
    )

    def gram(self, log: Log) -> Gram:
        """Return G = K = X'X, item x item; X is user x item, 1 where the user has the item."""
        return slis_gram(log, max_history=self.max_history, memory=self.budget)

    def solution(self, gram: Gram) -> Solution:
        """Return B of the ridge regression of G = X'X on itself, with a diagonal of 0."""
        return self._solve_bounded(gram, self.reg, 0.0)

    def _solve_bounded(self, gram: Gram, penalty: Any, xi: float) -> Solution:
        """Return B for a ridge penalty (a number, or one per item), its diagonal at most xi.

        gram: G = X'X, X user x item. B is item x item; its diagonal has items' weights for
        themselves.
        """
        return solve_bounded(gram, penalty, xi, solver=self.solver, neighbors=self.neighbors)


@dataclass(eq=False, kw_only=True)
class EDLAE(EASE):
    """EASE fitted as if a share of every history were dropped at random, in closed form.

    The ridge penalty grows by p / (1 - p) diag(G), so that popular items are penalized more.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.EDLAE().fit(log).recommend([1], k=3)["item_id"].to_list()
    [17, 4, 37]
    """

    name = "edlae"
    summary = "As ease, for sparse logs that it overfits"
    paper = "Autoencoders that don't overfit towards the Identity, NeurIPS 2020"

    dropout: float = param(
        0.3, "dropped share of a history (p)", low=0, high=0.99, search=(0.0, 0.9), stage=SOLVE
    )

    def penalty(self, diagonal: Array) -> Array:
        """Return reg + p / (1 - p) diag(G) by item, with p the dropout; diagonal: diag(G)."""
        return dropout_penalty(diagonal, self.reg, self.dropout)

    def solution(self, gram: Gram) -> Solution:
        """Return B (item x item) with a diagonal of 0, for the ridge penalty of dropout."""
        return self._solve_bounded(gram, self.penalty(np.asarray(gram.G.diagonal())), 0.0)


@dataclass(eq=False, kw_only=True)
class RDLAE(EDLAE):
    """EDLAE in which an item may predict itself, with a weight of at most `xi`.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.RDLAE().fit(log).recommend([1], k=3)["item_id"].to_list()
    [86, 11, 17]
    """

    name = "rdlae"
    summary = "As edlae, where people come back to items"
    paper = "It's Enough: Relaxing Diagonal Constraints in Linear Autoencoders, SIGIR 2023"

    xi: float = param(
        0.3, "largest weight of an item for itself", low=0, search=(0.0, 1.0), stage=SOLVE
    )

    def solution(self, gram: Gram) -> Solution:
        """Return B (item x item), its diagonal at most `xi`, for the penalty of dropout."""
        return self._solve_bounded(gram, self.penalty(np.asarray(gram.G.diagonal())), self.xi)

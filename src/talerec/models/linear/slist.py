"""SLIS, SLIT and their sum SLIST (WWW 2021): linear models of sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from talerec.data import Log
from talerec.gram import (
    NORMS,
    TARGETS,
    Gram,
    GramTerm,
    SlitWeighting,
    blend_terms,
    slis_term,
    slit_term,
)
from talerec.models.core import SOLVE, param
from talerec.models.linear.base import RidgeModel
from talerec.solvers import Solution

_PAPER = "Session-aware Linear Item-Item Models for Session-based Recommendation, WWW 2021"


@dataclass(eq=False, kw_only=True)
class SessionModel(RidgeModel):
    """Shared code of SLIS, SLIT and SLIST: users weighted by age, and normalized rows.

    A user's age is the time from its last row to the end of the log; S and T of the Gram (G = S'S,
    K = S'T) have the users' rows as sources and as targets.
    """

    paper = _PAPER

    decay_user: float = param(
        0.0, "days since the last row in which a user's weight falls to 1/e; 0: no decay", low=0
    )
    norm: str = param(
        "none", "normalization: rows divided by their sums (l1), or Eq. 4 of TALE", choices=NORMS
    )

    @property
    def needs_time(self) -> bool:
        """Whether times are used: only if users are weighted by age (`decay_user`)."""
        return self.decay_user > 0

    def _slis(self, log: Log) -> GramTerm:
        """Return the Gram term (G = S'S, K = S'T) of SLIS: a user's items predict each other."""
        return slis_term(log, **self._options)

    @property
    def _options(self) -> dict[str, Any]:
        """The parameters max_history, norm and decay_user by name, for the Gram terms."""
        names = ("max_history", "norm", "decay_user")
        return {name: getattr(self, name) for name in names}


@dataclass(eq=False, kw_only=True)
class SLIS(SessionModel):
    """A user's items predict each other: B = I - P diag(g), P = (X'WX + reg I)^-1, B_jj <= xi.

    X is user x item, 1 where the user has the item; W weights users by their age (the time since
    their last row). g_j is reg, or larger where B_jj would exceed xi. Scores are x @ B, with x the
    history's items weighted by recency.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.SLIS().fit(log).recommend([1], k=3)["item_id"].to_list()
    [86, 11, 17]
    """

    name = "slis"
    summary = "What goes together, whatever the order"

    xi: float = param(
        1.0, "largest weight of an item for itself", low=0, search=(0.0, 1.0), stage=SOLVE
    )

    def gram_terms(self, log: Log) -> list[GramTerm]:
        """Return the only summand of the Gram, in which a user's items predict each other.

        It has G = K = X'WX (item x item), with X user x item and W the weights of users.
        """
        return [self._slis(log)]

    def solution(self, gram: Gram) -> Solution:
        """Return B (item x item) for the ridge penalty `reg`, its diagonal at most `xi`.

        gram: G = X'WX, with X user x item and W the weights of users. The result has B and the name
        of the solver.
        """
        return self.solve_bounded(gram, self.penalty(np.asarray(gram.G.diagonal())), self.xi)


@dataclass(eq=False, kw_only=True)
class SLIT(SessionModel):
    """At every row, earlier items predict later items: B = (S'S + reg I)^-1 S'T.

    S has the earlier items of a user and T the later ones, both weighted by their distance to the
    row. B is item x item; scores are x @ B, with x the history's items weighted by recency.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.SLIT().fit(log).recommend([1], k=3)["item_id"].to_list()
    [4, 70, 95]
    """

    name = "slit"
    summary = "What comes after, by rows and not by time; sessions"
    is_solved_by_target = True

    position: float = param(
        1.0, "rows in which a row's weight falls to 1/e", above=0, search=(0.25, 16)
    )
    targets: str = param(
        "multi", "target of a row: the next row, or all later ones", choices=TARGETS
    )

    def gram_terms(self, log: Log) -> list[GramTerm]:
        """Return the only summand of the Gram, in which earlier items predict later ones.

        It has G = S'S and K = S'T (item x item), with S the earlier and T the later items.
        """
        return [self._slit(log)]

    def _slit(self, log: Log) -> GramTerm:
        """Return the Gram of SLIT: at every row, earlier items (S) predict later ones (T).

        A Gram term stands for G = S'S and K = S'T, to be built or added to another. `position` is
        the number of rows in which the weight of an item falls to 1/e; `targets` says whether all
        later items are targets or the next alone; `_options` are history length, norm, decay.
        """
        weighting = SlitWeighting(self.position, targets=self.targets, **self._options)
        return slit_term(log, weighting)


@dataclass(eq=False, kw_only=True)
class SLIST(SLIT):
    """SLIS and SLIT together: the Gram is alpha times SLIS' plus (1 - alpha) times SLIT's.

    In SLIS a user's items predict each other, in SLIT earlier items predict later ones; the Gram is
    the pair of item x item matrices that the weights are solved from.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.SLIST().fit(log).recommend([1], k=3)["item_id"].to_list()
    [4, 70, 86]
    """

    name = "slist"
    summary = "Sessions: what goes together and what comes after"

    alpha: float = param(0.2, "share of SLIS; 0 is SLIT alone", low=0, high=1, search=(0.0, 1.0))

    def gram_terms(self, log: Log) -> list[GramTerm]:
        """Return the summands of the Gram (G = S'S, K = S'T): alpha SLIS and 1 - alpha SLIT.

        In SLIS a user's items predict each other, in SLIT earlier items (S) predict later ones (T).
        """
        return blend_terms(self.alpha, lambda: self._slis(log), lambda: self._slit(log))

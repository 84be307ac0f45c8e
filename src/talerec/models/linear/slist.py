"""SLIS, SLIT, and both in one, SLIST (WWW 2021): linear models of sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from talerec.data.log import Log
from talerec.gram.builders import (
    NORMS,
    TARGETS,
    slis_summand,
    slit_summand,
)
from talerec.gram.gram import Gram
from talerec.gram.terms import Summand, mixed
from talerec.models.core.params import SOLVE, param
from talerec.models.linear.base import Solved
from talerec.solvers.solver import Solution, solve_bounded

_PAPER = "Session-aware Linear Item-Item Models for Session-based Recommendation, WWW 2021"


@dataclass(eq=False, kw_only=True)
class Sessions(Solved):
    """What the three models share: users weighed by their age, and rows normalised."""

    paper: ClassVar[str] = _PAPER

    decay_user: float = param(
        0.0, "days in which a user's weight falls to 1/e after the last row; 0: all alike", low=0
    )
    norm: str = param("none", "rows divided by their sums (l1), or Eq. 4 of TALE", choices=NORMS)

    @property
    def needs_time(self) -> bool:
        return self.decay_user > 0

    def _slis(self, log: Log) -> Summand:
        return slis_summand(log, **self._options)

    @property
    def _options(self) -> dict[str, Any]:
        names = ("max_history", "norm", "decay_user")
        return {name: getattr(self, name) for name in names}


@dataclass(eq=False, kw_only=True)
class SLIS(Sessions):
    """The items of a user predict each other: B = I - P diag(g), P = (X'WX + reg I)^-1, B_jj <= xi.

    X is user x item, 1 where the user has the item; W weighs users by their age.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.SLIS().fit(log).recommend([1], k=3)["item_id"].to_list()
    [86, 11, 17]
    """

    name: ClassVar[str] = "slis"
    good_for: ClassVar[str] = "What goes together, whatever the order"

    xi: float = param(
        1.0, "the most that an item may weigh for itself", low=0, search=(0.0, 1.0), stage=SOLVE
    )

    def summands(self, log: Log) -> list[Summand]:
        return [self._slis(log)]

    def solution(self, gram: Gram) -> Solution:
        return solve_bounded(gram, self.reg, self.xi, solver=self.solver, neighbors=self.neighbors)


@dataclass(eq=False, kw_only=True)
class SLIT(Sessions):
    """At every row, what came up to it predicts what comes after it, both weighed by their distance from it.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.SLIT().fit(log).recommend([1], k=3)["item_id"].to_list()
    [4, 70, 95]
    """

    name: ClassVar[str] = "slit"
    good_for: ClassVar[str] = "What comes after, by rows and not by time; sessions"
    by_target: ClassVar[bool] = True

    position: float = param(
        1.0, "places in which a row's weight falls to 1/e", above=0, search=(0.25, 16)
    )
    targets: str = param("multi", "the next row is the target, or all later ones", choices=TARGETS)

    def summands(self, log: Log) -> list[Summand]:
        return [self._slit(log)]

    def _slit(self, log: Log) -> Summand:
        return slit_summand(log, position=self.position, targets=self.targets, **self._options)


@dataclass(eq=False, kw_only=True)
class SLIST(SLIT):
    """SLIS and SLIT in one: alpha times the Gram of SLIS plus (1 - alpha) times that of SLIT, solved once.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.SLIST().fit(log).recommend([1], k=3)["item_id"].to_list()
    [4, 70, 86]
    """

    name: ClassVar[str] = "slist"
    good_for: ClassVar[str] = "Sessions: what goes together and what comes after"

    alpha: float = param(0.2, "share of SLIS; 0 is SLIT alone", low=0, high=1, search=(0.0, 1.0))

    def summands(self, log: Log) -> list[Summand]:
        return mixed(self.alpha, lambda: self._slis(log), lambda: self._slit(log))

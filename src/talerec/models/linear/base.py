"""Shared code of linear models: histories weighted by recency, weights solved from a Gram."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, Self

import numpy as np

from talerec.data import Histories, Log
from talerec.gram import Gram, GramTerm
from talerec.models.core import LEARN, SCORE, SOLVE, Model, UpdateState, param
from talerec.ranking import Query, Weights, recency_query
from talerec.runtime import Array, Clock, Matrix
from talerec.solvers import (
    SOLVERS,
    Solution,
    bound_inverse,
    invert_gram,
    lower_triangle,
    require_torch,
    resolve_solver,
    solve_gram,
)


@dataclass(eq=False, kw_only=True)
class Linear(Model):
    """A model whose scores are x @ B, with x_i = exp(-lag / recency) of a history's items.

    B is item x item: row i (source) has what item i in a history adds to the score of each item
    (target). A lag counts the rows from the last row of the history. Subclasses define how B is
    learned. The Gram is the pair of item x item matrices that B is computed from.
    """

    recency: float = param(
        2.0,
        "decay length of history weights, in rows (tau_inf)",
        above=0,
        search=(0.5, 32),
        stage=SCORE,
    )
    memory: float = param(0.0, "GB of memory for the Gram; 0: all that is free", low=0)
    max_history: int = param(2500, "a user's last rows that are used", low=1)

    @property
    def budget(self) -> int | None:
        """The bytes of memory for the Gram; None: all that is free."""
        return round(self.memory * 1e9) or None

    def build_gram(self, term: GramTerm) -> Gram:
        """Return the matrices G = S'S and K = S'T of a Gram term, times its share.

        A Gram term says which pairs of source rows (S) and target rows (T) are summed up. Models
        that are fitted to one log with a common cache share the matrices of equal terms, which
        nobody may change.
        """
        if term.key is None:
            return term.build(self.budget)
        key, whole = (term.key, self.budget), term._replace(share=1.0)
        gram: Gram = self.shared("gram", key, lambda: whole.build(self.budget))
        return gram if term.share == 1.0 else term.share * gram

    def query(self, histories: Histories) -> Query:
        """Return x of each history: exp(-lag / recency) of its items, lag in rows from the last.

        A `Query` has, per history, sources (rows of B: the distinct items) and their weights. Only
        the last `max_history` rows are used.
        """
        ordered = np.empty(0, np.int64)  # no times: all rows are in order
        weights = self.fitted.weights
        return recency_query(weights, histories, ordered, self.query_recency, self.max_history)

    @property
    def query_recency(self) -> float:
        """The decay length of history weights in queries, in rows."""
        return self.recency


@dataclass(eq=False, kw_only=True)
class RidgeModel(Linear):
    """A model whose weights B solve ridge regression: B = (G + diag(penalty))^-1 K.

    G = S'S and K = S'T (together: the Gram) are item x item. A row of S has the weighted earlier
    items of a user (sources), the same row of T the weighted items that they predict (targets).
    """

    reg: float = param(
        100.0, "ridge penalty (lambda)", above=0, high=1e12, search=(1, 1000),
        grid=(1, 5, 10, 50, 100, 500, 1000), stage=SOLVE,
    )  # fmt: skip
    solver: str = param("auto", "solver of the linear system", choices=SOLVERS, stage=SOLVE)
    neighbors: int = param(100, "sources per target (local solver)", low=1, stage=SOLVE)

    def gram(self, log: Log) -> Gram:
        """Return the Gram of the training rows: G = S'S and K = S'T, item x item.

        S has the weighted source items of each training example, T its target items.
        """
        return reduce(add, map(self.build_gram, self.gram_terms(log)))

    def gram_terms(self, log: Log) -> list[GramTerm]:
        """Return the summands of the Gram of a log: each has a G = S'S and a K = S'T, item x item.

        S has the weighted source items of each training example, T its targets. Subclasses define
        this, or override `gram` instead.
        """
        raise NotImplementedError

    def penalty(self, diagonal: Array) -> Array:
        """Return the ridge penalty that is added to each entry of the diagonal of G = S'S.

        diagonal: the diagonal of G, one number per item; here every item has the penalty `reg`.
        """
        return np.full(len(diagonal), float(self.reg))

    def check_ready(self) -> None:
        """Raise TalerecError, before a fit, if `solver` is "torch" and torch is not installed."""
        if self.solver == "torch":
            require_torch()

    def solution(self, gram: Gram) -> Solution:
        """Return B = (G + diag(penalty))^-1 K, item x item, and the name of the solver that ran.

        gram: G = S'S and K = S'T, with S the source items and T the targets of the training
        examples.
        """
        return self.solve_shared(gram, self.penalty(np.asarray(gram.G.diagonal())), self.solver)

    def solve_shared(self, gram: Gram, penalty: Array, solver: str) -> Solution:
        """Return B = (G + diag(penalty))^-1 K, or that of another model with equal equations.

        gram: G = S'S and K = S'T, item x item. penalty: one number per item. solver: its name, or
        "auto". Models that are fitted to one log with a common cache share solutions, whose weights
        nobody may change.
        """
        key = ("weights", gram, penalty.tobytes(), solver, self.neighbors)
        solution: Solution = self.shared(
            "solve", key, lambda: solve_gram(gram, penalty, solver=solver, neighbors=self.neighbors)
        )
        return solution

    def solve_bounded(
        self, gram: Gram, penalty: Array, bound: float, solver: str | None = None
    ) -> Solution:
        """Return B = I - P diag(g), P = (G + diag(penalty))^-1, with B's diagonal at most `bound`.

        The closed form of RDLAE (Steck, 2020). gram: G = X'X, with X user x item. penalty: one
        number per item. B is item x item; g is the penalty, or larger where B_jj would exceed the
        bound. solver: a solver's name; None: the parameter `solver`. The parameter `neighbors`
        limits the nonzeros of P if the solver is local. Models that are fitted to one log with a
        common cache share P.
        """
        solver = resolve_solver(gram, penalty, solver or self.solver)
        key = ("inverse", gram, penalty.tobytes(), solver, self.neighbors)
        options: dict[str, Any] = {"solver": solver, "neighbors": self.neighbors}
        inverse = self.shared("solve", key, lambda: invert_gram(gram, penalty, **options))
        is_shared = self._cache is not None and self._cache.is_shared
        return bound_inverse(inverse, gram, penalty, bound, in_place=not is_shared)

    def learn_weights(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        """Return the item x item weights B solved from a log's rows, and the name of the solver.

        clock("name") adds the seconds of its block to that stage. The Gram (G = S'S and K = S'T)
        comes from the cache of a tuning run, if parameters of the stage LEARN, on which it depends,
        are equal.
        """
        self.check_ready()
        with clock("gram"):
            gram = self.cached(LEARN, log, lambda: self.gram(log))
        with clock("solve"):
            solution = self.solution(gram)
        return Weights(solution.weights), solution.solver

    # -- updating --

    #: Whether the local solver solves each target's equations independently of other targets.
    is_solved_by_target = False

    @property
    def supports_stored_gram(self) -> bool:
        """Whether updates add to a stored G = S'S, and recount only some columns of K = S'T.

        If not, G and K are counted from all rows again. See `target_columns`.
        """
        return False

    def target_columns(self, log: Log, targets: Array) -> Matrix:
        """Return K = S'T (source x target) with only the columns of the flagged targets filled.

        targets: a flag per item; the columns of all other items are empty. Used by updates of a
        model that stores G; such models override this.
        """
        raise NotImplementedError

    def update_state(self, log: Log) -> UpdateState:
        """Return what an update continues from; an empty state means that the update refits.

        With the local solver: `residual`, by how much each target's weights are off (zeros after a
        fit), and, if the model counts K = S'T by target, the lower triangle of G and K's number of
        entries.
        """
        none = np.zeros(len(log.items))
        if self.fitted.solver != "local" or not self.is_solved_by_target:
            return UpdateState()
        if not self.supports_stored_gram:
            return UpdateState(residual=none)
        gram = self.gram(log)
        return UpdateState(lower_triangle(gram.G), gram.k_entries, residual=none)

    def for_update(self, state: UpdateState) -> Self:
        """Return a copy of the model that learns from new rows, with the solver of its fit.

        state: what the update continues from, as `update_state` returns it: a stored G = S'S, and
        by how much each target's weights are off.
        """
        return Model.for_update(self.with_params(solver=self.fitted.solver or self.solver), state)

    def item_weights(self) -> Matrix:
        """Return the item-item weights as the solver returned them."""
        return self.fitted.weights.matrix

    def complete_weights(self, item_weights: Matrix, log: Log, clock: Clock) -> Weights:
        """Return all weights of the model, given the item-item weights B (here: only these).

        Subclasses add further weights learned from `log`; `clock` adds up the seconds of their
        stages. Used by updates, which solve B alone.
        """
        return Weights(item_weights)


def dropout_penalty(diagonal: Array, reg: float, dropout: float) -> Array:
    """Return reg + p / (1 - p) diag(G): the ridge penalty if a share p of sources is dropped.

    diagonal: diag(G) of G = S'S, one number per item. dropout: p, below 1.
    """
    return reg + dropout / (1 - dropout) * diagonal

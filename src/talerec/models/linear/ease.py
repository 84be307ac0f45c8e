"""Linear autoencoders: EASE, its dropout EDLAE, and RDLAE with a relaxed diagonal."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import numpy as np

from talerec.data import Log
from talerec.gram import Gram, slis_term
from talerec.models.core import (
    SCORE,
    SOLVE,
    HoldoutQueries,
    hold_out_last_rows,
    is_auto,
    param,
    rank_targets,
    require,
)
from talerec.models.linear.base import RidgeModel, dropout_penalty
from talerec.ranking import Weights
from talerec.runtime import Array, Clock
from talerec.solvers import Solution

DEFAULT_RECENCY = 2.0  # rows; where the log has too few rows to choose
_RECENCIES = (1.0, 2.0, 4.0, 6.0, 10.0, 20.0, 60.0, math.inf)
_NO_DECAY = sys.float_info.max  # stored for infinity: arrays of artifacts are finite
_MIN_Z = 2.5  # standard errors above the default: below 5 % by chance over all seven alternatives
_HOLDOUT_NEIGHBORS = 30  # sources per target of the fit that chooses the recency
_HOLDOUT_PARAMS = ("reg", "memory", "max_history", "solver")  # what that fit has of the model
_K = 10  # ranks that count


@dataclass(eq=False, kw_only=True)
class EASE(RidgeModel):
    """A user's items predict each other: B = I - P diag(1 / P_jj), P = (X'X + reg I)^-1.

    X is user x item, 1 where the user has the item; the diagonal of B is 0. As published, scores
    sum over all items of a history; here newer rows weigh more, by a recency that is chosen on
    rows held out from a first fit. ``recency=inf`` is as published.

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
        "auto", "decay length of history weights, in rows; auto: by validation; as published: inf",
        above=0, auto=True, search=(0.5, 32), stage=SCORE,
    )  # fmt: skip

    def gram(self, log: Log) -> Gram:
        """Return G = K = X'X, item x item; X is user x item, 1 where the user has the item."""
        return self.build_gram(slis_term(log, self.max_history))

    def solution(self, gram: Gram) -> Solution:
        """Return B of the ridge regression of G = X'X on itself, with a diagonal of 0.

        gram: G, item x item; X is user x item. The result has B and the name of the solver.
        """
        return self.solve_bounded(gram, self.penalty(np.asarray(gram.G.diagonal())), 0.0)

    # -- recency --

    def learn_weights(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        """Return B (item x item) with the chosen recency as an array for queries, and the solver.

        The recency is the decay length of history weights, in rows; it is chosen here if the
        parameter is "auto". clock("name") adds the seconds of its block to that stage. The solver
        is a name.
        """
        weights, solver = super().learn_weights(log, clock)
        if is_auto(self.recency):
            with clock("learn"):
                arrays = {"recency": np.array([min(self._choose_recency(log), _NO_DECAY)])}
            weights = Weights(weights.blocks, weights.base, arrays)
        return weights, solver

    def _choose_recency(self, log: Log) -> float:
        """Return the recency with which EASE predicts held-out last rows of users best.

        The recency is the decay length of history weights, in rows; EASE is fitted with this
        model's `reg`, so that EDLAE and RDLAE share the choice. It is the default, 2, if the log is
        too small. An update keeps the recency of the fit.
        """
        if self._update_state is not None:
            return self.query_recency
        holdout = self.shared("learn", ("last rows", log), lambda: hold_out_last_rows(log))
        if holdout is None:
            return DEFAULT_RECENCY
        train, queries = holdout
        options = {name: getattr(self, name) for name in _HOLDOUT_PARAMS}
        neighbors = min(self.neighbors, _HOLDOUT_NEIGHBORS)
        model = EASE(recency=DEFAULT_RECENCY, neighbors=neighbors, **options)
        cache = None if self._cache is None else self._cache.nested("learn")
        model.fit(train, cache=cache)
        key = ("recency", train, *model.params.items())
        recency: float = self.shared("learn", key, lambda: _best_recency(model, queries))
        return recency

    @property
    def query_recency(self) -> float:
        """The decay length of history weights in queries, in rows: as set, or chosen by the fit.

        The fit stores its choice with the weights; models saved by earlier versions have none: 2.
        """
        if not is_auto(self.recency):
            return self.recency
        arrays = self.fitted.weights.query_arrays
        stored = float(arrays["recency"][0]) if "recency" in arrays else DEFAULT_RECENCY
        return stored if stored < _NO_DECAY else math.inf

    def describe_learned(self) -> list[str]:
        """Return a sentence on the chosen recency; an empty list if it was set.

        The recency is the decay length of history weights, in rows.
        """
        if not is_auto(self.recency):
            return []
        if self.query_recency == DEFAULT_RECENCY:
            return [f"Validation kept the default recency of {DEFAULT_RECENCY:g} rows."]
        share = math.exp(-7 / self.query_recency)
        return [f"The 8th most recent row has {share:.0%} of the latest row's weight."]

    def _check_loaded(self) -> None:
        """Raise TalerecError if the recency stored with the weights is not one number above 0."""
        super()._check_loaded()
        recency = self.fitted.weights.query_arrays.get("recency", np.ones(1))
        require(recency.shape == (1,) and bool(recency[0] > 0), "recency is not one number above 0")


def _best_recency(model: EASE, queries: HoldoutQueries) -> float:
    """Return the recency with the highest NDCG@10 of a fitted model on held-out queries.

    The recency is the decay length of history weights, in rows; 1 to 60 and infinity are compared.
    NDCG is averaged over lists with seen items allowed and hidden. The default, 2, stays unless
    another value is better by 2.5 standard errors.
    """
    gains = {}
    for recency in _RECENCIES:
        model = model.with_params(recency=recency)
        ranks = rank_targets(model, queries.histories, queries.target).ranks
        in_list = (ranks > 0) & (ranks <= _K)
        gains[recency] = np.where(in_list, 1 / np.log2(np.maximum(ranks, 1) + 1), 0).mean(1)
    best = max(gains, key=lambda recency: float(gains[recency].mean()))
    difference = gains[best] - gains[DEFAULT_RECENCY]
    error = difference.std() / math.sqrt(len(difference))
    return best if difference.mean() > _MIN_Z * error else DEFAULT_RECENCY


@dataclass(eq=False, kw_only=True)
class EDLAE(EASE):
    """EASE fitted as if a share of every history were dropped at random, in closed form.

    The ridge penalty grows by p / (1 - p) diag(G), so that popular items are penalized more. The
    recency of history weights is the one that EASE would choose.

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
        """Return B (item x item), its diagonal at most `xi`, for the ridge penalty of dropout.

        gram: G = X'X, with X user x item. The result has B and the name of the solver.
        """
        return self.solve_bounded(gram, self.penalty(np.asarray(gram.G.diagonal())), self.xi)

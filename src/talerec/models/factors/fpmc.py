"""FPMC (WWW 2010): Markov chains in factors, personal by the taste of the history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from talerec.data.histories import Histories
from talerec.data.log import Log
from talerec.models.core import checks
from talerec.models.core.base import Model
from talerec.models.core.params import param
from talerec.models.factors.bpr import encode, fit_factors
from talerec.ranking.blocks import block_of
from talerec.ranking.weights import Query, Weights
from talerec.runtime.arrays import Array
from talerec.runtime.clock import Clock


@dataclass(eq=False, kw_only=True)
class FPMC(Model):
    """A Markov chain in factors, and the taste of the history: score_j = mean taste . Q_j + M_last . N_j.

    The factors are fitted with BPR. A user is the mean of the factors of its items, not a factor of its
    own, so that histories that were never trained on are scored as users are.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.FPMC(epochs=5).fit(log).recommend([1], k=3)["item_id"].to_list()
    [4, 70, 86]
    """

    name: ClassVar[str] = "fpmc"
    good_for: ClassVar[str] = "Baskets and taste in few numbers; a classic baseline"
    grows: ClassVar[bool] = False
    paper: ClassVar[str] = (
        "Factorizing Personalized Markov Chains for Next-Basket Recommendation, WWW 2010"
    )
    weighs_items: ClassVar[bool] = False

    factors: int = param(
        32,
        "factors of an item, for taste and for transitions each",
        low=1,
        high=4096,
        search=(16, 128),
    )
    rows: int = param(20, "last rows of a history that make its taste", low=1, high=100_000)
    epochs: int = param(20, "passes over the log", low=1, high=10_000, search=(10, 60))
    rate: float = param(0.1, "learning rate; falls to 0", above=0, high=10, search=(0.01, 0.5))
    reg: float = param(0.002, "shrinkage of factors per step", low=0, high=1, search=(1e-4, 0.1))
    seed: int = param(0, "seed of the first factors, the order of rows and the other items", low=0)

    def learn_weights(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        with clock("solve"):
            made = fit_factors(
                log,
                factors=self.factors,
                rows=self.rows,
                epochs=self.epochs,
                rate=self.rate,
                reg=self.reg,
                seed=self.seed,
            )
        items = np.ascontiguousarray(np.hstack([made.to_taste, made.to_last]).T)
        block = block_of(items, source_item=np.full(len(items), -1, np.int32))
        arrays = {"taste": made.taste, "from_last": made.from_last}
        return Weights(block, query_arrays=arrays), None

    def _check_loaded(self) -> None:
        weights, shape = self.fitted.weights, (len(self.fitted.items), self.factors)
        for name in ("taste", "from_last"):
            found = weights.query_arrays[name].shape
            checks.need(found == shape, f"{name} has the shape {found}, not {shape}")
        sources = weights.blocks[0].sources
        checks.need(sources == 2 * self.factors, f"the weights have {sources} rows of factors")

    def query(self, histories: Histories) -> Query:
        query_arrays = self.fitted.weights.query_arrays
        runs = (histories.start, histories.stop, histories.item)
        codes, known = encode(*runs, self.rows, query_arrays["taste"], query_arrays["from_last"])
        dimensions = np.tile(np.arange(codes.shape[1]), int(known.sum()))
        ptr = np.concatenate([[0], np.cumsum(known * codes.shape[1])])
        return Query(ptr, dimensions, codes[known].ravel())

    def contributions(self, x: Query, history: Histories, targets: Array) -> Array:
        """Each of the last rows gives its share of the taste, the last one its transition too."""
        weights = self.fitted.weights
        columns = weights.matrix[:, targets].astype(np.float64)
        known = np.flatnonzero(history.item >= 0)[-self.rows :]
        given = np.zeros((len(targets), len(history.item)))
        if known.size:
            items = history.item[known]
            taste, last = (
                weights.query_arrays["taste"][items],
                weights.query_arrays["from_last"][items[-1]],
            )
            given[:, known] = (taste.astype(np.float64) @ columns[: self.factors]).T / len(known)
            given[:, known[-1]] += last.astype(np.float64) @ columns[self.factors :]
        return given

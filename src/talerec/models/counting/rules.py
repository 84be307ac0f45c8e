"""Models that count pairs of items: Markov chains, sequential rules, association rules."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from talerec.data import Log
from talerec.gram import lag_counts, slis_term
from talerec.models.core import param
from talerec.models.linear import Linear
from talerec.ranking import Weights
from talerec.runtime import Array, Clock, Matrix, is_sparse, sparse

_PAPER = "A Comparison of Frequent Pattern Techniques and a Deep Learning Method, RecTemp 2017"


@dataclass(eq=False, kw_only=True)
class CountModel(Linear):
    """A model whose weights B (source item x target item) are counts of pairs of items.

    A history scores x @ B, with x_i = exp(-lag / recency) of its items.
    """

    paper = _PAPER

    @abstractmethod
    def counts(self, log: Log) -> Matrix:
        """Return how often pairs of items were counted: a matrix, source item x target item."""

    def learn_weights(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        """Return the pair counts of a log as float32 weights B; no solver is used (None).

        B is source item x target item; zeros are not stored. clock("gram") adds up the seconds.
        """
        with clock("gram"):
            counts = self.counts(log)
            if not is_sparse(counts):
                return Weights(np.ascontiguousarray(counts, np.float32)), None
            rows: Any = counts.tocsr().astype(np.float32)
            rows.eliminate_zeros()
        return Weights(rows), None


@dataclass(eq=False, kw_only=True)
class LagCountModel(CountModel):
    """A model that counts pairs of items with a weight by their lag in rows."""

    takes_weights = True

    @property
    @abstractmethod
    def lag_weights(self) -> Array:
        """The weight of a pair by its lag: the distance of its rows, 0 for a row itself."""

    def counts(self, log: Log) -> Matrix:
        """Return weighted pair counts, item x later item, by `lag_weights`.

        Only the last `max_history` rows of a user count; `budget` is the memory to use, in bytes.
        """
        options: dict[str, Any] = {"max_history": self.max_history, "memory": self.budget}
        return lag_counts(log, self.lag_weights, **options)


@dataclass(eq=False, kw_only=True)
class Markov(LagCountModel):
    """The weights B count how often an item (column) came right after another (row).

    Scores are x @ B, with x the history's items weighted by recency.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.Markov().fit(log).recommend([1], k=3)["item_id"].to_list()
    [4, 70, 95]
    """

    name = "markov"
    summary = "What comes right after; a baseline"

    @property
    def lag_weights(self) -> Array:
        """The weight of a pair by its lag: 1 for the next row."""
        return np.array([0.0, 1.0])


@dataclass(eq=False, kw_only=True)
class Rules(LagCountModel):
    """The weights B count how often an item came after another, with weight 1 / lag in rows.

    B is earlier item x later item; scores are x @ B, with x the history's items weighted by
    recency.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.Rules().fit(log).recommend([1], k=3)["item_id"].to_list()
    [4, 70, 95]
    """

    name = "rules"
    summary = "What comes soon after; in every comparison"

    steps: int = param(10, "largest lag, in rows", low=1, high=10_000, search=(1, 30))

    @property
    def lag_weights(self) -> Array:
        """The weight of a pair by its lag, 1 for the next row: 1 / lag, for lags up to `steps`."""
        return np.concatenate([[0.0], 1 / np.arange(1, self.steps + 1)])


@dataclass(eq=False, kw_only=True)
class Association(CountModel):
    """The weights B (item x item) count the users who have both items.

    Scores are x @ B, with x the history's items weighted by recency.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.Association().fit(log).recommend([1], k=3)["item_id"].to_list()
    [17, 4, 37]
    """

    name = "association"
    summary = "What people have together; a baseline without time"

    def counts(self, log: Log) -> Matrix:
        """Return the number of users who have both items (item x item), with a diagonal of 0.

        Only the last `max_history` rows of a user count; `budget` is the memory to use, in bytes.
        """
        together = self.build_gram(slis_term(log, self.max_history)).G
        if is_sparse(together):
            return together - sparse.diags_array(together.diagonal(), format="csr")
        counts = together.copy()  # other models may share the matrix
        np.fill_diagonal(counts, 0.0)
        return counts

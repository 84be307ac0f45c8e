"""Counting models: Markov chains, sequential rules, association rules. Fast to fit, and hard to beat."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from talerec.data.log import Log
from talerec.gram.builders import gap_counts, slis_gram
from talerec.models.core.params import param
from talerec.models.linear.base import Linear
from talerec.ranking.weights import Weights
from talerec.runtime.arrays import Matrix, is_sparse
from talerec.runtime.clock import Clock
from talerec.runtime.lazy import sparse

_PAPER = "A Comparison of Frequent Pattern Techniques and a Deep Learning Method, RecTemp 2017"


@dataclass(eq=False, kw_only=True)
class Counted(Linear):
    """A model whose weights B are counts of pairs of items."""

    paper: ClassVar[str] = _PAPER

    @abstractmethod
    def counts(self, log: Log) -> Matrix:
        """The counts, source x target."""

    def learn_weights(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        with clock("gram"):
            counts = self.counts(log)
            if not is_sparse(counts):
                return Weights(np.ascontiguousarray(counts, np.float32)), None
            rows: Any = counts.tocsr().astype(np.float32)
            rows.eliminate_zeros()
        return Weights(rows), None


@dataclass(eq=False, kw_only=True)
class Markov(Counted):
    """B counts how often one item came right after another.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.Markov().fit(log).recommend([1], k=3)["item_id"].to_list()
    [4, 70, 95]
    """

    name: ClassVar[str] = "markov"
    good_for: ClassVar[str] = "What comes right after; a baseline"

    @property
    def takes_weights(self) -> bool:
        return True

    def counts(self, log: Log) -> Matrix:
        next_row = np.array([0.0, 1.0])
        return gap_counts(log, next_row, max_history=self.max_history, memory=self.budget)


@dataclass(eq=False, kw_only=True)
class Rules(Counted):
    """B counts how often one item came after another, each time as 1 / (rows from the one to the other).

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.Rules().fit(log).recommend([1], k=3)["item_id"].to_list()
    [4, 70, 95]
    """

    name: ClassVar[str] = "rules"
    good_for: ClassVar[str] = "What comes soon after; in every comparison"

    steps: int = param(10, "rows that a rule may span", low=1, high=10_000, search=(1, 30))

    @property
    def takes_weights(self) -> bool:
        return True

    def counts(self, log: Log) -> Matrix:
        weight = np.concatenate([[0.0], 1 / np.arange(1, self.steps + 1)])
        return gap_counts(log, weight, max_history=self.max_history, memory=self.budget)


@dataclass(eq=False, kw_only=True)
class Association(Counted):
    """B counts the users who have both items.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.Association().fit(log).recommend([1], k=3)["item_id"].to_list()
    [17, 4, 37]
    """

    name: ClassVar[str] = "association"
    good_for: ClassVar[str] = "What people have together; a baseline without time"

    def counts(self, log: Log) -> Matrix:
        together = slis_gram(log, max_history=self.max_history, memory=self.budget).G
        if is_sparse(together):
            return together - sparse.diags_array(together.diagonal(), format="csr")
        np.fill_diagonal(together, 0.0)
        return together

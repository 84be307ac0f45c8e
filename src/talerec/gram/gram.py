"""The Gram: G = S'S and K = S'T, and what can be done with it.

Grams add: users may be counted in parts and summed, and a blend of two models is a sum of theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from talerec.gram.sparse_kernels import Entries, squared_distance
from talerec.runtime.arrays import Array, Matrix, dense, is_sparse


class Sums(NamedTuple):
    """What says how far the direction of pairs is chance (see `Gram.two_way`)."""

    distance: float  # sum of the squared entries of K - K'
    total: float  # of K
    own: float  # of K's diagonal
    trace: float  # of G
    tied: float  # of K's entries from simultaneous rows of different items

    def share(self, even: float) -> float:
        """How much of K' joins K."""
        if not (even and self.total and self.distance):
            return 0.0
        expected = 2 * self.trace * max(1 - (self.own + self.tied) / self.total, 0.0)
        chance = min(even * expected / self.distance, 1.0)
        return chance / (2 - chance)


@dataclass(frozen=True, eq=False, repr=False)
class Gram:
    """G = S'S and K = S'T, all that a linear model needs to know of a log.

    Parameters
    ----------
    G : matrix of shape (items, items)
        How often items are sources together; symmetric.
    K : matrix of shape (items, items)
        How much each item (row) leads to each other (column).

    Both are dense NumPy arrays, or both sparse (G by row, K by column); float64, or float32 where
    sparse ones have to fit a memory budget.

    Examples
    --------
    Grams add, and can be multiplied by numbers. A blend of two models is a sum of theirs:

    >>> import talerec as tr
    >>> log = tr.synthetic_log(200)
    >>> slis = tr.slis_gram(log, max_history=2500)
    >>> slit = tr.slit_gram(log, position=1.0, max_history=2500)
    >>> 0.2 * slis + 0.8 * slit
    Gram(20 items, dense)
    """

    G: Matrix
    K: Matrix

    def __repr__(self) -> str:
        form = f"sparse, {self.density:.2%} stored" if self.is_sparse else "dense"
        return f"Gram({self.items:,} items, {form})"

    @property
    def items(self) -> int:
        """The number of items."""
        return int(self.G.shape[0])

    @property
    def is_sparse(self) -> bool:
        """Whether G and K are sparse."""
        return is_sparse(self.G)

    @property
    def density(self) -> float:
        """The share of entries of G that are stored."""
        return float(self.G.nnz / self.items**2) if self.is_sparse else 1.0

    def __add__(self, other: Gram) -> Gram:
        if self.is_sparse and other.is_sparse:
            return Gram(self.G + other.G, self.K + other.K)
        return Gram(dense(self.G) + dense(other.G), dense(self.K) + dense(other.K))

    def __mul__(self, share: float) -> Gram:
        return Gram(self.G * share, self.K * share)

    __rmul__ = __mul__

    def two_way(self, even: float, tied: float = 0.0) -> Gram:
        """K + share K': a row also leads to what came before it, as far as their order is chance.

        Of the squared difference between K and K', chance explains 2 s (sum(K) - tied), s = trace(G) /
        sum(K) being the mean weight of a pair, and `tied` what simultaneous rows have in K: these count
        both ways already. With b that part of the difference (times `even`, at most 1), the best guess
        of K_ij is (1 - b/2) K_ij + b/2 K_ji, or K_ij + b/(2 - b) K_ji up to a factor.
        """
        share = self.turned_share(even, tied)
        return self.with_turned(share)

    def with_turned(self, share: float) -> Gram:
        """K + share K', the share being known."""
        return Gram(self.G, self.K + share * self._turned) if share else self

    def turned_share(self, even: float, tied: float = 0.0) -> float:
        """The share of K' that `two_way` adds to K."""
        sums = Sums(
            _squared_distance(self.K, self._turned),
            float(self.K.sum()),
            float(self.K.diagonal().sum()),
            float(self.G.diagonal().sum()),
            tied,
        )
        return sums.share(even)

    @property
    def _turned(self) -> Matrix:
        return self.K.T.asformat(self.K.format) if self.is_sparse else self.K.T

    def scaled(self, source: Array, target: Array) -> Gram:
        """diag(source) G diag(source) and diag(source) K diag(target)."""
        return Gram(_times(self.G, source, source), _times(self.K, source, target))


def _squared_distance(left: Matrix, right: Matrix) -> float:
    """The sum of squared differences of two matrices, both dense or both sparse in one format."""
    if not is_sparse(left):
        return float(((left - right) ** 2).sum())
    for matrix in (left, right):
        matrix.sort_indices()
    entries = (Entries(m.indptr, m.indices, m.data) for m in (left, right))
    return float(squared_distance(*entries))


def _times(matrix: Matrix, rows: Array, columns: Array) -> Matrix:
    """diag(rows) matrix diag(columns), in the format of `matrix`."""
    if not is_sparse(matrix):
        return matrix * rows[:, None] * columns
    made = matrix.multiply(rows[:, None]).multiply(columns[None, :])
    return made.asformat(matrix.format)

"""The Gram, G = S'S and K = S'T, and its arithmetic: sums, multiples, reverse pairs."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from talerec.runtime import CSR, Array, Matrix, dense, is_sparse, squared_distances

_TILE = 128  # rows of a tile of a dense matrix


class DirectionStats(NamedTuple):
    """Sums over a Gram (G = S'S, K = S'T) from which chance in the order of rows is estimated.

    K is source x target: how much each item leads to each other. K' is its transpose; simultaneous
    rows are a user's rows of equal time.
    """

    asymmetry: float  # sum of the squared entries of K - K'
    total: float  # sum of K
    diagonal: float  # sum of K's diagonal
    trace: float  # sum of G's diagonal
    simultaneous: float  # sum of K's entries from simultaneous rows of different items

    def reverse_share(self, shrinkage: float) -> float:
        """Return c for K + c K': the more of the difference of K and K' is chance, the larger.

        K (source x target) says how much each item leads to each other. `asymmetry` is the sum of
        squared entries of K - K', `total` the sum of K, `diagonal` and `trace` the sums of the
        diagonals of K and G, `simultaneous` the part of `total` from a user's rows of equal time. c
        lies between 0 (the order of rows tells all) and 1 (nothing). shrinkage multiplies the
        estimated share of chance; 0 gives c = 0. c is rounded to float32, so that it is the same in
        whichever order the sums are added: on one machine or on a cluster.
        """
        if not (shrinkage and self.total and self.asymmetry):
            return 0.0
        expected = 2 * self.trace * max(1 - (self.diagonal + self.simultaneous) / self.total, 0.0)
        chance = min(shrinkage * expected / self.asymmetry, 1.0)
        return float(np.float32(chance / (2 - chance)))


@dataclass(frozen=True, eq=False, repr=False)
class Gram:
    """G = S'S and K = S'T: all that a linear model needs from a log.

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
        """The number of items: rows and columns of G and K."""
        return int(self.G.shape[0])

    @property
    def is_sparse(self) -> bool:
        """Whether G and K, items x items, are SciPy sparse arrays; else they are NumPy arrays."""
        return is_sparse(self.G)

    @property
    def density(self) -> float:
        """The share of the entries of G (items x items) that are stored; 1 if it is dense."""
        return float(self.G.nnz / self.items**2) if self.is_sparse else 1.0

    @property
    def k_entries(self) -> int:
        """The number of entries of K that are stored, or not zero if K is dense."""
        return int(self.K.nnz if self.is_sparse else np.count_nonzero(self.K))

    def __add__(self, other: Gram) -> Gram:
        """Return the Gram of G + other.G and K + other.K; sparse only if both are."""
        if self.is_sparse and other.is_sparse:
            return Gram(self.G + other.G, self.K + other.K)
        return Gram(dense(self.G) + dense(other.G), dense(self.K) + dense(other.K))

    def __mul__(self, share: float) -> Gram:
        return Gram(self.G * share, self.K * share)

    __rmul__ = __mul__

    def symmetrize(self, shrinkage: float, simultaneous: float = 0.0) -> Gram:
        """Return the Gram with K + c K', c chosen by how much of the rows' order is chance.

        K (source x target) says how much each item leads to each other, and K' is its transpose.
        Chance explains 2 s (sum(K) - trace(K) - simultaneous) of the squared difference between K
        and K', where s = trace(G) / sum(K) is the mean weight of a pair, and `simultaneous` is the
        sum of K's entries from simultaneous rows of different items, which count in both
        directions already. With b the explained share of the difference (times `shrinkage`, at
        most 1), the best estimate of K_ij is (1 - b/2) K_ij + b/2 K_ji, which is
        K_ij + b/(2 - b) K_ji up to a factor.
        """
        return self.add_reverse(self.reverse_share(shrinkage, simultaneous))

    def add_reverse(self, share: float) -> Gram:
        """Return the Gram with K + share K' in place of K (source x target), and the same G.

        K' is K transposed. share 0 returns the Gram itself.
        """
        if not share:
            return self
        if self.is_sparse:
            return Gram(self.G, self.K + share * self._transposed_k)
        K = np.empty(self.K.shape, self.K.dtype)
        for tile in _tiles(self.items):
            np.multiply(self.K.T[tile], share, out=K[tile])
            K[tile] += self.K[tile]
        return Gram(self.G, K)

    def reverse_share(self, shrinkage: float, simultaneous: float = 0.0) -> float:
        """Return the share c of K' (K transposed) that `symmetrize` adds to K, in 0..1.

        K (source x target) says how much each item leads to each other. shrinkage: a factor of the
        estimated share of chance in the order of rows; 0 gives c = 0. simultaneous: the sum of K's
        entries from simultaneous rows of different items, which count in both directions already.
        """
        stats = DirectionStats(
            _squared_distance(self.K, self._transposed_k),
            float(self.K.sum()),
            float(self.K.diagonal().sum()),
            float(self.G.diagonal().sum()),
            simultaneous,
        )
        return stats.reverse_share(shrinkage)

    def two_way(self, even: float, tied: float = 0.0) -> Gram:
        """Return `symmetrize(even, tied)`; the deprecated name of that method."""
        _warn_renamed("two_way", "symmetrize")
        return self.symmetrize(even, tied)

    def with_turned(self, share: float) -> Gram:
        """Return `add_reverse(share)`; the deprecated name of that method."""
        _warn_renamed("with_turned", "add_reverse")
        return self.add_reverse(share)

    def turned_share(self, even: float, tied: float = 0.0) -> float:
        """Return `reverse_share(even, tied)`; the deprecated name of that method."""
        _warn_renamed("turned_share", "reverse_share")
        return self.reverse_share(even, tied)

    @property
    def _transposed_k(self) -> Matrix:
        return self.K.T.asformat(self.K.format) if self.is_sparse else self.K.T

    def scaled(self, source: Array, target: Array) -> Gram:
        """Return the Gram of S diag(source) and T diag(target); both have a factor per item.

        S and T (training examples x items) have source and target items; G = S'S and K = S'T become
        diag(source) G diag(source) and diag(source) K diag(target).
        """
        return Gram(_scale(self.G, source, source), _scale(self.K, source, target))


def _warn_renamed(old: str, new: str) -> None:
    """Give a DeprecationWarning that the method `old` of Gram is now called `new`.

    The warning points at the line that calls the deprecated method.
    """
    message = f"Gram.{old} is now Gram.{new}; the old name goes with version 0.4"
    warnings.warn(message, DeprecationWarning, stacklevel=3)


def _squared_distance(left: Matrix, right: Matrix) -> float:
    """Return the sum of squared differences of two matrices, both dense or of one format.

    Sparse ones get their indices sorted in place.
    """
    if not is_sparse(left):
        tiles = _tiles(len(left))
        return sum(float(np.square(left[tile] - right[tile]).sum()) for tile in tiles)
    for matrix in (left, right):
        matrix.sort_indices()
    rows = (CSR(m.indptr, m.indices, m.data) for m in (left, right))
    return float(squared_distances(*rows).sum())  # a sum over millions of entries loses digits


def _tiles(n: int) -> list[tuple[slice, slice]]:
    """Return tiles that cover an n x n matrix, each small enough for a processor's cache.

    Arithmetic on a matrix and its transpose by tiles is faster, and needs no copy of a matrix.
    """
    spans = [slice(a, a + _TILE) for a in range(0, n, _TILE)]
    return [(rows, columns) for rows in spans for columns in spans]


def _scale(matrix: Matrix, rows: Array, columns: Array) -> Matrix:
    """Return diag(rows) matrix diag(columns), in the format of `matrix`.

    matrix: dense or sparse; rows, columns: a factor for each of its rows and columns.
    """
    if not is_sparse(matrix):
        return matrix * rows[:, None] * columns
    return matrix.multiply(rows[:, None]).multiply(columns[None, :]).asformat(matrix.format)

"""What a Gram is summed from: pairs of rows, of one kind or of two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import NamedTuple

from talerec.data.log import Log
from talerec.gram.assembly import ONLY_G, Pairs, assemble
from talerec.gram.gram import Gram
from talerec.runtime.arrays import Array, Matrix, is_sparse
from talerec.runtime.lazy import sparse


class Summand(NamedTuple):
    """Pairs of rows that a Gram is summed from."""

    log: Log  # the rows that count
    pairs: Pairs
    is_alike: bool = False  # whether K is G
    share: float = 1.0  # what the pairs are multiplied by
    roots: tuple[Array, Array] | None = (
        None  # what sources and targets are multiplied by in the end
    )

    def gram(self, memory: int | None) -> Gram:
        """The Gram of these pairs; `memory` in bytes (None: what is free)."""
        if self.is_alike:
            G, _ = assemble(self.log, self.pairs, memory, ONLY_G)
            made = Gram(G, _transposed(G))
        else:
            made = Gram(*assemble(self.log, self.pairs, memory))
        made = made if self.roots is None else made.scaled(*self.roots)
        return made if self.share == 1.0 else self.share * made


def mixed(alpha: float, slis: Callable[[], Summand], other: Callable[[], Summand]) -> list[Summand]:
    """alpha of the one and 1 - alpha of the other."""
    if alpha in (0, 1):
        return [slis() if alpha else other()]
    return [slis()._replace(share=alpha), other()._replace(share=1 - alpha)]


def total(summands: Sequence[Summand], memory: int | None = None) -> Gram:
    """The Gram of all summands."""
    return reduce(add, (one.gram(memory) for one in summands))


def _transposed(G: Matrix) -> Matrix:
    """A symmetric G by column, without a copy."""
    if not is_sparse(G):
        return G.T
    return sparse.csc_array((G.data, G.indices, G.indptr), shape=G.shape)

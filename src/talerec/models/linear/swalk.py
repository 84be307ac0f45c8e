"""S-Walk (WSDM 2022): a random walk over SLIT's transitions with restarts along SLIS'."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from talerec.data import Log
from talerec.gram import Gram
from talerec.models.core import param
from talerec.models.linear.slist import SLIT
from talerec.ranking import Weights
from talerec.runtime import (
    CSR,
    Array,
    Clock,
    Matrix,
    borrow,
    csr_rows,
    dense,
    is_sparse,
    kernel,
    require_memory,
    run_chunks,
    shrink_indptr,
    sized_chunks,
    sparse,
    stage,
    template,
)
from talerec.solvers import keep_largest

_CHUNK = 256  # walks per task of a thread


@dataclass(eq=False, kw_only=True)
class SWalk(SLIT):
    """A random walk over items that follows SLIT's weights and restarts along those of SLIS.

    M <- alpha M R + (1 - alpha) (beta T + (1 - beta) I), `steps` times from M = I, with R from SLIT
    (earlier items predict later ones) and T from SLIS (a user's items predict each other), both
    without negative weights and with row sums of 1; the weights B (item x item) are the last M.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.SWalk().fit(log).recommend([1], k=3)["item_id"].to_list()
    [86, 11, 4]
    """

    name = "swalk"
    summary = "Short sessions with few links between items"
    is_solved_by_target = False
    paper = (
        "S-Walk: Accurate and Scalable Session-based Recommendation with Random Walks, WSDM 2022"
    )

    alpha: float = param(0.5, "probability that a walk continues", low=0, high=1, search=(0.1, 0.9))
    beta: float = param(
        0.5, "probability of a restart at a similar item, not the same", low=0, high=1
    )
    steps: int = param(5, "steps of a walk", low=1, high=1000)
    width: int = param(200, "items stored after every step of a walk (local solver)", low=1)

    def learn_weights(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        """Return the walk's matrix M (item x item) as weights, and the name of the solver.

        M has the probabilities that a walk from an item (row) is at another (column) after all
        steps. clock("name") adds the seconds of its block to that stage.
        """
        with clock("gram"):
            slit, slis = self.gram(log), self.build_gram(self._slis(log))
        with clock("solve"):
            successors = self.solution(slit)
            similar = self._solve_slis(slis, successors.solver)
            T = _mix_identity(normalize_rows(similar), self.beta)
            walked = walk(normalize_rows(successors.weights), T, self.alpha, self.steps, self.width)
            return Weights(walked), successors.solver

    def _solve_slis(self, gram: Gram, solver: str) -> Matrix:
        """Return the weights of SLIS, item x item, from its Gram: G = X'X, with X user x item.

        They are I - reg P, P = (G + reg I)^-1, which is (G + reg I)^-1 G. solver: its name.
        """
        penalty = self.penalty(np.asarray(gram.G.diagonal()))
        return self.solve_bounded(gram, penalty, 1.0, solver).weights


def _mix_identity(T: Matrix, beta: float) -> Matrix:
    """Return beta T + (1 - beta) I for an item x item matrix T, sparse or dense, as float32."""
    n = T.shape[0]
    if is_sparse(T):
        mixture = beta * T + (1 - beta) * sparse.eye_array(n, format="csr", dtype=np.float32)
        return mixture.astype(np.float32)
    T = np.float32(beta) * T
    T.flat[:: n + 1] += np.float32(1 - beta)
    return T


def normalize_rows(B: Matrix) -> Matrix:
    """Return B without negative weights and with row sums of 1 (0 for rows without weights)."""
    if not is_sparse(B):
        positive = np.maximum(B, 0)
        scale = _reciprocal(positive.sum(axis=1, dtype=np.float64))
        return np.multiply(positive, scale[:, None], out=positive, casting="same_kind")
    positive = B.maximum(0)
    scale = _reciprocal(np.asarray(positive.sum(axis=1, dtype=np.float64)).ravel())
    scaled = positive.data * np.repeat(scale, np.diff(positive.indptr))
    positive.data = scaled.astype(B.dtype)
    positive.eliminate_zeros()
    return positive


def _reciprocal(sums: Array) -> Array:
    """Return 1 / sums, and 0 for 0."""
    return np.divide(1.0, sums, out=np.zeros_like(sums), where=sums > 0)


# -- walks -----------------------------------------------------------------------------------------


class WalkGraphs(NamedTuple):
    """The parameters of M <- alpha M R + (1 - alpha) T, `steps` times from M = I.

    R and T are item x item matrices of transition probabilities, as compressed rows (CSR): a step
    of a walk, and where it restarts. alpha: the probability that a walk continues.
    """

    R: CSR
    T: CSR
    alpha: float
    steps: int


class WalkRows(NamedTuple):
    """Rows of M, the probabilities of walks: row i is of the walk that starts at item i.

    items, values: item x column; the first sizes[i] columns of row i hold its entries, items
    ascending, and their probabilities.
    """

    items: Array
    values: Array
    sizes: Array


class WalkScratch(NamedTuple):
    """Work arrays of one walk, one entry per item; the walk starts at one item."""

    share: Array  # probability of each item after a step; zeros between steps
    reached: Array  # items with a probability
    gain: Array  # their probabilities
    top_items: Array  # the items that are kept after a step
    top_shares: Array  # their probabilities


def walk(R: Matrix, T: Matrix, alpha: float, steps: int, width: int) -> Matrix:
    """Return M after `steps` times M <- alpha M R + (1 - alpha) T, from M = I.

    R and T are item x item transition probabilities. With sparse R and T, each row of M keeps its
    `width` largest entries after every step, and the result is sparse; otherwise it is dense.
    """
    n = R.shape[0]
    if not (is_sparse(R) and is_sparse(T)):
        return _walk_dense(dense(R), dense(T), alpha, steps)
    width = min(width, n)
    items, values = np.empty((n, width), np.int32), np.empty((n, width), np.float32)
    out = WalkRows(items, values, np.empty(n, np.int64))
    graphs = WalkGraphs(csr_rows(R), csr_rows(T), alpha, steps)
    run_chunks("walk", lambda a, b: _walk_rows(graphs, a, b, out), sized_chunks(n, _CHUNK))
    is_entry = np.arange(width) < out.sizes[:, None]
    indptr = shrink_indptr(np.concatenate([[0], np.cumsum(out.sizes)]))
    return sparse.csr_array((values[is_entry], items[is_entry], indptr), shape=(n, n))


def _walk_dense(R: Array, T: Array, alpha: float, steps: int) -> Array:
    """Return M after `steps` times M <- alpha M R + (1 - alpha) T, from M = I, in float32.

    R and T are dense item x item transition probabilities. TalerecError if there is not enough
    memory.
    """
    n = len(R)
    require_memory(3 * 4 * n * n, f"a walk over {n:,} items", "use solver=local")
    M = (alpha * R + (1 - alpha) * T).astype(np.float32)
    product = np.empty_like(M)
    tick = stage("walk", float(steps))
    tick(1.0)
    for _ in range(steps - 1):
        np.matmul(M, R, out=product)
        product *= np.float32(alpha)
        product += np.float32(1 - alpha) * T
        M, product = product, M
        tick(1.0)
    return M


@template
def _add_row(graph: CSR, source: int, weight: float, scratch: WalkScratch, count: int) -> int:
    """Add `weight` times row `source` of a graph to scratch.share; return the new `count`.

    graph: item x item transition probabilities, CSR. scratch.share: the probability of each item
    after this step. `count` is the number of items reached so far, which scratch.reached lists.
    """
    indices, values = borrow(graph.indices), borrow(graph.values)
    shares, reached = borrow(scratch.share), borrow(scratch.reached)
    for x in range(graph.indptr[source], graph.indptr[source + 1]):
        i, share = indices[x], weight * values[x]
        before = shares[i]
        reached[count] = i  # overwritten unless it is new
        count += before == 0.0 and share > 0.0
        shares[i] = before + share
    return count


@template
def _keep_top(scratch: WalkScratch, count: int, width: int) -> int:
    """Keep the `width` most probable of the `count` reached items; return how many are kept.

    scratch: `share` has the probability of each item, `reached` the items that have one. Writes the
    kept ones to top_items and top_shares, and resets `share` to zeros.
    """
    share, reached, gain = borrow(scratch.share), borrow(scratch.reached), borrow(scratch.gain)
    top_items, top_shares = borrow(scratch.top_items), borrow(scratch.top_shares)
    for x in range(count):
        top_items[x], gain[x] = x, share[reached[x]]
        share[reached[x]] = 0.0
    size = keep_largest(gain, top_items, count, width)
    for x in range(size):
        place = top_items[x]
        top_items[x], top_shares[x] = reached[place], gain[place]
    return size


@template
def _walk_from(i: int, graphs: WalkGraphs, width: int, scratch: WalkScratch) -> int:
    """Make all steps of the walk from item i; return the number of entries of its row of M.

    A step follows graphs.R with probability alpha, else it restarts along row i of graphs.T; the
    `width` most probable items are kept. The entries are left in top_items and top_shares of the
    scratch arrays, in no order.
    """
    scratch.top_items[0], scratch.top_shares[0], size = i, 1.0, 1
    for _ in range(graphs.steps):
        count = _add_row(graphs.T, i, 1 - graphs.alpha, scratch, 0)
        for x in range(size):
            weight = graphs.alpha * scratch.top_shares[x]
            count = _add_row(graphs.R, scratch.top_items[x], weight, scratch, count)
        size = _keep_top(scratch, count, width)
    return size


@kernel
def _walk_rows(graphs: WalkGraphs, a: int, b: int, out: WalkRows) -> None:
    """Write rows a to b - 1 of M, the matrix of the walk, to `out`, items ascending.

    Row i has the probabilities of items after all steps of the walk from item i. graphs: transition
    probabilities and options of the walk.
    """
    n = len(graphs.R.indptr) - 1
    reached, top_items = np.empty(n + 1, np.int32), np.empty(n, np.int32)  # one entry to spare
    scratch = WalkScratch(np.zeros(n), reached, np.empty(n), top_items, np.empty(n))
    for i in range(a, b):
        size = _walk_from(i, graphs, out.items.shape[1], scratch)
        order = np.argsort(scratch.top_items[:size])
        for x in range(size):
            out.items[i, x] = scratch.top_items[order[x]]
            out.values[i, x] = scratch.top_shares[order[x]]
        out.sizes[i] = size

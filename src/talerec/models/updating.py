"""Tomorrow's rows: a fitted model after these rows too, without starting over.

What a fit has settled stays: the trend count of every old row (a new row's is counted when it comes), the solver, and what
tempo measured and learned. Only the users who have new rows change G and K: what their rows give now, less what they gave, is added to the G that
was kept. A target is solved again where its old weights no longer fit: where the normal equation of some source of it asks for a change beyond
the tolerance, this time or since it was last solved. Its column of K is counted from all histories.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from talerec import columns
from talerec.data.log import Log, as_log
from talerec.data.merging import Merged, merged
from talerec.errors import TalerecError
from talerec.models import keeping
from talerec.models.base import Model
from talerec.models.checks import check_settled
from talerec.models.keeping import Fitted
from talerec.models.linear import Solved
from talerec.models.settled import Settled, later_trends
from talerec.ranking.weights import Weights
from talerec.runtime.arrays import Array, is_sparse
from talerec.runtime.clock import Clock
from talerec.runtime.lazy import sparse
from talerec.solvers.compressed import by_column
from talerec.solvers.growing import grown
from talerec.solvers.half import Half, halved
from talerec.solvers.local import local_kept
from talerec.solvers.residuals import worst_steps

logger = logging.getLogger("talerec")

#: By how much a weight may be off, as a share of its target's largest one, before the target is solved again.
TOLERANCE = 0.2


@dataclass(frozen=True)
class Update:
    """What an update did."""

    rows: int  # that are new
    users: int
    items: int
    solved: int  # targets
    targets: int
    seconds: dict[str, float]


def update(model: Model, rows: Log | Any, *, tolerance: float = TOLERANCE) -> Update:
    """Make a fitted model what it is after these rows too.

    Parameters
    ----------
    model : Model
        A fitted model that keeps its histories; it is changed.
    rows : Log, or a frame
        Rows that came later; late ones are put in their place, and those that the model has already are left out.
    tolerance : float
        By how much a weight may be off, as a share of its target's largest one, before the target is solved
        again; 0 solves all.

    Returns
    -------
    Update
        How many rows, users and items are new, and how many targets were solved again.

    Raises
    ------
    TalerecError
        Where the model cannot be updated; the message says why.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> model = tr.TALE().fit(log.keep(log.time < log.time.max() - 10**12).compact())
    >>> tr.update(model, log).rows
    20
    """
    if not tolerance >= 0:
        raise TalerecError(f"tolerance is {tolerance}; it takes a number from 0 on")
    refuse(model)
    if model.fitted.log is None:
        raise TalerecError("this model was saved without histories: fit it anew")
    model._fitted = before = model._settled()
    log, clock = before.log, Clock()
    assert log is not None
    assert before.settled is not None
    check_settled(before.settled, len(log.items))
    with clock("rows"):
        found = merged(log, as_log(rows))
        if not found.is_new.any():
            return Update(0, 0, 0, 0, len(log.items), clock.seconds)
        _mention_strangers(found)
        whole = _with_trends(model, log, found)
    weights, settled, solved = _learned(model, before, whole, found.is_new, tolerance, clock)
    info = described(before.info, whole)
    whole = replace(whole, info=info)
    facts = {**before.training, **keeping.training_facts(whole)}
    for name in (keeping.STORE, keeping.STORE_SEQ):
        facts.pop(name, None)  # rows from elsewhere may be of users who were deleted there
    facts["updates"] = int(before.training.get("updates", 0)) + 1
    model._fitted = Fitted(
        weights, whole.items, info, whole, before.solver, clock.seconds, facts, settled=settled
    )
    new = int(found.is_new.sum())
    return Update(new, found.users, found.items, solved, len(whole.items), clock.seconds)


def refuse(model: Model) -> None:
    """An error where a model of these parameters cannot be updated; it says why."""
    values = model.params
    if not model.grows:
        raise TalerecError(f"{model.name} cannot be updated: fit it anew")
    if values.get("decay_user"):
        raise TalerecError("decay_user changes every row with the log's end: fit the model anew")
    if values.get("norm") == "symmetric":
        raise TalerecError(
            "norm=symmetric changes every row with every item's sum: fit the model anew"
        )


def _mention_strangers(found: Merged) -> None:
    """A warning where new rows have nothing to do with old ones: it may be the log of another shop."""
    items, known = found.log.item[found.is_new], len(found.log.items) - found.items
    if (items >= known).all():  # new ones have the last places
        logger.warning(
            "no item of the %s new rows is in the model: is it the log of this shop?",
            f"{len(items):,}",
        )


def _with_trends(model: Model, old: Log, found: Merged) -> Log:
    """The merged log with the counts of old rows as they were, and those of new rows as they come."""
    if old.trends is None:
        return found.log
    counts = later_trends(model.params, found.log, found.is_new, old.trends)
    return replace(found.log, trends=counts)


def described(info: pl.DataFrame | None, log: Log) -> pl.DataFrame | None:
    """The item table with empty rows for new items."""
    if info is None:
        return None
    mine = pl.DataFrame({columns.ITEM: log.items.ids})
    return mine.join(info, on=columns.ITEM, how="left", maintain_order="left")


# -- learning --------------------------------------------------------------------------------------


def _learned(
    model: Model, before: Fitted, log: Log, is_new: Array, tolerance: float, clock: Clock
) -> tuple[Weights, Settled, int]:
    """Weights, what is settled for the next rows, and how many targets were solved."""
    settled = before.settled
    assert settled is not None
    own = model.as_settled(settled)
    if settled.lacking is None or not isinstance(own, Solved):
        return own.learn_weights(log, clock)[0], settled, len(log.items)
    with clock("gram"):
        half, dG, dK, counted = _equations(own, settled, log, is_new)
        penalty = own.penalty(half.diagonal)
    with clock("changes"):
        old = _widened(own.item_weights(), half.items)
        lacking = np.full(half.items, np.inf)  # at tolerance 0
        if tolerance:
            lacking = _lacking(own, settled.lacking, half, dG, dK, old)
        wanted = lacking > tolerance
    with clock("columns"):
        K = own.target_columns(log, wanted) if counted is None else _only(counted, wanted)
        entries = settled.entries if counted is None else counted.nnz
    with clock("solve"):
        solved = local_kept(half, K, penalty, own.neighbors, entries)
        made = _replaced(old, solved, wanted)
    lacking[wanted] = 0.0
    kept = replace(settled, half=half if counted is None else None, lacking=lacking)
    return own.completed(made, log, clock), kept, int(wanted.sum())


def _equations(
    model: Solved, settled: Settled, log: Log, is_new: Array
) -> tuple[Half, Half, Any, Any | None]:
    """Half of G, half of what changed in it, what changed in K; and K, where G was not kept and both are counted."""
    dG, dK = _changes(model, log, is_new)
    if settled.half is not None:
        half, change = grown(settled.half, dG)
        return half, change, dK, None
    gram = model.gram(log)
    return halved(gram.G), halved(dG), dK, sparse.csc_array(gram.K)


def _changes(model: Solved, log: Log, is_new: Array) -> tuple[Any, Any]:
    """dG and dK: the Gram of the users who have new rows, less that of their old rows."""
    touched = np.zeros(len(log.users), bool)
    touched[log.user_codes()[is_new]] = True
    mine = log.keep(np.repeat(touched, np.diff(log.ptr)))
    after = model.gram(mine)
    before = model.gram(mine.keep(~is_new[np.repeat(touched, np.diff(log.ptr))]))
    return _rows(after.G) - _rows(before.G), _rows(after.K) - _rows(before.K)


def _lacking(model: Solved, known: Array, half: Half, dG: Half, dK: Any, weights: Any) -> Array:
    """How much the weights of each target lack: what they lacked before, and what the new rows ask for.

    New rows change G and K of their users by dG and dK. A target's normal equations then lack dK - dG b, source
    by source; over the diagonal, that is what one step would add to the weight.
    """
    penalty = model.penalty(half.diagonal)
    own = dG.diagonal + penalty - model.penalty(half.diagonal - dG.diagonal)
    lines = by_column(dK.tocsc()), by_column(weights.tocsc())
    found = worst_steps(dG, own, *lines, 1 / (half.diagonal + penalty))
    found[: len(known)] += known
    return found


def _only(K: Any, wanted: Array) -> Any:
    """K without the columns of other targets."""
    kept = np.repeat(wanted, np.diff(K.indptr))
    starts = np.concatenate([[0], np.cumsum(kept)])[K.indptr]
    return sparse.csc_array((K.data[kept], K.indices[kept], starts), shape=K.shape)


def _rows(matrix: Any) -> Any:
    return matrix.tocsr() if is_sparse(matrix) else sparse.csr_array(matrix)


def _widened(weights: Any, n: int) -> Any:
    """Old weights with room for new items."""
    made = _rows(weights)
    starts = np.concatenate([made.indptr, np.full(n + 1 - len(made.indptr), made.indptr[-1])])
    return sparse.csr_array((np.array(made.data), np.array(made.indices), starts), shape=(n, n))


def _replaced(old: Any, new: Any, wanted: Array) -> Any:
    """The old weights with the columns of the wanted targets from the new ones."""
    old.data[wanted[old.indices]] = 0.0
    old.eliminate_zeros()
    made = (old + new).astype(np.float32)
    made.sort_indices()
    return made

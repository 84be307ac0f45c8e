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
from talerec.data.log_merge import Merged, merged
from talerec.errors import TalerecError
from talerec.models.core import persistence as keeping
from talerec.models.core.base import Model
from talerec.models.core.checks import check_settled
from talerec.models.core.persistence import Fitted
from talerec.models.core.update_state import Settled, later_trends
from talerec.models.linear.base import Solved
from talerec.ranking.weights import Weights
from talerec.runtime.arrays import Array, is_sparse
from talerec.runtime.clock import Clock
from talerec.runtime.lazy import sparse
from talerec.solvers.compressed import by_column
from talerec.solvers.local import local_kept
from talerec.solvers.residuals import worst_steps
from talerec.solvers.triangle import Half, halved
from talerec.solvers.triangle_update import grown

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
    undescribed: int = 0  # new items without a row in the item table


def update(
    model: Model,
    rows: Log | Any,
    *,
    tolerance: float = TOLERANCE,
    items: pl.DataFrame | None = None,
) -> Update:
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
    items : polars.DataFrame, optional
        Rows of the item table, as `read_items` gives them, in place of those of the same items.

    Returns
    -------
    Update
        How many rows, users and items are new, how many targets were solved again, how many new items are not described.

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
    before, log, clock = *_settled(model), Clock()
    with clock("rows"):
        found = merged(log, as_log(rows))
        if not found.is_new.any():
            model._fitted = _with_items(before, log, items)
            return Update(0, 0, 0, 0, len(log.items), clock.seconds)
        _mention_strangers(found)
        whole = _with_trends(model, log, found)
    weights, settled, solved = _learned(model, before, whole, found.is_new, tolerance, clock)
    info = described(before.info, whole, items)
    whole = replace(whole, info=info)
    facts = _facts(before, whole)
    model._fitted = Fitted(
        weights, whole.items, info, whole, before.solver, clock.seconds, facts, settled=settled
    )
    new, bare = int(found.is_new.sum()), _mention_undescribed(info, found.items)
    return Update(new, found.users, found.items, solved, len(whole.items), clock.seconds, bare)


def _settled(model: Model) -> tuple[Fitted, Log]:
    """What fitting left behind and what it settled, which are checked, and the histories."""
    if model.fitted.log is None:
        raise TalerecError("this model was saved without histories: fit it anew")
    model._fitted = before = model._settled()
    assert before.log is not None
    assert before.settled is not None
    check_settled(before.settled, len(before.log.items))
    return before, before.log


def _facts(before: Fitted, log: Log) -> dict[str, Any]:
    """What is said of the training after one more update."""
    facts = {**before.training, **keeping.training_facts(log)}
    for name in (keeping.STORE, keeping.STORE_SEQ):
        facts.pop(name, None)  # rows from elsewhere may be of users who were deleted there
    facts["updates"] = int(before.training.get("updates", 0)) + 1
    return facts


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


def _with_items(before: Fitted, log: Log, fresh: pl.DataFrame | None) -> Fitted:
    """What fitting left behind, with fresh rows of the item table."""
    info = described(before.info, log, fresh)
    return replace(before, info=info, log=replace(log, info=info))


def described(
    info: pl.DataFrame | None, log: Log, fresh: pl.DataFrame | None = None
) -> pl.DataFrame | None:
    """The item table with fresh rows in place of old ones, and empty rows for new items that have none."""
    if fresh is not None:
        info = _refreshed(info, log.with_items(fresh).info, fresh)
    if info is None:
        return None
    mine = pl.DataFrame({columns.ITEM: log.items.ids})
    return mine.join(info, on=columns.ITEM, how="left", maintain_order="left")


def _refreshed(old: pl.DataFrame | None, whole: Any, fresh: pl.DataFrame) -> pl.DataFrame:
    """The rows of a fresh table, which `whole` has for every item, and old ones of items that are not in it."""
    names = whole[columns.ITEM].cast(pl.String).is_in(fresh[columns.ITEM].cast(pl.String).implode())
    new: pl.DataFrame = whole.filter(names)
    if old is None:
        return new
    kept = old.join(new, on=columns.ITEM, how="anti", maintain_order="left")
    try:
        return pl.concat([kept, new], how="diagonal_relaxed")
    except pl.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0]
        raise TalerecError(f"the new item table does not fit the old one: {reason}") from None


_NAMED = 3  # items that a note names


def _mention_undescribed(info: pl.DataFrame | None, new: int) -> int:
    """How many of the last `new` items have nothing in the item table; a note says so."""
    if info is None or not new or info.width < 2:
        return 0
    last = info.tail(new)
    bare = last.filter(pl.all_horizontal(pl.exclude(columns.ITEM).is_null()))[columns.ITEM]
    if len(bare):
        logger.info(
            "%s of %s new items have no row in the item table, such as %s: update --items FILE gives them one",
            f"{len(bare):,}", f"{new:,}", ", ".join(map(str, bare.head(_NAMED))),
        )  # fmt: skip
    return len(bare)


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

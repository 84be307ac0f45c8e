"""Update: fit a model to new rows without fitting the old ones again.

What the fit fixed stays: the trend count of every old row (new rows are counted when they arrive),
the solver, and the statistics and query parameters that tempo learned. Only users with new rows
change G and K: the Gram of their rows now, less that of their old rows, is added to the stored G. A
target is solved again where its weights are off by more than the tolerance, summed over all updates
since it was last solved; its column of K is counted from all histories.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from talerec.data import Log, MergedLog, as_log, merge_logs
from talerec.errors import TalerecError
from talerec.models.core import (
    STORE,
    STORE_ITEM_SEQ,
    STORE_SEQ,
    UNSEEN_ITEMS,
    Fitted,
    Model,
    UpdateState,
    check_update_state,
    extend_trends,
    require_context,
    training_facts,
)
from talerec.models.item_updates import ItemUpdate, count_undescribed, merge_item_tables
from talerec.models.linear import RidgeModel
from talerec.ranking import Weights
from talerec.runtime import Array, Clock, csr_columns, is_sparse, sparse
from talerec.solvers import (
    LowerTriangle,
    StoredProblem,
    lower_triangle,
    solve_stored,
    target_residuals,
    update_triangle,
)

logger = logging.getLogger("talerec")

#: A target is solved again when a weight is off by more than this share of its largest weight.
TOLERANCE = 0.2


@dataclass(frozen=True)
class Update:
    """Counts of an update. A target is an item; its column of the weights is solved alone.

    rows, users, items  new rows, users and items
    solved, targets     targets solved again, of all targets
    seconds             time of each step
    undescribed         new items without a row in the item table
    added               new items without rows, which the model scores by the item table
    """

    rows: int
    users: int
    items: int
    solved: int
    targets: int
    seconds: dict[str, float]
    undescribed: int = 0
    added: int = 0


def update(
    model: Model,
    rows: Log | Any | None,
    *,
    tolerance: float = TOLERANCE,
    items: pl.DataFrame | None = None,
) -> Update:
    """Add rows to a fitted model.

    Parameters
    ----------
    model, rows : Model, Log or frame or None
        A fitted model with its histories, which is changed. New rows; late ones are sorted in, and
        those that the model has are ignored.
    tolerance : float
        A target is solved again when a weight is off by more than this share of its largest weight;
        0 solves all targets.
    items : polars.DataFrame, optional
        Rows of the item table, as `read_items` returns them; they replace those of the same items.
        Items without rows are added to a model that scores items by content (`scores_catalogue`).

    Returns
    -------
    Update
        Counts of new rows, users and items, and of targets solved again.

    Raises
    ------
    TalerecError
        If the model cannot be updated.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> model = tr.TALE().fit(log.keep(log.time < log.time.max() - 10**12).compact())
    >>> tr.update(model, log).rows
    20
    """
    check_updatable(model, tolerance)
    (before, log), clock = _prepare(model), Clock()
    with clock("rows"):
        new = log.keep(np.zeros(log.rows, bool)) if rows is None else as_log(rows)
        merge = merge_logs(log, require_context(model, new))
        table = ItemUpdate.read(model, items, merge.log.items)
        if not merge.is_new.any():
            model.set_fitted(_update_table(model, before, log, table))
            return Update(0, 0, 0, 0, len(log.items), clock.seconds, added=table.n_added)
        _warn_unrelated(merge)
        whole = replace(merge.log, items=table.items)
        whole = replace(whole, info=merge_item_tables(before.info, whole, table.rows))
        if log.trends is not None:
            trends = extend_trends(model.params, whole, merge.is_new, log.trends)
            whole = replace(whole, trends=trends)
    weights, state, n_solved = _learn_rows(model, before, whole, merge.is_new, tolerance, clock)
    fit = (weights, whole.items, whole.info, whole, before.solver, clock.seconds)
    model.set_fitted(Fitted(*fit, _updated_facts(model, before, whole), update_state=state))
    n_bare = count_undescribed(whole.info, slice(len(log.items), len(merge.log.items)))
    counts = (int(merge.is_new.sum()), merge.users, merge.items, n_solved, len(whole.items))
    return Update(*counts, clock.seconds, n_bare, table.n_added)


def _update_table(model: Model, before: Fitted, log: Log, table: ItemUpdate) -> Fitted:
    """Return the fit with the rows and new items of an item table; no events are new.

    before, log: the fit, and its training log with trend counts. Without a table, the fit stays.
    """
    if table.rows is None:
        return before
    whole = replace(log, items=table.items)
    whole = replace(whole, info=merge_item_tables(before.info, whole, table.rows))
    state, n_items = before.update_state, len(table.items)
    assert state is not None
    if table.n_added and state.residual is not None:
        state = replace(state, residual=np.pad(state.residual, (0, table.n_added)))
    if table.n_added and state.triangle is not None:
        state = replace(state, triangle=update_triangle(state.triangle, _empty(n_items))[0])
    training = {**before.training, **_item_facts(model, whole)}
    weights = model.encode_catalogue(whole)
    return replace(
        before, weights=weights, items=table.items, info=whole.info, log=whole, training=training,
        update_state=state,
    )  # fmt: skip


def _empty(n: int) -> Any:
    """Return an n x n matrix (CSR) without entries."""
    return sparse.csr_array((n, n))


def _prepare(model: Model) -> tuple[Fitted, Log]:
    """Return the model's fit, with what an update continues from, and its training log.

    The model is changed: the update state (stored G, residuals) is added to its fit if it was
    missing. TalerecError if the model has no log or the state does not fit it.
    """
    if model.fitted.log is None:
        raise TalerecError("this model was saved without histories: refit it")
    before = model.prepare_update()
    model.set_fitted(before)
    assert before.log is not None
    assert before.update_state is not None
    check_update_state(before.update_state, len(before.log.items))
    return before, before.log


def _item_facts(model: Model, log: Log) -> dict[str, int]:
    """Return the facts on items of a model's manifest: their number, and those without rows."""
    facts = {"items": len(log.items)}
    if model.scores_catalogue:
        facts[UNSEEN_ITEMS] = int((log.counts() == 0).sum())
    return facts


def _updated_facts(model: Model, before: Fitted, log: Log) -> dict[str, Any]:
    """Return the manifest entry `training` of a model after one more update.

    before: the fit before. log: old and new rows, whose number of rows, users and items and time
    span the entry has. `updates` counts the updates so far, and the reference to an event store is
    dropped.
    """
    facts = {**before.training, **training_facts(log), **_item_facts(model, log)}
    for name in (STORE, STORE_SEQ, STORE_ITEM_SEQ):
        facts.pop(name, None)  # rows from elsewhere may be of users who were deleted in the store
    facts["updates"] = int(before.training.get("updates", 0)) + 1
    return facts


def check_updatable(model: Model, tolerance: float = TOLERANCE) -> None:
    """Raise TalerecError if a model cannot be updated, or `tolerance` is negative.

    It cannot if its class does not support updates, or if a parameter (decay_user, norm=symmetric)
    makes new rows change the weight of every old row.
    """
    if not tolerance >= 0:
        raise TalerecError(f"`tolerance` is {tolerance}; it takes a number from 0 on", "tolerance")
    values = model.params
    if (obstacle := model.update_obstacle()) is not None:
        raise TalerecError(obstacle)
    if values.get("decay_user"):
        raise TalerecError("decay_user changes every row with the log's end: refit the model")
    if values.get("norm") == "symmetric":
        reason = "norm=symmetric changes every row with every item's sum"
        raise TalerecError(f"{reason}: refit the model")


def _warn_unrelated(merge: MergedLog) -> None:
    """Log a warning if no new row has an old item: the rows may be from another log.

    merge: old and new rows, a flag per row (`is_new`), and the number of new items (`items`).
    """
    items, n_old = merge.log.item[merge.is_new], len(merge.log.items) - merge.items
    if (items >= n_old).all():  # new items have the last positions
        message = "no item of the %s new rows is in the model: are they from the same source?"
        logger.warning(message, f"{len(items):,}")


# -- weights ---------------------------------------------------------------------------------------


class _Equations(NamedTuple):
    """Normal equations (G + penalty) B = K of item-item weights B, after new rows were added.

    G = S'S and K = S'T, with S the source items and T the targets of the training examples.

    triangle  lower triangle of G with the new rows
    dG, dK    what the new rows changed in G and K
    K         None if the triangle was stored: then K is counted only for the targets to solve
    """

    triangle: LowerTriangle
    dG: LowerTriangle
    dK: Any
    K: Any | None


def _learn_rows(
    model: Model, before: Fitted, log: Log, is_new: Array, tolerance: float, clock: Clock
) -> tuple[Weights, UpdateState, int]:
    """Return updated weights, the state for the next update, and how many targets were solved.

    before: the fit without the new rows. log: old and new rows. is_new: a flag per row. tolerance:
    by how much a target's weights may be off, as a share of its largest weight, before they are
    solved again. clock: adds up the seconds of each step.
    """
    state = before.update_state
    assert state is not None
    updated = model.for_update(state)
    if state.residual is None or not isinstance(updated, RidgeModel):
        return updated.learn_from(log, clock)[0], state, len(log.items)
    with clock("gram"):
        equations = _update_equations(updated, state, log, is_new)
        triangle, K = equations.triangle, equations.K
    with clock("changes"):
        old = _add_empty_rows(updated.item_weights(), triangle.items)
        residual = np.full(triangle.items, np.inf)  # at tolerance 0
        if tolerance:
            residual = _sum_residuals(updated, state.residual, equations, old)
        is_solved = residual > tolerance
    with clock("columns"):
        columns = updated.target_columns(log, is_solved) if K is None else _select(K, is_solved)
        entries = state.entries if K is None else K.nnz
    with clock("solve"):
        penalty, order = updated.penalty(triangle.diagonal), log.items.sorted_places()
        problem = StoredProblem(triangle, penalty, updated.neighbors, entries, order)
        solved = solve_stored(problem, columns)
        item_weights = _replace_columns(old, solved, is_solved)
    residual[is_solved] = 0.0
    after = replace(state, triangle=triangle if K is None else None, residual=residual)
    return updated.complete_weights(item_weights, log, clock), after, int(is_solved.sum())


def _update_equations(model: RidgeModel, state: UpdateState, log: Log, is_new: Array) -> _Equations:
    """Return G = S'S and K = S'T with the new rows, and what these changed (item x item).

    is_new: a flag per row of `log`, old and new rows. state: what the last fit or update stored; if
    it has no G, both are counted from all rows.
    """
    is_touched = np.zeros(len(log.users), bool)
    is_touched[log.user_codes()[is_new]] = True
    in_touched = np.repeat(is_touched, np.diff(log.ptr))
    rows = log.keep(in_touched)  # of users with new rows: only their pairs change
    gram, old = model.gram(rows), model.gram(rows.keep(~is_new[in_touched]))
    dG, dK = _as_csr(gram.G) - _as_csr(old.G), _as_csr(gram.K) - _as_csr(old.K)
    if state.triangle is not None:
        triangle, change = update_triangle(state.triangle, dG)
        return _Equations(triangle, change, dK, None)
    gram = model.gram(log)
    return _Equations(lower_triangle(gram.G), lower_triangle(dG), dK, sparse.csc_array(gram.K))


def _sum_residuals(
    model: RidgeModel, old_residual: Array, equations: _Equations, weights: Any
) -> Array:
    """Return by how much each target's weights are off, summed over all updates so far.

    old_residual: before this update, by target. weights: item-item weights, source x target. New
    rows change G = S'S and K = S'T by dG and dK. The residual of a target's normal equations is
    then dK - dG b for each source; divided by the diagonal, it is one step of the weight.
    """
    triangle, dG = equations.triangle, equations.dG
    penalty = model.penalty(triangle.diagonal)
    diagonal = dG.diagonal + penalty - model.penalty(triangle.diagonal - dG.diagonal)
    matrices = csr_columns(equations.dK.tocsc()), csr_columns(weights.tocsc())
    residual = target_residuals(dG, diagonal, *matrices, 1 / (triangle.diagonal + penalty))
    residual[: len(old_residual)] += old_residual
    return residual


def _select(K: Any, is_target: Array) -> Any:
    """Return K (CSC, source x target) with only the columns of flagged items filled.

    K = S'T says how often source items precede target items. is_target: a flag per item.
    """
    is_selected = np.repeat(is_target, np.diff(K.indptr))
    indptr = np.concatenate([[0], np.cumsum(is_selected)])[K.indptr]
    return sparse.csc_array((K.data[is_selected], K.indices[is_selected], indptr), shape=K.shape)


def _as_csr(matrix: Any) -> Any:
    """Return a dense or sparse matrix as CSR."""
    return matrix.tocsr() if is_sparse(matrix) else sparse.csr_array(matrix)


def _add_empty_rows(weights: Any, n: int) -> Any:
    """Return a copy of item x item weights as n x n CSR; new items have no entries."""
    old = _as_csr(weights)
    indptr = np.concatenate([old.indptr, np.full(n + 1 - len(old.indptr), old.indptr[-1])])
    return sparse.csr_array((np.array(old.data), np.array(old.indices), indptr), shape=(n, n))


def _replace_columns(old: Any, new: Any, is_target: Array) -> Any:
    """Return the old weights (source x target) with the flagged targets' columns replaced.

    old, new: CSR; `old` is changed, and `new` must be empty in all other columns. is_target: a flag
    per item.
    """
    old.data[is_target[old.indices]] = 0.0
    old.eliminate_zeros()
    weights = (old + new).astype(np.float32)
    weights.sort_indices()
    return weights

"""Tomorrow's rows: a fitted model after these rows too, without starting over.

What a fit has settled stays: the trend count of every old row (a new row's is counted when it comes) and the solver.
G and K are counted from the histories, old and new, so that nothing is left over from subtracting. A target is solved
again where its old weights no longer fit: where some source's normal equation asks for a change beyond the tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from talerec import columns
from talerec.data.log import Log, as_log
from talerec.data.merging import Merged, merged
from talerec.errors import TalerecError
from talerec.gram.gram import Gram
from talerec.models import keeping
from talerec.models.base import Model
from talerec.models.keeping import Fitted
from talerec.models.linear import Solved
from talerec.models.settled import settled_trends
from talerec.ranking.weights import Weights
from talerec.runtime.arrays import Array, is_sparse
from talerec.runtime.clock import Clock
from talerec.runtime.lazy import sparse
from talerec.solvers.compressed import by_column, by_row
from talerec.solvers.local import local_some
from talerec.solvers.residuals import worst_steps

#: By how much a weight may be off, as a share of its target's largest one, before the target is solved again.
TOLERANCE = 0.1


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
    log = _known(model)
    found = merged(log, as_log(rows))
    clock = Clock()
    if not found.is_new.any():
        return Update(0, 0, 0, 0, len(log.items), clock.seconds)
    whole = _settled(model, log, found)
    before = model.fitted
    weights, solver, solved = _learned(model, whole, found, tolerance, clock)
    info = described(before.info, whole)
    whole = replace(whole, info=info)
    facts = {**before.training, **keeping.training_facts(whole)}
    facts["updates"] = int(before.training.get("updates", 0)) + 1
    model._fitted = Fitted(weights, whole.items, info, whole, solver, clock.seconds, facts)
    new = int(found.is_new.sum())
    return Update(new, found.users, found.items, solved, len(whole.items), clock.seconds)


def _known(model: Model) -> Log:
    """The histories of a model that can be updated; an error that says why where it cannot."""
    log, values = model.fitted.log, model.params
    if log is None:
        raise TalerecError("this model was saved without histories: fit it anew")
    if model.name in ("tempo", "fpmc", "blend"):
        raise TalerecError(f"{model.name} cannot be updated: fit it anew")
    if log.weight is not None:
        raise TalerecError("a model of weighed rows cannot be updated: fit it anew")
    if values.get("decay_user"):
        raise TalerecError("decay_user changes every row with the log's end: fit the model anew")
    if values.get("norm") == "symmetric":
        raise TalerecError(
            "norm=symmetric changes every row with every item's sum: fit the model anew"
        )
    return log


# -- what is settled -------------------------------------------------------------------------------


def _settled(model: Model, old: Log, found: Merged) -> Log:
    """The merged log with the counts of old rows as they were, and those of new rows as they come."""
    kept = settled_trends(model.params, old)
    if kept is None:
        return found.log
    log, mine = found.log, np.zeros(len(found.log.items), bool)
    mine[log.item[found.is_new]] = True
    rows = mine[log.item] & log.recent(model.params["max_history"])  # all that a new row may count
    some = settled_trends(model.params, log.keep(rows))
    assert some is not None
    counts = np.ones(log.rows, np.int64)
    counts[rows] = some
    counts[~found.is_new] = kept
    return replace(log, trends=counts)


def described(info: pl.DataFrame | None, log: Log) -> pl.DataFrame | None:
    """The item table with empty rows for new items."""
    if info is None:
        return None
    mine = pl.DataFrame({columns.ITEM: log.items.ids})
    return mine.join(info, on=columns.ITEM, how="left", maintain_order="left")


# -- learning --------------------------------------------------------------------------------------


def _learned(
    model: Model, log: Log, found: Merged, tolerance: float, clock: Clock
) -> tuple[Weights, str | None, int]:
    """Weights, solver, and how many targets were solved."""
    before = model.fitted
    if not _is_local(model):
        settled = _with_solver(model, before.solver)
        weights, solver = settled.learn_weights(log, clock)
        return weights, solver, len(log.items)
    assert isinstance(model, Solved)
    with clock("gram"):
        gram = model.gram(log)
    with clock("changes"):
        wanted = _stale(model, gram, log, found, tolerance)
    with clock("solve"):
        solved = local_some(gram, np.full(gram.items, model.reg), model.neighbors, wanted)
        kept = _widened(before.weights.matrix, gram.items)
    return Weights(_replaced(kept, solved, wanted)), "local", int(wanted.sum())


def _is_local(model: Model) -> bool:
    """Is it a model whose targets were solved one by one, with one penalty for all?"""
    return model.fitted.solver == "local" and model.name in ("tale", "slit", "slist")


def _with_solver(model: Model, solver: str | None) -> Model:
    """The model with the solver that ran, so that `auto` does not change its mind."""
    if "solver" not in model.params or solver is None:
        return model
    return model.with_params(solver=solver)


def _stale(model: Solved, gram: Gram, log: Log, found: Merged, tolerance: float) -> Array:
    """The targets whose old weights no longer fit: a flag per item.

    New rows change G and K of their users by dG and dK. A target's normal equations then lack dK - dG b, source
    by source; over the diagonal, that is what one step would add to the weight.
    """
    if tolerance == 0:
        return np.ones(gram.items, bool)
    dG, dK = _changes(model, log, found)
    weights = _widened(model.fitted.weights.matrix, gram.items)
    step = 1 / (gram.G.diagonal() + model.reg)
    dG = _columns_that_change(dG, step, tolerance)
    lines = by_row(dG), by_column(dK.tocsc()), by_column(weights.tocsc())
    return worst_steps(*lines, step) > tolerance


def _columns_that_change(dG: Any, step: Array, tolerance: float) -> Any:
    """dG without the equations of items to which the new rows add next to nothing.

    An item's equation lacks sqrt(dG_ii b' dG b) at most: where its diagonal grows by less than the square of the
    tolerance, as that of a popular item does, its weights stay.
    """
    changed = abs(dG.diagonal()) * step > tolerance**2
    kept = changed[dG.indices]
    starts = np.concatenate([[0], np.cumsum(kept)])[dG.indptr]
    return sparse.csr_array((dG.data[kept], dG.indices[kept], starts), shape=dG.shape)


def _changes(model: Solved, log: Log, found: Merged) -> tuple[Any, Any]:
    """dG and dK: the Gram of the users who have new rows, less that of their old rows."""
    touched = np.zeros(len(log.users), bool)
    touched[log.user_codes()[found.is_new]] = True
    mine = np.repeat(touched, np.diff(log.ptr))
    after = model.gram(log.keep(mine))
    before = model.gram(log.keep(mine & ~found.is_new))
    return _rows(after.G) - _rows(before.G), _rows(after.K) - _rows(before.K)


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

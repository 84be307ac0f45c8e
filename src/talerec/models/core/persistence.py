"""The result of a fit, what an update continues from, and both in an artifact."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from talerec import columns
from talerec.artifact import Bundle
from talerec.data import Log, Vocabulary, fingerprint_rows
from talerec.gram import late_trend_counts, newest_rows, trend_counts
from talerec.models.core.stored_context import restore_context, store_context
from talerec.ranking import DenseBlock, Weights
from talerec.runtime import CSR, Array, memory
from talerec.solvers import LowerTriangle

logger = logging.getLogger("talerec")

#: Days before the log's last row whose popular items are recommended to unknown users.
RECENT_DAYS = 7.0

#: Training facts of a model fitted from an event store: the store, and its last sequence number.
STORE, STORE_SEQ = "store", "store_seq"

#: Training fact of such a model: the last change of the store's items that its item table has.
STORE_ITEM_SEQ = "store_item_seq"

#: Training fact of an artifact without histories: `fingerprint_rows` of its training rows.
FINGERPRINT = "fingerprint"

#: Training fact: items at the end of the vocabulary that only the item table has; absent for 0.
UNSEEN_ITEMS = "unseen_items"

#: Training fact of a model of content: the types of the item table's columns (`ItemColumn`).
ITEM_COLUMNS = "item_columns"

_LARGE_WEIGHTS = 16 * 2**20  # bytes of dense weights, from which their size is logged

#: Names of arrays and facts in artifacts of formats 1 and 2 -> their names since format 3.
_FORMER = {
    "worth": "weight",
    "lately": "recent_counts",
    "lacking": "residual",
    "half_starts": "triangle_indptr",
    "half_indices": "triangle_indices",
    "half_values": "triangle_values",
    "half_rank": "triangle_rank",
    "half_diagonal": "triangle_diagonal",
    "settled": "update",
    "turned": "reverse_share",
}

#: Names of a triangle's arrays: those of its CSR matrix, then the ranks and the diagonal.
_TRIANGLE = [f"triangle_{name}" for name in (*CSR._fields, "rank", "diagonal")]


class FitCache:
    """Cache of the last result of each step of a fit, to be reused by the next fit.

    Used by tuning, where fits to one log differ in some parameters only. A result is reused if
    everything that it depends on is equal.
    """

    is_shared = False  # whether other fits use the results of `shared`

    def __init__(self) -> None:
        self._last: dict[str, tuple[Any, Any]] = {}

    def cached(self, step: str, key: Any, make: Callable[[], Any]) -> Any:
        """Return the step's last result if it was computed for an equal key, else `make()`.

        step: a name. key: everything that the result depends on. A new result replaces the last
        one.
        """
        if step not in self._last or self._last[step][0] != key:
            self._last.pop(step, None)  # free the old result before the new one is computed
            self._last[step] = (key, make())
        return self._last[step][1]

    def shared(self, step: str, key: Any, make: Callable[[], Any]) -> Any:
        """Return `make()`; `SharedFits` reuses results that fits of several models have in common.

        step: the step of the fit that `make` belongs to, such as "gram". key: everything that the
        result depends on. Nobody may change the result.
        """
        return make()

    def nested(self, step: str) -> FitCache:
        """Return a cache for fits that are a part of a step of a fit, such as "learn"; here empty.

        step: the name of the step, as the fit's clock knows it.
        """
        return FitCache()


class NoFitCache(FitCache):
    """A cache that keeps nothing: a single fit frees the result of each step after its use."""

    def cached(self, step: str, key: Any, make: Callable[[], Any]) -> Any:
        """Return `make()`. step, key: as in `FitCache`."""
        return make()

    def nested(self, step: str) -> FitCache:
        """Return this cache, which fits inside a step can use as well."""
        return self


@dataclass(frozen=True, eq=False)
class UpdateState:
    """The state that an update continues from, besides histories and trend counts.

    S has the source items and T the targets of the training examples; weights B solve G B = K.

    triangle       lower triangle of G = S'S; None where an update counts G from all rows
    entries        number of entries of K = S'T at the fit; limits of the local solver depend on it
    reverse_share  share of K' (reversed pairs) in K, for tempo
    residual       by how much each target's weights are off since they were solved, as a share of
                   its largest weight (`target_residuals`); None where an update refits
    """

    triangle: LowerTriangle | None = None
    entries: int = 0
    reverse_share: float = 0.0
    residual: Array | None = None

    def arrays(self) -> dict[str, Array]:
        """Return the arrays that a saved model stores for updates, by name; none if it is empty.

        They are the residual (by how much each target's weights are off) and the lower triangle of
        G = S'S: indptr, indices, values, the rank of each item, and the diagonal.
        """
        arrays = {} if self.residual is None else {"residual": self.residual}
        if self.triangle is None:
            return arrays
        parts = (*self.triangle.lower, self.triangle.rank, self.triangle.diagonal)
        return arrays | dict(zip(_TRIANGLE, parts, strict=True))

    def facts(self) -> dict[str, Any]:
        """Return what the manifest of an artifact stores: "entries" and "reverse_share"."""
        return {"entries": self.entries, "reverse_share": self.reverse_share}

    @classmethod
    def restore(cls, facts: dict[str, Any] | None, arrays: dict[str, Array]) -> UpdateState | None:
        """Return the state that an artifact (a saved model) stores; None if it stores none.

        facts: the manifest's entry, with "entries" (of K = S'T) and "reverse_share" (of reversed
        pairs); None for none. arrays: by name; those of the lower triangle of G = S'S begin with
        "triangle_".
        """
        if facts is None:
            return None
        triangle = None
        if "triangle_rank" in arrays:
            *lower, rank, diagonal = (arrays[name] for name in _TRIANGLE)
            triangle = LowerTriangle(CSR(*lower), rank, diagonal)
        share = float(_current_names(facts)["reverse_share"])
        return cls(triangle, int(facts["entries"]), share, arrays.get("residual"))


@dataclass(frozen=True, eq=False)
class Fitted:
    """The result of a fit.

    weights, items, info  learned weights, item ids in position order, and the item table or None
    log                   training histories; None in an artifact saved without them
    solver, seconds       the solver that ran (None: none), and the seconds of each step
    training              counts and times of the training rows (`training_facts`)
    stored_recent_counts  `recent_counts` of an artifact without histories
    update_state          what an update continues from; None until one is prepared
    """

    weights: Weights
    items: Vocabulary
    info: pl.DataFrame | None
    log: Log | None
    solver: str | None
    seconds: dict[str, float]
    training: dict[str, Any]
    stored_recent_counts: Array | None = None
    update_state: UpdateState | None = None

    @classmethod
    def from_log(
        cls, log: Log, weights: Weights, solver: str | None, seconds: dict[str, float]
    ) -> Fitted:
        """Return the result of a fit to a log: its weights, with the log's items and counts.

        solver: the name of the solver that ran, None for none. seconds: of each step.
        """
        return cls(weights, log.items, log.info, log, solver, seconds, training_facts(log))

    @property
    def unit(self) -> str:
        """The unit of the log's times, such as "s"; times that callers give as numbers have it."""
        return str(self.training.get("time_read_as", "s"))

    @cached_property
    def recent_counts(self) -> Array | None:
        """Rows of each item in the training log's last days, to recommend to unknown users."""
        return self.stored_recent_counts if self.log is None else self.log.counts(RECENT_DAYS)

    def without_update_state(self) -> Fitted:
        """Return a copy without trend counts and update state, which only an update needs.

        A trend count is the number of rows of an item around one of its rows; the update state has,
        for example, a stored Gram matrix.
        """
        training = {name: value for name, value in self.training.items() if name != "updatable"}
        log = None if self.log is None else replace(self.log, trends=None)
        return replace(self, log=log, training=training, update_state=None)

    def store(self, name: str, params: dict[str, Any], *, histories: bool) -> Bundle:
        """Return the fitted model as the contents of an artifact: facts (JSON), arrays and tables.

        name, params: of the model. `histories` stores the training rows and the update state;
        without, counts of each item's recent rows and a fingerprint of all rows.
        """
        blocks, arrays = self.weights.stored()
        dense = (b.values.nbytes for b in self.weights.blocks if isinstance(b, DenseBlock))
        if (size := sum(dense)) >= _LARGE_WEIGHTS:
            text = memory.format_bytes(size)
            logger.info("dense weights take %s; solver=local stores fewer", text)
        items = pl.DataFrame({columns.ITEM: self.items.ids}) if self.info is None else self.info
        tables, log = {"items": items}, self.log
        if histories and log is not None:
            arrays |= {"ptr": log.ptr, "item": log.item, "time": log.time}
            arrays |= {} if log.weight is None else {"weight": log.weight}
            arrays |= {} if log.trends is None else {"trends": log.trends.astype(np.int32)}
            arrays |= {} if self.update_state is None else self.update_state.arrays()
            context = store_context(log.context)
            arrays |= context.arrays
            tables |= context.tables
            tables["users"] = pl.DataFrame({columns.USER: log.users.ids})
        elif self.recent_counts is not None:
            arrays["recent_counts"] = self.recent_counts
        training = dict(self.training)
        if not histories and log is not None:
            training[FINGERPRINT] = fingerprint_rows(log)
        facts: dict[str, Any] = {"model": name, "params": params, "solver": self.solver}
        facts |= {"seconds": self.seconds, "training": training}
        facts |= {"has_item_info": self.info is not None, "blocks": blocks}
        if histories and log is not None and log.context:
            facts |= context.facts
        if histories and self.update_state is not None:
            facts["update"] = self.update_state.facts()
        return Bundle(facts, arrays, tables)

    @classmethod
    def restore(cls, bundle: Bundle) -> Fitted:
        """Return the result of a fit that an artifact of any format stores.

        bundle: the artifact's contents: facts (the manifest), arrays and tables by name.
        """
        arrays, facts = _current_names(bundle.arrays), _current_names(bundle.facts)
        table = bundle.tables["items"]
        items = Vocabulary(table[columns.ITEM])
        info = table if facts["has_item_info"] else None
        weights = Weights.restored(facts.get("blocks"), arrays, len(items))
        log = _restore_log(bundle, arrays, items, info)
        state = UpdateState.restore(facts.get("update"), arrays)
        fit = (facts["solver"], facts["seconds"], facts["training"], arrays.get("recent_counts"))
        return cls(weights, items, info, log, *fit, state)


def training_facts(log: Log) -> dict[str, Any]:
    """Return what a model's manifest says about its training log, as a dict for JSON.

    Numbers of users, items and rows, first and last time (microseconds), order of ties, time unit
    and weights.
    """
    counts = {"users": len(log.users), "items": len(log.items), "rows": log.rows}
    times = {"first_time": int(log.time.min()), "last_time": int(log.time.max())}
    facts = {**counts, **times, "ties": log.ties, "time_read_as": log.unit}
    facts |= {} if log.weight is None else {"weighed": True}
    facts |= {"baskets": True} if log.has_baskets else {}
    return facts | ({} if log.weight_unit is None else {"weight_unit": log.weight_unit})


def _current_names(values: dict[str, Any]) -> dict[str, Any]:
    """Return arrays or facts of an artifact by their names of today's format.

    values: by the names of the artifact's own format, some of which were renamed since.
    """
    return {_FORMER.get(name, name): value for name, value in values.items()}


def _restore_log(
    bundle: Bundle, arrays: dict[str, Array], items: Vocabulary, info: pl.DataFrame | None
) -> Log | None:
    """Return the training rows of an artifact (saved model); None if it was saved without.

    bundle: its contents: facts, arrays and tables. arrays: its arrays by their current names.
    items, info: item ids and item table of the log.
    """
    training = bundle.facts["training"]
    if "ptr" not in arrays:
        return None
    users = Vocabulary(bundle.tables["users"][columns.USER])
    unit, ties = training.get("time_read_as", "us"), training.get("ties", "file")
    rows = (arrays["ptr"], arrays["item"], arrays["time"])
    trends, weight = arrays.get("trends"), arrays.get("weight")
    divisor = training.get("weight_unit")
    context = restore_context(bundle, len(rows[1]))
    return Log(
        *rows, users, items, info, unit, ties, trends, weight=weight, weight_unit=divisor,
        has_baskets=training.get("baskets", False), context=context,
    )  # fmt: skip


# -- trend counts of rows, which an update keeps ---------------------------------------------------


def count_trends(params: dict[str, Any], log: Log) -> Array | None:
    """Return the trend count of every row for these parameters; 1 for unused old rows.

    A row's trend count is the number of rows of its item within `window` days around it. None for a
    model without trends; counts that the log has already are returned. Only the last `max_history`
    rows of a user are used.
    """
    if not params.get("trend") or log.trends is not None:
        return log.trends
    counts = np.ones(log.rows, np.int64)
    is_used = log.recent(params["max_history"])
    rows = newest_rows(log, params["max_history"])
    window, side = params["window"], params.get("trend_side", "both")
    counts[is_used] = trend_counts(rows.item, rows.time, len(log.items), window, side)
    return counts


def extend_trends(params: dict[str, Any], log: Log, is_new: Array, old_counts: Array) -> Array:
    """Return trend counts of all rows of a log after an update.

    A row's trend count is the number of rows of its item within `window` days around it. `is_new`
    flags the new rows, which are counted in the whole log; old rows keep `old_counts`. params: of
    the model; only the last `max_history` rows of a user are used, other new rows get 1.
    """
    counts = np.ones(log.rows, np.int64)
    is_used = log.recent(params["max_history"])
    window, side = params["window"], params.get("trend_side", "both")
    counts[is_used] = late_trend_counts(log.keep(is_used), is_new[is_used], window, side)
    counts[~is_new] = old_counts
    return counts

"""Tempo's queries and weight blocks: x and [B; I; P] of scores x @ [B; I; P].

Sources of a query are history items (rows of B), the same items as repeats (rows of I), and
popularity snapshots (rows of P).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from talerec.data import DAY, UNTIMED, Histories
from talerec.models.core import check_range
from talerec.models.tempo.log_statistics import (
    NO_FACTORS,
    LogStatistics,
    allows_repeats,
    check_arrays,
    lag_bucket,
    scale_repeats,
)
from talerec.models.tempo.popularity import DEFAULT_HORIZON, HORIZONS, PopularitySnapshots
from talerec.models.tempo.query_params import (
    FREQUENCY_DECAYS,
    QueryParams,
    popularity_scale,
    scale_targets,
)
from talerec.ranking import Block, IdentityBlock, Query, Weights, latest_lags, make_block
from talerec.runtime import (
    Array,
    Arrays,
    as_readonly,
    count_before,
    interpret_small,
    kernel,
    template,
)

POPULARITY_BLOCK = 2  # number of the block of snapshots, after item-item weights and repeats
CONTENT_BLOCK = 3  # of the first block of content, if there is one; the second holds freshness
CONTENT_PREFIX = "content_"  # of names of stored arrays

_MIN_HISTORY_WEIGHT = 0.01  # of a history after any inactivity
_DELAY_SHARE = 0.01  # of the log's time span, after whose end requests count as delayed
FIRST_HORIZON = np.zeros(1, np.int64)  # the default horizon of version 0.1, which had one only
_NO_SCRATCH = np.empty((0, 0))


# -- weight blocks ---------------------------------------------------------------------------------


def assemble_weights(
    item_weights: Block, statistics: LogStatistics, decay: float, params: QueryParams | None,
    counts: Array, build_snapshots: Callable[[list[float]], PopularitySnapshots],
) -> Weights:  # fmt: skip
    """Return all blocks of tempo's weights, with the arrays that its queries need.

    Blocks are matrices, stacked: item-item weights B, the identity (repeats), popularity snapshots.
    item_weights: B. statistics: repeat rates, and whether a user's rows with equal times are
    unordered (stored as "joint"). decay: days in which a source's weight falls to 1/e. params:
    learned query parameters; None for the defaults. counts: weighted rows of each item.

    build_snapshots: takes horizons (how quickly popularity is forgotten, as multiples of the
    parameter `span`), and returns their snapshots. Stored are the horizons with a weight, and
    always the default one; "usual" is its number among the stored horizons, "lengths" has the
    horizons.
    """
    used = [DEFAULT_HORIZON]
    arrays = statistics.to_arrays(decay)
    if params is not None:
        item_weights = scale_targets(item_weights, popularity_scale(counts, params))
        used = params.used_horizons()
        in_use = np.ascontiguousarray(params.popularity_weight[:, used])  # one type for kernels
        params = params._replace(popularity_weight=in_use)
        arrays |= params.to_arrays()
    horizons = [HORIZONS[m] for m in used]
    snapshots = build_snapshots(horizons)
    arrays |= snapshots.to_arrays()
    arrays["usual"] = np.array([used.index(DEFAULT_HORIZON)])
    arrays["lengths"] = np.array(horizons)
    blocks = [item_weights, *repeat_and_popularity_blocks(make_block(snapshots.shares))]
    return Weights(blocks, query_arrays=arrays)


def repeat_and_popularity_blocks(snapshots: Block) -> list[Block]:
    """Return two blocks of weights: the identity for repeats, and the popularity snapshots.

    A block is a matrix of weights, source x item. Sources of the identity are items; those of the
    snapshots stand for no item (-1).
    """
    no_items = np.full(snapshots.sources, -1, np.int32)
    return [IdentityBlock(items=snapshots.items), replace(snapshots, source_item=no_items)]


def split_blocks(weights: Weights) -> Weights:
    """Return weights in three blocks: items, repeats, popularity snapshots.

    Version 0.1 stored all of them as a single matrix; weights with several blocks stay as they are.
    """
    if len(weights.blocks) > 1:
        return weights
    n, whole = weights.items, weights.blocks[0]
    snapshots = whole.rows(2 * n, whole.sources)
    blocks = [whole.rows(0, n), *repeat_and_popularity_blocks(snapshots)]
    return Weights(blocks, query_arrays=weights.query_arrays)


def check_weights(weights: Weights) -> None:
    """Raise TalerecError if arrays that queries need, read from an artifact, do not fit.

    Checked are repeat rates, popularity snapshots and their horizons, and learned query parameters.
    """
    arrays = weights.query_arrays
    check_arrays(arrays, weights.items)
    snapshots = PopularitySnapshots.from_arrays(None, arrays)
    snapshots.check(weights.blocks[POPULARITY_BLOCK].sources)
    n_horizons = len(snapshots.lifetime)
    default = arrays.get("usual", FIRST_HORIZON)
    check_range("usual", default, 0, max(n_horizons, 1))
    if (params := QueryParams.from_arrays(arrays)) is not None:
        params.check(n_horizons)
    if "lengths" in arrays:  # version 0.1 had none
        snapshots.check_horizons(arrays["lengths"], int(default[0]))


class RequestHistories(NamedTuple):
    """Histories of requests as arrays for kernels. A row's lag is how many rows back it is.

    indptr, item, lag  distinct items of each history, newest first, and the lag of their last row
    start, stop, rows  all rows: history q has the items rows[start[q]:stop[q]]; -1 is unknown
    inactivity, now    microseconds since the last event, and the request time
    left               share of the history's weight that is left after the inactivity
    """

    indptr: Array
    item: Array
    lag: Array
    start: Array
    stop: Array
    rows: Array
    inactivity: Array
    now: Array
    left: Array

    @classmethod
    def build(
        cls, weights: Weights, histories: Histories, rules: HistoryRules, log_end: int
    ) -> RequestHistories:
        """Build the arrays; histories without request times are queried right after the log's end.

        weights: those of the model, whose items are counted. rules: which rows are used, and their
        weight after inactivity. log_end: time of the training log's last row, in microseconds.
        """
        last, now = histories.last(), histories.now
        if now is None:
            now = np.maximum(last, log_end) + 1
        times = histories.moments(joint=rules.is_joint)
        items = latest_lags(weights, histories, times, rules.max_history)
        rows = (histories.start, histories.stop, as_readonly(histories.item))
        inactivity = compute_inactivity(last, now)
        # max(exp(-t / decay), floor), as a source's weight in training
        least = max(rules.floor, _MIN_HISTORY_WEIGHT)
        left = np.maximum(np.exp(-inactivity / (rules.decay * DAY)), least)
        return cls(*items, *rows, inactivity, now, left)


class HistoryRules(NamedTuple):
    """How histories become requests: rows that are used, and weight after inactivity.

    Inactivity is the time from a history's last row to the request.
    """

    is_joint: bool  # rows with equal times are treated as unordered
    max_history: int  # last rows that are used
    decay: float  # days of inactivity in which a history's weight falls to 1/e
    floor: float  # least weight


class SnapshotArrays(NamedTuple):
    """`PopularitySnapshots` as arrays for kernels, and the log's time span (microseconds).

    Snapshots (items' popularity at one time) indptr[m] to indptr[m + 1] - 1 are those of horizon m,
    which says how quickly popularity is forgotten; a source is a row of the weights.
    """

    times: Array  # of the snapshots
    indptr: Array
    lifetime: Array  # microseconds that each horizon spans, or infinity
    first_source: int  # number of the first snapshot among the sources
    log_start: int
    log_end: int


class QueryPlan(NamedTuple):
    """What queries of a fitted tempo are built from, as plain tuples.

    Numba recognizes plain tuples some microseconds sooner than named ones.
    """

    params: Arrays  # `QueryParams`
    repeat_weights: Array  # segment x lag bucket; no columns: repeats are ignored
    snapshots: tuple[Any, ...]  # `SnapshotArrays`
    rules: HistoryRules
    repeat_factors: Array = NO_FACTORS  # of each item's repeat weight; empty: all are 1

    @classmethod
    def build(
        cls, params: QueryParams, rates: Array, snapshots: SnapshotArrays, rules: HistoryRules,
        repeat_factors: Array = NO_FACTORS,
    ) -> QueryPlan:  # fmt: skip
        """Build a plan from query parameters, repeat rates, snapshots and history rules.

        rates: repeat rates by lag bucket (0, 1-2, 3-6, ... rows back), empty to ignore repeats.
        repeat_factors: a factor of each item's repeats; empty if all are 1.
        """
        has_rates = len(rates) > 0 and allows_repeats(rates)
        n_segments = len(params.recency)
        repeats = params.repeat_weights(rates) if has_rates else np.tile(rates, (n_segments, 1))
        if not (has_rates and params.frequency_weight.any()):
            params = params._replace(frequency_weight=_NO_SCRATCH)
        # read-only, as arrays of a mapped artifact are: kernels are compiled for one type
        arrays = tuple(map(as_readonly, params)), as_readonly(repeats), tuple(snapshots)
        return cls(*arrays, rules, repeat_factors)

    def query(self, weights: Weights, histories: Histories) -> Query:
        """Return x of every history: the sources (rows of the weights) and their weights.

        Sources are popularity snapshots, history items as repeats, and history items. weights: the
        blocks of the fitted model.
        """
        rules, log_end = self.rules, self.snapshots[-1]
        plan = (self.params, self.repeat_weights, self.snapshots)
        requests = tuple(RequestHistories.build(weights, histories, rules, log_end))
        n_items, scratch = weights.items, _NO_SCRATCH
        if QueryParams(*self.params).frequency_weight.size:
            scratch = np.zeros((QueryParams(*self.params).frequency_weight.shape[1], n_items))
        build = interpret_small(_build_queries, len(histories.start))
        x = Query(*build(requests, *plan, n_items, rules.max_history, scratch))
        scale_repeats(x.source, x.weight, n_items, self.repeat_factors)
        return x


def compute_inactivity(last: Array, now: Array) -> Array:
    """Return the microseconds from each user's last event to `now`; 0 if its time is unknown."""
    inactivity: Array = np.where(last > UNTIMED, np.maximum(now - last, 0), 0)
    return inactivity


@template
def segment_of(edges: Array, inactivity: float, delay: float, span: float) -> int:
    """Return the number of a request's segment, by inactivity and by delay (microseconds).

    `edges` ascend and separate segments by inactivity. Requests delayed after the log's end by over
    1 % of its `span` have segments of their own, in the second half.
    """
    segment = 0
    while segment < len(edges) and edges[segment] <= inactivity:
        segment += 1
    return segment + (len(edges) + 1 if delay > _DELAY_SHARE * span else 0)


@kernel
def assign_segments(
    edges: Array, inactivity: Array, now: Array, log_start: int, log_end: int
) -> Array:
    """Return the number of each request's segment (group with weights of its own).

    See `segment_of` for edges. inactivity, now: of each request, time since the user's last event
    and request time; log_start, log_end: times of the log's first and last row; all in
    microseconds.
    """
    segments = np.empty(len(now), np.int64)
    for q in range(len(now)):
        segments[q] = segment_of(edges, inactivity[q], now[q] - log_end, log_end - log_start)
    return segments


@template
def _latest(times: Array, low: int, high: int, now: int) -> int:
    """Return the last index from low to high - 1 whose time is before now; -1 if none is.

    times[low:high] must ascend.
    """
    count = count_before(times, low, high, now)
    return low + count - 1 if count else -1


@kernel
def _build_queries(
    requests: Arrays, params: Arrays, repeat_weights: Array, snapshots: tuple[Any, ...],
    n_items: int, max_history: int, scratch: Array,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Return x of every request as (indptr, source, weight): the sources and their weights.

    A source is a row of the model's stacked weights; request q has the entries indptr[q]..indptr[q
    + 1]. requests, params, snapshots: the fields of `RequestHistories`, `QueryParams` and
    `SnapshotArrays` as plain tuples. For the other arguments see `_fill_queries`.
    """
    plan = (QueryParams(*params), repeat_weights, SnapshotArrays(*snapshots))
    return _fill_queries(RequestHistories(*requests), *plan, n_items, max_history, scratch)


@template
def _fill_queries(
    requests: RequestHistories, params: QueryParams, repeat_weights: Array,
    snapshots: SnapshotArrays, n_items: int, max_history: int, scratch: Array,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Return x of every request as (indptr, source, weight): the sources and their weights.

    Sources (rows of the stacked weights) are popularity snapshots, repeats (n_items + item) and
    history items, in this order. repeat_weights: segment (group of requests) x lag bucket; no
    columns: repeats are ignored. max_history: last rows of a history that count for frequencies.
    scratch: zeros, frequency decay x item, left as zeros; empty if frequencies have no weight.
    """
    has_repeats, n_horizons = repeat_weights.shape[1] > 0, len(snapshots.indptr) - 1
    n = n_horizons * len(requests.start) + (2 if has_repeats else 1) * len(requests.item)
    indptr, source, x = np.zeros(len(requests.indptr), np.int64), np.empty(n, np.int64), np.empty(n)
    end, span = 0, snapshots.log_end - snapshots.log_start
    for q in range(len(requests.start)):
        low, high, now = requests.indptr[q], requests.indptr[q + 1], requests.now[q]
        delay = now - snapshots.log_end
        g = segment_of(params.edges, requests.inactivity[q], delay, span)
        g = min(g, len(params.recency) - 1)
        # P: popularity_weight * freshness / (weight that is left of the history)
        for m in range(n_horizons):
            weight = params.popularity_weight[g, m]
            at = _latest(snapshots.times, snapshots.indptr[m], snapshots.indptr[m + 1], now)
            if at >= 0 and weight > 0:
                fresh = 1.0 / (1.0 + max(delay, 0) / snapshots.lifetime[m])
                source[end], x[end] = snapshots.first_source + at, weight * fresh / requests.left[q]
                end += 1
        # I: the repeat weight of the lag, and frequencies
        first = end
        for r in range(low, high if has_repeats else low):
            source[end] = n_items + requests.item[r]
            x[end] = repeat_weights[g, lag_bucket(requests.lag[r])]
            end += 1
        if len(params.frequency_weight):
            weights, repeats = params.frequency_weight[g], (source[first:end], x[first:end])
            _add_frequencies(requests, q, weights, max_history, scratch, *repeats)
        # B: max(exp(-lag / recency), min_weight)
        for r in range(low, high):
            source[end] = requests.item[r]
            x[end] = max(math.exp(-requests.lag[r] / params.recency[g]), params.min_weight[g])
            end += 1
        indptr[q + 1] = end
    return indptr, source[:end], x[:end]


@template
def _add_frequencies(
    requests: RequestHistories, q: int, weights: Array, max_history: int, scratch: Array,
    source: Array, x: Array,
) -> None:  # fmt: skip
    """Add to x, in place, weights times each item's share of the rows of history q.

    Newer rows weigh more, by `FREQUENCY_DECAYS`. weights: by decay. max_history:
    last rows that count. scratch: decay x item, zeros, left as zeros. source: the repeat sources of
    the query, numbered n_items + item, all distinct items of the history; x: their weights.
    """
    n_items = scratch.shape[1]
    for d in range(len(scratch)):
        decay, weight_sum, total = FREQUENCY_DECAYS[d], 0.0, scratch[d]
        for r in range(max(requests.start[q], requests.stop[q] - max_history), requests.stop[q]):
            weight = math.exp((r + 1 - requests.stop[q]) / decay)
            weight_sum += weight
            if requests.rows[r] >= 0:
                total[requests.rows[r]] += weight
        for s in range(len(source)):
            x[s] += weights[d] * total[source[s] - n_items] / weight_sum
            total[source[s] - n_items] = 0.0

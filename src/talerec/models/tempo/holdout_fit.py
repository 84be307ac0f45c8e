"""A small tempo fitted without held-out rows, and score components of held-out queries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from talerec.data import Histories
from talerec.models.core import HoldoutQueries
from talerec.models.tempo.components import ScoreComponents, merge_candidates, sum_components
from talerec.models.tempo.log_statistics import (
    NO_FACTORS,
    allows_repeats,
    lag_bucket,
    scale_repeats,
)
from talerec.models.tempo.popularity import HORIZONS, PopularitySnapshots, log_popularity
from talerec.models.tempo.query import HistoryRules, RequestHistories, assign_segments
from talerec.models.tempo.query_params import (
    DEFAULT_RECENCY,
    FREQUENCY_DECAYS,
    LAG_KNOTS,
    N_BASKET_DECAYS,
    N_DECAYS,
    N_LAG_BUCKETS,
)
from talerec.ranking import (
    Block,
    GroupedQueries,
    IdentityBlock,
    Mask,
    Query,
    Weights,
    make_block,
    top_items,
)
from talerec.runtime import Array, Matrix, kernel, template

_MAX_ROWS = 256  # newest rows of a history that the search looks at

#: Candidates per query: (recency, items beyond the k that count) of several queries, and items of
#: each popularity horizon beyond k. Shorter lists would leave out rivals of changed weights, so
#: that the change seems to gain.
_CANDIDATE_LISTS = ((DEFAULT_RECENCY, 20), (1.0, 5), (60.0, 5))
_POPULAR_CANDIDATES = 5


class HoldoutFit(NamedTuple):
    """A small tempo fitted to training rows, to learn query parameters on held-out queries.

    Snapshots hold items' shares of recent rows over time, at several horizons (how quickly rows are
    forgotten).
    """

    item_weights: Block  # B, source item x target item
    repeat_rates: Array  # by lag bucket (0, 1-2, 3-6, ... rows back), of the training rows
    snapshots: PopularitySnapshots  # at all horizons
    counts: Array  # weighted rows of each item
    time_range: tuple[int, int]  # times of the first row and of the last, in microseconds
    rules: HistoryRules  # which rows of a history are used, and their weight after inactivity
    repeat_factors: Array = NO_FACTORS  # of each item's repeats; empty: all are 1

    @property
    def n_decays(self) -> int:
        """The number of frequency decays that are components: more in logs of baskets."""
        return N_BASKET_DECAYS if len(self.repeat_factors) else N_DECAYS


class HoldoutComponents:
    """Score components of held-out queries, computed with the weights of a `HoldoutFit`.

    A score is a weighted sum of components; a component is what one kind of source adds, with
    weight 1: lag knots (history items by lag; other lags are interpolated), then lag buckets of
    repeats and frequencies (if users repeat items), then popularity horizons. `weights` are the
    stacked matrices [B; I; P]: item-item weights, repeats, popularity snapshots.
    """

    def __init__(self, fit: HoldoutFit, target_mask: Array, k: int) -> None:
        """Stack the weights of a fitted model, and count the score components.

        fit: a small tempo fitted to the training rows. target_mask: a flag per item that may be
        ranked. k: ranks of a list that count.
        """
        self.fit, self.target_mask, self.k = fit, target_mask, k
        repeats = IdentityBlock(items=fit.item_weights.items)
        self.weights = Weights([fit.item_weights, repeats, make_block(fit.snapshots.shares)])
        self.has_repeats = allows_repeats(fit.repeat_rates)
        n_repeats = N_LAG_BUCKETS + fit.n_decays if self.has_repeats else 0
        self.decays = np.array(FREQUENCY_DECAYS[: fit.n_decays])
        self.n_components = len(LAG_KNOTS) + n_repeats + len(HORIZONS)

    def compute(self, queries: HoldoutQueries, edges: Array) -> ScoreComponents:
        """Return the score components (parts of scores, by kind of source) of queries' candidates.

        Candidates of a query are its target and the items of several lists. queries: histories with
        a held-out target each. edges: inactivity (microseconds) that separates the segments of
        requests, see `QueryParams`.
        """
        fit = self.fit
        rules = fit.rules._replace(max_history=min(_MAX_ROWS, fit.rules.max_history))
        requests = RequestHistories.build(self.weights, queries.histories, rules, fit.time_range[1])
        segments = assign_segments(edges, requests.inactivity, requests.now, *fit.time_range)
        latest = fit.snapshots.latest(queries.histories)
        lists = list(self._candidate_lists(queries.histories, requests, latest))
        candidates = merge_candidates(queries, lists, self.target_mask)
        freshness = fit.snapshots.freshness(queries.histories, fit.time_range[1])
        popularity = freshness / requests.left[:, None]
        n_items, options = self.weights.items, (latest, popularity, _MAX_ROWS, self.decays)
        grouped = GroupedQueries(*_group_sources(requests, n_items, self.has_repeats, *options))
        scale_repeats(grouped.source, grouped.share, n_items, fit.repeat_factors)
        values = sum_components(self.weights, grouped, candidates, self.n_components)
        log_pop = log_popularity(fit.counts)[candidates.items].astype(np.float32)
        counts, seen = candidates.counts, candidates.seen
        return ScoreComponents(values, counts, seen, segments, log_pop, queries.user)

    def _candidate_lists(
        self, histories: Histories, requests: RequestHistories, latest: Array
    ) -> Iterator[Array]:
        """Yield arrays query x rank of items to compare with the targets; -1 stands for none.

        First the best unseen items by each of three recencies (decay of history weights, in rows);
        then the most popular items of each query's snapshots; if users repeat items, also the
        newest items of the history. requests: the histories as arrays, with lags. latest: query x
        horizon, the number of the last popularity snapshot before the request, or -1.
        """
        unseen = Mask.make(histories, hide_seen=True, allowed=self.target_mask.astype(np.uint8))
        for recency, beyond in _CANDIDATE_LISTS:
            x = Query(requests.indptr, requests.item, np.exp(-requests.lag / recency))
            yield top_items(self.weights, x, unseen, min(self.k + beyond, self.weights.items))[0]
        yield _largest_entries(self.fit.snapshots.shares, latest, self.k + _POPULAR_CANDIDATES)
        if self.has_repeats:
            # all of them: a target would outrank items that are left out, whatever their weights
            yield _first_entries(requests.indptr, requests.item, _MAX_ROWS)


def _first_entries(indptr: Array, item: Array, count: int) -> Array:
    """Return the first `count` items of each query's run of `item`, padded with -1.

    The run of query q is item[indptr[q]:indptr[q + 1]]. The result is query x count.
    """
    at = indptr[:-1, None] + np.arange(count)
    exists = at < indptr[1:, None]
    return np.where(exists, item[np.minimum(at, max(len(item) - 1, 0))] if len(item) else -1, -1)


def _largest_entries(matrix: Matrix, rows: Array, top: int) -> Array:
    """Return the columns of the `top` largest values of rows of a CSR matrix, padded with -1.

    matrix: popularity snapshot x item. rows: query x horizon, numbers of matrix rows, -1 for none.
    Returns query x (horizon * top): the columns by descending value for each horizon, one after the
    other; of equal values the first column comes first.
    """
    largest = np.full((matrix.shape[0] + 1, top), -1, np.int32)  # the last row stays empty
    for row in np.unique(rows[rows >= 0]).tolist():
        entries = slice(matrix.indptr[row], matrix.indptr[row + 1])
        best = np.argsort(-matrix.data[entries], kind="stable")[:top]
        largest[row, : len(best)] = matrix.indices[entries][best]
    return largest[rows].reshape(len(rows), rows.shape[1] * top)


_LAST_KNOT = len(LAG_KNOTS) - 1
_N_BUCKETS = N_LAG_BUCKETS


@template
def _interpolate_lag(lag: int) -> tuple[int, float]:
    """Return the number of the last lag knot up to a lag, and the weight of the next knot.

    A lag is how many rows back an event is. Knots, lags with a weight of their own, are 2^n - 1 (0,
    1, 3, ..., 127); other lags interpolate linearly in log2(1 + lag), so the first knot's weight is
    1 minus the second result. Beyond the last knot: that knot, and 0.
    """
    z = np.log2(1.0 + lag)
    if z >= _LAST_KNOT:
        return _LAST_KNOT, 0.0
    return int(z), z - int(z)


@kernel
def _group_sources(
    requests: RequestHistories, n_items: int, has_repeats: bool, latest: Array, popularity: Array,
    max_rows: int, decays: Array,
) -> tuple[Array, Array, Array, Array]:  # fmt: skip
    """Return the sources of each query by score component: (indptr, source, share, component).

    A source is a row of the stacked weights [B; I; P] (items, repeats, popularity snapshots); its
    share is its weight within the component. Query q has the entries indptr[q]..indptr[q + 1] of
    the other arrays. Components are numbered: lag knots (lags 0, 1, 3, ..., between which history
    items are interpolated), lag buckets of repeats, frequencies (shares of the history's rows, one
    for each decay in rows), popularity horizons.

    requests: the histories. n_items: the number of items. has_repeats: add repeats and frequencies.
    latest: query x horizon, the snapshot to use or -1. popularity: query x horizon, the share of
    that snapshot. max_rows: newest rows that count for frequencies.
    """
    indptr, item, lag = requests.indptr, requests.item, requests.lag
    start, stop, rows = requests.start, requests.stop, requests.rows
    n_knots, n_horizons = _LAST_KNOT + 1, latest.shape[1]
    room = 3 * len(item) + n_horizons * len(start)
    for q in range(len(start) if has_repeats else 0):
        room += len(decays) * min(stop[q] - start[q], max_rows)
    starts, source = np.zeros(len(indptr), np.int64), np.empty(room, np.int64)
    share, component, end = np.empty(room), np.empty(room, np.int64), 0
    for q in range(len(start)):
        for r in range(indptr[q], indptr[q + 1]):
            knot, next_share = _interpolate_lag(lag[r])
            source[end], share[end], component[end] = item[r], 1.0 - next_share, knot
            end += 1
            if next_share > 0.0:
                source[end], share[end], component[end] = item[r], next_share, knot + 1
                end += 1
        for r in range(indptr[q], indptr[q + 1] if has_repeats else indptr[q]):
            source[end], share[end] = n_items + item[r], 1.0
            component[end] = n_knots + min(lag_bucket(lag[r]), _N_BUCKETS - 1)
            end += 1
        low = max(start[q], stop[q] - max_rows) if has_repeats else stop[q]
        for d in range(len(decays)):
            decay, weight_sum, first = decays[d], 0.0, end
            for r in range(low, stop[q]):
                weight = np.exp((r + 1 - stop[q]) / decay)
                weight_sum += weight
                if rows[r] >= 0:
                    source[end], share[end] = n_items + rows[r], weight
                    component[end] = n_knots + _N_BUCKETS + d
                    end += 1
            for x in range(first, end):
                share[x] /= weight_sum
        n_repeats = _N_BUCKETS + len(decays) if has_repeats else 0
        for m in range(n_horizons):
            if latest[q, m] >= 0:
                source[end], share[end] = 2 * n_items + latest[q, m], popularity[q, m]
                component[end] = n_knots + n_repeats + m
                end += 1
        starts[q + 1] = end
    return starts, source[:end], share[:end], component[:end]

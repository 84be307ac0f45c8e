"""Tempo's query parameters: weights of lags, repeats and popularity per segment.

A segment groups requests by the user's inactivity (time since the last event) and by whether the
request comes long after the end of the training log. Every parameter has one value per segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from talerec.models.core import require
from talerec.models.tempo.popularity import DEFAULT_HORIZON, HORIZONS, log_popularity
from talerec.models.tempo.search import ComponentWeights
from talerec.ranking import Block, DenseBlock, SparseBlock
from talerec.runtime import Array

#: Lags (rows back) with a weight of their own; others interpolate linearly in log2(1 + lag).
LAG_KNOTS = 2.0 ** np.arange(8) - 1
N_LAG_BUCKETS = len(LAG_KNOTS)  # buckets 0, 1-2, 3-6, ... of lags; the last one takes all others
#: Rows in which an event's weight in an item's frequency falls to 1/e: short term, long term, and
#: (in logs of baskets only) never.
FREQUENCY_DECAYS = (10.0, 100.0, np.inf)
N_DECAYS, N_BASKET_DECAYS = 2, 3  # how many of them logs of rows, and of baskets, use

DEFAULT_RECENCY, DEFAULT_POPULARITY_WEIGHT = 6.0, 0.3
#: Inactivity (microseconds) below which a request has the time of the user's last event.
SIMULTANEOUS_EDGE = 1.0
#: Name of the search steps that weight the history's items against repeats and popularity.
HISTORY_WEIGHT = "history_weight"


class QueryParams(NamedTuple):
    """Query parameters of tempo; arrays have one entry (or row) per segment of requests.

    edges                inactivity (microseconds) between segments; the second half of the
                         segments repeats them for requests long after the end of the log
    recency              lags in which a history row's weight falls to 1/e
    min_weight           least weight of a history row
    repeat_weight        factor of the repeat rates
    repeat_decay         decay of that factor per lag bucket (a power of e)
    frequency_weight     segment x decay: weight of an item's frequency in the history
    popularity_weight    segment x horizon: weight of the item's share of recent events
    popularity_exponent  item-item weights are multiplied by popularity to this power (one value)
    """

    edges: Array
    recency: Array
    min_weight: Array
    repeat_weight: Array
    repeat_decay: Array
    frequency_weight: Array
    popularity_weight: Array
    popularity_exponent: Array

    @classmethod
    def default(
        cls,
        edges: Array,
        n_horizons: int = len(HORIZONS),
        horizon: int = DEFAULT_HORIZON,
        n_decays: int = N_DECAYS,
    ) -> QueryParams:
        """Return the defaults: popularity has weight at one horizon, number `horizon`, only.

        edges: inactivity (microseconds) between segments of requests, ascending; n edges give 2 (n
        + 1) segments, the second half for requests long after the log's end. n_horizons: popularity
        horizons (how quickly popularity is forgotten), the columns of popularity_weight. n_decays:
        frequency decays, the columns of frequency_weight.
        """
        n = 2 * (len(edges) + 1)
        popularity_weight = np.zeros((n, n_horizons))
        popularity_weight[:, horizon] = DEFAULT_POPULARITY_WEIGHT
        return cls(
            edges,
            recency=np.full(n, DEFAULT_RECENCY),
            min_weight=np.zeros(n),
            repeat_weight=np.ones(n),
            repeat_decay=np.zeros(n),
            frequency_weight=np.zeros((n, n_decays)),
            popularity_weight=popularity_weight,
            popularity_exponent=np.zeros(1),
        )

    @property
    def has_simultaneous_segment(self) -> bool:
        """Whether requests at the time of the user's last event have segments of their own.

        These segments are then the first of those for requests soon after the log's end, and the
        first of those for later requests.
        """
        return len(self.edges) > 0 and bool(self.edges[0] == SIMULTANEOUS_EDGE)

    def to_arrays(self) -> dict[str, Array]:
        """Return the arrays that an artifact stores: the fields under the artifact's names.

        The names (`number_recency` ...) are those of earlier versions; `from_arrays` reads them.
        """
        return dict(zip(_ARRAY_NAMES, self, strict=True))

    @classmethod
    def from_arrays(cls, arrays: dict[str, Array]) -> QueryParams | None:
        """Return the query parameters in the arrays of an artifact; None if nothing was learned.

        arrays: by name, as `to_arrays` names them; other arrays are ignored.
        """
        if _ARRAY_NAMES[0] not in arrays:
            return None
        return cls(*(arrays[name] for name in _ARRAY_NAMES))

    def check(self, n_horizons: int) -> None:
        """Raise TalerecError if shapes or recency, read from an artifact, are invalid.

        n edges give 2 (n + 1) segments of requests, for each of which the parameters have a value;
        frequency_weight has 2 or 3 columns, popularity_weight `n_horizons`, popularity_exponent one
        value. recency must be above 0.
        """
        n = 2 * (len(self.edges) + 1)
        n_decays = (
            N_BASKET_DECAYS if self.frequency_weight.shape[1:] == (N_BASKET_DECAYS,) else N_DECAYS
        )
        shapes = [(n,)] * 4 + [(n, n_decays), (n, n_horizons), (1,)]
        for name, array, shape in zip(_ARRAY_NAMES[1:], self[1:], shapes, strict=True):
            require(array.shape == shape, f"{name} has the shape {array.shape}, not {shape}")
        require((self.recency > 0).all(), f"{_ARRAY_NAMES[1]} is not above 0")

    def lag_weights(self, lags: Array) -> Array:
        """Return the weight of history rows, max(exp(-lag / recency), min_weight): segment x lag.

        lags: how many rows back, one number per column. A segment is a group of requests, for which
        recency and min_weight have a value each.
        """
        weights: Array = np.maximum(np.exp(-lags / self.recency[:, None]), self.min_weight[:, None])
        return weights

    def repeat_weights(self, rates: Array) -> Array:
        """Return rate * repeat_weight * exp(-repeat_decay * bucket): segment x lag bucket.

        rates: by lag bucket (0, 1-2, 3-6, ... rows back), the probability that the next row repeats
        such a row. Buckets from the eighth on have its decay. A segment is a group of requests, for
        which repeat_weight and repeat_decay have a value each.
        """
        bucket = np.minimum(np.arange(len(rates)), N_LAG_BUCKETS - 1)
        decay = np.exp(-self.repeat_decay[:, None] * bucket)
        weights: Array = rates * (decay * self.repeat_weight[:, None])
        return weights

    def component_weights(self, repeat_rates: Array) -> ComponentWeights:
        """Return the weights of score components, for validation: segment x component.

        A score is a weighted sum of components: the lag knots (lags 0, 1, 3, 7, ..., in rows), the
        lag buckets of repeats and the frequencies (both only if `repeat_rates` is not empty), and
        the popularity horizons. repeat_rates: by lag bucket, the probability that the next row
        repeats a row at such a lag. A segment is a group of requests. The result also has the
        popularity exponent.
        """
        columns = [self.lag_weights(LAG_KNOTS)]
        if len(repeat_rates):
            columns += [self.repeat_weights(repeat_rates[:N_LAG_BUCKETS]), self.frequency_weight]
        weights = np.concatenate([*columns, self.popularity_weight], axis=1)
        return ComponentWeights(weights, float(self.popularity_exponent[0]))

    def with_recency(self, recency: float) -> QueryParams:
        """Return a copy with the given recency in all segments, and no least weight.

        recency: rows in which the weight of a history row falls to 1/e.
        """
        return self._replace(
            recency=np.full_like(self.recency, recency), min_weight=np.zeros_like(self.min_weight)
        )

    def with_popularity_weight(self, weight: float, horizon: int) -> QueryParams:
        """Return a copy with this popularity weight at horizon number `horizon`, 0 at others.

        A horizon is how quickly popularity is forgotten; its number is a column of
        popularity_weight. All segments (groups of requests) get the same weight.
        """
        weights = np.zeros_like(self.popularity_weight)
        weights[:, horizon] = weight
        return self._replace(popularity_weight=weights)

    def with_all_horizons(self, horizons: list[float]) -> QueryParams:
        """Return a copy whose popularity weights have a column for each of `HORIZONS`.

        horizons: those of the present columns, members of `HORIZONS` (multiples of tempo's
        parameter `span`, which says how quickly popularity is forgotten); new columns are 0.
        """
        weights = np.zeros((len(self.popularity_weight), len(HORIZONS)))
        weights[:, [HORIZONS.index(horizon) for horizon in horizons]] = self.popularity_weight
        return self._replace(popularity_weight=weights)

    def used_horizons(self) -> list[int]:
        """Return the numbers of horizons with a weight in any segment, and of the default one.

        Ascending. A horizon is how quickly popularity is forgotten; its number is a column of
        popularity_weight, which must have one for each of `HORIZONS`. The default one is always
        among them.
        """
        weights = self.popularity_weight
        return [m for m in range(weights.shape[1]) if m == DEFAULT_HORIZON or weights[:, m].any()]

    def candidate_steps(
        self, name: str, column: int | None, segments: list[int]
    ) -> Iterator[QueryParams]:
        """Yield copies with one parameter moved by each search step in the given segments.

        name: a field, or `HISTORY_WEIGHT`. column: its frequency decay or popularity horizon; None
        for fields with one value per segment. segments: numbers of groups of requests; values of
        others stay. Steps multiply a value, add to it or replace it, by a table for each field;
        copies that equal this are left out. `HISTORY_WEIGHT` multiplies the weight of a history's
        items by dividing that of everything else: ranks depend on ratios of weights alone.
        """
        if name == HISTORY_WEIGHT:
            yield from (self._weight_history(factor, segments) for factor in (1 / 3, 3.0))
            return
        values = getattr(self, name)
        at: Any = (segments, column) if column is not None else (segments,)
        for step in _STEPS[name]:
            changed = values.copy()
            changed[at] = [step(value) for value in values[at]]
            if not np.array_equal(changed, values):
                yield self._replace(**{name: changed})

    def _weight_history(self, factor: float, segments: list[int]) -> QueryParams:
        """Return a copy with weights of repeats, frequencies and popularity divided by `factor`.

        segments: the numbers of the groups of requests to which this applies.
        """
        divisor = np.ones((len(self.recency), 1))
        divisor[segments] = factor
        return self._replace(
            repeat_weight=self.repeat_weight / divisor[:, 0],
            frequency_weight=self.frequency_weight / divisor,
            popularity_weight=self.popularity_weight / divisor,
        )


class FitConstants(NamedTuple):
    """What a fit measured and learned, which updates of the model leave as it is.

    K = S'T sums pairs of a source row and a target row of a user; K' is its transpose.
    """

    decay: float  # days in which the weight of a source row falls to 1/e
    is_joint: bool  # a user's rows with equal times are unordered
    reverse_share: float  # the share c in K + c K', which replaces K
    params: QueryParams | None  # None if nothing was learned
    is_compact: bool = False  # only the dense weights that matter most are kept


#: Names of the arrays in an artifact, in the order of the fields.
_ARRAY_NAMES = (
    "number_edges", "number_recency", "number_lasting", "number_again", "number_fading",
    "number_often", "number_now", "number_lift",
)  # fmt: skip


def _multiply(factor: float, start: float) -> Callable[[float], float]:
    """Return a step that multiplies by a factor, and goes from 0 to `start`."""
    return lambda value: value * factor if value else start


def _set(target: float) -> Callable[[float], float]:
    """Return a search step that replaces a value by `target`."""
    return lambda value: target


def _add(difference: float) -> Callable[[float], float]:
    """Return a search step that adds `difference` to a value."""
    return lambda value: value + difference


#: Steps of the coordinate search, by parameter.
_STEPS: dict[str, list[Callable[[float], float]]] = {
    "recency": [_multiply(factor, DEFAULT_RECENCY) for factor in (0.5, 1 / 1.3, 1.3, 2.0)],
    "min_weight": [_set(value) for value in (0.0, 0.01, 0.03, 0.08, 0.2)],
    "repeat_weight": [_multiply(factor, 1.0) for factor in (0.5, 1 / 1.3, 1.3, 2.0)],
    "repeat_decay": [_add(step) for step in (-0.3, -0.1, 0.1, 0.3)],
    "frequency_weight": [
        _set(0.0), _multiply(1 / 3, 0.003), _multiply(3.0, 0.01), _multiply(1.5, 0.03),
        _multiply(6, 0.1),
    ],
    "popularity_weight": [
        _set(0.0), _multiply(1 / 3, 0.03), _multiply(1 / 1.6, 0.1), _multiply(1.6, 0.3),
        _multiply(3.0, 1.0),
    ],
    "popularity_exponent": [_add(step) for step in (-0.1, -0.05, 0.05, 0.1)],
}  # fmt: skip


def popularity_scale(counts: Array, params: QueryParams) -> Array:
    """Return popularity ** popularity_exponent of each item, a factor of its weights.

    counts: weighted rows of each item; popularity is relative to the geometric mean of the counts,
    and 1 for items without rows. params: the learned query parameters, with the exponent.
    """
    return np.exp(float(params.popularity_exponent[0]) * log_popularity(counts))


def scale_targets(item_weights: Block, factor: Array) -> Block:
    """Return a copy of item-item weights with each target's column times its factor.

    item_weights: a matrix in one storage format, source item x target item. factor: one number per
    item. If all are 1, the weights themselves are returned.
    """
    if (factor == 1).all():
        return item_weights
    factor = factor.astype(np.float32)
    if isinstance(item_weights, SparseBlock):
        values = item_weights.values * factor[item_weights.indices]
        return replace(item_weights, values=values, stored_peaks=None)
    assert isinstance(item_weights, DenseBlock)
    return replace(item_weights, values=item_weights.values * factor)

"""Learn tempo's query parameters by coordinate search on held-out queries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from talerec.data import Log
from talerec.models.core import FitCache, HoldoutQueries, split_holdout
from talerec.models.tempo.holdout_fit import HoldoutComponents, HoldoutFit
from talerec.models.tempo.log_statistics import LogStatistics, allows_repeats, measure_repeat_rates
from talerec.models.tempo.popularity import HORIZONS, TimedRows, build_snapshots
from talerec.models.tempo.query import HistoryRules, compute_inactivity
from talerec.models.tempo.query_params import (
    HISTORY_WEIGHT,
    LAG_KNOTS,
    SIMULTANEOUS_EDGE,
    QueryParams,
)
from talerec.models.tempo.search import CoordinateSearch
from talerec.models.tempo.tie_order import TieOrder
from talerec.ranking import Block
from talerec.runtime import Array

_MIN_Z = 1.9  # standard errors that a single change must gain
#: Standard errors that all changes together must gain over the defaults, or none is kept. The
#: search tries hundreds of changes: on logs of noise the best of them gain more in 1 of 25 logs.
_MIN_TOTAL_Z = 2.9
_ROUNDS = 2
#: Share of held-out queries at the time of the user's last event from which ties are frequent.
_MIN_TIES = 0.1
_MIN_TIE_Z = 1.0  # standard errors by which queries must contradict the test of the ties' order
_MAX_STEPS = 3  # successive steps with one parameter
_K = 20  # ranks that count; half of them if only half of the items are ranked, or seen ones are

#: What a search changes: a parameter, its column or None, and the segments of requests.
_Coordinate = tuple[str, int | None, list[int]]


#: Fits item-item weights (B, source x target) to rows; returns them, statistics of the rows, and
#: how histories are used. Takes the rows, a flag per target item, whether a user's rows with equal
#: times are unordered, and a cache of the fit's steps.
_HoldoutFitter = Callable[[Log, Array, bool, FitCache], tuple[Block, LogStatistics, HistoryRules]]


#: Whether compact weights of a holdout fit rank held-out targets as well, with given parameters.
#: Takes the fit, the parameters, held-out queries, and a flag per item that is ranked.
_CompactionTest = Callable[[HoldoutFit, QueryParams, Sequence[HoldoutQueries], Array], bool]


def learn_from_log(
    fit_weights: _HoldoutFitter, log: Log, tie_order: TieOrder, span: float, cache: FitCache,
    test_compaction: _CompactionTest | None = None,
) -> tuple[TieOrder, QueryParams | None, bool]:  # fmt: skip
    """Return how equal times are treated, learned parameters, and if weights be compact.

    A smaller model is fitted to the rows that are not held out, and ranks the held-out items: all
    items if users repeat items (the seen ones among half of them are few), else a sample of large
    catalogues. If held-out queries are too few, the parameters are None and tie_order stays.

    fit_weights: fits the smaller model. tie_order: whether a user's rows with equal times are
    ordered, by tests of the log. span: how quickly popularity is forgotten, in rows per item.
    cache: keeps the holdout, and caches of the fits, for other fits to this log. test_compaction:
    whether compact weights rank as well; None: they are not wanted.
    """
    every_item = allows_repeats(measure_repeat_rates(log))  # seen items are few
    holdout = cache.cached("held back", log, lambda: split_holdout(log, every_item=every_item))
    if holdout is None:
        return tie_order, None, False
    train, target_mask, query_sets = holdout.train, holdout.target_mask, holdout[1:3]
    rows = TimedRows.from_log(train)
    snapshots = build_snapshots(rows, span, HORIZONS, share_room=False)
    facts = (snapshots, train.counts(), (int(rows.time[0]), int(rows.time[-1])))
    fits = []
    for is_joint in select_treatments(tie_order, query_sets):
        name = f"first fit, joint {is_joint}"
        fit_cache = cache.cached(name, log, lambda: cache.nested("learn"))
        weights, statistics, rules = fit_weights(train, target_mask, is_joint, fit_cache)
        rates, factors = statistics.repeat_rates, statistics.repeat_factors
        fits.append(HoldoutFit(weights, rates, *facts, rules, factors))
    tie_order, params = learn_params(fits, tie_order, query_sets, target_mask)
    if test_compaction is None:
        return tie_order, params, False
    fit = next(each for each in fits if each.rules.is_joint != tie_order.is_ordered)
    return tie_order, params, test_compaction(fit, params, query_sets, target_mask)


def select_treatments(tie_order: TieOrder, query_sets: Sequence[HoldoutQueries]) -> list[bool]:
    """Return whether models for `learn_params` treat simultaneous rows as unordered, by model.

    The first model treats them as `tie_order` says. If `tie_order` is open and ties are frequent
    (one query in ten has the time of the user's last event), a second does the opposite.
    query_sets: held-out queries.
    """
    is_joint = not tie_order.is_ordered
    is_asked = tie_order.is_open and _has_frequent_ties(_inactivity(query_sets))
    return [is_joint, not is_joint] if is_asked else [is_joint]


def learn_params(
    fits: Sequence[HoldoutFit], tie_order: TieOrder, query_sets: Sequence[HoldoutQueries],
    target_mask: Array,
) -> tuple[TieOrder, QueryParams]:  # fmt: skip
    """Return how simultaneous rows are treated, and the learned query parameters.

    Of two models, the second replaces the first (and `tie_order`) if it ranks the held-out targets
    better by more than one standard error, after a short search for both: an order tells nothing
    unless the latest rows weigh more than those before them.

    fits: models of the training rows, one or two, with the treatments of `select_treatments`.
    tie_order: the treatment by tests of the log. query_sets: held-out queries, current ones (the
    target is a user's last row before a cutoff) and delayed ones (the first after it). target_mask:
    a flag per item that is ranked.
    """
    search, *others = (_ParamSearch(fit, query_sets, target_mask) for fit in fits)
    for other in others:
        first, second = (x.run(_short_coordinates(x.params))[0] for x in (search, other))
        if second.z_over(first) > _MIN_TIE_Z:
            search = other
            reason = ": held-out queries are ranked better that way"
            tie_order = TieOrder(not tie_order.is_ordered, reason)
    return tie_order, search.learn_params()


def start_search(
    fit: HoldoutFit, params: QueryParams, query_sets: Sequence[HoldoutQueries], target_mask: Array
) -> CoordinateSearch:
    """Return a search at its start, which has measured the targets' DCG under `params`.

    Two searches are compared by it without a step. fit: a model of the training rows. params: query
    parameters. query_sets: held-out queries. target_mask: for each item, whether it is ranked.
    """
    return _ParamSearch(fit, query_sets, target_mask).start(params)


class _ParamSearch:
    """Search for the query parameters that rank held-out targets best, from the defaults on.

    A held-out query is a history whose next item, the target, was not trained on. `params` has the
    default parameters.
    """

    def __init__(
        self, fit: HoldoutFit, query_sets: Sequence[HoldoutQueries], target_mask: Array
    ) -> None:
        """Compute the score components of the queries' candidates.

        fit: a model of the training rows. query_sets: held-out queries, current ones (the target is
        a user's last row before a cutoff) and delayed ones (the first after it). target_mask: a
        flag per item that is ranked.
        """
        self.params = QueryParams.default(
            _segment_edges(_inactivity(query_sets)), n_decays=fit.n_decays
        )
        self.has_repeats = allows_repeats(fit.repeat_rates)
        self.rates = fit.repeat_rates if self.has_repeats else fit.repeat_rates[:0]
        self.k = _K if target_mask.all() and not self.has_repeats else _K // 2
        evaluator = HoldoutComponents(fit, target_mask, self.k)
        self.components = [evaluator.compute(queries, self.params.edges) for queries in query_sets]
        self.is_scaled = np.arange(evaluator.n_components) < len(LAG_KNOTS)

    def start(self, params: QueryParams) -> CoordinateSearch:
        """Return a search that begins with these parameters."""
        weights, k = params.component_weights(self.rates), self.k
        return CoordinateSearch(self.components, weights, self.is_scaled, self.has_repeats, k)

    def run(self, coordinates: Iterable[_Coordinate]) -> tuple[CoordinateSearch, QueryParams]:
        """Return the search after visits of all coordinates, and the parameters it arrives at.

        coordinates: parameters to change, one after the other; see `_coordinates`.
        """
        params, rates = self.params, self.rates
        search = self.start(params)
        for name, column, segments in coordinates:
            for _ in range(_MAX_STEPS):
                candidates = list(params.candidate_steps(name, column, segments))
                best = search.step((new.component_weights(rates) for new in candidates), _MIN_Z)
                if best is None:
                    break
                params = candidates[best]
        return search, params

    def learn_params(self) -> QueryParams:
        """Return the parameters that the search arrives at, or the defaults.

        The search changes one parameter at a time; its result replaces the defaults only if its
        total gain in DCG is significant.
        """
        search, params = self.run(_coordinates(self.params, self.has_repeats))
        return params if search.combined_z() > _MIN_TOTAL_Z else self.params


def _segment_edges(inactivity: Array) -> Array:
    """Return the inactivity (microseconds) that separates segments of requests: 1 to 3 edges.

    Segments are groups of requests with parameters of their own. inactivity: the time since the
    user's last event, of each held-out query; its terciles are edges. If one query in ten or more
    has the time of the user's last event, such requests are a segment of their own: the first edge
    is then 1.
    """
    edges = np.quantile(inactivity, (1 / 3, 2 / 3))
    if _has_frequent_ties(inactivity):
        edges = np.maximum(np.append(edges, SIMULTANEOUS_EDGE), SIMULTANEOUS_EDGE)
    return np.unique(edges)


def _has_frequent_ties(inactivity: Array) -> bool:
    """Return whether one query in ten or more has the time of the user's last event.

    inactivity: the time from the user's last event to each query; 0 if they are simultaneous.
    """
    return bool(np.count_nonzero(inactivity == 0) >= _MIN_TIES * len(inactivity))


def _short_coordinates(params: QueryParams) -> list[_Coordinate]:
    """Return the search order that compares two treatments of simultaneous rows.

    It changes the decay of history weights, and for requests at the time of the user's last event
    also the weight of the history. params: have segments for such requests.
    """
    every = list(range(len(params.recency)))
    simultaneous = [0, len(every) // 2]
    first, second = ("recency", None, every), (HISTORY_WEIGHT, None, simultaneous)
    return [first, second, ("recency", None, simultaneous)]


def _coordinates(params: QueryParams, has_repeats: bool) -> Iterator[_Coordinate]:
    """Yield the search order: parameter, column and segments that a change applies to.

    Parameters are fields of `QueryParams`. Segments group requests by inactivity and delay: the
    first half of their numbers is for requests soon after the log. column: number of the frequency
    decay or popularity horizon; None for parameters with one value per segment. Each of two rounds
    visits all parameters for all segments; the second then visits them for each half of the
    segments. Two more rounds, where there are such segments, are for those of requests at the time
    of the user's last event; they begin with the weight of the history against everything else.
    """
    every = list(range(len(params.recency)))
    current, delayed = every[: len(every) // 2], every[len(every) // 2 :]
    columns: list[tuple[str, int | None]] = [("recency", None), ("min_weight", None)]
    if has_repeats:
        columns += [("repeat_weight", None), ("repeat_decay", None)]
        columns += [("frequency_weight", d) for d in range(params.frequency_weight.shape[1])]
    columns += [("popularity_weight", m) for m in range(len(HORIZONS))]
    for turn in range(_ROUNDS):
        for name, column in columns:
            yield name, column, every
        yield "popularity_exponent", None, [0]
        for name, column in reversed(columns) if turn else ():
            for segments in (current, delayed):
                yield name, column, segments
    for _ in range(_ROUNDS if params.has_simultaneous_segment else 0):
        for name, column in [(HISTORY_WEIGHT, None), *columns]:
            yield name, column, [current[0], delayed[0]]


def _inactivity(query_sets: Sequence[HoldoutQueries]) -> Array:
    """Return the microseconds from the history's last event to the request, for all queries.

    query_sets: held-out queries, whose histories must have request times. 0 for a history whose
    last event has no time.
    """
    values = []
    for queries in query_sets:
        assert queries.histories.now is not None
        values.append(compute_inactivity(queries.histories.last(), queries.histories.now))
    return np.concatenate(values)

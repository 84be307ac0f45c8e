"""Tempo: TALE's weights at the log's own time scale, with repeats and popularity."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from talerec.data import Histories, Log, median_interval
from talerec.errors import TalerecError
from talerec.gram import (
    Gram,
    GramTerm,
    TaleWeighting,
    newest_rows,
    simultaneous_weight,
    tale_columns,
    tale_term,
    with_trend_counts,
)
from talerec.models.core import (
    AUTO,
    LEARN,
    SCORE,
    SOLVE,
    FitCache,
    NoFitCache,
    UpdateState,
    accept_former_names,
    is_auto,
    param,
)
from talerec.models.linear import dropout_penalty
from talerec.models.tempo.compaction import compact_weights, is_compact_as_good
from talerec.models.tempo.content_model import ContentTakingModel
from talerec.models.tempo.descriptions import describe_fit
from talerec.models.tempo.learning import learn_from_log
from talerec.models.tempo.log_statistics import LogStatistics, read_repeat_factors
from talerec.models.tempo.popularity import PopularitySnapshots, TimedRows, build_snapshots
from talerec.models.tempo.query import (
    FIRST_HORIZON,
    POPULARITY_BLOCK,
    HistoryRules,
    QueryPlan,
    SnapshotArrays,
    assemble_weights,
)
from talerec.models.tempo.query_params import (
    FitConstants,
    QueryParams,
    popularity_scale,
    scale_targets,
)
from talerec.models.tempo.tie_order import TieOrder, find_tie_order
from talerec.ranking import Block, Query, Weights, latest_row_weights, make_block
from talerec.runtime import Array, Clock, Matrix, as_readonly, is_sparse
from talerec.solvers import Solution, lower_triangle, solve_gram

logger = logging.getLogger("talerec")


@accept_former_names
@dataclass(eq=False, kw_only=True)
class Tempo(ContentTakingModel):
    """Scores are x @ [B; I; P]: what follows the history, repeats, and current popularity.

    B = (G + diag(reg + p/(1-p) diag(G)))^-1 (K + c K'), with TALE's G = S'S and K = S'T, and p the
    dropout; c is larger the more of the difference between K and K' is explained by chance. S and T
    have a row per training example: source items and target items. I is the identity (repeats), P
    holds item shares over time (popularity snapshots), and x a history's weights of their rows.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.Tempo().fit(log).recommend([1], k=3)["item_id"].to_list()
    [31, 16, 94]
    """

    name = "tempo"
    summary = "Start here: it sets itself by the log"
    is_solved_by_target = True

    pace: float = param(
        16.0, "decay time, in median gaps between events", above=0, search=(0.25, 64)
    )
    floor: float = param(
        0.15, "least weight of a source, however old", low=0, high=1, search=(0.0, 0.8)
    )
    window: float = param(180.0, "days around a row in which its item's rows are counted", low=0)
    trend: float = param(
        0.1, "exponent of that count, a divisor; 0: off", low=0, high=10, search=(0.0, 0.3)
    )
    same_time: str = param(
        "auto",
        "rows of a user with equal times: unordered (joint), ordered, or tested by their order",
        choices=("auto", "joint", "ordered"),
    )
    span: float = param(
        1.0, "how quickly popularity is forgotten, in rows per item", above=0, high=1e6
    )
    shrinkage: float = param(
        0.75, "shrinkage of the difference between K and K' that chance explains",
        low=0, high=10, search=(0.0, 2.0), former="even",
    )  # fmt: skip
    dropout: float = param(
        0.5, "dropped share of a history (p)", low=0, high=0.99, search=(0.0, 0.7), stage=SOLVE
    )
    reg: float = param(300.0, "ridge penalty", above=0, high=1e12, search=(50, 2000), stage=SOLVE)
    recency: float = param(
        "auto", "decay length of history weights, in rows", above=0, auto=True, stage=SCORE
    )
    neighbors: int = param(60, "sources per target (local solver)", low=1, stage=SOLVE)
    popularity_weight: float = param(
        "auto", "weight of current popularity", low=0, auto=True, stage=SCORE, former="now"
    )
    repeats: str = param(
        "learned", "score seen items by the log's repeat rates, or like all others",
        choices=("learned", "ignored"), stage=SCORE,
    )  # fmt: skip
    learn: str = param(
        "auto", "learn the weights of lags, repeats and popularity by validation; off: defaults",
        choices=("auto", "off"), stage=SOLVE,
    )  # fmt: skip
    compact: str = param(
        "off", "keep the 250 weights per target that matter most, if held-out queries lose nothing",
        choices=("off", "auto"), stage=SOLVE,
    )  # fmt: skip
    content: str = param(
        "auto", "score new items by the item table, if held-out queries gain; off: ids alone",
        choices=("auto", "off"), stage=SOLVE,
    )  # fmt: skip

    needs_time = True
    takes_weights = True
    supports_stored_gram = True

    # -- the Gram --
    def gram(self, log: Log) -> Gram:
        """Return G = S'S and K = S'T of the log, K with a share of K' (reversed pairs) added.

        S and T have a row per training example: its source items and its target items. During an
        update, `_fixed` has the decay (days), the share and the treatment of equal times of the
        first fit; else they are measured on the log.
        """
        rows, is_joint = self._count_trends(log), not self._tie_order(log).is_ordered
        if self._fixed is not None:
            term = tale_term(rows, self._weighting(self._fixed.decay, is_joint))
            return term.build(self.budget).add_reverse(self._fixed.reverse_share)
        term, simultaneous = self.gram_term(rows, median_interval(log), is_joint)
        return term.build(self.budget).symmetrize(self.shrinkage, simultaneous)

    def gram_term(self, rows: Log, interval: float, is_joint: bool) -> tuple[GramTerm, float]:
        """Return the Gram term (G = S'S, K = S'T), and the weight of simultaneous pairs in K.

        Rows of S and T are training examples: source items, target items. rows: users' newest rows.
        interval: median interval of the log, in days. is_joint: whether a user's rows with equal
        times are unordered. Both results are sums over users: those of parts of a log add up.
        """
        term = tale_term(rows, self._weighting(self.pace * interval, is_joint))
        return term, self._simultaneous_weight(rows, is_joint)

    def _count_trends(self, log: Log) -> Log:
        """Return users' newest rows with counts of their items' rows within `window` days."""
        rows = newest_rows(log, self.max_history)
        return with_trend_counts(rows, self.window, self.trend, "both")

    def _weighting(self, decay: float, is_joint: bool) -> TaleWeighting:
        """Return TALE's weighting; decay: days to 1/e; is_joint: equal times are unordered."""
        trend = (self.window, self.trend, "both")
        same_time = "joint" if is_joint else "ordered"
        return TaleWeighting(decay, self.floor, *trend, same_time, self.max_history)

    def _simultaneous_weight(self, rows: Log, is_joint: bool) -> float:
        """Return the weight in K = S'T of pairs of rows with equal times; 0 if they are ordered."""
        if not is_joint:
            return 0.0
        return simultaneous_weight(rows, self.window, self.trend, self.max_history)

    def _tie_order(self, log: Log) -> TieOrder:
        """Return whether a user's rows with equal times are ordered; updates keep the fit's."""
        if self._fixed is not None:
            return TieOrder(not self._fixed.is_joint)
        return self.resolve_same_time(lambda: find_tie_order(log))

    def resolve_same_time(self, find_order: Callable[[], TieOrder]) -> TieOrder:
        """Return whether rows of a user with equal times are ordered, without held-out queries.

        `find_order` tests the log for a meaningful order of such rows; it is called only if
        same_time is "auto".
        """
        return find_order() if is_auto(self.same_time) else TieOrder(self.same_time == "ordered")

    def with_tie_order(self, tie_order: TieOrder) -> Tempo:
        """Return an unfitted copy that treats a user's rows with equal times as `tie_order` says.

        Its `same_time` is "ordered" or "joint"; if this model's is "auto", the choice is logged.
        """
        if is_auto(self.same_time):
            state = "ordered" if tie_order.is_ordered else "unordered"
            logger.info("Rows with equal times are treated as %s%s.", state, tie_order.reason)
        model = replace(self, same_time="ordered" if tie_order.is_ordered else "joint")
        model._cache = self._cache
        return model

    # -- fitting --
    def measure(self, log: Log) -> LogStatistics:
        """Return a log's median interval, repeat rates, and whether equal times are unordered."""
        return LogStatistics.measure(log, self._tie_order(log))

    def penalty(self, diagonal: Array) -> Array:
        return dropout_penalty(diagonal, self.reg, self.dropout)

    def solution(self, gram: Gram, target_mask: Array | None = None) -> Solution:
        """Return B that solves (G + diag(penalty)) B = K of a Gram: source x target item.

        target_mask: flags of the target items to solve for; None: all.
        """
        penalty = self.penalty(np.asarray(gram.G.diagonal()))
        solver, neighbors = self.solver, self.neighbors
        return solve_gram(gram, penalty, solver=solver, neighbors=neighbors, targets=target_mask)

    def learn_weights(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        """Return the weights (item-item, repeats, popularity; stacked) and the solver's name.

        Query parameters and the treatment of equal times are learned if `learn` is auto; during an
        update, they are the fit's (`_fixed`).
        """
        if self._fixed is not None:
            model, params, is_compact = self, self._fixed.params, self._fixed.is_compact
        else:
            tie_order, params, is_compact = self._tie_order(log), None, False
            if self.learn == AUTO:
                cache = NoFitCache() if self._cache is None else self._cache
                with clock("learn"):
                    facts = (log, tie_order, self.span, cache)
                    test = is_compact_as_good if self.compact == AUTO else None
                    result = learn_from_log(self._fit_holdout, *facts, test)
                    tie_order, params, is_compact = result
            model = self.with_tie_order(tie_order)
        solved, solver = super(Tempo, model).learn_weights(log, clock)
        item_weights = solved.blocks[0]
        if is_compact:
            item_weights = compact_weights(item_weights, log.counts(), params)
        return model._stack_weights(item_weights, params, log, clock), solver

    def complete_weights(self, item_weights: Matrix, log: Log, clock: Clock) -> Weights:
        """Return all weights of an update, stacked: the given ones, repeats and popularity.

        Query parameters and decay are the fit's. item_weights: source x target item.
        """
        assert self._fixed is not None
        return self._stack_weights(make_block(item_weights), self._fixed.params, log, clock)

    def _stack_weights(
        self, item_weights: Block, params: QueryParams | None, log: Log, clock: Clock
    ) -> Weights:
        """Return all weights, stacked: item-item ones (source x target), repeats, popularity.

        params: learned query parameters; None for the defaults. clock: measures seconds by stage.
        """
        with clock("habits"):
            statistics, rows = self.measure(log), TimedRows.from_log(log)
            decay = self._fixed.decay if self._fixed else self.pace * statistics.median_interval
            measured = (item_weights, statistics, decay, params, log.counts())
            weights = assemble_weights(*measured, lambda h: build_snapshots(rows, self.span, h))
        return weights if self._fixed is None else self.restore_content(weights, log)

    def _fit_holdout(
        self, train: Log, target_mask: Array, is_joint: bool, cache: FitCache
    ) -> tuple[Block, LogStatistics, HistoryRules]:
        """Fit item-item weights to a holdout's rows; return them, statistics and history rules.

        target_mask: a flag per target item. is_joint: equal times are unordered. cache: of steps.
        """
        model = self.holdout_model(is_joint)
        model._cache = cache
        gram = model.cached(LEARN, train, lambda: model.gram(train))
        item_weights = make_block(model.solution(gram, target_mask).weights)
        statistics = model.measure(train)
        return item_weights, statistics, model.history_rules(statistics)

    def holdout_model(self, is_joint: bool) -> Tempo:
        """Return the unfitted model for a holdout's rows: at most 30 neighbors, no learning.

        is_joint: whether it treats a user's rows with equal times as unordered.
        """
        neighbors, same_time = min(self.neighbors, 30), "joint" if is_joint else "ordered"
        return replace(self, learn="off", same_time=same_time, neighbors=neighbors)

    def history_rules(self, statistics: LogStatistics) -> HistoryRules:
        """Return how histories are used: equal times, length, decay (days) and least weight."""
        decay = self.pace * statistics.median_interval
        return HistoryRules(statistics.is_joint, self.max_history, decay, self.floor)

    # -- updating --
    def target_columns(self, log: Log, targets: Array) -> Matrix:
        """Return K = S'T (source x target) with only the columns of flagged targets filled.

        Used by updates: decay, treatment of equal times and the share of reversed pairs, which is
        added to K, are those of the first fit. targets: a flag per item.
        """
        assert self._fixed is not None
        weighting = self._weighting(self._fixed.decay, bool(self._fixed.is_joint))
        share, memory = self._fixed.reverse_share, self.budget
        rows = self._count_trends(log)
        return tale_columns(rows, weighting, targets, reverse_share=share, memory=memory)

    def update_state(self, log: Log) -> UpdateState:
        """Return what an update continues from; TalerecError for a model of version 0.1.

        These are the share of K' (reversed pairs) in K, and for the local solver also the lower
        triangle of G, the number of K's entries, and residuals (0) of the targets.
        """
        if "lengths" not in self.fitted.weights.query_arrays:
            raise TalerecError("this tempo was fitted by version 0.1; refit it to update it")
        rows, constants = self._count_trends(log), self._constants(0.0)
        weighting = self._weighting(constants.decay, constants.is_joint)
        gram = tale_term(rows, weighting).build(self.budget)
        simultaneous = self._simultaneous_weight(rows, constants.is_joint)
        share = gram.reverse_share(self.shrinkage, simultaneous)
        if self.fitted.solver != "local":
            return UpdateState(reverse_share=share)
        entries = gram.add_reverse(share).k_entries
        return UpdateState(lower_triangle(gram.G), entries, share, np.zeros(len(log.items)))

    @property
    def _fixed(self) -> FitConstants | None:
        """What updates keep of the fit (decay, query parameters ...); None outside of an update."""
        state = self._update_state
        return None if state is None else self._constants(state.reverse_share)

    def _constants(self, reverse_share: float) -> FitConstants:
        """Return what updates keep of the fit; `reverse_share`: of K' (reversed pairs) in K."""
        arrays = self.fitted.weights.query_arrays
        params = QueryParams.from_arrays(arrays)
        if params is not None:
            params = params.with_all_horizons(arrays["lengths"].tolist())
        decay, is_joint = float(arrays["decay"][0]), bool(arrays["joint"][0])
        is_compact = self.fitted.solver != "local" and is_sparse(self.fitted.weights.matrix)
        return FitConstants(decay, is_joint, reverse_share, params, is_compact)

    def item_weights(self) -> Matrix:
        """Return the solver's item-item weights (source x target), without popularity scaling."""
        weights, log = self.fitted.weights, self.fitted.log
        params = QueryParams.from_arrays(weights.query_arrays)
        if params is None or log is None:
            return weights.matrix
        return scale_targets(weights.blocks[0], 1 / popularity_scale(log.counts(), params)).matrix

    # -- queries --
    def query(self, histories: Histories) -> Query:
        """Return x of each history, over rows of [B; I; P]; row weights multiply those of B."""
        weights = self.fitted.weights
        x = self._plan.query(weights, histories)
        if histories.weight is not None:
            is_item = x.source < weights.items
            x.weight[is_item] *= latest_row_weights(weights, histories, self.max_history)
        return self.append_content(x, histories)

    @property
    def _plan(self) -> QueryPlan:
        """Everything that queries are built from, cached while fit and parameters stay."""
        params = (self.recency, self.popularity_weight, self.repeats, self.learn)
        key = (self.fitted, *params, self.max_history, self.floor)
        if self._plan_cache is None or self._plan_cache[0] != key:
            self._plan_cache = (key, self._build_plan())
        return self._plan_cache[1]

    def _build_plan(self) -> QueryPlan:
        """Return what queries are built from: the set, else learned, else default parameters."""
        weights, facts = self.fitted.weights, self.fitted.training
        arrays, stored = weights.query_arrays, self._snapshots
        default = int(arrays.get("usual", FIRST_HORIZON)[0])
        params = QueryParams.from_arrays(arrays) if self.learn == AUTO else None
        if params is None:
            params = QueryParams.default(np.empty(0), len(stored.lifetime), default)
        if not is_auto(self.recency):
            params = params.with_recency(self.recency)
        if not is_auto(self.popularity_weight):
            params = params.with_popularity_weight(self.popularity_weight, default)
        rates = arrays["repeats"] if self.repeats == "learned" else arrays["repeats"][:0]
        snapshots = SnapshotArrays(
            as_readonly(stored.times), as_readonly(stored.indptr), as_readonly(stored.lifetime),
            weights.first_source(POPULARITY_BLOCK), facts["first_time"], facts["last_time"],
        )  # fmt: skip
        decay, is_joint = float(arrays["decay"][0]), bool(arrays["joint"][0])
        rules = HistoryRules(is_joint, self.max_history, decay, self.floor)
        return QueryPlan.build(params, rates, snapshots, rules, read_repeat_factors(arrays))

    @property
    def _snapshots(self) -> PopularitySnapshots:
        return PopularitySnapshots.from_arrays(None, self.fitted.weights.query_arrays)

    def describe_learned(self) -> list[str]:
        """Return sentences on learned query parameters, none if `learn` is off, and on content."""
        return describe_fit(self.fitted, self.params) + self.describe_content()

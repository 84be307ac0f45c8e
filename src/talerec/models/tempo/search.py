"""Coordinate search: weights of score components that rank held-out targets higher.

A score is a weighted sum of components. For each held-out query, the components of some candidate
items are computed once; other weights are then compared by sums, without new queries. A change is
accepted if the target's DCG improves significantly over all queries, and no set of queries loses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from talerec.models.tempo.components import ScoreComponents
from talerec.runtime import Array, kernel, run_chunks, sized_chunks

_CHUNK = 2048  # queries per task of a thread
_MAX_LOSS = 1.0  # standard errors that one kind of list may lose by an accepted change
_MIN_USERS = 150  # users with queries below which a set is ignored


class ComponentWeights(NamedTuple):
    """Weights of score components, and the exponent of popularity for scaled components.

    values: segment (group of requests) x component (a part of scores, such as repeats).
    """

    values: Array
    popularity_exponent: float


@dataclass(eq=False)
class CoordinateSearch:
    """Component weights, and the DCG that they give on sets of held-out queries.

    components      of each set of queries: what scores sum up; sets under 150 users are ignored
    weights         the present weights, segment (group of requests) x component
    is_scaled       a flag per component: whether popularity ** exponent multiplies it
    has_repeats     whether lists with seen items count, besides lists without them
    k               ranks of a list that count
    query_sets      the sets in use, with scores and DCG under the present weights
    """

    components: Sequence[ScoreComponents]
    weights: ComponentWeights
    is_scaled: Array
    has_repeats: bool
    k: int
    query_sets: list[_QuerySet] = field(init=False)

    def __post_init__(self) -> None:
        """Score the queries of the large sets under the initial weights; `k` ranks have a DCG."""
        large = [x for x in self.components if len(np.unique(x.user)) >= _MIN_USERS]
        discounts = 1 / np.log2(np.arange(self.k) + 2)
        self.query_sets = [
            _QuerySet(one_set, self.weights, self.is_scaled, self.has_repeats, discounts)
            for one_set in large
        ]

    def step(self, candidates: Iterable[ComponentWeights], min_z: float) -> int | None:
        """Move to the candidate weights that improve most; return their index.

        An improvement is a z-score of the targets' gain in DCG above `min_z`, without a loss in any
        set of held-out queries. None: no candidate improves, and the weights stay.
        """
        best: tuple[float, int, ComponentWeights, list[_Trial]] | None = None
        for index, weights in enumerate(candidates):
            trials = [queries.evaluate(self.weights, weights) for queries in self.query_sets]
            z = self._improvement(trials, min_z)
            if z is not None and (best is None or z > best[0]):
                best = (z, index, weights, trials)
        if best is None:
            return None
        _, index, self.weights, trials = best
        for queries, trial in zip(self.query_sets, trials, strict=True):
            queries.accept(trial)
        return index

    def combined_z(self) -> float:
        """Return the z-score of the present weights' gain in DCG over the initial weights.

        Stouffer's method combines the query sets whose DCG changed: the sum of their z-scores
        divided by the square root of their number; 0 if none changed. The unit of each test is the
        user: a user's gains over all queries and lists are summed.
        """
        return _combined_z([x.user_gains(x.initial_dcg, x.dcg) for x in self.query_sets])

    def z_over(self, other: CoordinateSearch) -> float:
        """Return the z-score of the present weights' gain in DCG over those of another search.

        other: a search with the same queries, whose components come from another model. The z-score
        is computed like that of `combined_z`.
        """
        pairs = zip(self.query_sets, other.query_sets, strict=True)
        return _combined_z([x.user_gains(y.dcg, x.dcg) for x, y in pairs])

    def _improvement(self, trials: list[_Trial], min_z: float) -> float | None:
        """Return the z-score of the gain in DCG; None if it is not above `min_z`, or a set loses.

        trials: the effect of other weights on each query set; sets without a change are left out.
        Losses are tested against the present weights and the initial ones.
        """
        changed = [trial.gains for trial in trials if any(error > 0 for _, error in trial.gains)]
        if not changed or any(map(_is_loss, changed)):
            return None
        z = _pooled_z([gain for gains in changed for gain in gains])
        if z <= min_z:
            return None
        since_start = (
            queries.compare(queries.initial_dcg, trial.dcg)
            for queries, trial in zip(self.query_sets, trials, strict=True)
        )
        return None if any(map(_is_loss, since_start)) else z


def _combined_z(by_set: list[Array]) -> float:
    """Return the sum of the z-scores of query sets, over the root of their number.

    by_set: of each set of queries, the gain in DCG of every user. Sets in which all users gain the
    same are left out; 0 if no set is left.
    """
    z_scores = [x.mean() / x.std() * np.sqrt(len(x)) for x in by_set if x.std() > 0]
    return float(np.sum(z_scores) / np.sqrt(max(len(z_scores), 1)))


def _pooled_z(gains: list[tuple[float, float]]) -> float:
    """Return the z-score of pooled (mean, standard error) pairs, weighted by 1 / error^2.

    gains: such pairs of changes in DCG; those with error 0 are left out. 0 if none is left.
    """
    pairs = np.array([pair for pair in gains if pair[1] > 0])
    if not len(pairs):
        return 0.0
    means, errors = pairs.T
    return float((means / errors**2).sum() / np.linalg.norm(1 / errors))


def _is_loss(gains: list[tuple[float, float]]) -> bool:
    """Return whether the gains of one query set are a loss: pooled, or by over 1 error in one.

    gains: (mean, standard error) of the gain in DCG per kind of list (with seen items, without).
    """
    return _pooled_z(gains) < 0 or any(mean < -_MAX_LOSS * error for mean, error in gains)


class _Trial(NamedTuple):
    """The effect of other weights on one query set, compared with the present weights.

    scores: query x candidate. dcg: query x kind of list (with seen items, without).
    gains: (mean, standard error) of the relative change in DCG per kind of list.
    """

    scores: Array
    dcg: Array
    gains: list[tuple[float, float]]


class _QuerySet:
    """Held-out queries with the scores of their candidates under the present weights.

    `scores` is query x candidate. `dcg` has two columns: the target's DCG in lists with seen items,
    and in lists without; the first equals the second if `has_repeats` is false.
    """

    def __init__(
        self, components: ScoreComponents, weights: ComponentWeights, is_scaled: Array,
        has_repeats: bool, discounts: Array,
    ) -> None:  # fmt: skip
        """Score the candidates of one set of queries under `weights`; discounts: DCG's, by rank."""
        self.components, self.is_scaled = components, is_scaled
        self.has_repeats, self.discounts = has_repeats, discounts
        self._scale_of: dict[float, Array] = {}
        _, self._user = np.unique(components.user, return_inverse=True)
        self._n_of_user = np.bincount(self._user)
        self.scores = np.zeros(components.seen.shape, np.float32)
        self.dcg = np.zeros((len(components.counts), 2))
        zeros = weights._replace(values=np.zeros_like(weights.values))
        self.scores, self.dcg = self._rescore(zeros, weights)
        self.initial_dcg = self.dcg
        self._level = np.maximum(self.dcg.mean(axis=0), 1e-4)

    def evaluate(self, old: ComponentWeights, new: ComponentWeights) -> _Trial:
        """Return the scores of candidates, DCG of the targets and gains under new weights.

        `old`: the present weights, under which self.scores and self.dcg were computed.
        """
        scores, dcg = self._rescore(old, new)
        return _Trial(scores, dcg, self.compare(self.dcg, dcg))

    def accept(self, trial: _Trial) -> None:
        """Make a trial's scores and DCG (those under other weights) the present ones."""
        self.scores, self.dcg = trial.scores, trial.dcg

    def compare(self, old: Array, new: Array) -> list[tuple[float, float]]:
        """Return the mean gain in DCG and its standard error for each kind of list.

        old, new: DCG, query x kind of list (with seen items, without). Gains are relative to the
        initial mean DCG; the standard error is over users.
        """
        relative, n = (new - old) / self._level, len(new)
        gains = []
        for column in range(2 if self.has_repeats else 1):
            sums = np.bincount(self._user, relative[:, column])
            mean = float(sums.sum()) / n
            deviations = sums - mean * self._n_of_user
            gains.append((mean, float(np.sqrt(deviations @ deviations)) / n))
        return gains

    def user_gains(self, old: Array, new: Array) -> Array:
        """Return each user's summed gain in DCG, lists weighted by 1 / standard error^2.

        old, new: DCG, query x kind of list (with seen items, without). Relative to its initial
        mean.
        """
        errors = np.array([error for _, error in self.compare(old, new)])
        weights = np.divide(1, errors**2, out=np.zeros_like(errors), where=errors > 0)
        relative = (new - old)[:, : len(weights)] / self._level[: len(weights)]
        return np.asarray(np.bincount(self._user, relative @ weights)) / len(new)

    def _rescore(self, old: ComponentWeights, new: ComponentWeights) -> tuple[Array, Array]:
        """Return scores (query x candidate) and DCG under new weights, from those under the old.

        DCG is query x 2: in lists with seen items, and without. Only components whose weights, or
        popularity factors, change are added up again.
        """
        components = self.components
        rescales = old.popularity_exponent != new.popularity_exponent
        is_changed = (old.values != new.values).any(axis=0) | (rescales & self.is_scaled)
        changed = np.flatnonzero(is_changed)
        scores, dcg = np.empty_like(self.scores), np.empty((len(components.counts), 2))
        change = _WeightChange(
            changed, old.values[:, changed].astype(np.float32, order="C"),
            new.values[:, changed].astype(np.float32, order="C"), self.is_scaled[changed],
            self._scale(old.popularity_exponent), self._scale(new.popularity_exponent), rescales,
        )  # fmt: skip
        before = _Ranking(self.scores, self.dcg, self.discounts, self.has_repeats)

        def run(a: int, b: int) -> None:
            _apply_change(components, change, before, a, b, scores, dcg)

        run_chunks("weigh", run, sized_chunks(len(components.counts), _CHUNK))
        return scores, dcg

    def _scale(self, exponent: float) -> Array:
        """Return popularity ** exponent of each candidate (query x candidate), cached."""
        if exponent not in self._scale_of:
            scale = np.exp(np.float32(exponent) * self.components.log_popularity)
            self._scale_of[exponent] = scale
        return self._scale_of[exponent]


class _WeightChange(NamedTuple):
    """A change of weights: the components that change, with old and new weights and scales.

    A scale is popularity ** exponent of a candidate, which multiplies scaled components.
    """

    components: Array  # numbers of the changed components
    old: Array  # weights, segment (group of requests) x changed component
    new: Array
    is_scaled: Array  # per changed component
    old_scale: Array  # query x candidate
    new_scale: Array
    rescales: bool  # whether the scales differ


class _Ranking(NamedTuple):
    """Scores (query x candidate), DCG (query x 2: with seen items, without) before a change."""

    scores: Array
    dcg: Array
    discounts: Array  # DCG of a target by rank; ranks beyond have 0
    has_repeats: bool  # whether lists with seen items differ from lists without


@kernel
def _apply_change(
    components: ScoreComponents, change: _WeightChange, before: _Ranking, a: int, b: int,
    scores: Array, dcg: Array,
) -> None:  # fmt: skip
    """Write, for queries a to b - 1, the scores after a change and the target's DCG.

    components: what scores sum up. before: scores and DCG under the old weights. scores: query x
    candidate, written. dcg: query x 2, written: in lists with seen items, and in lists without.
    Candidate 0 is the target; ties rank it last; a seen target has DCG 0 in lists without seen
    items.
    """
    discounts = before.discounts
    for q in range(a, b):
        segment, count = components.segment[q], components.counts[q]
        row = scores[q]
        for c in range(count):
            row[c] = before.scores[q, c]
        is_touched = False
        for j in range(len(change.components)):
            old, new = change.old[segment, j], change.new[segment, j]
            is_touched = is_touched or change.rescales or old != new
        if not is_touched:
            dcg[q, 0], dcg[q, 1] = before.dcg[q, 0], before.dcg[q, 1]
            continue
        for j in range(len(change.components)):
            old, new = change.old[segment, j], change.new[segment, j]
            values = components.values[change.components[j], q]
            if change.is_scaled[j]:
                for c in range(count):
                    step = new * change.new_scale[q, c] - old * change.old_scale[q, c]
                    row[c] += step * values[c]
            elif old != new:
                for c in range(count):
                    row[c] += (new - old) * values[c]
        rank, unseen_rank = 0, 0
        for c in range(1, count):
            if row[c] >= row[0]:
                rank += 1
                unseen_rank += not components.seen[q, c]
        is_hidden = components.seen[q, 0]
        rank = rank if before.has_repeats else (len(discounts) if is_hidden else unseen_rank)
        dcg[q, 0] = discounts[rank] if rank < len(discounts) else 0.0
        is_ranked = unseen_rank < len(discounts) and not is_hidden
        dcg[q, 1] = discounts[unseen_rank] if is_ranked else 0.0

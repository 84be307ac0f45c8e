"""Learn how content counts in tempo's scores, on held-out rows after a cutoff.

The log is cut at a time. A tempo and a model of content are fitted to the rows before it, so that
items whose rows all come later are items without rows, as they are in use. Settings are compared by
the NDCG@10 of users' first rows after the cutoff.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from talerec.data import DAY, Histories, Log
from talerec.errors import UndescribedItemsError
from talerec.models.content import Content
from talerec.models.core import HoldoutQueries, Model, TimeCut
from talerec.models.tempo.content import ContentWeights, ItemScores, mean_newness, measure_taste
from talerec.ranking import Query, Weights
from talerec.runtime import Array, kernel, run_chunks, sized_chunks, sparse

DIMS = 64  # of the vectors of items
_CUTOFF_SHARES = (0.85, 0.7, 0.55)  # of the rows before a cutoff
_ENOUGH = 2000  # queries with which no further cutoff is taken
_HOPELESS = 200  # queries with which none is taken if content does not gain on them
_ROWS_AFTER = 5  # first rows of a user after a cutoff that are queries
_MIN_USERS = 60  # below which nothing is learned
_MIN_NEW = 0.02  # share of targets without rows before a cutoff, below which it is left out
_MAX_USERS, _MAX_SCORES = 1000, 2e7  # users, and queries x items, of a cutoff
_LEVEL_LISTS = 128  # lists whose tenth score is the size of tempo's scores
_CHUNK = 16  # queries that a thread takes at a time
_K = 10
_HIDDEN = -1e9  # the score of an item that the user has
_MANY = 2  # the class of items with five rows or more
_MIN_Z = 1.5  # standard errors that content must gain on users that did not choose it
_TIE = 0.5  # standard errors within which a setting is as good as the best

#: Settings that are compared: the classes of items (none, few, many rows) to which content is
#: added, its weight, and the weight and lifetime (days) of freshness. Weights are relative to the
#: tenth score of a list.
_CLASSES = ((1, 1, 1), (1, 1, 0), (1, 0, 0))
_SIZES = (0.05, 0.1, 0.2, 0.4)
_FRESHNESS = (0.3, 0.6, 1.2, 2.4)
_LIFETIMES = (30.0, 90.0, 180.0, 365.0)


class _Setting(NamedTuple):
    """A setting that is compared; size and freshness: relative to a score of tempo."""

    by_class: tuple[int, int, int]
    size: float
    freshness: float
    lifetime: float

    def scale(self, level: float) -> ContentWeights:
        """Return the weights for scores of tempo of this size."""
        new, few, many = (flag * self.size * level for flag in self.by_class)
        return ContentWeights((new, few, many), self.freshness / self.size, self.lifetime)


def list_settings(has_dates: bool) -> list[_Setting]:
    """Return all settings that are compared; has_dates: whether items have any."""
    fresh = [(0.0, _LIFETIMES[0])]
    if has_dates:
        fresh += [(freshness, days) for freshness in _FRESHNESS for days in _LIFETIMES]
    return [
        _Setting(by_class, size, *each)
        for by_class in _CLASSES
        for size in _SIZES
        for each in fresh
    ]


class _CutoffGains(NamedTuple):
    """The gains of one cutoff: query x (tempo alone, then each setting), and its queries."""

    gains: Array
    user: Array
    is_rare: Array  # whether the target has fewer than five rows before the cutoff
    settings: list[_Setting]
    level: float  # the median tenth score of a list of tempo
    delay: int  # median time from the cutoff to a query, in microseconds


def learn_content_weights(
    fit_tempo: Callable[[Log], Model], log: Log, tempo: Model
) -> ContentWeights | None:
    """Return how content counts; None if held-out queries do not gain, or are too few.

    fit_tempo: fits a tempo without content to rows. log: with the items of the item table that have
    no rows. tempo: fitted to the log, also without content; weights are relative to its scores.
    """
    rounds: list[_CutoffGains] = []
    times = np.sort(log.time)
    cutoffs = dict.fromkeys(int(times[int(share * log.rows)]) for share in _CUTOFF_SHARES)
    for cutoff in cutoffs:
        if each := _evaluate_cutoff(fit_tempo, log, cutoff):
            rounds.append(each)
        n_queries = sum(len(each.user) for each in rounds)
        if n_queries >= _ENOUGH or (n_queries >= _HOPELESS and _join(rounds).held_out_z() <= 0):
            break
    if not rounds:
        return None
    joined = _join(rounds)
    if len(np.unique(joined.user)) < _MIN_USERS or joined.held_out_z() < _MIN_Z:
        return None
    best = joined.choose_setting()
    if best == 0:
        return None
    delay = int(np.median([each.delay for each in rounds]))
    return rounds[0].settings[best - 1].scale(_measure_level(tempo, log, delay))


def _measure_level(tempo: Model, log: Log, delay: int) -> float:
    """Return the score with which an item typically enters the top 10 of a user of the log.

    It is the median over users of the tenth score. tempo: fitted to the log. delay: microseconds
    from the end of the log to the requests; popularity fades in between.
    """
    users = np.flatnonzero(np.diff(log.ptr))
    users = users[np.linspace(0, len(users) - 1, min(len(users), _LEVEL_LISTS)).astype(np.int64)]
    now = np.full(len(users), int(log.time.max()) + delay)
    histories = Histories(log.ptr[users], log.ptr[users + 1], log.item, log.time, now)
    return _median_tenth_score(tempo.fitted.weights, tempo.query(histories))


class SettingGains(NamedTuple):
    """The NDCG@10 of queries by tempo alone, and under each setting.

    Parameters
    ----------
    gains : array
        Query x (1 + setting), the first column for tempo alone.
    user : array
        The user of each query. Sums over a user's queries are the units of standard errors.
    is_rare : bool array
        Whether the query's target has few rows or none.
    group : array
        The group of each column: settings that add content to the same classes of items.
    """

    gains: Array
    user: Array
    is_rare: Array
    group: Array

    def choose_setting(self) -> int:
        """Return the column with the largest gain over the first one, less its standard error.

        So a setting that gains much for some users and loses much for others is not preferred to
        one with a steady gain. Of the settings of its group that are within half a standard error
        of it, the one with the largest gain for rare targets is returned.
        """
        if not len(self.gains):
            return 0
        mean, error = self._differences(0)
        best = int((mean - error).argmax())
        below, tolerance = self._differences(best)
        is_tie = (below >= -_TIE * tolerance) & (mean > error) & (self.group == self.group[best])
        if not is_tie[best]:
            return best
        rare_gain = self.gains[self.is_rare].sum(axis=0)
        rare_gain[best] += 1e-9
        return int(np.where(is_tie, rare_gain, -1.0).argmax())

    def held_out_z(self) -> float:
        """Return the z-score of the chosen setting's gain over tempo alone, on other users.

        Users are divided in two; the setting that is chosen by one half is measured on the other.
        """
        _, user = np.unique(self.user, return_inverse=True)
        is_first = user % 2 == 0
        difference = np.zeros(len(user))
        for fold in (is_first, ~is_first):
            chosen = self._select(~fold).choose_setting()
            difference[fold] = self.gains[fold, chosen] - self.gains[fold, 0]
        deviations = np.bincount(user, difference - difference.mean())
        error = float(np.sqrt(deviations @ deviations))
        return float(difference.sum()) / error if error > 0 else 0.0

    def _select(self, mask: Array) -> SettingGains:
        """Return some of the queries."""
        return SettingGains(self.gains[mask], self.user[mask], self.is_rare[mask], self.group)

    def _differences(self, column: int) -> tuple[Array, Array]:
        """Return the mean difference of each column to one of them, and its standard error."""
        order = np.argsort(self.user, kind="stable")
        difference = (self.gains - self.gains[:, column : column + 1])[order]
        mean = difference.mean(axis=0)
        starts = np.flatnonzero(np.diff(self.user[order], prepend=self.user[order[0]] - 1))
        sums = np.add.reduceat(difference - mean, starts, axis=0)
        return mean, np.sqrt((sums**2).sum(axis=0)) / len(difference)


def _join(rounds: list[_CutoffGains]) -> SettingGains:
    """Return the gains of several cutoffs as one."""
    shapes = [_CLASSES.index(setting.by_class) for setting in rounds[0].settings]
    gains = np.concatenate([each.gains for each in rounds])
    user = np.concatenate([each.user for each in rounds])
    is_rare = np.concatenate([each.is_rare for each in rounds])
    return SettingGains(gains, user, is_rare, group=np.array([-1, *shapes]))


def _evaluate_cutoff(
    fit_tempo: Callable[[Log], Model], log: Log, cutoff: int
) -> _CutoffGains | None:
    """Return the gains of queries after a cutoff, by models of the rows before it.

    cutoff: microseconds. None if no user has rows on both sides, if too few targets are without
    rows before the cutoff, or if the item table says nothing of the items with rows.
    """
    cut = TimeCut.at(log, cutoff)
    every_item = np.ones(len(log.items), bool)
    users = cut.eligible_users(every_item)[1]
    n_users = int(min(len(users), _MAX_USERS, _MAX_SCORES / len(log.items) / _ROWS_AFTER))
    if n_users < 1:
        return None
    users = users[np.linspace(0, len(users) - 1, n_users).astype(np.int64)]
    queries = cut.delayed_queries(users, every_item, _ROWS_AFTER)
    counts = np.bincount(cut.before.item, minlength=len(log.items))
    if (counts[queries.target] == 0).mean() < _MIN_NEW:
        return None
    try:
        content = Content(dims=DIMS).fit(cut.before)
    except UndescribedItemsError:
        return None
    tempo = fit_tempo(cut.before)
    unscaled = ContentWeights((1.0, 1.0, 1.0), 0.0, 1.0)
    scores = ItemScores.build(content, counts, unscaled)
    tastes = {
        lifetime: measure_taste(
            queries.histories, scores.days, lifetime,
            mean_newness(cut.before, scores.days, lifetime),
        )
        for lifetime in _LIFETIMES
    }  # fmt: skip
    return _rank_queries(tempo, scores, queries, tastes, cutoff)


def _rank_queries(
    tempo: Model, scores: ItemScores, queries: HoldoutQueries, tastes: dict[float, Array],
    cutoff: int,
) -> _CutoffGains:  # fmt: skip
    """Return the gains of queries after a cutoff under all settings.

    scores: of the items by content, with any weights. tastes: how much freshness counts in each
    query, by lifetime.
    """
    weights, histories, now = tempo.fitted.weights, queries.histories, queries.histories.now
    assert now is not None
    codes = scores.encode(weights, histories, 2500)
    x = tempo.query(histories)
    level = _median_tenth_score(weights, x)
    settings = list_settings(not np.isnan(scores.days).all())
    tempo_alone = ContentWeights((0.0, 0.0, 0.0), 0.0, _LIFETIMES[0])
    stack = WeightStack.build([tempo_alone, *(setting.scale(level) for setting in settings)])
    gains = np.zeros((len(queries), 1 + len(settings)))

    def work(a: int, b: int) -> None:
        base = score_all_items(weights, x, a, b)
        z = codes[a:b] @ scores.features - (codes[a:b] @ scores.mean)[:, None]
        for q in range(a, b):
            hidden = _seen_items(histories, q)
            target = int(queries.target[q])
            if target not in hidden:
                base[q - a, hidden] = _HIDDEN
            age = now[q] / DAY - scores.days
            age = np.where(age >= 0, age, np.inf)  # NaN: no date
            newness = np.array([tastes[days][q] * np.exp(-age / days) for days in _LIFETIMES])
            rank_target(base[q - a], z[q - a], newness, scores.classes, target, stack, gains[q])

    run_chunks("content", work, sized_chunks(len(queries), _CHUNK))
    is_rare = scores.classes[queries.target] < _MANY
    delay = int(np.median(now)) - cutoff
    return _CutoffGains(gains, queries.user, is_rare, settings, level, delay)


class WeightStack(NamedTuple):
    """The weights of several settings as arrays, for `rank_target`.

    by_class: setting x class. freshness: of each setting. lifetime: its number in `_LIFETIMES`.
    """

    by_class: Array
    freshness: Array
    lifetime: Array

    @classmethod
    def build(cls, weights: list[ContentWeights]) -> WeightStack:
        """Return the weights of a list, in its order."""
        lifetimes = [_LIFETIMES.index(each.lifetime) for each in weights]
        by_class = np.array([each.by_class for each in weights])
        return cls(by_class, np.array([each.freshness for each in weights]), np.array(lifetimes))


@kernel
def rank_target(
    base: Array, z: Array, newness: Array, classes: Array, target: int, stack: WeightStack,
    out: Array,
) -> None:  # fmt: skip
    """Write the NDCG@10 of one query's target under each setting of a stack.

    base: scores of tempo, 0 for none. z: scores by content. newness: lifetime x item. classes: of
    the items. Items of a class without weight need a score of tempo.
    """
    for s in range(len(out)):
        fresh, row = stack.freshness[s], newness[stack.lifetime[s]]
        weight = stack.by_class[s, classes[target]]
        out[s] = 0.0
        if weight == 0 and base[target] <= 0:
            continue
        goal = base[target] + weight * (z[target] + fresh * row[target])
        rank = 1
        for i in range(len(base)):
            weight = stack.by_class[s, classes[i]]
            if i != target and (base[i] > 0 or (weight != 0 and base[i] > _HIDDEN)):
                rank += base[i] + weight * (z[i] + fresh * row[i]) >= goal
                if rank > _K:
                    break
        if rank <= _K:
            out[s] = 1 / np.log2(rank + 1)


def _seen_items(histories: Histories, q: int) -> Array:
    """Return the known items of history q."""
    items: Array = histories.item[histories.start[q] : histories.stop[q]]
    return items[items >= 0]


def _median_tenth_score(weights: Weights, x: Query) -> float:
    """Return the median of the tenth score of some queries' lists; a small number if it is 0."""
    base = score_all_items(weights, x, 0, min(len(x), _LEVEL_LISTS))
    k = min(_K, base.shape[1])
    tenth = np.partition(base, -k, axis=1)[:, -k]
    return max(float(np.median(tenth)), 1e-9)


def score_all_items(weights: Weights, x: Query, a: int, b: int) -> Array:
    """Return the scores of all items for queries a to b - 1: query x item, 0 for none."""
    total = np.zeros((b - a, weights.items))
    span = slice(x.ptr[a], x.ptr[b])
    query = np.repeat(np.arange(b - a), np.diff(x.ptr[a : b + 1]))
    source, share = x.source[span], x.weight[span]
    for number, block in enumerate(weights.blocks):
        first = weights.first_source(number)
        inside = (source >= first) & (source < first + block.sources)
        places = (query[inside], source[inside] - first)
        rows = sparse.csr_array((share[inside], places), shape=(b - a, block.sources))
        part = rows @ block.matrix
        total += block.weight * (part if isinstance(part, np.ndarray) else part.toarray())
    return total

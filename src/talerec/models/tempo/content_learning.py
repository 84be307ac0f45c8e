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
from talerec.runtime import Array, run_chunks, sized_chunks, sparse

DIMS = 64  # of the vectors of items
_CUTOFF_SHARES = (0.85, 0.7, 0.55)  # of the rows before a cutoff
_ENOUGH = 1000  # queries with which no further cutoff is taken
_HOPELESS = 200  # queries with which none is taken if content does not gain on them
_ROWS_AFTER = 5  # first rows of a user after a cutoff that are queries
_MIN_USERS = 60  # below which nothing is learned
_MIN_NEW = 0.02  # share of targets without rows before a cutoff, below which it is left out
_MAX_USERS, _MAX_SCORES = 300, 2e7  # users, and queries x items, of a cutoff
_LEVEL_LISTS = 128  # lists whose tenth score is the size of tempo's scores
_CHUNK = 16  # queries that a thread takes at a time
_K = 10
_RIVALS = 30  # items of each order that are compared with the target
_HIDDEN = -1e9  # the score of an item that the user has
_MIN_Z = 1.5  # standard errors that content must gain on users that did not choose it

#: Settings that are compared: classes of items (none, few, many rows) to which content is added,
#: its weight relative to the tenth score of a list, and freshness with its lifetime in days.
_CLASSES = ((1, 0, 0), (1, 1, 0), (1, 1, 1))
_SIZES = (0.08, 0.15, 0.22, 0.3, 0.45)
_FRESHNESS = (
    (0.0, 180.0), (4.0, 30.0), (4.0, 90.0), (4.0, 180.0), (4.0, 365.0), (8.0, 90.0), (8.0, 180.0),
    (8.0, 365.0), (16.0, 180.0),
)  # fmt: skip


class _Round(NamedTuple):
    """The gains of one cutoff: query x setting, of which the first is tempo alone; and users."""

    gains: Array
    user: Array
    level: float  # the median tenth score of a list of tempo
    delay: int  # median time from the cutoff to a query, in microseconds


def learn_content_weights(
    fit_tempo: Callable[[Log], Model], log: Log, tempo: Model
) -> ContentWeights | None:
    """Return how content counts; None if held-out queries do not gain, or are too few.

    fit_tempo: fits a tempo without content to rows. log: with the items of the item table that have
    no rows. tempo: fitted to the log, also without content; weights are relative to its scores.
    """
    rounds: list[_Round] = []
    times = np.sort(log.time)
    cutoffs = dict.fromkeys(int(times[int(share * log.rows)]) for share in _CUTOFF_SHARES)
    for cutoff in cutoffs:
        if each := _ask_round(fit_tempo, log, cutoff):
            rounds.append(each)
        n_queries = sum(len(each.user) for each in rounds)
        if n_queries >= _ENOUGH or (n_queries >= _HOPELESS and _join(rounds).z <= 0):
            break
    if not rounds:
        return None
    gains, user, z = _join(rounds)
    if len(np.unique(user)) < _MIN_USERS or z < _MIN_Z:
        return None
    best = choose_setting(gains, user)
    if best == 0:
        return None
    delay = int(np.median([each.delay for each in rounds]))
    return _settings()[best - 1].scale(_find_level(tempo, log, delay))


def _find_level(tempo: Model, log: Log, delay: int) -> float:
    """Return the median tenth score of users' lists, asked some time after the end of a log.

    tempo: fitted to the log. delay: microseconds.
    """
    users = np.flatnonzero(np.diff(log.ptr))
    users = users[np.linspace(0, len(users) - 1, min(len(users), _LEVEL_LISTS)).astype(np.int64)]
    now = np.full(len(users), int(log.time.max()) + delay)
    histories = Histories(log.ptr[users], log.ptr[users + 1], log.item, log.time, now)
    return _tenth_score(tempo.fitted.weights, tempo.query(histories))


class _Joined(NamedTuple):
    """The gains and users of several cutoffs, and the z-score of `cross_fitted_z`."""

    gains: Array
    user: Array
    z: float


def _join(rounds: list[_Round]) -> _Joined:
    """Return the gains of several cutoffs as one."""
    gains = np.concatenate([each.gains for each in rounds])
    user = np.concatenate([each.user for each in rounds])
    return _Joined(gains, user, cross_fitted_z(gains, user))


class _Setting(NamedTuple):
    """A setting that is compared; size: relative to a score of tempo."""

    by_class: tuple[int, int, int]
    size: float
    freshness: float
    lifetime: float

    def scale(self, level: float) -> ContentWeights:
        """Return the weights for scores of tempo of this size."""
        new, few, many = (flag * self.size * level for flag in self.by_class)
        return ContentWeights((new, few, many), self.freshness, self.lifetime)


def _settings() -> list[_Setting]:
    """Return all settings that are compared."""
    return [
        _Setting(by_class, size, *fresh)
        for by_class in _CLASSES
        for size in _SIZES
        for fresh in _FRESHNESS
    ]


def cross_fitted_z(gains: Array, user: Array) -> float:
    """Return the z-score of the chosen settings' gain over tempo alone, on other users.

    gains: query x setting, of which the first is tempo alone. Users are divided in two; the setting
    that is best for one half is measured on the other. Sums over a user's queries are the units.
    """
    _, user = np.unique(user, return_inverse=True)
    is_first = user % 2 == 0
    gain = np.zeros(len(gains))
    for fold in (is_first, ~is_first):
        best = choose_setting(gains[~fold], user[~fold])
        gain[fold] = gains[fold, best] - gains[fold, 0]
    deviations = np.bincount(user, gain - gain.mean())
    error = float(np.sqrt(deviations @ deviations))
    return float(gain.sum()) / error if error > 0 else 0.0


def choose_setting(gains: Array, user: Array) -> int:
    """Return the setting with the largest gain over the first one, less its standard error.

    gains: query x setting. A setting that gains much for some users and loses much for others is
    not preferred to one with a steady gain. Sums over a user's queries are the units.
    """
    if not len(gains):
        return 0
    order = np.argsort(user, kind="stable")
    difference = (gains - gains[:, :1])[order]
    mean = difference.mean(axis=0)
    starts = np.flatnonzero(np.diff(user[order], prepend=user[order[0]] - 1))
    sums = np.add.reduceat(difference - mean, starts, axis=0)
    return int((mean - np.sqrt((sums**2).sum(axis=0)) / len(gains)).argmax())


def _ask_round(fit_tempo: Callable[[Log], Model], log: Log, cutoff: int) -> _Round | None:
    """Return the gains of queries after a cutoff (microseconds); None if there are none."""
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
        for lifetime in {lifetime for _, lifetime in _FRESHNESS}
    }  # fmt: skip
    return _compare(tempo, scores, queries, tastes, cutoff)


def _compare(
    tempo: Model, scores: ItemScores, queries: HoldoutQueries, tastes: dict[float, Array],
    cutoff: int,
) -> _Round:  # fmt: skip
    """Return the gains of queries after a cutoff under all settings.

    scores: of the items by content, with any weights. tastes: how much freshness counts in each
    query, by lifetime.
    """
    weights, histories, now = tempo.fitted.weights, queries.histories, queries.histories.now
    assert now is not None
    codes = scores.encode(weights, histories, 2500)
    x = tempo.query(histories)
    level = _tenth_score(weights, x)
    settings = [setting.scale(level) for setting in _settings()]
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
            taste = {lifetime: float(each[q]) for lifetime, each in tastes.items()}
            gains[q] = _rank_settings(
                base[q - a], z[q - a], age, taste, scores.classes, target, settings
            )

    run_chunks("content", work, sized_chunks(len(queries), _CHUNK))
    return _Round(gains, queries.user, level, int(np.median(now)) - cutoff)


def _rank_settings(
    base: Array, z: Array, age: Array, taste: dict[float, float], classes: Array, target: int,
    settings: list[ContentWeights],
) -> Array:  # fmt: skip
    """Return the NDCG@10 of one query's target: by tempo alone, then under each setting.

    base: scores of tempo, 0 for none. z: scores by content. age: of each item, in days; NaN for
    none. taste: how much freshness counts, by lifetime. Items of a class without weight need a
    score of tempo.
    """
    gains = np.zeros(1 + len(settings))
    if base[target] > 0:
        gains[0] = _gain(int((base >= base[target]).sum()))
    known_age = np.where(age >= 0, age, np.inf)
    boosts = {
        (freshness, lifetime): z + freshness * taste[lifetime] * np.exp(-known_age / lifetime)
        for _, freshness, lifetime in settings
    }
    items = _find_rivals(base, list(boosts.values()), classes, target)
    base, classes = base[items], classes[items]
    boosts = {key: boost[items] for key, boost in boosts.items()}
    for number, (by_class, freshness, lifetime) in enumerate(settings, 1):
        if by_class[classes[0]] == 0 and base[0] <= 0:
            continue
        total = base + np.array(by_class)[classes] * boosts[freshness, lifetime]
        gains[number] = _gain(int((total >= total[0]).sum()))
    return gains


def _find_rivals(base: Array, boosts: list[Array], classes: Array, target: int) -> Array:
    """Return the target, then the items that rank high by tempo, or in a class by content."""
    shown = base > _HIDDEN
    lists = [_top(base, np.flatnonzero(base > 0))]
    for number in range(3):
        members = np.flatnonzero((classes == number) & shown)
        lists += [_top(boost, members) for boost in boosts]
    rivals = np.unique(np.concatenate(lists))
    return np.concatenate([[target], rivals[rivals != target]])


def _top(scores: Array, members: Array) -> Array:
    """Return the members with the highest scores."""
    if len(members) <= _RIVALS:
        return members
    return members[np.argpartition(scores[members], -_RIVALS)[-_RIVALS:]]


def _gain(rank: int) -> float:
    """Return the NDCG@10 of a target at a rank from 1."""
    return 1 / np.log2(rank + 1) if rank <= _K else 0.0


def _seen_items(histories: Histories, q: int) -> Array:
    """Return the known items of history q."""
    items: Array = histories.item[histories.start[q] : histories.stop[q]]
    return items[items >= 0]


def _tenth_score(weights: Weights, x: Query) -> float:
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

"""Learn how content counts in tempo's scores, on held-out rows after a cutoff.

The log is cut at a time. A tempo and a model of content are fitted to the rows before it, so that
items whose rows all come later are items without rows, as they are in use. Settings are compared by
the NDCG@10 of users' first rows after the cutoff.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from talerec.data import DAY, Histories, ItemColumn, Log
from talerec.errors import UndescribedItemsError
from talerec.models.content import Content, find_types
from talerec.models.core import Model, TimeCut
from talerec.models.tempo.categories import MAX_HISTORY, CategoryScores, category_columns
from talerec.models.tempo.category_learning import (
    CategoryChoice,
    choose_category,
    join_category_gains,
    rank_by_categories,
    score_category,
)
from talerec.models.tempo.content import ContentWeights, ItemScores, mean_newness, measure_taste
from talerec.models.tempo.content_ranking import (
    CHUNK,
    LEVEL_LISTS,
    LIFETIMES,
    HeldOutCutoff,
    WeightStack,
    median_tenth_score,
    rank_target,
    score_all_items,
)
from talerec.models.tempo.setting_gains import SettingGains
from talerec.ranking import IdentityBlock, Weights
from talerec.runtime import Array, run_chunks, sized_chunks

DIMS = 64  # of the vectors of items
_CUTOFF_SHARES = (0.85, 0.7, 0.55)  # of the rows before a cutoff
_ENOUGH = 2000  # queries with which no further cutoff is taken
_HOPELESS = 200  # queries with which none is taken if content does not gain on them
_ROWS_AFTER = 5  # first rows of a user after a cutoff that are queries
_MIN_USERS = 60  # below which nothing is learned
_MIN_NEW = 0.02  # share of targets without rows before a cutoff, below which it is left out
_MAX_USERS, _MAX_SCORES = 1000, 2e7  # users, and queries x items, of a cutoff
_MIN_Z = 1.5  # standard errors that content must gain on users that did not choose it

#: Settings that are compared: the classes of items (none, few, many rows) to which content is
#: added, its weight, and the weight and lifetime (days) of freshness. Weights are relative to the
#: tenth score of a list.
_CLASSES = ((1, 1, 1), (1, 1, 0), (1, 0, 0))
_SIZES = (0.05, 0.1, 0.2, 0.4)
_FRESHNESS = (0.3, 0.6, 1.2, 2.4)


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
    fresh = [(0.0, LIFETIMES[0])]
    if has_dates:
        fresh += [(freshness, days) for freshness in _FRESHNESS for days in LIFETIMES]
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
    delay: int  # median time from the cutoff to a query, in microseconds


class LearnedContent(NamedTuple):
    """How content counts in tempo's scores, and how it was judged.

    weights: of the scores by content and of freshness; None if content and categories are not used.
    category: the column of categories whose scores are added, and the absolute weight of the
    scores; None for none. gain, error: what held-out queries of `n_users` users gain in NDCG@10 by
    the setting that other users chose (beside the categories, if there are any), and its standard
    error; 0 users: too few.
    """

    weights: ContentWeights | None
    category: tuple[ItemColumn, float] | None = None
    gain: float = 0.0
    error: float = 0.0
    n_users: int = 0


def learn_content_weights(
    fit_tempo: Callable[[Log], Model], log: Log, tempo: Model
) -> LearnedContent:
    """Return how content counts: without weights if held-out queries do not gain.

    First, one column of categories is taken in if it gains 2.5 standard errors; then content is, if
    it gains 1.5 over tempo and the categories.

    fit_tempo: fits a tempo without content to rows. log: with the items of the item table that have
    no rows. tempo: fitted to the log, also without content; weights are relative to its scores.
    """
    columns = category_columns(find_types(log))
    held_out: list[HeldOutCutoff] = []
    rounds: list[_CutoffGains] = []
    by_category: list[Array] = []
    times = np.sort(log.time)
    cutoffs = dict.fromkeys(int(times[int(share * log.rows)]) for share in _CUTOFF_SHARES)
    for cutoff in cutoffs:
        if each := _fit_cutoff(fit_tempo, log, cutoff):
            held_out.append(each)
            rounds.append(_rank_queries(each, None))
            by_category.append(rank_by_categories(each, columns))
        n_queries = sum(len(each.user) for each in rounds)
        if n_queries >= _ENOUGH:
            break
        if n_queries >= _HOPELESS:
            categories = join_category_gains(held_out, by_category, len(columns))
            if max(_join(rounds).held_out_z(), categories.held_out_z()) <= 0:
                break
    n_users = len(np.unique(np.concatenate([[], *(each.user for each in rounds)])))
    if n_users < _MIN_USERS:
        return LearnedContent(None)
    category = choose_category(join_category_gains(held_out, by_category, len(columns)), columns)
    if category is not None:
        rounds = [_rank_queries(each, category) for each in held_out]
    joined = _join(rounds)
    best = joined.choose_setting() if joined.held_out_z() >= _MIN_Z else 0
    verdict = (*joined.held_out_gain(), n_users)
    if best == 0 and category is None:
        return LearnedContent(None, None, *verdict)
    sample = _sample_requests(log, int(np.median([each.delay for each in rounds])))
    level = _measure_level(tempo, sample)
    weights = ContentWeights((0.0, 0.0, 0.0), 0.0, LIFETIMES[0])
    if best:
        weights = rounds[0].settings[best - 1].scale(level)
    if category is None:
        return LearnedContent(weights, None, *verdict)
    by_column = CategoryScores.build(log, category.column, 1.0)
    category_level = by_column.measure_level(sample, Weights([IdentityBlock(items=len(log.items))]))
    factor = level / category_level if category_level > 0 else 0.0
    return LearnedContent(weights, (category.column, category.size * factor), *verdict)


def _sample_requests(log: Log, delay: int) -> Histories:
    """Return requests of some users of a log, each with its history.

    delay: microseconds from the end of the log to the requests; popularity fades in between.
    """
    users = np.flatnonzero(np.diff(log.ptr))
    users = users[np.linspace(0, len(users) - 1, min(len(users), LEVEL_LISTS)).astype(np.int64)]
    now = np.full(len(users), int(log.time.max()) + delay)
    return Histories(log.ptr[users], log.ptr[users + 1], log.item, log.time, now)


def _measure_level(tempo: Model, sample: Histories) -> float:
    """Return the median of tenth scores, with which an item typically enters the top 10.

    sample: requests of some users of the log that tempo was fitted to.
    """
    return median_tenth_score(tempo.fitted.weights, tempo.query(sample))


def _join(rounds: list[_CutoffGains]) -> SettingGains:
    """Return the gains of several cutoffs as one."""
    shapes = [_CLASSES.index(setting.by_class) for setting in rounds[0].settings]
    gains = np.concatenate([each.gains for each in rounds])
    user = np.concatenate([each.user for each in rounds])
    is_rare = np.concatenate([each.is_rare for each in rounds])
    return SettingGains(gains, user, is_rare, group=np.array([-1, *shapes]))


def _fit_cutoff(fit_tempo: Callable[[Log], Model], log: Log, cutoff: int) -> HeldOutCutoff | None:
    """Return models of the rows before a cutoff, and the queries after it.

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
    scores = ItemScores.build(content, counts, ContentWeights((1.0, 1.0, 1.0), 0.0, 1.0))
    tastes = {
        lifetime: measure_taste(
            queries.histories, scores.days, lifetime,
            mean_newness(cut.before, scores.days, lifetime),
        )
        for lifetime in LIFETIMES
    }  # fmt: skip
    level = median_tenth_score(tempo.fitted.weights, tempo.query(queries.histories))
    return HeldOutCutoff(cut.before, tempo, scores, queries, tastes, level, cutoff)


def _rank_queries(held_out: HeldOutCutoff, category: CategoryChoice | None) -> _CutoffGains:
    """Return the gains of queries after a cutoff under all settings.

    category: what is added to all of tempo's scores, those without content, too.
    """
    tempo, scores, queries = held_out.tempo, held_out.scores, held_out.queries
    weights, histories, now = tempo.fitted.weights, queries.histories, queries.histories.now
    assert now is not None
    codes = scores.encode(weights, histories, MAX_HISTORY)
    x = tempo.query(histories)
    settings = list_settings(not np.isnan(scores.days).all())
    tempo_alone = ContentWeights((0.0, 0.0, 0.0), 0.0, LIFETIMES[0])
    level = held_out.level
    stack = WeightStack.build([tempo_alone, *(setting.scale(level) for setting in settings)])
    gains = np.zeros((len(queries), 1 + len(settings)))
    by_category = None if category is None else score_category(held_out, category.column)

    def work(a: int, b: int) -> None:
        base = score_all_items(weights, x, a, b)
        if by_category is not None and category is not None:
            added = by_category[0].score_items(histories.slice(a, b), weights)
            base += category.size * by_category[1] * added
        held_out.hide_seen(base, a)
        z = codes[a:b] @ scores.features - (codes[a:b] @ scores.mean)[:, None]
        for q in range(a, b):
            target = int(queries.target[q])
            age = now[q] / DAY - scores.days
            age = np.where(age >= 0, age, np.inf)  # NaN: no date
            newness = np.array(
                [held_out.tastes[days][q] * np.exp(-age / days) for days in LIFETIMES]
            )
            rank_target(base[q - a], z[q - a], newness, scores.classes, target, stack, gains[q])

    run_chunks("content", work, sized_chunks(len(queries), CHUNK))
    delay = int(np.median(now)) - held_out.cutoff
    return _CutoffGains(gains, queries.user, held_out.is_rare, settings, delay)

"""Learn whether held-out queries gain from the categories of one column."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.data import ItemColumn
from talerec.models.tempo.categories import CategoryScores
from talerec.models.tempo.content import ContentWeights
from talerec.models.tempo.content_ranking import (
    CHUNK,
    LEVEL_LISTS,
    LIFETIMES,
    HeldOutCutoff,
    WeightStack,
    rank_target,
    score_all_items,
)
from talerec.models.tempo.setting_gains import SettingGains
from talerec.runtime import Array, run_chunks, sized_chunks

_SIZES = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the highest score by categories: in tenth scores of tempo
_MIN_Z = 2.5  # standard errors that categories must gain on users that did not choose them


class CategoryChoice(NamedTuple):
    """A column of categories, and the weight of its scores.

    With weight 1, the highest score by categories is as large as the tenth score of tempo's list.
    """

    column: ItemColumn
    size: float


def score_category(held_out: HeldOutCutoff, column: ItemColumn) -> tuple[CategoryScores, float]:
    """Return the scores by a column of categories, and the factor of a weight of 1.

    Scores are those of the rows before the cutoff. The factor is 0 if no history has a category.
    """
    scores = CategoryScores.build(held_out.before, column, 1.0)
    histories = held_out.queries.histories
    some = histories.slice(0, min(len(histories), LEVEL_LISTS))
    level = scores.measure_level(some, held_out.tempo.fitted.weights)
    return scores, held_out.level / level if level > 0 else 0.0


def rank_by_categories(held_out: HeldOutCutoff, columns: list[ItemColumn]) -> Array:
    """Return the NDCG@10 of queries by tempo, and with each column and weight.

    Query x (1 + columns x weights), the first column for tempo alone.
    """
    if not columns:
        return np.zeros((len(held_out.queries), 1))
    queries, weights = held_out.queries, held_out.tempo.fitted.weights
    x, histories = held_out.tempo.query(queries.histories), queries.histories
    by_column = [score_category(held_out, column) for column in columns]
    sizes = [0.0, *_SIZES]
    stack = WeightStack.build([ContentWeights((w, w, w), 0.0, LIFETIMES[0]) for w in sizes])
    no_freshness = np.zeros((len(LIFETIMES), weights.items))
    gains = np.zeros((len(queries), len(columns), len(sizes)))

    def work(a: int, b: int) -> None:
        base = score_all_items(weights, x, a, b)
        held_out.hide_seen(base, a)
        for number, (scores, factor) in enumerate(by_column):
            added = factor * scores.score_items(histories.slice(a, b), weights)
            for q in range(a, b):
                target = int(queries.target[q])
                rank_target(
                    base[q - a], added[q - a], no_freshness, held_out.scores.classes, target,
                    stack, gains[q, number],
                )  # fmt: skip

    run_chunks("categories", work, sized_chunks(len(queries), CHUNK))
    return np.column_stack([gains[:, 0, 0], gains[:, :, 1:].reshape(len(queries), -1)])


def choose_category(gains: SettingGains, columns: list[ItemColumn]) -> CategoryChoice | None:
    """Return the column of categories that held-out queries gain most from; None for none.

    gains: of all cutoffs, as `rank_by_categories` orders them.
    """
    if gains.held_out_z() < _MIN_Z or (best := gains.choose_setting()) == 0:
        return None
    number, size = divmod(best - 1, len(_SIZES))
    return CategoryChoice(columns[number], _SIZES[size])


def join_category_gains(
    held_out: list[HeldOutCutoff], gains: list[Array], n_columns: int
) -> SettingGains:
    """Return the gains of `rank_by_categories` at several cutoffs as one."""
    return SettingGains(
        np.concatenate(gains),
        np.concatenate([each.queries.user for each in held_out]),
        np.concatenate([each.is_rare for each in held_out]),
        group=np.concatenate([[-1], np.repeat(np.arange(n_columns), len(_SIZES))]),
    )

"""Explanations of scores as the service's JSON has them: rows, boosts and families."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.data import Histories
from talerec.models.core import BoostSpec, ItemFilter, Model, explain_boosts
from talerec.ranking import FamilyShare
from talerec.serve import ABSENT, Absent, schemas


class ExplainedScore(NamedTuple):
    """An item's score as the sum of its history rows, its base score and its boosts.

    rows: of each history row the weight by recency (None without), the contribution, and its share
    of the score. base, boosts and families of features are ABSENT for a model without them.
    """

    score: float
    rows: list[tuple[float | None, float, float]]
    base: float | Absent
    boosts: list[schemas.AppliedBoost] | Absent
    families: list[schemas.ReasonFamily] | Absent


def explain_item(
    model: Model,
    history: Histories,
    target: int,
    boost: BoostSpec | None,
    item_filter: ItemFilter | None,
) -> ExplainedScore:
    """Return what history rows, the base score and boosts add to an item's score.

    target: an item position. boost: column -> value -> fraction of the list's score range, with the
    filter of that list; None: no boosts. If the score is a sum over families of features, shares
    are of the sum of their absolute contributions: such a score may be about 0 or below.
    """
    (contributions,) = next(model.explain_targets(history, [np.array([target])]))
    base, families = model.base_score(history, target), model.explain_families(history, target)
    boosts: list[schemas.AppliedBoost] = []
    if boost and item_filter is not None:
        applied = explain_boosts(model, history, target, boost, item_filter)
        boosts = [schemas.AppliedBoost(*each) for each in applied]
    added = sum(each.contribution for each in boosts)
    score = float(contributions.sum()) + (base or 0.0) + added
    whole = score if families is None else sum(abs(each.contribution) for each in families)
    weights = model.row_weights(history)
    rows = [
        (
            None if weights is None else float(weights[row]),
            contribution,
            contribution / whole if whole else 0.0,
        )
        for row, contribution in enumerate(contributions.tolist())
    ]
    return ExplainedScore(
        score, rows, ABSENT if base is None else base, boosts or ABSENT, families_json(families)
    )


def families_json(families: list[FamilyShare] | None) -> list[schemas.ReasonFamily] | Absent:
    """Return what families of features add to an item's score, as JSON; ABSENT for None."""
    if families is None:
        return ABSENT
    return [schemas.ReasonFamily(*each) for each in families]

"""What a score is made of: the rows of a history, the base score, and boosts."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from talerec.data.histories import Histories
from talerec.models.core import filters as choosing
from talerec.models.core.base import Model
from talerec.runtime.arrays import Array
from talerec.serve import schemas
from talerec.serve.model.catalogue import Catalogue
from talerec.serve.model.filters import Rules
from talerec.serve.schemas import ABSENT


class Served(Protocol):
    """A served model, as far as explaining goes."""

    version: str
    catalogue: Catalogue
    rules: Rules

    def model_with(self, recency: float | None) -> Model: ...

    def position(self, item_id: schemas.Id) -> int: ...

    def history(self, request: schemas.ExplainRequest) -> tuple[Histories, list[schemas.Id]]: ...


def explain(served: Served, request: schemas.ExplainRequest) -> schemas.Explanation:
    """What each row and each boost adds to an item's score, and the weight that its place in the history gives a row."""
    model, catalogue = served.model_with(request.recency), served.catalogue
    target = served.position(request.item_id)
    history, names = served.history(request)
    given = model.contributions(model.query(history), history, np.array([target]))[0]
    base = model.base_score(history, target)
    boosts = _boosts(served, model, request, history, target)
    score = float(given.sum()) + (base or 0.0) + sum(one.contribution for one in boosts)
    return schemas.Explanation(
        served.version,
        catalogue.ids[target],
        score,
        _contributions(catalogue, names, history, given, model.row_weights(history), score),
        catalogue.title(target),
        ABSENT if base is None else base,
        boosts or ABSENT,
    )


def _boosts(
    served: Served,
    model: Model,
    request: schemas.ExplainRequest,
    history: Histories,
    target: int,
) -> list[schemas.AppliedBoost]:
    """What each boost of a request adds to the score of an item."""
    if not request.boost:
        return []
    allowed = served.rules.limits(request).allowed
    found = choosing.boosts_of_target(
        model, history, target, request.boost, allowed, hide_seen=request.hide_seen
    )
    return [schemas.AppliedBoost(*one) for one in found]


def _contributions(
    catalogue: Catalogue,
    names: list[schemas.Id],
    history: Histories,
    given: Array,
    weights: Array | None,
    score: float,
) -> list[schemas.Contribution]:
    """One row of an explanation for each history row. An id that the model does not know is shown as it came."""
    items = history.item.tolist()
    return [
        schemas.Contribution(
            name if items[row] < 0 else catalogue.ids[items[row]],
            len(names) - 1 - row,
            None if weights is None else float(weights[row]),
            float(given[row]),
            float(given[row]) / score if score else 0.0,
            catalogue.title(items[row]),
        )
        for row, name in enumerate(names)
    ]

"""Neural rows as the paper trains them: stopped on the validation rows, and not trained again."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from talerec.data.split.splits import Split
from talerec.data.split.windows import VALIDATION
from talerec.models.core.base import Model
from talerec.models.networks.base import Neural, library, rows_of


def require_torch() -> None:
    """Refuse to go on where torch is not installed."""
    library("training")


def fitted(model: Model, split: Split, folder: Path) -> Model:
    """A neural model, trained on the training rows until the validation rows are found best.

    A training that is broken off goes on from its checkpoint in `folder`.
    """
    assert isinstance(model, Neural)
    train, cases = library("training").train, split.cases(VALIDATION)
    known = np.flatnonzero(cases.target >= 0)
    place = {one: number for number, one in enumerate(split.train.users.ids.to_list())}
    users = np.array([place[one] for one in split.users.ids.gather(cases.user[known]).to_list()])
    rows, settings = rows_of(split.train), model.settings()
    more = rows.with_last(users, cases.target[known], cases.target_time[known])
    checkpoint = folder / f"{settings.kind}-{settings.key(more)}.npz"
    made = train(more, settings, held=users, checkpoint=checkpoint)
    checkpoint.unlink(missing_ok=True)
    return type(model).from_training(split.train, made)

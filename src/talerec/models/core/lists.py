"""Lists for many users, a block at a time: memory does not grow with the number of users."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from talerec import columns
from talerec.data.histories import Histories
from talerec.data.log import Log
from talerec.errors import TalerecError
from talerec.models.core import filters as choosing
from talerec.models.core import frames
from talerec.models.core.filters import Limits
from talerec.models.core.inference import Asked
from talerec.runtime.arrays import Array
from talerec.runtime.progress import listening, silent, stage
from talerec.runtime.tables import appending
from talerec.runtime.threads import even

_BLOCK = 8192  # users at a time


class Written(NamedTuple):
    """What was written: rows, users who have a list, and users for whom nothing was found."""

    rows: int
    users: int
    without: int


def blocks(
    model: Asked,
    log: Log,
    users: Array,
    k: int,
    limits: Limits,
    *,
    hide_seen: bool,
    when: int | None,
) -> Iterator[pl.DataFrame]:
    """The lists of users (positions) of a log, block by block: columns user_id, item_id, score, rank."""
    tick = stage("lists", float(len(users)))
    for a, b in even(len(users), _BLOCK):
        part = users[a:b]
        rows = Histories.of_users(log, part).asked(when)
        with listening(silent):  # one bar for all blocks
            first = choosing.top(model, rows, k, limits, hide_seen=hide_seen)
        names = log.users.ids.gather(part).alias(columns.USER)
        yield frames.recommendations(first, model.fitted.items.ids, names)
        tick(b - a)


def as_asked(model: Asked, log: Log) -> Log:
    """A log as a model sees it: items by the model's positions, -1 for those that it does not know, and weights in its unit."""
    fitted = model.fitted
    known = fitted.items.codes(fitted.items.own_type(log.items.ids)).astype(np.int32)
    factor = weight_factor(fitted.training, log.weight_unit)
    weight = log.weight
    if factor is not None and (factor != 1 or weight is not None):
        weight = factor * (np.ones(log.rows) if weight is None else weight)
    return replace(log, item=known[log.item], items=fitted.items, info=None, weight=weight)


def weight_factor(training: Mapping[str, Any], unit: float | None) -> float | None:
    """What weights are multiplied by, that were divided by `unit`, to be in the unit of a model's; None: there are none."""
    own = training.get("weight_unit")
    if own is None and unit is not None:
        raise TalerecError("the model was fitted without weights of rows: leave them out")
    if own is not None and unit is None:
        raise TalerecError(
            "the model was fitted to rows with weights: give those of these rows too (--weight, or --event-weights)"
        )
    return None if own is None or unit is None else unit / own


# -- files -----------------------------------------------------------------------------------------


def write(path: Path, lists: Iterator[pl.DataFrame], asked: int) -> Written:
    """Write lists to a file as they come; it is whole or not there at all."""
    rows = users = 0
    with appending(path) as add:
        for frame in lists:
            add(frame)
            rows += len(frame)
            users += frame[columns.USER].n_unique()
    return Written(rows, users, asked - users)

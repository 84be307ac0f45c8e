"""Lists for many users, a block at a time: memory does not grow with the number of users."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from talerec import columns
from talerec.data.histories import Histories
from talerec.errors import TalerecError
from talerec.models import choosing, frames
from talerec.models.asking import Asked
from talerec.models.choosing import Limits
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
    model: Asked, users: Array, k: int, limits: Limits, *, hide_seen: bool, when: int | None
) -> Iterator[pl.DataFrame]:
    """The lists of users (positions), block by block: columns user_id, item_id, score, rank."""
    log = model.fitted.log
    if log is None:
        raise TalerecError("this model was saved without histories: it has no users")
    tick = stage("lists", float(len(users)))
    for a, b in even(len(users), _BLOCK):
        part = users[a:b]
        rows = Histories.of_users(log, part).asked(when)
        with listening(silent):  # one bar for all blocks
            first = choosing.top(model, rows, k, limits, hide_seen=hide_seen)
        names = log.users.ids.gather(part).alias(columns.USER)
        yield frames.recommendations(first, model.fitted.items.ids, names)
        tick(b - a)


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


def all_users(model: Asked) -> Array:
    """The positions of every user that the model keeps."""
    log = model.fitted.log
    return np.arange(0 if log is None else len(log.users))

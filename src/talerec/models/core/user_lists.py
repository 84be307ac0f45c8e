"""Lists for many users, in blocks, so that memory does not grow with the number of users."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from talerec import columns
from talerec.data import Log
from talerec.errors import TalerecError
from talerec.models.core.filters import RecommendOptions
from talerec.models.core.inference import check_k, rank_top, user_histories
from talerec.models.core.request_context import apply_context, complete_context, slice_context
from talerec.models.core.result_frames import lists_frame
from talerec.models.core.scorer import Scorer
from talerec.runtime import Array, append_tables, listening, silent, sized_chunks, stage

_BLOCK = 8192  # users at a time


class WrittenLists(NamedTuple):
    """Counts of a file of recommendation lists.

    rows: rows of the file, one per listed item. users: users with at least one item. without: users
    without any.
    """

    rows: int
    users: int
    without: int


def iterate_lists(
    model: Scorer, log: Log, users: Array, options: RecommendOptions
) -> Iterator[pl.DataFrame]:
    """Return the lists of users of a log in blocks: frames of user_id, item_id, score, rank.

    model: fitted. users: positions in the log. `options` (list length, filters, request time) are
    checked at once, before the first block is asked for. Rows that are not before the request time,
    if there is one, are left out of the histories.
    """
    check_k(model, options.k)
    request_time = options.request_time(model.fitted.unit)
    item_filter = options.build_filter(model)

    def blocks() -> Iterator[pl.DataFrame]:
        """Yield the lists of 8192 users at a time, as a frame."""
        tick = stage("lists", float(len(users)))
        for a, b in sized_chunks(len(users), _BLOCK):
            histories = user_histories(log, users[a:b], request_time)
            context = slice_context(options.context, a, b)
            histories = apply_context(model, histories, context)
            with listening(silent):  # one progress bar for all blocks
                lists = rank_top(model, histories, options.k, item_filter)
            names = log.users.ids.gather(users[a:b]).alias(columns.USER)
            yield lists_frame(lists, model.fitted.items.ids, names, item_filter.slots)
            tick(b - a)

    return blocks()


def write_lists(path: Path, lists: Iterator[pl.DataFrame], n_users: int) -> WrittenLists:
    """Write lists of users to a file, which appears only once complete; return its counts.

    `lists` yields frames as `iterate_lists` does, a row per listed item. `n_users`: users in all,
    to count those without items. The file's ending says its format.
    """
    rows = users = 0
    with append_tables(path) as append:
        for frame in lists:
            append(frame)
            rows += len(frame)
            users += frame[columns.USER].n_unique()
    return WrittenLists(rows, users, n_users - users)


def encode_log(model: Scorer, log: Log) -> Log:
    """Return a log in a fitted model's item positions, with row weights in the model's unit.

    Items that the model does not know get position -1. User columns that the log does not have are
    those of the model's users. Row weights are stored divided by a unit; a
    log without weights, for a model with weights, is a TalerecError.
    """
    fitted = model.fitted
    positions = fitted.items.codes(fitted.items.cast_ids(log.items.ids)).astype(np.int32)
    factor = weight_factor(fitted.training, log.weight_unit)
    weight = log.weight
    if factor is not None and (factor != 1 or weight is not None):
        weight = factor * (np.ones(log.rows) if weight is None else weight)
    encoded = replace(log, item=positions[log.item], items=fitted.items, info=None, weight=weight)
    return replace(encoded, context=complete_context(model, log))


def weight_factor(training: Mapping[str, Any], unit: float | None) -> float | None:
    """Return the factor from a log's row weights to a model's; None if neither has weights.

    Row weights are stored divided by a unit: `unit` for the log, training["weight_unit"] for the
    model. Raises TalerecError if only one of the two has weights.
    """
    model_unit = training.get("weight_unit")
    if model_unit is None and unit is not None:
        raise TalerecError("the model was fitted without weights of rows: leave them out")
    if model_unit is not None and unit is None:
        raise TalerecError("the model was fitted to weighted rows: give the weights of rows too")
    return None if model_unit is None or unit is None else unit / model_unit

"""Lists and explanations as frames in external ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from talerec import columns
from talerec.data import Vocabulary
from talerec.models.core.scorer import TopItems
from talerec.models.core.slots import Slot, are_in_slots
from talerec.ranking import FamilyShare
from talerec.runtime import Array

_FAMILY_COLUMNS = {
    "family": pl.String, "reason": pl.String, columns.SHARE: pl.Float64, "share": pl.Float64,
}  # fmt: skip


def names_at(items: Vocabulary, positions: Array) -> pl.Series:
    """Return the external ids at item positions, as a series; null for -1."""
    indices = pl.Series(np.where(positions >= 0, positions, 0), dtype=pl.Int64)
    names = items.ids.gather(indices)
    return pl.select(pl.when(pl.Series(positions >= 0)).then(names)).to_series()


def lists_frame(
    lists: TopItems, item_ids: pl.Series, keys: pl.Series, slots: Sequence[Slot] = ()
) -> pl.DataFrame:
    """Return recommendation lists as a frame with a row per item, best first.

    lists: item positions, scores and lengths. item_ids: external ids by position. Columns: that of
    `keys` (one key per list, such as user_id), item_id, score, rank from 1. With slots, also slot:
    whether the item stands at the place of a slot whose condition it meets.
    """
    is_listed = np.arange(lists.items.shape[1]) < lists.counts[:, None]
    history, rank = np.nonzero(is_listed)
    names = (keys.name, columns.ITEM, columns.SCORE, columns.RANK)
    values = (keys[history], item_ids[lists.items[is_listed]], lists.scores[is_listed], rank + 1)
    frame = pl.DataFrame(dict(zip(names, values, strict=True)))
    if not slots:
        return frame
    in_slot = are_in_slots(lists.items[is_listed], rank + 1, slots)
    return frame.with_columns(pl.Series(columns.SLOT, in_slot))


def append_boosts(frame: pl.DataFrame, boosts: list[tuple[str, Any, float]]) -> pl.DataFrame:
    """Return an explanation with one more row per boost: (column, value, score added).

    frame: item_id and contribution of each history row. The result has a column boost, such as
    brand=X; it is null for history rows.
    """
    unboosted = frame.with_columns(pl.lit(None, pl.String).alias(columns.BOOST))
    names = [f"{column}={value}" for column, value, _ in boosts]
    rows = {columns.SHARE: [score for *_, score in boosts], columns.BOOST: names}
    boosted = pl.DataFrame(rows, {name: unboosted.schema[name] for name in rows})
    return pl.concat([unboosted, boosted], how="diagonal")


def families_frame(families: list[FamilyShare]) -> pl.DataFrame:
    """Return what families of features add to a score as a frame, largest first."""
    ordered = sorted(families, key=lambda each: -abs(each.contribution))
    return pl.DataFrame(ordered, _FAMILY_COLUMNS, orient="row")

"""The items of a served model together with the changes that clients have made since.

The item table of a saved model is fixed. Clients put, change and delete items in the store, and
every worker applies these changes to its models: the item table gets the new rows, a model that
scores items by their content scores new ones, and unavailable items are in no list.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from talerec import columns
from talerec.data import (
    Histories,
    ItemColumn,
    ItemField,
    Vocabulary,
    build_rows,
    describe_fields,
    equal_rows,
    replace_rows,
    to_json_value,
)
from talerec.errors import TalerecError
from talerec.models.core import ITEM_COLUMNS, Fitted, Model
from talerec.runtime import Array
from talerec.serve.model.availability import Availability
from talerec.store import ItemChanges, StoredItem, now_us

logger = logging.getLogger("talerec")


@dataclass(frozen=True, eq=False)
class LiveItems:
    """All items that a served model and the store know, by position.

    The items of the model come first, in the order of its vocabulary; those that it has no scores
    for follow.

    Parameters
    ----------
    base : polars.DataFrame
        The item table of the saved model, a row per item of the model.
    fields : dict
        The fields that clients may write, by name.
    items, info : Vocabulary, polars.DataFrame
        The ids of all items, and their rows of the item table.
    availability : Availability
        Which of them may be recommended.
    seq, resets : int
        The changes of the store that are included (see `ItemChanges`).
    """

    base: pl.DataFrame
    fields: dict[str, ItemField]
    items: Vocabulary
    info: pl.DataFrame
    availability: Availability
    seq: int = 0
    resets: int = 0

    @classmethod
    def read(cls, fitted: Fitted) -> LiveItems:
        """Return the items of a saved model, before any change."""
        info = fitted.info
        if info is None:
            info = pl.DataFrame({columns.ITEM: fitted.items.ids})
        types = [ItemColumn(**column) for column in fitted.training.get(ITEM_COLUMNS, [])]
        fields = describe_fields(info, types)
        title = columns.TITLES[0]
        if title not in info.columns:
            info = info.with_columns(pl.lit(None, pl.String).alias(title))
        names: Any = {name: field.dtype for name, field in fields.items() if name in info.columns}
        info = info.cast(names)  # categoricals become text
        return cls(info, fields, fitted.items, info, Availability.read(info))

    def describe_item(self, position: int, now: int) -> tuple[dict[str, Any], bool]:
        """Return the values of an item by field, for JSON, and whether it is available at a time.

        Fields without a value are left out. `now` is in microseconds since 1970.
        """
        row = self.info[position].to_dicts()[0]
        row.pop(columns.ITEM)
        fields = {name: to_json_value(value) for name, value in row.items() if value is not None}
        fields |= self.availability.describe_item(position)
        flags = self.availability.flags(now)
        return fields, flags is None or bool(flags[position])

    def apply(
        self, model: Model, changes: ItemChanges, trained_seq: int = 0
    ) -> tuple[Model, LiveItems]:
        """Return the model and its items with changes of the store.

        model: the model whose items these are. trained_seq: the last change of the store that the
        saved model was fitted with; its item table has the values of changes up to it. Items whose
        ids do not have the model's type of ids are left out.
        """
        stored = self._select_expressible(changes.rows)
        table = self._build_changed_rows(stored, trained_seq)
        if len(table):
            model = _add_items(model, table)
        items = self._extend_vocabulary(model, table)
        places = items.codes(table[columns.ITEM])
        table, places = table.filter(pl.Series(places >= 0)), places[places >= 0]
        info = self.info
        if len(table):
            info = replace_rows(info, table, places)
            n_scored = len(model.fitted.items)
            model = model.with_params().set_fitted(replace(model.fitted, info=info[:n_scored]))
        positions = items.text_positions([row.item for row in stored])
        availability = self.availability.extend(len(items)).set_items(positions, stored)
        live = replace(self, items=items, info=info, availability=availability)
        return model, replace(live, seq=changes.seq, resets=changes.resets)

    def _select_expressible(self, rows: Sequence[StoredItem]) -> list[StoredItem]:
        """Return the rows whose ids have the type of the model's ids; the others are logged."""
        ids = self.items.cast_ids(pl.Series([row.item for row in rows], dtype=pl.String))
        if n_lost := ids.null_count():
            message = "%d items are known after the next fit: their ids are not integers"
            logger.warning(message, n_lost)
        is_valid = ids.is_not_null().to_list()
        return [row for row, is_one in zip(rows, is_valid, strict=True) if is_one]

    def _build_changed_rows(self, rows: list[StoredItem], trained_seq: int) -> pl.DataFrame:
        """Return the rows of the item table that stored items change or add.

        rows: of the store. Items that are deleted now give no row, nor do rows whose last change
        the saved model was fitted with (`trained_seq`). A field that no client has put keeps the
        saved model's value; after a deletion it is empty.
        """
        places = self.items.text_positions([row.item for row in rows])
        rows = [
            row for row, position in zip(rows, places.tolist(), strict=True)
            if row.fields is not None
            and (row.seq > trained_seq or not 0 <= position < len(self.base))
        ]  # fmt: skip
        ids = self.items.cast_ids(pl.Series([row.item for row in rows], dtype=pl.String))
        values = [row.values() for row in rows]
        fields = {name: field for name, field in self.fields.items() if name in self.info.columns}
        table = build_rows(ids.to_list(), values, fields, self.items.ids.dtype)
        table = table.select(self.info.columns)
        positions = self.items.codes(table[columns.ITEM])
        has_base = (positions >= 0) & (positions < len(self.base))
        has_base &= ~np.array([row.is_whole for row in rows], bool)
        if has_base.any():
            table = self._fill_from_base(table, values, np.where(has_base, positions, -1))
        is_same = equal_rows(table, self.info[np.maximum(positions, 0)]) & (positions >= 0)
        return table.filter(pl.Series(~is_same))

    def _fill_from_base(
        self, table: pl.DataFrame, values: list[dict[str, Any]], positions: Array
    ) -> pl.DataFrame:
        """Return new rows with the saved model's values in the fields that were never put.

        table: the new rows. values: what was put of each. positions: of the saved model's row of
        each, -1 for none.
        """
        index = pl.Series(positions).cast(pl.Int64)
        old = self.base[pl.select(pl.when(index >= 0).then(index).otherwise(0)).to_series()]
        filled = []
        for column in table.get_columns():
            if column.name == columns.ITEM:
                filled.append(column)
                continue
            is_old = pl.Series([column.name not in each for each in values]) & (index >= 0)
            merged = pl.when(is_old).then(old[column.name]).otherwise(column)
            filled.append(pl.select(merged.alias(column.name)).to_series())
        return pl.DataFrame(filled)

    def _extend_vocabulary(self, model: Model, table: pl.DataFrame) -> Vocabulary:
        """Return the vocabulary with the items of new rows; those of the model come first."""
        if model.scores_catalogue:
            return model.fitted.items
        ids = table[columns.ITEM].alias("id")
        new = ids.filter(pl.Series(self.items.codes(ids) < 0))
        return Vocabulary(pl.concat([self.items.ids, new])) if len(new) else self.items


def _add_items(model: Model, table: pl.DataFrame) -> Model:
    """Return the model with scores for new rows of the item table; as it is if it has none.

    A failure is logged, and the model is returned as it is: it does not know the new items then.
    """
    if not model.scores_catalogue:
        return model
    try:
        return model.add_items(table)
    except TalerecError as error:
        logger.error("new items cannot be scored: %s", error)
        return model


def set_clock(model: Model, histories: Histories) -> Histories:
    """Return histories with the time now, if a model scores new items and they have no time.

    A request without a time is answered as of the end of the log; items that came out later are new
    by the clock.
    """
    if histories.now is not None or not model.scores_catalogue:
        return histories
    return replace(histories, clock=now_us())

"""The items of a model as clients see them: ids, titles, and search."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from talerec import columns
from talerec.models.core.persistence import Fitted
from talerec.runtime.arrays import Array
from talerec.serve.schemas import ABSENT

_MAX_LIST = 200_000  # items: up to here, lists of ids and titles take little memory
_NAMES = (columns.ITEM, columns.TITLES[0])
_FEW_VALUES = 200  # of a column: they are listed, so that a page can offer them
_MAX_TITLE = 300  # characters that are shown of a title
_MAX_SINGLE = 64  # values: up to here, reading them one by one is faster than one call of Polars


class Catalogue:
    """Ids and titles by item position."""

    def __init__(self, fitted: Fitted) -> None:
        self._fitted = fitted
        self._titles = _titles(fitted.info)
        self.ids = Values(fitted.items.ids)
        self.titles = None if self._titles is None else Values(self._titles)

    def __len__(self) -> int:
        return len(self._fitted.items)

    def title(self, item: int) -> Any:
        """The title of the item at this position; ABSENT if there is none or the item is unknown (-1)."""
        return ABSENT if self.titles is None or item < 0 else self.titles[item]

    def info(self, items: list[int]) -> list[Any]:
        """What the item table says of items besides their titles, by column; ABSENT if nothing."""
        if self._info is None:
            return [ABSENT] * len(items)
        rows = self._info[items].to_dicts()
        return [{name: v for name, v in row.items() if v is not None} or ABSENT for row in rows]

    @cached_property
    def _info(self) -> pl.DataFrame | None:
        """The other columns of the item table, as far as JSON can show them."""
        info = self._fitted.info
        shown = (
            []
            if info is None
            else [c for c in map(_shown, info.drop(_NAMES, strict=False)) if c is not None]
        )
        return pl.DataFrame(shown) if shown else None

    @cached_property
    def columns(self) -> dict[str, Any]:
        """For each column of the item table its values, if there are few, or the range of its numbers."""
        return {} if self._info is None else {column.name: _range(column) for column in self._info}

    def position(self, item_id: int | str) -> int:
        """The position of an item; -1 if the model does not know it."""
        return int(self._fitted.items.positions([item_id], "item", "skip")[0])

    def search(self, text: str, limit: int) -> list[int]:
        """Positions of items whose title has every word of `text`, popular ones first.

        An item whose id is `text` comes before all others.
        """
        matches = self._matches(text.casefold().split())
        order = np.argsort(-self._popularity[matches], kind="stable")[:limit]
        found: list[int] = matches[order].tolist()
        same_id = self.position(text.strip()) if text.strip() else -1
        if same_id >= 0:
            found = [same_id, *(item for item in found if item != same_id)][:limit]
        return found

    def _matches(self, words: list[str]) -> Array:
        if not words:
            return np.arange(len(self))
        has_all = self._searchable.str.contains(words[0], literal=True)
        for word in words[1:]:
            has_all &= self._searchable.str.contains(word, literal=True)
        return has_all.arg_true().to_numpy()

    @cached_property
    def _searchable(self) -> pl.Series:
        """Titles in lower case; the id where an item has no title."""
        names = self._fitted.items.ids.cast(pl.String)
        texts = names if self._titles is None else self._titles.fill_null(names)
        return texts.str.to_lowercase()

    @cached_property
    def _popularity(self) -> Array:
        """How often each item occurs in the log, or in its last days if the log was not saved."""
        fitted = self._fitted
        if fitted.log is not None:
            return fitted.log.counts()
        return np.zeros(len(self)) if fitted.recent_counts is None else fitted.recent_counts


class Values:
    """Ids or titles by item position, as Python values; a missing title is ABSENT.

    Up to 200,000 items they are converted once, to lists. Above that, only the values that an answer shows are converted.
    """

    def __init__(self, values: pl.Series) -> None:
        self._series = values
        self._list = _to_list(values) if len(values) <= _MAX_LIST else None

    def take(self, items: list[int]) -> list[Any]:
        """The values at these positions."""
        if self._list is not None:
            known = self._list
            return [known[item] for item in items]
        if len(items) > _MAX_SINGLE:
            return _to_list(self._series.gather(items))
        series = self._series
        found = [series[item] for item in items]
        return [ABSENT if one is None else one for one in found] if None in found else found

    def __getitem__(self, item: int) -> Any:
        return self.take([item])[0]


def _shown(column: pl.Series) -> pl.Series | None:
    """A column with values that JSON has; None for one of lists or structures."""
    kind = column.dtype
    if kind.is_float():
        return column.cast(pl.Float64).set(~column.is_finite(), None)
    if kind.is_integer() or kind == pl.Boolean:
        return column
    if kind.is_nested() or kind == pl.Binary or kind == pl.Object:
        return None
    return column.cast(pl.String).str.slice(0, _MAX_TITLE)


def _range(column: pl.Series) -> dict[str, Any]:
    if column.dtype.is_numeric():
        return {"min": column.min(), "max": column.max()}
    values = column.drop_nulls().unique()
    return {"values": values.sort().to_list()} if len(values) <= _FEW_VALUES else {}


def _titles(info: pl.DataFrame | None) -> pl.Series | None:
    if info is None or columns.TITLES[0] not in info.columns:
        return None
    titles = info[columns.TITLES[0]].cast(pl.String)
    if (titles.str.len_chars().max() or 0) <= _MAX_TITLE:  # type: ignore[operator]
        return titles
    short = titles.str.slice(0, _MAX_TITLE) + "…"
    return pl.select(
        pl.when(titles.str.len_chars() > _MAX_TITLE).then(short).otherwise(titles)
    ).to_series()


def _to_list(values: pl.Series) -> list[Any]:
    found = values.to_list()
    return [ABSENT if one is None else one for one in found] if values.null_count() else found

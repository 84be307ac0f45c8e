"""What two items have in common, in words: the reasons of a list by content."""

from __future__ import annotations

import polars as pl

from talerec.data import CATEGORY, ItemColumn
from talerec.models.content.words import hash_words, row_categories, row_words
from talerec.runtime import Array

_MAX_VALUES = 5  # categories or words of one column that are named


def describe_shared(
    table: pl.DataFrame,
    types: list[ItemColumn],
    weights: dict[int, float],
    items: Array,
    target: int,
) -> list[str]:
    """Return what each of some items shares with a target: "same author; tags: horror".

    Parameters
    ----------
    table, types : polars.DataFrame, list of ItemColumn
        The item table, a row per item position, and the types of its columns.
    weights : dict
        The weight of each term that counts, by its bucket (`hash_words`); other words are left out.
    items, target : int32 array, int
        Positions of items; -1 for an unknown item, which shares nothing.
    """
    rows = table[[target, *(int(max(item, 0)) for item in items)]]
    categories = row_categories(rows, types)
    single = {column.name for column in types if column.kind == CATEGORY}
    words = row_words(rows, types).to_list()
    texts = []
    for row, item in enumerate(items.tolist(), 1):
        parts = []
        for name, cells in categories.items():
            if shared := _in_common(cells[0], cells[row]):
                parts.append(f"same {name}" if name in single else f"{name}: {_join(shared)}")
        shared_words = [word for word in dict.fromkeys(words[0]) if word in set(words[row])]
        if known_words := _rarest(shared_words, weights):
            parts.append(f"words: {_join(known_words)}")
        texts.append("; ".join(parts) if item >= 0 else "")
    return texts


def _in_common(first: pl.Series | None, second: pl.Series | None) -> list[str]:
    """Return the categories of one cell that another has, too, whatever their case."""
    if first is None or second is None:
        return []
    others = {value.casefold() for value in second.drop_nulls()}
    return [value for value in first.drop_nulls().unique(maintain_order=True)
            if value.casefold() in others]  # fmt: skip


def _rarest(words: list[str], weights: dict[int, float]) -> list[str]:
    """Return the words that have a weight, by bucket, in falling order of their weights."""
    pairs = zip(words, hash_words(words), strict=True)
    weighted = {word: weights[bucket] for word, bucket in pairs if bucket in weights}
    return sorted(weighted, key=lambda word: -weighted[word])


def _join(values: list[str]) -> str:
    """Return up to five values as text, and how many more there are."""
    more = len(values) - _MAX_VALUES
    return ", ".join(values[:_MAX_VALUES]) + (f" and {more} more" if more > 0 else "")

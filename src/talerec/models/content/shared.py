"""What two items have in common, in words: the reasons of a list by content."""

from __future__ import annotations

import polars as pl

from talerec.data import CATEGORY, ItemColumn
from talerec.models.content.words import (
    N_BUCKETS,
    category_keys,
    hash_words,
    row_categories,
    row_words,
)
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
        The weight of each word and category that counts, by its bucket (`hash_words`). The rarest
        come first, and frequent words, of less than half of the largest weight, are left out.
    items, target : int32 array, int
        Positions of items; -1 for an unknown item, which shares nothing.
    """
    rows = table[[target, *(int(max(item, 0)) for item in items)]]
    categories = row_categories(rows, types)
    keys = {name: category_keys(name, cells).to_list() for name, cells in categories.items()}
    single = {column.name for column in types if column.kind == CATEGORY}
    words = row_words(rows, types).to_list()
    least = max(weights.values(), default=0.0) / 2
    texts = []
    for row, item in enumerate(items.tolist(), 1):
        parts = []
        for name, lists in keys.items():
            if shared := _shared_terms(lists[0], lists[row], weights, N_BUCKETS):
                values = [key.removeprefix(f"{name}\x1f") for key in shared]
                parts.append(f"same {name}" if name in single else f"{name}: {_join(values)}")
        shared = _shared_terms(words[0], words[row], weights)
        if rare := [word for word, weight in shared.items() if weight >= least]:
            parts.append(f"words: {_join(rare)}")
        texts.append("; ".join(parts) if item >= 0 else "")
    return texts


def _shared_terms(
    first: list[str], second: list[str], weights: dict[int, float], offset: int = 0
) -> dict[str, float]:
    """Return the terms of both lists with their weights, the largest first.

    weights: by bucket, which is `offset` more than that of `hash_words`; a term without a weight is
    left out.
    """
    shared = [term for term in dict.fromkeys(first) if term in set(second)]
    buckets = [bucket + offset for bucket in hash_words(shared)]
    pairs = zip(shared, buckets, strict=True)
    weighted = {term: weights[bucket] for term, bucket in pairs if bucket in weights}
    return dict(sorted(weighted.items(), key=lambda entry: -entry[1]))


def _join(values: list[str]) -> str:
    """Return up to five values as text, and how many more there are."""
    more = len(values) - _MAX_VALUES
    return ", ".join(values[:_MAX_VALUES]) + (f" and {more} more" if more > 0 else "")

"""Words of texts in any script, and hashed counts of words and categories."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from talerec.data import CATEGORIES, CATEGORY, TEXT, ItemColumn, column_categories
from talerec.errors import TalerecError
from talerec.runtime import sparse

#: Characters of a text that are read.
MAX_TEXT = 100_000
#: Numbers of buckets that words and categories are hashed into: categories follow the words.
N_BUCKETS = 2**24

_BATCH = 20_000  # rows whose words are in memory at a time
_BATCH_TEXT = 2**25  # bytes of their texts
_LETTERS = r"[\p{L}\p{M}\p{N}]+"
_MODEL_NUMBER = rf"{_LETTERS}(?:[-./]{_LETTERS})+"  # of which those with a digit count
#: Scripts without spaces between words; their words are pairs of neighbouring characters.
_UNSPACED = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"


def split_words(texts: pl.Series) -> pl.Series:
    """Return the words of each text as a list, in lower case; empty for null.

    Words are runs of letters, marks and digits of any script. A compound with a digit, such as
    wh-1000xm4, is a word besides its parts. Scripts without spaces give pairs of characters. Single
    Latin letters are left out. Only the first 100,000 characters of a text count.
    """
    plain = texts.fill_null("").str.slice(0, MAX_TEXT).str.normalize("NFKC").str.to_lowercase()
    is_word = (pl.element().str.len_bytes() > 1) | pl.element().str.contains(r"\d")
    words = plain.str.extract_all(_LETTERS).list.eval(pl.element().filter(is_word))
    numbered = pl.element().filter(pl.element().str.contains(r"\p{N}"))
    compounds = plain.str.extract_all(_MODEL_NUMBER).list.eval(numbered)
    words = pl.select(pl.concat_list(words, compounds)).to_series()
    is_unspaced = plain.str.contains(_UNSPACED)
    if not is_unspaced.any():
        return words
    paired = [
        _pair_characters(row) if flag else row for row, flag in zip(words, is_unspaced, strict=True)
    ]
    return pl.Series(paired, dtype=pl.List(pl.String))


def _pair_characters(words: pl.Series) -> list[str]:
    """Return words with those of scripts without spaces as pairs of neighbouring characters."""
    flags = words.str.contains(_UNSPACED)
    pairs: list[str] = []
    for word, is_unspaced in zip(words.to_list(), flags.to_list(), strict=True):
        if is_unspaced and len(word) > 2:
            pairs += [word[i : i + 2] for i in range(len(word) - 1)]
        else:
            pairs.append(word)
    return pairs


def row_words(table: pl.DataFrame, types: list[ItemColumn]) -> pl.Series:
    """Return the words of all text columns of each row of an item table, as a list."""
    texts = [table[column.name].cast(pl.String) for column in types if column.kind == TEXT]
    if not texts:
        return pl.Series([[]] * len(table), dtype=pl.List(pl.String))
    return pl.select(pl.concat_list([split_words(text) for text in texts])).to_series()


def row_categories(table: pl.DataFrame, types: list[ItemColumn]) -> dict[str, pl.Series]:
    """Return the categories of each row, as a list of text, by column; null for none.

    types: of the table's columns. Case is kept; `category_keys` ignores it.
    """
    chosen = [column for column in types if column.kind in (CATEGORY, CATEGORIES)]
    return {column.name: column_categories(table[column.name], column) for column in chosen}


def category_keys(name: str, categories: pl.Series) -> pl.Series:
    """Return the categories of each row of a column as keys that no other column has.

    name: of the column. categories: a list of text per row; null for none. Case is ignored, and a
    category counts once in a row.
    """
    lower = pl.element().str.to_lowercase().str.strip_chars().drop_nulls().unique()
    keys = categories.list.eval(pl.lit(f"{name}\x1f") + lower)
    return pl.select(
        pl.when(keys.is_null()).then(pl.lit([], pl.List(pl.String))).otherwise(keys)
    ).to_series()


def hash_rows(table: pl.DataFrame, types: list[ItemColumn]) -> Any:
    """Return how often each row of an item table has each word and category, as CSR.

    types: of the table's columns. The matrix is row x (2 `N_BUCKETS`), float32: hashed words of all
    text columns, then hashed categories by column. TalerecError if scikit-learn is not installed.
    """
    if not len(table):
        return sparse.csr_array((0, 2 * N_BUCKETS))
    return sparse.csr_array(sparse.vstack(list(_hash_batches(table, types)), format="csr"))


def _hash_batches(table: pl.DataFrame, types: list[ItemColumn]) -> Iterator[Any]:
    """Yield the matrices of `hash_rows` for batches of rows, one at a time."""
    for a, b in pairwise(_batch_bounds(table, types)):
        part = table[a:b]
        keys = [category_keys(*column) for column in row_categories(part, types).items()]
        counts = [_count_terms(row_words(part, types))]
        no_keys = sparse.csr_array((len(part), N_BUCKETS))
        counts.append(
            _count_terms(pl.select(pl.concat_list(keys)).to_series()) if keys else no_keys
        )
        yield sparse.hstack(counts, format="csr")


def _batch_bounds(table: pl.DataFrame, types: list[ItemColumn]) -> list[int]:
    """Return where batches of rows begin, and the number of rows last.

    A batch has about 20,000 rows, or rows with about 32 MB of text if they are fewer.
    """
    text = np.zeros(len(table))
    for column in types:
        if column.kind == TEXT:
            sizes = table[column.name].cast(pl.String).str.len_bytes().fill_null(0).to_numpy()
            text += np.minimum(sizes, MAX_TEXT)
    batch = np.cumsum(np.maximum(1 / _BATCH, text / _BATCH_TEXT)).astype(np.int64)
    starts = np.flatnonzero(np.diff(batch, prepend=-1))
    return [*starts.tolist(), len(table)]


def _count_terms(lists: pl.Series) -> Any:
    """Return how often each row has the terms of each bucket: a CSR matrix, row x `N_BUCKETS`.

    lists: the terms of each row. Each different term is hashed once.
    """
    rows = pl.DataFrame({"row": np.arange(len(lists), dtype=np.int64), "term": lists})
    pairs = rows.explode("term").drop_nulls("term").group_by("row", "term").len()
    terms = pairs["term"].unique()
    buckets = pl.DataFrame({"term": terms, "bucket": np.array(hash_words(terms.to_list()), int)})
    pairs = pairs.join(buckets, on="term").sort("row", "bucket")
    values = pairs["len"].to_numpy().astype(np.float32)
    places = (pairs["row"].to_numpy().astype(np.int32), pairs["bucket"].to_numpy().astype(np.int32))
    return sparse.coo_array((values, places), shape=(len(lists), N_BUCKETS)).tocsr()


def hash_words(words: list[str]) -> list[int]:
    """Return the bucket of each word, as in `hash_rows`."""
    if not words:
        return []
    counts = _hasher().transform([[word] for word in words])
    return [int(bucket) for bucket in counts.indices]


def _hasher() -> Any:
    """Return scikit-learn's hasher of words into `N_BUCKETS` buckets."""
    return import_sklearn("feature_extraction").FeatureHasher(
        N_BUCKETS, input_type="string", alternate_sign=False, dtype=np.float64
    )


def import_sklearn(name: str) -> Any:
    """Import a module of scikit-learn; without it, the error says how to install it."""
    from importlib import import_module

    try:
        import_module("sklearn")
        return import_module(f"sklearn.{name}")
    except ModuleNotFoundError as error:
        if error.name != "sklearn":
            raise
        raise TalerecError(
            "content needs scikit-learn, which is not installed: pip install 'talerec[content]'"
        ) from None

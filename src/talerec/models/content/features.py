"""Features of items: vectors of length 1 from the columns of an item table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from talerec.data import (
    DATE,
    NUMBER,
    VECTOR,
    ItemColumn,
    as_lists,
    check_vectors,
    parse_dates,
    read_numbers,
)
from talerec.models.content.words import N_BUCKETS, hash_rows
from talerec.runtime import Array, sized_chunks, sparse

_MIN_ITEMS = 2  # items that must have a word; a new item can share any category
_STOP_SHARE, _MIN_STOP_ITEMS = 0.4, 20  # a word of more items than this share, and number, is none
_MAX_TERMS = 2**17  # words and categories that are used: the most frequent
_MAX_SVD_ITEMS = 100_000  # items that the reduction is computed from
_MAX_SVD_ENTRIES = 2**23  # and terms of these items together
_SVD_STEPS, _OVERSAMPLING = 5, 10  # steps of the subspace, and dimensions beyond those returned
_NUMBER_WEIGHT, _MAX_DEVIATION = 0.3, 3.0  # of numbers, in standard deviations
_MAX_NUMBER = 1e150  # larger numbers count as this one: their squares have sums
_BATCH = 20_000  # rows that are encoded at a time


@dataclass(frozen=True, eq=False)
class ItemEncoder:
    """Maps rows of an item table to feature vectors, with statistics of some items.

    Every array comes from the items that `fit` was given, so that the vector of any other row does
    not depend on which rows are encoded together.

    Parameters
    ----------
    types : list of ItemColumn
        The types of the table's columns.
    terms : int64 array
        The buckets (hashes) of the words and categories that count, ascending.
    idf : float32 array
        The weight of each term: 1 + ln((1 + items) / (1 + items with the term)).
    projection : float32 array
        Term x dimension: the right singular vectors of the weighted terms.
    center, scale : float64 arrays
        Mean and standard deviation of each column of numbers or dates.
    rotation : float32 array
        Width x dimension: reduces terms, numbers and vectors together; empty if they are few.
    """

    types: list[ItemColumn]
    terms: Array
    idf: Array
    projection: Array
    center: Array
    scale: Array
    rotation: Array

    ARRAYS = ("terms", "idf", "projection", "center", "scale", "rotation")

    @classmethod
    def fit(
        cls, table: pl.DataFrame, types: list[ItemColumn], dims: int, counts: Any = None
    ) -> ItemEncoder:
        """Return the encoder with the document frequencies, scales and reduction of some items.

        table: their rows of the item table; types: of its columns. dims: the largest number of
        dimensions of a vector. counts: `hash_rows` of the table, if it is known.
        """
        counts = hash_rows(table, types) if counts is None else counts
        terms, idf = _select_terms(counts)
        values = _read_numbers(table, types)
        center = np.nan_to_num(_mean(values))
        deviation = np.sqrt(np.nan_to_num(_mean((values - center) ** 2)))
        scale = np.where(deviation > 0, deviation, 1.0)
        nothing = np.empty((0, 0), np.float32)
        encoder = cls(types, terms, idf, nothing, center, scale, nothing)
        step = max(-(-len(table) // _MAX_SVD_ITEMS), -(-counts.nnz // _MAX_SVD_ENTRIES), 1)
        projection = _right_vectors(encoder._weigh_rows(counts[::step]), dims)
        encoder = cls(types, terms, idf, projection, center, scale, nothing)
        if encoder.dims <= dims:
            return encoder
        width = encoder.dims
        moments = np.zeros((width, width))
        for a, b in sized_chunks(len(table), _BATCH):
            weighted = encoder._weigh_rows(counts[a:b])
            dense = np.hstack(list(encoder._dense_parts(table[a:b], weighted)))
            moments += dense.T @ dense
        rotation = _principal_axes(moments, dims)
        return cls(types, terms, idf, projection, center, scale, rotation)

    @classmethod
    def restore(cls, types: list[ItemColumn], arrays: dict[str, Array]) -> ItemEncoder:
        """Return the encoder whose `arrays` a model has saved, by name."""
        return cls(types, *(np.asarray(arrays[name]) for name in cls.ARRAYS))

    def arrays(self) -> dict[str, Array]:
        """Return the arrays by name, for saving."""
        return {name: getattr(self, name) for name in self.ARRAYS}

    def encode(self, table: pl.DataFrame, counts: Any = None) -> Array:
        """Return the vectors of rows of an item table: row x dimension, float32, of length 1.

        counts: `hash_rows` of the table, if it is known. A row without any known word, category,
        number or vector is 0. InvalidLogError for vectors of another width than those of `fit`, or
        with numbers that are not finite.
        """
        vectors = np.zeros((len(table), self.dims), np.float32)
        for a, b in sized_chunks(len(table), _BATCH):
            part = table[a:b]
            hashed = hash_rows(part, self.types) if counts is None else counts[a:b]
            vectors[a:b] = self._encode_batch(part, hashed)
        return vectors

    @property
    def dims(self) -> int:
        """The number of dimensions of a vector."""
        if self.rotation.size:
            return int(self.rotation.shape[1])
        widths = (column.width for column in self.types)
        n_term_dims = self.projection.shape[1] if len(self.terms) else 0
        return int(n_term_dims + len(self.center) + sum(widths))

    def _encode_batch(self, table: pl.DataFrame, counts: Any) -> Array:
        """Return `encode` of a few rows; counts: their `hash_rows`."""
        dense = np.hstack(list(self._dense_parts(table, self._weigh_rows(counts))))
        if self.rotation.size:
            dense = dense @ self.rotation.astype(np.float64)
        return _scale_rows(dense).astype(np.float32)

    def _weigh_rows(self, counts: Any) -> Any:
        """Return rows of TF-IDF weights, of length 1: a CSR matrix, row x term.

        counts: how often each row has each bucket, from `hash_rows`. The weight of a term is its
        `idf` times 1 + ln(count).
        """
        n_terms = len(self.terms)
        slots = np.searchsorted(self.terms, counts.indices)
        slots = np.minimum(slots, max(n_terms - 1, 0))
        is_term = self.terms[slots] == counts.indices if n_terms else np.zeros(len(slots), bool)
        values = counts.data.astype(np.float64)
        values = np.where(is_term, 1 + np.log(np.maximum(values, 1)), 0.0)
        if n_terms:
            values *= self.idf[slots].astype(np.float64)
        shape = (counts.shape[0], max(n_terms, 1))
        matrix = sparse.csr_array((values, slots, counts.indptr.copy()), shape=shape)
        matrix.eliminate_zeros()
        squares = np.asarray((matrix * matrix).sum(axis=1)).ravel()
        lengths = np.repeat(np.sqrt(squares), np.diff(matrix.indptr))
        matrix.data /= lengths
        return matrix

    def _dense_parts(self, table: pl.DataFrame, weighted: Any) -> Any:
        """Yield the dense parts of some rows: reduced terms, numbers, and each vector column.

        weighted: TF-IDF weights of the rows, row x term. Rows of terms and of vectors have length 1
        (or 0); a missing number is 0, the mean.
        """
        if len(self.terms):
            yield _scale_rows(weighted @ self.projection.astype(np.float64))
        values = _read_numbers(table, self.types)
        deviations = np.nan_to_num((values - self.center) / self.scale)
        yield _NUMBER_WEIGHT * np.clip(deviations, -_MAX_DEVIATION, _MAX_DEVIATION)
        for column in self.types:
            if column.kind == VECTOR:
                yield _scale_rows(_read_vectors(table, column))


def _select_terms(counts: Any) -> tuple[Array, Array]:
    """Return the buckets of words and categories that count, ascending, and their weights.

    counts: how often each item has each bucket (words, then categories). Words of one item and
    words of most items do not count; of the others, the 131,072 of most items.
    """
    n_items = counts.shape[0]
    terms, items = np.unique(counts.indices, return_counts=True)
    is_stop_word = (terms < N_BUCKETS) & (items > max(_STOP_SHARE * n_items, _MIN_STOP_ITEMS))
    is_rare_word = (terms < N_BUCKETS) & (items < _MIN_ITEMS)
    used = np.flatnonzero(~is_rare_word & ~is_stop_word)
    if len(used) > _MAX_TERMS:
        used = np.sort(used[np.argsort(-items[used], kind="stable")[:_MAX_TERMS]])
    idf = 1 + np.log((1 + n_items) / (1 + items[used]))
    return terms[used].astype(np.int64), idf.astype(np.float32)


def _right_vectors(rows: Any, dims: int) -> Array:
    """Return the right singular vectors of the largest singular values: term x dimension.

    rows: X, row x term, sparse. With no more terms than `dims`, the identity. Otherwise a subspace
    of some dimensions more is multiplied by X'X and made orthonormal, five times from a random
    start.
    """
    n_terms = rows.shape[1]
    if n_terms <= dims:
        return np.eye(n_terms, dtype=np.float32)
    columns = sparse.csr_array(rows.T)
    size = min(dims + _OVERSAMPLING, n_terms)
    basis = np.random.default_rng(0).normal(size=(n_terms, size))
    for _ in range(_SVD_STEPS):
        basis = np.linalg.qr(columns @ (rows @ basis))[0]
    image = rows @ basis
    vectors = basis @ _principal_axes(image.T @ image, min(dims, rows.shape[0])).astype(float)
    return np.ascontiguousarray(vectors, np.float32)


def _principal_axes(moments: Array, dims: int) -> Array:
    """Return the `dims` eigenvectors of X'X with the largest values, as columns."""
    _, vectors = np.linalg.eigh(moments)
    return np.ascontiguousarray(vectors[:, ::-1][:, :dims], np.float32)


def _read_numbers(table: pl.DataFrame, types: list[ItemColumn]) -> Array:
    """Return the numbers, and the days of dates, of each row: row x column; NaN for none."""
    columns = []
    for column in types:
        if column.kind == NUMBER:
            columns.append(read_numbers(table[column.name], table[table.columns[0]]))
        elif column.kind == DATE:
            columns.append(parse_dates(table[column.name]).cast(pl.Int32).cast(pl.Float64))
    if not columns:
        return np.zeros((len(table), 0))
    values = np.column_stack([column.fill_null(np.nan).to_numpy() for column in columns])
    clipped: Array = np.clip(values, -_MAX_NUMBER, _MAX_NUMBER)
    return clipped


def _read_vectors(table: pl.DataFrame, column: ItemColumn) -> Array:
    """Return a column of vectors as an array, row x dimension; 0 for rows without a vector."""
    lists = as_lists(table[column.name])
    check_vectors(lists, table[table.columns[0]], column.width)
    has_vector = lists.is_not_null().to_numpy()
    vectors = np.zeros((len(table), column.width))
    flat = lists.drop_nulls().explode().cast(pl.Float64).to_numpy()
    vectors[has_vector] = np.clip(flat, -_MAX_NUMBER, _MAX_NUMBER).reshape(-1, column.width)
    return vectors


def _scale_rows(matrix: Array) -> Array:
    """Return the rows of a matrix divided by their lengths; rows of 0 stay 0."""
    lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
    scaled: Array = np.divide(matrix, lengths, out=np.zeros_like(matrix), where=lengths > 0)
    return scaled


def _mean(values: Array) -> Array:
    """Return the mean of each column without its NaN; NaN for a column of NaN alone."""
    present = ~np.isnan(values)
    totals, counts = np.where(present, values, 0.0).sum(axis=0), present.sum(axis=0)
    means: Array = np.divide(totals, counts, out=np.full(len(totals), np.nan), where=counts > 0)
    return means

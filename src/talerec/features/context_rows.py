"""Context columns as features see them: values as codes, and rows to be counted."""

from __future__ import annotations

import json
import logging
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from talerec.data import ContextColumn, ContextColumns, Histories, Log, check_type, translate_values
from talerec.errors import TalerecError
from talerec.runtime import Array, as_readonly

logger = logging.getLogger("talerec")

_MAX_VALUES = 1000  # values of a column of text that have codes of their own
_BINS = 16  # of a column of numbers
_MAX_COLUMNS = 20
_MAX_TEXT = 8 * 2**20  # characters of stored encoders


class ContextEncoder(NamedTuple):
    """How the values of a context column become codes: 0 for missing or unknown, else 1, 2 ...

    values: the values of text that have codes; None for a column of numbers. edges: where the bins
    of a column of numbers begin, but the first: ascending. by_user: whether it describes users.
    """

    name: str
    by_user: bool
    values: list[str] | None
    edges: Array

    @classmethod
    def learn(cls, column: ContextColumn) -> ContextEncoder:
        """Return the encoder of a column of training rows.

        Text gets codes for the 1,000 most frequent values, numbers for up to 16 bins with equally
        many rows; up to 16 different numbers have a bin each.
        """
        used = column.codes[column.codes >= 0]
        counts = np.bincount(used, minlength=len(column.values))
        if column.is_number:
            values = column.values.to_numpy()
            edges = values[counts > 0][1:]
            if len(edges) >= _BINS:
                edges = np.unique(np.quantile(values[used], np.arange(1, _BINS) / _BINS))
            return cls(column.name, column.by_user, None, edges.astype(np.float64))
        order = np.argsort(-counts, kind="stable")
        order = np.sort(order[: min(_MAX_VALUES, int(np.count_nonzero(counts)))])
        if np.count_nonzero(counts) > _MAX_VALUES:
            message = "context column %r has %s values: all but the %s most frequent are missing"
            n_values = f"{np.count_nonzero(counts):,}"
            logger.warning(message, column.name, n_values, f"{_MAX_VALUES:,}")
        return cls(column.name, column.by_user, column.values.gather(order).to_list(), np.empty(0))

    @property
    def is_number(self) -> bool:
        """Whether the column has numbers."""
        return self.values is None

    @property
    def n_codes(self) -> int:
        """The number of codes, that of missing values too."""
        return 2 + len(self.edges) if self.values is None else 1 + len(self.values)

    def encode(self, columns: ContextColumns, size: int) -> Array:
        """Return the codes (int16) of the column of this name; all missing without one.

        size: the number of entries. InvalidLogError if it has numbers for text, or text for
        numbers.
        """
        column = next((column for column in columns if column.name == self.name), None)
        if column is None:
            return np.zeros(size, np.int16)
        check_type(self.name, self.is_number, column)
        if not len(column.values):
            return np.zeros(size, np.int16)
        if self.values is None:
            codes = 1 + np.searchsorted(self.edges, column.values.to_numpy(), "right")
        else:
            codes = 1 + translate_values(column, pl.Series(self.values, dtype=pl.String))
        return np.append(codes, 0).astype(np.int16)[column.codes]


class ContextRows(NamedTuple):
    """The rows of a log by context column, item, value and time, to count those before a time.

    All arrays have a row per context column. Item i has the rows from indptr[i] to indptr[i + 1] of
    `ItemTimes`: their codes (values) ascend, and rows of equal codes are in order of time. The rows
    of all items with code v have the times value_times[value_indptr[v]:value_indptr[v + 1]].
    """

    values: Array  # int16
    times: Array  # int64 microseconds
    value_indptr: Array
    value_times: Array

    @classmethod
    def from_log(cls, log: Log, encoders: list[ContextEncoder]) -> ContextRows:
        """Return the rows of a log by the codes of these encoders."""
        n_rows = log.rows if encoders else 0
        n_codes = max((encoder.n_codes for encoder in encoders), default=0)
        shape = len(encoders), n_rows
        values, times = np.empty(shape, np.int16), np.empty(shape, np.int64)
        indptr, value_times = np.zeros((len(encoders), n_codes + 1), np.int64), np.empty_like(times)
        for number, encoder in enumerate(encoders):
            codes = encoder.encode(log.context, log.rows)
            order = np.lexsort((log.time, codes, log.item))
            values[number], times[number] = codes[order], log.time[order]
            value_times[number] = log.time[np.lexsort((log.time, codes))]
            np.cumsum(np.bincount(codes, minlength=n_codes), out=indptr[number, 1:])
        return cls(values, times, indptr, value_times)

    def check(self, encoders: list[ContextEncoder], item_indptr: Array) -> None:
        """Raise TalerecError unless arrays that were loaded can be searched by kernels.

        item_indptr: where the rows of each item begin, and the number of rows.
        """
        n_columns, n_rows = len(encoders), int(item_indptr[-1]) if encoders else 0
        n_codes = max((encoder.n_codes for encoder in encoders), default=0)
        by_row = (n_columns, n_rows)
        shapes = (by_row, by_row, (n_columns, n_codes + 1), by_row)
        for array, shape, kind in zip(self, shapes, (np.int16, *[np.int64] * 3), strict=True):
            if array.shape != shape or array.dtype != kind:
                raise TalerecError("the rows of context columns have another shape")
        for indptr in self.value_indptr:
            if indptr[0] != 0 or indptr[-1] != n_rows or (np.diff(indptr) < 0).any():
                raise TalerecError("the rows of context columns do not add up")


class ContextInputs(NamedTuple):
    """What kernels need of context: codes of requests and of history rows, and rows to count.

    codes: int16, request x column. row_codes: int16, column x row of the shared columns of the
    histories. has_rows: 1 for a column that differs between rows of a user. rows: of the log.
    """

    codes: Array
    row_codes: Array
    has_rows: Array
    rows: ContextRows


class ContextState(NamedTuple):
    """What a fit has of context: an encoder per column, and the rows that may be counted."""

    encoders: list[ContextEncoder]
    rows: ContextRows

    @classmethod
    def learn(cls, log: Log) -> ContextState:
        """Return encoders learned from the context columns of a log, and its rows.

        TalerecError for more than 20 columns.
        """
        if len(log.context) > _MAX_COLUMNS:
            message = f"the log has {len(log.context)} context columns; at most {_MAX_COLUMNS}"
            raise TalerecError(message, "context")
        return cls.count_rows([ContextEncoder.learn(column) for column in log.context], log)

    @classmethod
    def count_rows(cls, encoders: list[ContextEncoder], log: Log) -> ContextState:
        """Return encoders that exist already, with the rows of a log."""
        return cls(encoders, ContextRows.from_log(log, encoders))

    @property
    def names(self) -> list[tuple[str, bool]]:
        """The name of each column, and whether it describes users."""
        return [(encoder.name, encoder.by_user) for encoder in self.encoders]

    def build_inputs(self, histories: Histories) -> ContextInputs:
        """Return the context of requests as category codes, the arguments of the feature kernels.

        The context is that of the requests which follow these histories, and of the histories' own
        rows; row codes of columns that describe users stay 0. The training rows per category,
        counted at the fit, are included.
        """
        shape, n_rows = (len(histories), len(self.encoders)), len(histories.item)
        codes = np.zeros(shape, np.int16)
        row_codes = np.zeros((len(self.encoders), n_rows), np.int16)
        for index, encoder in enumerate(self.encoders):
            codes[:, index] = encoder.encode(histories.context, len(histories))
            if not encoder.by_user:
                row_codes[index] = encoder.encode(histories.row_context, n_rows)
        has_rows = np.array([not encoder.by_user for encoder in self.encoders], np.uint8)
        rows = ContextRows(*map(as_readonly, self.rows))
        return ContextInputs(codes, row_codes, has_rows, rows)


def empty_context() -> ContextState:
    """Return the state of a fit without context columns."""
    none = np.empty((0, 0), np.int64)
    rows = ContextRows(none.astype(np.int16), none, np.zeros((0, 1), np.int64), none)
    return ContextState([], rows)


def encoders_to_json(encoders: list[ContextEncoder]) -> bytes:
    """Return encoders as JSON, to be stored with a model."""
    entries = [
        {"name": each.name, "by_user": each.by_user, "values": each.values,
         "edges": each.edges.tolist()}
        for each in encoders
    ]  # fmt: skip
    return json.dumps(entries).encode()


def encoders_from_json(text: bytes) -> list[ContextEncoder]:
    """Return the encoders in stored JSON; TalerecError for anything that no fit stores."""
    if len(text) > _MAX_TEXT:
        raise TalerecError("the context columns of the model are too large")
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        raise TalerecError("the context columns of the model are not JSON") from None
    if not isinstance(entries, list) or len(entries) > _MAX_COLUMNS:
        raise TalerecError("the context columns of the model are no list")
    encoders = [_restore_encoder(entry) for entry in entries]
    names = [encoder.name for encoder in encoders]
    if len(set(names)) < len(names):
        raise TalerecError("the model has two context columns of the same name")
    return encoders


def _restore_encoder(entry: Any) -> ContextEncoder:
    """Return one encoder from its JSON; TalerecError unless types, sizes and order are right."""
    problem = TalerecError("a context column of the model is damaged")
    if not isinstance(entry, dict) or set(entry) != {"name", "by_user", "values", "edges"}:
        raise problem
    name, by_user, values, edges = (entry[key] for key in ("name", "by_user", "values", "edges"))
    if not isinstance(name, str) or not isinstance(by_user, bool) or not isinstance(edges, list):
        raise problem
    if values is not None:
        is_valid = isinstance(values, list) and len(values) <= _MAX_VALUES and not edges
        if not is_valid or not all(isinstance(value, str) for value in values):
            raise problem
        if len(set(values)) < len(values):
            raise problem
        return ContextEncoder(name, by_user, values, np.empty(0))
    if len(edges) >= _BINS or not all(type(edge) in (int, float) for edge in edges):
        raise problem
    limits = np.array(edges, np.float64)
    if not np.isfinite(limits).all() or (np.diff(limits) <= 0).any():
        raise problem
    return ContextEncoder(name, by_user, None, limits)

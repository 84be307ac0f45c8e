"""Fingerprints of logs: equal for equal rows in the same order, different for all others."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import polars as pl

from talerec.data.log import Log
from talerec.runtime import Array

_DIGEST_BYTES = 16  # two different logs share a fingerprint with a chance of 2^-128


def fingerprint_rows(log: Log) -> str:
    """Return a hash of a log's rows, as 32 hexadecimal digits: the same on every machine.

    Hashed are user and item ids, times, row weights, and the order of the rows. Two logs without
    row weights, or with weights that are all equal, are alike in this respect.
    """
    return _hash_log(log, ("item", "time", "weight")).hexdigest()


def fingerprint_log(log: Log) -> str:
    """Return a hash of everything that a split or a fit reads of a log, as 32 hex digits.

    Besides what `fingerprint_rows` hashes: events, time unit, and stored trend counts. The item
    table is left out.
    """
    digest = _hash_log(log, ("item", "time", "weight", "event", "trends"))
    digest.update(json.dumps([log.unit, log.latest, log.event_names]).encode())
    return digest.hexdigest()


def _hash_log(log: Log, names: tuple[str, ...]) -> hashlib.blake2b:
    """Return a hash that has read the ids of a log, and its columns `names` in row order.

    A column that the log does not have (None) is read as such.
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for ids in (log.users.ids, log.items.ids):
        _add_ids(digest, ids)
    _add_array(digest, log.ptr)
    for name in names:
        _add_array(digest, getattr(log, name))
    return digest


def _add_ids(digest: hashlib.blake2b, ids: pl.Series) -> None:
    """Add ids, whole numbers or text, to a hash; text with the length of each id in bytes."""
    if ids.dtype != pl.String:
        _add_array(digest, ids.to_numpy())
        return
    _add_array(digest, ids.str.len_bytes().to_numpy())
    digest.update("".join(ids.to_list()).encode())


def _add_array(digest: hashlib.blake2b, array: Array | None) -> None:
    """Add an array of numbers to a hash, with its kind and length; or that it is missing.

    Whole numbers of any width are read as int64, all others as float64, so that the file format of
    a saved log does not matter.
    """
    if array is None:
        digest.update(b"none;")
        return
    kind = "int64" if array.dtype.kind in "iu" else "float64"
    digest.update(f"{kind} {len(array)};".encode())
    digest.update(np.ascontiguousarray(array, kind).data)

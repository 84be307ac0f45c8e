"""What a training is told: rows as plain arrays, and settings as plain values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, Self

import numpy as np

from talerec.runtime.arrays import Array

#: Goes up when the same settings and rows give another network: earlier checkpoints are not taken then.
VERSION = 1


class Rows(NamedTuple):
    """A log: user u has rows ptr[u]..ptr[u+1] of the columns, oldest first; items are numbers below `items`."""

    ptr: Array
    item: Array
    time: Array  # microseconds
    items: int

    def without_last(self, users: Array) -> Rows:
        """The rows without the last one of each of these users."""
        keep = np.ones(len(self.item), bool)
        keep[self.ptr[users + 1] - 1] = False
        gone = np.zeros(len(self.ptr), np.int64)
        gone[users + 1] = 1
        return Rows(self.ptr - np.cumsum(gone), self.item[keep], self.time[keep], self.items)

    def with_last(self, users: Array, item: Array, time: Array) -> Rows:
        """The rows with one more after those of each of these users."""
        at = np.asarray(self.ptr)[users + 1]
        more = np.zeros(len(self.ptr), np.int64)
        more[users + 1] = 1
        ptr = np.asarray(self.ptr, np.int64) + np.cumsum(more)
        return Rows(ptr, np.insert(self.item, at, item), np.insert(self.time, at, time), self.items)

    def fingerprint(self) -> str:
        """A name for exactly these rows."""
        found = hashlib.sha256(str(self.items).encode())
        for column, kind in ((self.ptr, np.int64), (self.item, np.int32), (self.time, np.int64)):
            found.update(np.ascontiguousarray(column, kind).tobytes())
        return found.hexdigest()[:32]


@dataclass(frozen=True)
class Settings:
    """How a network is built and trained. `own` holds what only networks of its kind know."""

    kind: str
    dim: int
    layers: int
    max_history: int
    dropout: float
    loss: str
    negatives: int
    samples: str
    rate: float
    reg: float
    batch: int
    epochs: int
    patience: int
    judges: int
    seed: int
    device: str
    precision: str
    own: Mapping[str, Any]

    @property
    def heads(self) -> int:
        """Heads of attention, where the network has some."""
        return int(self.own.get("heads", 1))

    @classmethod
    def of(cls, kind: str, params: Mapping[str, Any]) -> Self:
        """A model's parameters by name, as settings."""
        common = {field.name for field in fields(cls)} - {"kind", "own"}
        own = {name: value for name, value in params.items() if name not in common}
        return cls(kind=kind, own=own, **{name: params[name] for name in common})

    def params(self) -> dict[str, Any]:
        """The model's parameters by name again."""
        known = asdict(self)
        del known["kind"]
        own: dict[str, Any] = known.pop("own")
        return {**known, **own}

    def key(self, rows: Rows) -> str:
        """A name for these settings on these rows: what a checkpoint has to agree with.

        Where it is computed plays no part.
        """
        told = {k: v for k, v in self.params().items() if k != "device"}
        text = json.dumps([VERSION, self.kind, told, rows.fingerprint()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

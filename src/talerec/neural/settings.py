"""The input of a training: rows as plain arrays, and settings as plain values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple, Self

import numpy as np

from talerec.runtime import Array

#: Increases when equal settings and rows give another network, which invalidates checkpoints.
VERSION = 1

_MOST_TARGETS, _LEAST_TARGETS = 4096, 256  # in a step, if the setting `batch` is 0
_STEPS = 16  # in an epoch, at least, unless that takes fewer targets in a step than the least


class Rows(NamedTuple):
    """A log as arrays: user u has rows ptr[u]..ptr[u+1], oldest first.

    item : positions from 0 to items - 1; items : size of the catalogue
    """

    ptr: Array
    item: Array
    time: Array  # microseconds
    items: int

    def without_last(self, users: Array) -> Rows:
        """Return the rows without the last row of each of these users.

        users : distinct positions of users that have at least one row
        """
        keep = np.ones(len(self.item), bool)
        keep[self.ptr[users + 1] - 1] = False
        removed = np.zeros(len(self.ptr), np.int64)
        removed[users + 1] = 1
        return Rows(self.ptr - np.cumsum(removed), self.item[keep], self.time[keep], self.items)

    def with_last(self, users: Array, item: Array, time: Array) -> Rows:
        """Return the rows with one row appended to each of these users.

        users : distinct positions; item, time : of the new rows, in the order of `users`
        """
        at = np.asarray(self.ptr)[users + 1]
        more = np.zeros(len(self.ptr), np.int64)
        more[users + 1] = 1
        ptr = np.asarray(self.ptr, np.int64) + np.cumsum(more)
        return Rows(ptr, np.insert(self.item, at, item), np.insert(self.time, at, time), self.items)

    def fingerprint(self) -> str:
        """Return a hash of exactly these rows, as 32 hexadecimal digits."""
        digest = hashlib.sha256(str(self.items).encode())
        for column, kind in ((self.ptr, np.int64), (self.item, np.int32), (self.time, np.int64)):
            digest.update(np.ascontiguousarray(column, kind).tobytes())
        return digest.hexdigest()[:32]


@dataclass(frozen=True)
class NetSettings:
    """Settings of a network and of its training.

    kind : name of the model, such as "sasrec"; dim : of item vectors; layers : number of blocks
    max_history : rows read; loss : "softmax", "sampled", "gbce" or "bce"
    negatives : sampled items per target; samples : how a log is cut, "windows" or "prefixes"
    rate, reg : learning rate and weight decay; epochs : the most
    batch : targets per step; 0: 4,096, on small logs fewer (see `with_batch`)
    patience : epochs without improvement before training stops; judges : users whose last row is
    held out for early stopping (0: none); device : "auto", "cpu" or "cuda"; precision : of products
    specific : parameters that only this kind of network has, by name
    """

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
    specific: Mapping[str, Any]

    @property
    def heads(self) -> int:
        """Return the number of attention heads; 1 for networks without attention."""
        return int(self.specific.get("heads", 1))

    @classmethod
    def of(cls, kind: str, params: Mapping[str, Any]) -> Self:
        """Return settings from the parameters of a model, by name.

        kind : the model's name. Parameters that are not fields of this class go into `specific`.
        """
        common = {field.name for field in fields(cls)} - {"kind", "specific"}
        specific = {name: value for name, value in params.items() if name not in common}
        return cls(kind=kind, specific=specific, **{name: params[name] for name in common})

    def with_batch(self, rows: Rows) -> Self:
        """Return these settings with the targets per step that `batch` 0 stands for on this log.

        That is 4,096, or so many that an epoch has 16 steps if those are fewer, but at least 256:
        early stopping counts epochs, and in a few steps a network learns little.
        """
        if self.batch:
            return self
        targets = len(rows.item) - (len(rows.ptr) - 1)  # all rows but a user's first
        return replace(self, batch=min(_MOST_TARGETS, max(_LEAST_TARGETS, targets // _STEPS)))

    def params(self) -> dict[str, Any]:
        """Return common and specific parameters in one dictionary, by name; the inverse of `of`."""
        common = asdict(self)
        del common["kind"]
        specific: dict[str, Any] = common.pop("specific")
        return {**common, **specific}

    def key(self, rows: Rows) -> str:
        """Return a hash of settings and rows; a checkpoint with another hash is not resumed.

        The device is not part of it. rows : the training rows. 32 hexadecimal digits.
        """
        params = {k: v for k, v in self.params().items() if k != "device"}
        text = json.dumps([VERSION, self.kind, params, rows.fingerprint()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

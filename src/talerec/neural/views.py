"""TiCoSeRec's views of a sequence: crop, mask, reorder, substitute and insert, where time says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from talerec.neural.settings import Rows
from talerec.runtime.arrays import Array

_CHUNK = 512  # items whose likeness to all others is found at once
_PAIRS = 2**17  # of an item and a user that has it, looked at in one go

HOLE = -1  # stands where a row was masked


class View(NamedTuple):
    """How views are drawn: rates of the operations, the longest sequence that counts as short, and similar items."""

    rates: Mapping[str, float]
    short: int
    similar: Array


def drawn(item: Array, time: Array, view: View, rng: np.random.Generator) -> Array:
    """A view of one sequence, made by one operation."""
    kinds = ["substitute", "insert", "mask"]
    if len(item) > view.short:
        kinds += ["crop", "reorder"]
    kind = kinds[rng.integers(len(kinds))]
    rate = view.rates[kind]
    if kind == "crop":
        return crop(item, time, rate, rng)
    if kind == "reorder":
        return reorder(item, time, rate, rng)
    if kind == "mask":
        return mask(item, rate, rng)
    if kind == "substitute":
        return substitute(item, time, rate, view.similar)
    return insert(item, time, rate, view.similar)


def steadiest(time: Array, size: int) -> int:
    """Where the window of `size` rows begins whose intervals vary least; of equals, the newest."""
    gaps = np.diff(time).astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(gaps, size - 1)
    spread = windows.var(axis=1)
    return int(len(spread) - 1 - np.argmin(spread[::-1]))


def crop(item: Array, time: Array, rate: float, rng: np.random.Generator) -> Array:
    """The rate * L rows whose intervals vary least; one row, drawn, where these are two at most."""
    size = int(rate * len(item))
    if size <= 2:
        return item[[rng.integers(len(item))]]
    begin = steadiest(time, size)
    return item[begin : begin + size]


def reorder(item: Array, time: Array, rate: float, rng: np.random.Generator) -> Array:
    """The rate * L rows whose intervals vary least, shuffled in their place."""
    size = int(rate * len(item))
    if size <= 2:
        return item
    begin = steadiest(time, size)
    made = item.copy()
    made[begin : begin + size] = rng.permutation(made[begin : begin + size])
    return made


def mask(item: Array, rate: float, rng: np.random.Generator) -> Array:
    """rate * L rows, drawn, become holes; never all."""
    made = item.copy()
    count = min(int(rate * len(item)), len(item) - 1)
    made[rng.permutation(len(item))[:count]] = HOLE
    return made


def substitute(item: Array, time: Array, rate: float, similar: Array) -> Array:
    """The rows with the smallest intervals after them become the items most like them."""
    made = item.copy()
    chosen = _by_gap(time, max(1, int(rate * len(item))), largest=False)
    made[chosen] = similar[made[chosen]]
    return made


def insert(item: Array, time: Array, rate: float, similar: Array) -> Array:
    """After the rows with the largest intervals after them stands the item most like them."""
    chosen = np.sort(_by_gap(time, max(1, int(rate * len(item))), largest=True))
    return np.insert(item, chosen + 1, similar[item[chosen]])


def _by_gap(time: Array, count: int, *, largest: bool) -> Array:
    """The rows with the smallest or largest intervals after them; a sequence of one row is that row."""
    gaps = np.diff(time)
    if not len(gaps):
        return np.zeros(1, np.int64)
    order = np.argsort(-gaps if largest else gaps, kind="stable")
    return order[:count]


# -- what the log says -----------------------------------------------------------------------------


def similar_items(rows: Rows) -> Array:
    """For each item the one most like it: sum over users that have both of 1 / log(1 + length), over sqrt(N_i N_j).

    Users' last rows play no part. An item that stands with no other is like itself.
    """
    length = np.diff(rows.ptr)
    keep = np.ones(len(rows.item), bool)
    keep[np.asarray(rows.ptr[1:])[length > 0] - 1] = False
    user = np.repeat(np.arange(len(length)), length)[keep]
    item, user = np.unique(np.stack([rows.item[keep], user]), axis=1)  # sorted by item
    weight = 1 / np.log(1 + np.maximum(length, 2))[user]
    count = np.maximum(np.bincount(item, minlength=rows.items), 1)
    found = np.arange(rows.items)
    for a in range(0, rows.items, _CHUNK):
        b = min(a + _CHUNK, rows.items)
        mine = slice(*np.searchsorted(item, [a, b]))
        owners = torch.zeros(len(length), b - a)
        owners[user[mine], item[mine] - a] = 1.0
        alike = _shared(owners, user, item, weight, rows.items).T / np.sqrt(count)
        alike[np.arange(b - a), np.arange(a, b)] = 0.0
        found[a:b] = np.where(alike.max(1) > 0, alike.argmax(1), np.arange(a, b))
    return found


def _shared(owners: torch.Tensor, user: Array, item: Array, weight: Array, items: int) -> Array:
    """For each item the sum of `weight` over its users' rows of `owners`, a part of the pairs at a time."""
    total = torch.zeros(items, owners.shape[1])
    for a in range(0, len(user), _PAIRS):
        part = slice(a, a + _PAIRS)
        share = torch.as_tensor(weight[part], dtype=torch.float32)[:, None]
        total.index_add_(0, torch.as_tensor(item[part]), owners[user[part]] * share)
    made: Array = total.numpy()
    return made


def even_users(rows: Rows, share: float) -> Array:
    """Which users are spared: the share of them whose intervals vary least."""
    length = np.diff(rows.ptr)
    spread = np.full(len(length), np.inf)
    for user in np.flatnonzero(length > 2):
        gaps = np.diff(rows.time[rows.ptr[user] : rows.ptr[user + 1] - 1])
        spread[user] = gaps.astype(np.float64).var() if gaps.size else np.inf
    spared = np.zeros(len(length), bool)
    spared[np.argsort(spread, kind="stable")[: int(share * len(length))]] = True
    return spared


def padded(views: list[Array], longest: int) -> dict[str, Any]:
    """Views as item numbers, which cells hold rows, and where each ends; the newest rows of long ones."""
    cut = [view[-longest:] for view in views]
    count = np.array([len(view) for view in cut])
    item = np.full((len(cut), longest), HOLE, np.int64)
    for n, view in enumerate(cut):
        item[n, : len(view)] = view
    return {"item": np.maximum(item, 0), "there": item != HOLE, "count": count}

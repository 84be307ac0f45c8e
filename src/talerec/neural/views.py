"""TiCoSeRec's augmented views of a sequence, which depend on its time intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from talerec.neural.settings import Rows
from talerec.runtime import Array

_CHUNK = 512  # items whose similarities to all others are computed at once
_PAIRS = 2**17  # (item, user) pairs per product

HOLE = -1  # stands where a row was masked


class ViewSettings(NamedTuple):
    """Settings by which TiCoSeRec's augmented views of a sequence are drawn.

    rates : share of the rows that each operation affects, by its name (crop, mask, reorder, ...)
    short : the longest sequence that is not cropped or reordered
    similar : the most similar other item of each item
    """

    rates: Mapping[str, float]
    short: int
    similar: Array


def draw_view(item: Array, time: Array, view: ViewSettings, rng: np.random.Generator) -> Array:
    """Return an augmented copy of one sequence of items, by one operation drawn at random.

    item, time : of its rows, oldest first. view : the share of rows that each operation affects
    (crop, reorder, mask, substitute, insert), and the most similar item of each item. Masked rows
    are -1; the length may differ.
    """
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


def steadiest_window(time: Array, size: int) -> int:
    """Return the start of the `size` successive rows whose time intervals vary least.

    Of windows with equal variance the newest is taken; size is at least 3 and at most len(time).
    """
    gaps = np.diff(time).astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(gaps, size - 1)
    spread = windows.var(axis=1)
    return int(len(spread) - 1 - np.argmin(spread[::-1]))


def crop(item: Array, time: Array, rate: float, rng: np.random.Generator) -> Array:
    """Return the items of the rate * L successive rows whose time intervals vary least.

    item, time : of the rows of one sequence; L : their number. If rate * L is under 3 rows, the
    item of one random row.
    """
    size = int(rate * len(item))
    if size <= 2:
        return item[[rng.integers(len(item))]]
    begin = steadiest_window(time, size)
    return item[begin : begin + size]


def reorder(item: Array, time: Array, rate: float, rng: np.random.Generator) -> Array:
    """Return a copy with the rate * L successive rows of least varying intervals shuffled.

    item, time : of the rows of one sequence; L : their number. If rate * L is under 3 rows, the
    sequence itself.
    """
    size = int(rate * len(item))
    if size <= 2:
        return item
    begin = steadiest_window(time, size)
    shuffled = item.copy()
    shuffled[begin : begin + size] = rng.permutation(shuffled[begin : begin + size])
    return shuffled


def mask(item: Array, rate: float, rng: np.random.Generator) -> Array:
    """Return a copy with rate * L random rows, but never all, replaced by -1 (`HOLE`).

    item : of the rows of one sequence; L : their number
    """
    masked = item.copy()
    count = min(int(rate * len(item)), len(item) - 1)
    masked[rng.permutation(len(item))[:count]] = HOLE
    return masked


def substitute(item: Array, time: Array, rate: float, similar: Array) -> Array:
    """Return a copy with similar items in place of those with the shortest intervals.

    item, time : of the L rows of one sequence. rate * L rows (at least 1) are replaced, those with
    the shortest interval to the next row. similar : the most similar item of each item
    """
    replaced = item.copy()
    chosen = _select_by_gap(time, max(1, int(rate * len(item))), largest=False)
    replaced[chosen] = similar[replaced[chosen]]
    return replaced


def insert(item: Array, time: Array, rate: float, similar: Array) -> Array:
    """Return a longer copy, with similar items after those with the longest intervals.

    item, time : of the L rows of one sequence. A similar item follows rate * L rows (at least 1),
    those with the longest interval to the next row. similar : the most similar item of each item
    """
    chosen = np.sort(_select_by_gap(time, max(1, int(rate * len(item))), largest=True))
    return np.insert(item, chosen + 1, similar[item[chosen]])


def _select_by_gap(time: Array, count: int, *, largest: bool) -> Array:
    """Return the `count` rows with the shortest (if `largest`, longest) intervals to the next.

    The last row of the sequence has no next row and is never returned; a sequence of one row gives
    row 0.
    """
    gaps = np.diff(time)
    if not len(gaps):
        return np.zeros(1, np.int64)
    order = np.argsort(-gaps if largest else gaps, kind="stable")
    return order[:count]


# -- statistics of the log -------------------------------------------------------------------------


def similar_items(rows: Rows) -> Array:
    """Return for each item its most similar other item; itself if it co-occurs with none.

    similarity(i, j) = sum over users with both of 1 / log(1 + length), divided by sqrt(N_i N_j),
    with length the user's rows and N_i the users of item i (left out, as it does not change the
    order). The last row of each user is not used.
    """
    length = np.diff(rows.ptr)
    keep = np.ones(len(rows.item), bool)
    keep[np.asarray(rows.ptr[1:])[length > 0] - 1] = False
    user = np.repeat(np.arange(len(length)), length)[keep]
    item, user = np.unique(np.stack([rows.item[keep], user]), axis=1)  # sorted by item
    weight = 1 / np.log(1 + np.maximum(length, 2))[user]
    count = np.maximum(np.bincount(item, minlength=rows.items), 1)
    most_similar = np.arange(rows.items)
    for a in range(0, rows.items, _CHUNK):
        b = min(a + _CHUNK, rows.items)
        chunk = slice(*np.searchsorted(item, [a, b]))
        owners = torch.zeros(len(length), b - a)
        owners[user[chunk], item[chunk] - a] = 1.0
        alike = _sum_shared(owners, user, item, weight, rows.items).T / np.sqrt(count)
        alike[np.arange(b - a), np.arange(a, b)] = 0.0
        most_similar[a:b] = np.where(alike.max(1) > 0, alike.argmax(1), np.arange(a, b))
    return most_similar


def _sum_shared(owners: torch.Tensor, user: Array, item: Array, weight: Array, items: int) -> Array:
    """Return items x columns: the weighted sum of `owners` rows over the users of each item.

    item, user, weight : one entry per distinct (item, user) pair
    owners : users x some items (the columns), 1 where the user has the item, else 0
    """
    total = torch.zeros(items, owners.shape[1])
    for a in range(0, len(user), _PAIRS):
        part = slice(a, a + _PAIRS)
        share = torch.as_tensor(weight[part], dtype=torch.float32)[:, None]
        total.index_add_(0, torch.as_tensor(item[part]), owners[user[part]] * share)
    return total.numpy()


def steadiest_users(rows: Rows, share: float) -> Array:
    """Return a mask of the `share` of users whose time intervals vary least.

    TiCoSeRec does not augment these users. The last row of each user is not used; users with fewer
    than three rows come last.
    """
    length = np.diff(rows.ptr)
    spread = np.full(len(length), np.inf)
    for user in np.flatnonzero(length > 2):
        gaps = np.diff(rows.time[rows.ptr[user] : rows.ptr[user + 1] - 1])
        spread[user] = gaps.astype(np.float64).var() if gaps.size else np.inf
    spared = np.zeros(len(length), bool)
    spared[np.argsort(spread, kind="stable")[: int(share * len(length))]] = True
    return spared


def pad_views(views: list[Array], longest: int) -> dict[str, Any]:
    """Return views as views x longest arrays: only the newest `longest` rows of each are kept.

    A view is an augmented sequence of items, -1 at masked rows.
    "item" : item positions, 0 in padding and at masked rows; "is_row" : False there
    "count" : rows of each view, masked ones included
    """
    latest = [view[-longest:] for view in views]
    count = np.array([len(view) for view in latest])
    item = np.full((len(latest), longest), HOLE, np.int64)
    for n, view in enumerate(latest):
        item[n, : len(view)] = view
    return {"item": np.maximum(item, 0), "is_row": item != HOLE, "count": count}

"""Slots: places of a list at which only items that meet a condition may stand.

A list is filled from the first place on. A slot takes the best item that meets its condition and is
not listed yet; every other place the best item that is not listed yet. Where no item is left for a
slot, its place is filled as every other one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from talerec.errors import TalerecError
from talerec.runtime import Array

SlotSpec = Mapping[Any, Mapping[str, str]]
MAX_SLOTS = 20  # of a list: each is ranked by itself


class Slot(NamedTuple):
    """The place of a list, from 1, and the items that may stand there."""

    place: int
    allowed: Array  # uint8 per item, 1 for each item that meets the slot's condition


class PlaceCandidates(NamedTuple):
    """Items for places of one list, best first."""

    items: Array  # positions
    scores: Array
    has_more: bool  # whether further items follow that are not listed here


class FilledPlaces(NamedTuple):
    """The items of one list, their scores, and whether more candidates are needed to fill it."""

    items: list[int]
    scores: list[float]
    is_open: bool


def parse_slots(slots: SlotSpec, k: int) -> list[tuple[int, str]]:
    """Return the place and the condition of each slot, by place; else TalerecError.

    slots: conditions by place, ``{3: {"where": "campaign = 'spring'"}}``; a place may be text. k:
    the length of the list, which no slot may exceed.
    """
    if not isinstance(slots, Mapping):
        example = "{3: {'where': \"campaign = 'spring'\"}}"
        raise TalerecError(f"`slots` has conditions by place: {example}", "slots")
    if len(slots) > MAX_SLOTS:
        raise TalerecError(f"`slots` has {len(slots)} places; the limit is {MAX_SLOTS}", "slots")
    conditions: dict[int, str] = {}
    for name, rule in slots.items():
        place = _parse_place(name)
        if place > k:
            raise TalerecError(f"`slots` has the place {place}, but `k` is {k}", "slots", "k")
        if place in conditions:
            raise TalerecError(f"`slots` has the place {place} twice", "slots")
        where = rule.get("where") if isinstance(rule, Mapping) and len(rule) == 1 else None
        if not isinstance(where, str):
            message = f"`slots`: place {place} takes {{'where': CONDITION}} and nothing else"
            raise TalerecError(message, "slots")
        conditions[place] = where
    return sorted(conditions.items())


def _parse_place(name: Any) -> int:
    """Return a place of a list, a whole number from 1; TalerecError for everything else."""
    text = str(name)
    is_number = isinstance(name, int | str | np.integer) and not isinstance(name, bool)
    if not (is_number and text.isascii() and text.isdecimal() and text[:1] != "0"):
        raise TalerecError(f"`slots`: {name!r} is no place; places count from 1", "slots")
    return int(text[:9])


def fill_places(
    candidates: PlaceCandidates, slots: Sequence[Slot], of_slots: Sequence[PlaceCandidates],
    limits: Sequence[tuple[Array, int]], k: int,
) -> FilledPlaces:  # fmt: skip
    """Fill the places of one list; no item is listed twice.

    candidates: for all places that are no slots, and for slots without an item of their own.
    of_slots: the candidates of each of `slots`, which are a part of the others. limits: codes of
    all items, and how many items of the list may share a code; -1 is not limited. k: the length of
    the list.
    """
    by_place = {slot.place: group for slot, group in zip(slots, of_slots, strict=True)}
    filled = FilledPlaces([], [], is_open=False)
    positions: Counter[int] = Counter()  # of each group of candidates, how many are done with
    used: set[int] = set()
    counts: Counter[tuple[int, int]] = Counter()
    for place in range(1, k + 1):
        for group in (by_place.get(place), candidates):
            if group is None:
                continue
            n = positions[id(group)]
            while n < len(group.items) and not _fits(int(group.items[n]), used, limits, counts):
                n += 1
            positions[id(group)] = n
            if n < len(group.items):
                break
            if group.has_more:
                return filled._replace(is_open=True)
        else:
            return filled
        item = int(group.items[n])
        used.add(item)
        counts.update((limit, int(codes[item])) for limit, (codes, _) in enumerate(limits))
        filled.items.append(item)
        filled.scores.append(float(group.scores[n]))
    return filled


def fill_ranking(
    items: Array, scores: Array, slots: Sequence[Slot], limits: Sequence[tuple[Array, int]], k: int
) -> Array:
    """Return the k places of one whole ranking, best first, that fill a list with slots.

    items, scores: the ranking. limits: as for `fill_places`.
    """
    slot_items = []
    for slot in slots:
        matches = slot.allowed[items] != 0
        slot_items.append(PlaceCandidates(items[matches], scores[matches], has_more=False))
    whole = PlaceCandidates(items, scores, has_more=False)
    listed = fill_places(whole, slots, slot_items, limits, k).items
    places = {item: place for place, item in enumerate(items.tolist())}
    return np.array([places[item] for item in listed], np.int64)


def _fits(
    item: int, used: set[int], limits: Sequence[tuple[Array, int]],
    counts: Counter[tuple[int, int]],
) -> bool:  # fmt: skip
    """May an item follow in a list with the items `used`, by the limits of columns?

    counts: of the listed items, by limit and code.
    """
    return item not in used and all(
        codes[item] < 0 or counts[limit, int(codes[item])] < largest
        for limit, (codes, largest) in enumerate(limits)
    )


def are_in_slots(items: Array, ranks: Array, slots: Sequence[Slot]) -> Array:
    """Return a flag per listed item: whether it stands at the place of a slot that it matches.

    A slot is a condition on the item at one place of a list. items: positions in the vocabulary.
    ranks: the place of each in its list, from 1.
    """
    flags = np.zeros(len(items), bool)
    for slot in slots:
        flags |= (ranks == slot.place) & (slot.allowed[items] != 0)
    return flags

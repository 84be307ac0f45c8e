"""What a log chose for tempo, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Set

import numpy as np

from talerec.data.times import DAY
from talerec.models.tempo.query_params import NOW, RECENCY, Numbers
from talerec.runtime.arrays import Array

_PLACE = 8  # rows back, at which a place is compared with the last one
_LONG = 3.0  # times as much: worth a sentence of its own


def in_words(numbers: Numbers | None, lifetime: Array, chose: Set[str]) -> list[str]:
    """What was chosen. lifetime: of each memory, in microseconds; chose: what was left to the log, of recency, repeats and now."""
    if numbers is None:
        return ["The log is too small to learn from: the default weights stay."]
    half = len(numbers.recency) // 2
    said = _told(numbers, lifetime, slice(0, half), chose)
    if "repeats" in chose:
        said += _repeats(numbers)
    if not _alike(numbers, slice(0, half), slice(half, None)):
        later = _told(numbers, lifetime, slice(half, None), chose)
        said += [f"Asked long after the last row of the log: {_small(line)}" for line in later]
    if numbers.lift[0]:
        more = "raised" if numbers.lift[0] > 0 else "lowered"
        said.append(
            f"Among what follows the history, popular items are {more} (scores times popularity to the power {numbers.lift[0]:+.2g})."
        )
    return said or ["Rows that were held back left every weight at its default."]


def _told(numbers: Numbers, lifetime: Array, classes: slice, chose: Set[str]) -> list[str]:
    """Places and what is popular, for some classes."""
    said = list(_places(numbers, classes)) if "recency" in chose else []
    return [*said, *_popular(numbers, lifetime, classes)] if "now" in chose else said


def _small(line: str) -> str:
    return line[0].lower() + line[1:]


def _alike(numbers: Numbers, one: slice, other: slice) -> bool:
    """Do two sets of classes count everything alike?"""
    named = (numbers.recency, numbers.lasting, numbers.now)
    return all(np.array_equal(values[one], values[other]) for values in named)


def _places(numbers: Numbers, classes: slice) -> Iterator[str]:
    weights = numbers.place_weights(np.array([0.0, _PLACE]))[classes].mean(axis=0)
    if (numbers.recency[classes] != RECENCY).any() or numbers.lasting[classes].any():
        share = weights[1] / weights[0]
        told = f"{share:.0%}" if share >= 0.005 else "next to nothing"
        usual = f"{np.exp(-_PLACE / RECENCY):.0%}"
        yield f"A row {_PLACE} rows back counts {told} of what the last row counts (by default {usual})."


def _repeats(numbers: Numbers) -> Iterator[str]:
    if numbers.often.any():
        yield f"An item that makes up much of a history comes again (up to {numbers.often.max():.2g} times its share is added to its score)."
    again = float(numbers.again.mean())
    if again != 1.0:
        yield f"An item of the history comes again {again:.2g} times as readily as repeats of its kind did in the log."
    if (fading := float(numbers.fading.mean())) != 0.0:
        yield f"The further back an item is, the {'less' if fading > 0 else 'more'} it comes again."


def _popular(numbers: Numbers, lifetime: Array, classes: slice) -> Iterator[str]:
    weights = numbers.now[classes].mean(axis=0)
    if not weights.any():
        yield "What is popular at the time adds nothing to a score."
        return
    short = np.isfinite(lifetime)
    for weight, lasts in zip(weights[short], lifetime[short], strict=True):
        if weight:
            yield f"What was popular in the last {_duration(lasts)} is added to scores (weight {weight:.2g})."
    usual = float(weights[~short].sum())
    if usual >= _LONG * NOW:
        yield f"What is popular in the long run is added with {usual / NOW:.2g} times its usual weight."
    elif usual != NOW:
        yield f"What is popular in the long run is added to scores with weight {usual:.2g} (by default {NOW:g})."


def _duration(microseconds: float) -> str:
    """A time in words."""
    days = microseconds / DAY
    for unit, size in (("days", 1.0), ("hours", 24.0), ("minutes", 1440.0)):
        if days * size >= 2:
            return f"{days * size:.0f} {unit}"
    return f"{max(days * 86400, 1):.0f} seconds"

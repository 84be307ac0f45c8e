"""Durations as text: 30s, 10m, 2h, 7d."""

from __future__ import annotations

import re

from talerec.errors import TalerecError

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])", re.ASCII)


def duration_seconds(text: str) -> float | None:
    """Return the seconds of a text such as "30s", "10m", "1.5h" or "7d"; None if it is none.

    Zero is not a duration.
    """
    match = _DURATION.fullmatch(text.strip())
    return float(match[1]) * _SECONDS[match[2]] or None if match else None


def parse_duration(text: str, parameter: str) -> int:
    """Return the whole microseconds of a text such as "30s", "10m", "2h" or "7d".

    TalerecError, which names `parameter`, for other texts, zero, and more than 1,000 years.
    """
    seconds = duration_seconds(text)
    if seconds is None or not 1e-6 <= seconds <= _LONGEST:
        raise TalerecError(f"`{parameter}` is {text!r}; it takes 30s, 10m, 2h or 7d", parameter)
    return round(seconds * 1e6)


_LONGEST = 1000 * 366 * 86_400  # seconds

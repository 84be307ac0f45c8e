"""Times of requests and responses."""

from __future__ import annotations

from datetime import UTC, datetime

from talerec.data import TimeLike, time_to_microseconds
from talerec.errors import TalerecError

MAX_TIMESTAMP = 9e18  # later than any date, in any unit


def parse_time(when: TimeLike, unit: str) -> int:
    """Return a timestamp of a request in microseconds since 1970.

    `when` is ISO 8601 text or a number. `unit` (such as "s") is that of small numbers; the size of
    a large number tells its unit. TalerecError for a number beyond any date.
    """
    if isinstance(when, int | float) and abs(when) > MAX_TIMESTAMP:
        raise TalerecError(f"timestamp {when} is beyond any date, in any unit")
    return time_to_microseconds(when, unit)


def format_time(time_us: int, timespec: str = "auto") -> str:
    """Return a time as ISO 8601 in UTC; as a number with " us" if no calendar has it.

    `time_us` is in microseconds since 1970; `timespec` is that of `datetime.isoformat`.
    """
    try:
        seconds, micro = divmod(time_us, 10**6)
        date = datetime.fromtimestamp(seconds, UTC).replace(microsecond=micro)
        return date.isoformat(timespec=timespec)
    except (ValueError, OverflowError, OSError):
        return f"{time_us} us"

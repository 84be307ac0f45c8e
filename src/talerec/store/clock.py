"""The clock of this machine, for events, deletions and measurements.

No other module of the store or the service reads it for them. Tests set another clock by
replacing `time_ns` of this module.
"""

from __future__ import annotations

from time import time_ns


def now_us() -> int:
    """Return the time now in microseconds since 1970. It may jump if the clock is set."""
    return time_ns() // 1000

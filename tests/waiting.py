"""Waiting for what has to become so. Never for a time: how long something takes says nothing on a machine that is busy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

LONG_S = 300  # seconds that anything may take, kernels compiled first and the machine stalled


def until(fact: Callable[[], Any], otherwise: str = "what was waited for did not come") -> Any:
    """Wait until something is so; what it is then."""
    end = time.monotonic() + LONG_S
    while not (found := fact()):
        assert time.monotonic() < end, otherwise
        time.sleep(0.02)
    return found

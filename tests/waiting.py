"""Waiting for conditions. Tests never wait for a fixed time: a busy machine may be slow."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

LONG_S = 300  # seconds that anything may take, kernels compiled first and the machine stalled


def until(fact: Callable[[], Any], otherwise: str = "the condition did not become true") -> Any:
    """Wait until `fact()` is true, and return its value."""
    end = time.monotonic() + LONG_S
    while not (value := fact()):
        assert time.monotonic() < end, otherwise
        time.sleep(0.02)
    return value

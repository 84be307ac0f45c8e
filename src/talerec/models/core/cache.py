"""What one fit leaves for the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class FitCache:
    """What one fit leaves for the next: the last result of each step, and what it was made from."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[Any, Any]] = {}

    def cached(self, step: str, key: Any, make: Callable[[], Any]) -> Any:
        """The last result of a step where it was made from the same `key`, else a new one."""
        if step not in self._last or self._last[step][0] != key:
            self._last.pop(step, None)  # the old one goes before the new one is made
            self._last[step] = (key, make())
        return self._last[step][1]

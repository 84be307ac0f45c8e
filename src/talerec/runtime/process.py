"""A command's process, which is to start and to end fast."""

from __future__ import annotations

import atexit
import gc

_leaves_garbage = True
_OBJECTS = 10_000  # made before Python looks for garbage; 700 by default


def collect_less() -> None:
    """Look for garbage less often, and not at all at the end, where the system takes everything back.

    The libraries make several hundred thousand objects that stay; looking them over takes a third of a second.
    """
    gc.set_threshold(_OBJECTS, *gc.get_threshold()[1:])
    if _leaves_garbage:
        atexit.register(gc.freeze)


def collect_at_the_end() -> None:
    """Look for garbage at the end after all: a library complains about objects that are left there."""
    global _leaves_garbage
    _leaves_garbage = False
    atexit.unregister(gc.freeze)

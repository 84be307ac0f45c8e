"""Make a system look as bare as Windows: no `resource`, no `fcntl`, no `os.fork`, no /proc."""

from __future__ import annotations

import builtins
import io
import os
import sys
from pathlib import Path
from typing import Any

GONE = ("/proc", "/sys/fs/cgroup")


def make() -> None:
    """Take these away from this process."""
    for name in ("resource", "fcntl"):
        sys.modules[name] = None  # type: ignore[assignment]
    for name in ("fork", "sched_getaffinity"):
        if hasattr(os, name):
            delattr(os, name)
    opened, exists = builtins.open, Path.exists

    def refuse(file: Any, *args: Any, **options: Any) -> Any:
        if isinstance(file, str | Path) and str(file).startswith(GONE):
            raise FileNotFoundError(2, "it is not there", str(file))
        return opened(file, *args, **options)

    builtins.open = refuse
    io.open = refuse  # type: ignore[assignment]
    Path.exists = lambda self, **o: not str(self).startswith(GONE) and exists(self, **o)  # type: ignore[method-assign]

"""LightGBM, which learns the ranker's trees: imported by a fit, or refused by name."""

from __future__ import annotations

import os
from typing import Any

from talerec.errors import TalerecError, require_extra


def require_lightgbm() -> None:
    """Raise TalerecError if LightGBM, or the system library that it needs, is missing."""
    require_extra("rank", "the ranker", ["lightgbm"])
    try:
        import_lightgbm()
    except OSError as error:
        raise TalerecError(
            f"LightGBM cannot be loaded ({error}); it needs the system's OpenMP library:"
            " install libgomp1 (Debian, Ubuntu), libgomp (Fedora) or libomp (Homebrew)"
        ) from error


def import_lightgbm() -> Any:
    """Return the module lightgbm."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # else waiting threads keep cores busy
    import lightgbm

    return lightgbm

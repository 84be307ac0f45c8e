"""The former module of `param`, which is in `talerec.models.core` since version 0.3."""

import warnings
from typing import Any

from talerec.models import core


def __getattr__(name: str) -> Any:
    """Return `param`, with a DeprecationWarning."""
    if name != "param":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    message = "talerec.models.params is now talerec.models.core; the old name goes with version 0.4"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return core.param

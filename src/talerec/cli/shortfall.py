"""Why a list is shorter than was asked for, in one line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from talerec.models.core.base import Model
    from talerec.runtime.arrays import Array

_RULES = ("allow", "deny", "where")


@dataclass(frozen=True, eq=False)
class Fewer:
    """What was asked for: k items, under these options of `Model.recommend`."""

    model: Model
    k: int
    options: Mapping[str, Any]

    def why(self, history: Array, found: int) -> str | None:
        """Why so few items were found after a history (positions of its items); None where they are k."""
        if found >= self.k:
            return None
        items, may_come = len(self.model.fitted.items), self._allowed()
        reasons = []
        if not may_come.all():
            rules = ", ".join(f"--{name}" for name in _RULES if self.options[name] is not None)
            reasons.append(f"{may_come.sum():,} of {items:,} items may come ({rules})")
        if self.options["hide_seen"]:
            seen = np.unique(history[history >= 0])
            reasons.append(f"{may_come[seen].sum():,} in the history (--hide-seen)")
            may_come[seen] = False
        if self.options["per"]:
            kinds = " and ".join(
                f"{most} of a {name}" for name, most in self.options["per"].items()
            )
            reasons.append(f"at most {kinds} may come (--per)")
        elif (others := int(may_come.sum()) - found) > 0:
            reasons.append(f"{others:,} without a score after this history")
        return f"{found} instead of {self.k}: {', '.join(reasons)}"

    def _allowed(self) -> Array:
        from talerec.models.core import filters as choosing

        rules = [self.options[name] for name in (*_RULES, "per", "unknown")]
        allowed = choosing.limits(self.model, *rules).allowed
        everything = np.ones(len(self.model.fitted.items), bool)
        return everything if allowed is None else allowed.astype(bool)

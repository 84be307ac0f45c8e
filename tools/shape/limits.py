"""Limits of a project's TOML file: banned names, exceptions with their reasons, ceilings."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

Reasons = dict[str, str]  # what is exempt -> why


@dataclass(frozen=True)
class Limits:
    """What `house.py` counts, and the highest count that each check accepts."""

    banned: frozenset[str] = frozenset()
    name_exceptions: Reasons = field(default_factory=dict)
    wide_exceptions: Reasons = field(default_factory=dict)
    flag_exceptions: Reasons = field(default_factory=dict)
    ceilings: dict[str, int] = field(default_factory=dict)


def read_limits(path: Path) -> Limits:
    """Return the limits of a TOML file; an exception without a reason is a ValueError."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    banned = tables.get("banned", {})
    limits = Limits(
        frozenset(banned.get("names", ())),
        banned.get("exceptions", {}),
        tables.get("wide", {}).get("exceptions", {}),
        tables.get("flags", {}).get("exceptions", {}),
        tables.get("ceilings", {}),
    )
    for reasons in (limits.name_exceptions, limits.wide_exceptions, limits.flag_exceptions):
        for exempt, reason in reasons.items():
            if not reason.strip():
                raise ValueError(f"{path}: the exception {exempt} needs a reason")
    return limits


def lower_ceilings(path: Path, counts: dict[str, int]) -> list[str]:
    """Rewrite the ceilings that are above their count; return the names of the lowered ones."""
    text = path.read_text(encoding="utf-8")
    lowered = []
    for name, ceiling in read_limits(path).ceilings.items():
        if counts[name] < ceiling:
            text = re.sub(rf"(?m)^({name} *= *)\d+", rf"\g<1>{counts[name]}", text)
            lowered.append(name)
    path.write_text(text, encoding="utf-8")
    return lowered

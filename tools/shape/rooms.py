"""Rooms: groups of modules in an order, where imports only point down."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from shape.graphs import Graph

Rooms = dict[str, list[str]]  # from the bottom up: room -> its modules


def read_rooms(path: Path, names: Iterable[str]) -> Rooms:
    """Return the rooms of a TOML file with the modules that their patterns match: `models.*`."""
    patterns_by_room = tomllib.loads(path.read_text(encoding="utf-8"))["rooms"]
    return {
        room: [name for name in sorted(names) if any(fnmatchcase(name, p) for p in patterns)]
        for room, patterns in patterns_by_room.items()
    }


def packages_are_closed(path: Path) -> bool:
    """Return whether the file has `packages = true`: rooms import from packages only."""
    return bool(tomllib.loads(path.read_text(encoding="utf-8")).get("packages", False))


def read_doors(path: Path) -> dict[str, str]:
    """Return the modules inside rooms that other rooms may import, with the reasons."""
    doors: dict[str, str] = tomllib.loads(path.read_text(encoding="utf-8")).get("doors", {})
    for name, reason in doors.items():
        if not reason.strip():
            raise ValueError(f"{path}: the door {name} needs a reason")
    return doors


def imports_past_packages(rooms: Rooms, graph: Graph) -> Iterator[tuple[str, str, str]]:
    """Yield (module, imported module, its package) for each import past a package.

    The package of a room is the outermost module that stands in the room: `data` for `data.log`,
    `models.core` for `models.core.base` if `models.core` is a room of its own. A module without a
    package in its room (`errors`) may be imported by everybody, and a package may import every
    module inside it.
    """
    home = {name: room for room, names in rooms.items() for name in names}
    for name, others in sorted(graph.items()):
        for other in sorted(others):
            if name not in home or other not in home or home[name] == home[other]:
                continue
            if other.startswith(f"{name}."):  # a package exports what its sub-rooms have
                continue
            parts = other.split(".")
            parents = (".".join(parts[:size]) for size in range(1, len(parts)))
            package = next((p for p in parents if home.get(p) == home[other]), None)
            if package:
                yield name, other, package


def homes_of(rooms: Rooms, name: str) -> list[str]:
    """Return the rooms that contain a module; a good layout has exactly one."""
    return [room for room, names in rooms.items() if name in names]


def upward(rooms: Rooms, graph: Graph) -> Iterator[tuple[str, str]]:
    """Yield (module, imported module) for each import of a room that stands higher."""
    order = {name: place for place, names in enumerate(rooms.values()) for name in names}
    for name, others in sorted(graph.items()):
        for other in sorted(others):
            if name in order and other in order and order[other] > order[name]:
                yield name, other

"""Rooms: groups of modules in an order, where imports only point down."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from shape.graphs import Graph

Rooms = dict[str, list[str]]  # from the bottom up: room -> its modules


def read_rooms(path: Path, names: Iterable[str]) -> Rooms:
    """The rooms of a TOML file with the modules that their patterns match: `models.*`."""
    wanted = tomllib.loads(path.read_text(encoding="utf-8"))["rooms"]
    return {
        room: [name for name in sorted(names) if any(fnmatchcase(name, p) for p in patterns)]
        for room, patterns in wanted.items()
    }


def homes_of(rooms: Rooms, name: str) -> list[str]:
    """The rooms that a module is in; a good layout has exactly one."""
    return [room for room, names in rooms.items() if name in names]


def upward(rooms: Rooms, graph: Graph) -> Iterator[tuple[str, str]]:
    """(module, module) for every import of a room that stands higher."""
    order = {name: place for place, names in enumerate(rooms.values()) for name in names}
    for name, others in sorted(graph.items()):
        for other in sorted(others):
            if name in order and other in order and order[other] > order[name]:
                yield name, other

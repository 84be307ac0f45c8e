"""Pairs of rows on a cluster: what the kernels need of every row lies in files that all tasks map. No Spark.

Each part writes its rows to their place in the files of a group of parts; then a task counts some targets in all rows
of a group, as a thread of one machine does. So no pair of rows moves, and sums of pairs move once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from talerec.data.log import Log
from talerec.gram.accumulators import SparseSums
from talerec.gram.assembly import BOTH, ONLY_G, Pairs, assemble_targets
from talerec.gram.terms import Summand
from talerec.models.linear.base import Solved
from talerec.models.tempo.model import Tempo
from talerec.runtime.arrays import Array
from talerec.spark import blocks
from talerec.spark.partitions import Rows

_GROUP = 100_000_000  # rows of a group: some 40 bytes of each are mapped
_TABLES = ("fade",)  # arrays that do not have one entry per row
_NONE = -1  # the item of a row that does not exist


class Counting(Protocol):
    """What makes pairs of the rows of some users."""

    def summands(self, log: Log) -> tuple[list[Summand], float]:
        """Pairs of rows, and what simultaneous rows have in K where that is asked for."""


class Plain(NamedTuple):
    """A model whose Gram is the sum of its pairs."""

    model: Solved

    def summands(self, log: Log) -> tuple[list[Summand], float]:
        return self.model.summands(log), 0.0


class Paced(NamedTuple):
    """Tempo, which is told what the whole log says of its users."""

    model: Tempo
    interval: float
    joint: bool

    def summands(self, log: Log) -> tuple[list[Summand], float]:
        made, tied = self.model.one_way(log, self.interval, self.joint)
        return [made], tied


class Layout(NamedTuple):
    """Where the rows of each part lie: from which row on in the files of which group."""

    folder: str
    group: list[int]
    first: list[int]
    sizes: list[int]  # rows of each group
    longest: int  # rows of the user who has most

    @classmethod
    def of(cls, folder: str | Path, newest: Sequence[Array], most: int = _GROUP) -> Layout:
        """Parts in groups of no more than `most` rows, as far as that goes; `newest`: rows of each part, and of its user with most."""
        group, first, sizes = [], [], [0]
        for rows, _ in newest:
            if sizes[-1] and sizes[-1] + rows > most:
                sizes.append(0)
            group.append(len(sizes) - 1)
            first.append(sizes[-1])
            sizes[-1] += int(rows)
        return cls(str(folder), group, first, sizes, max(int(one[1]) for one in newest))

    def file(self, group: int, summand: int, name: str) -> Path:
        """The file of an array of a group."""
        return Path(self.folder) / f"pairs-{group}-{summand}-{name}.raw"


def make_files(counting: Counting, rows: Rows, layout: Layout) -> list[bool]:
    """Make the files that parts write to; of each summand, whether its K is G."""
    made = _example(counting, rows, layout)
    for number, one in enumerate(made):
        kinds = {name: array.dtype for name, array in _own_arrays(one.pairs).items()}
        for name, kind in {**kinds, "item": np.dtype(np.int32)}.items():
            for group, size in enumerate(layout.sizes):
                path = layout.file(group, number, name)
                with path.open("wb") as out:
                    out.truncate(size * kind.itemsize)
                path.chmod(0o666)
    return [one.is_alike for one in made]


def write_part(counting: Counting, rows: Rows, part: int, layout: Layout) -> None:
    """Write what pairs need of each row of a part to its place; a second run writes identical bytes."""
    log = rows.newest(part)
    made, tied = counting.summands(log)
    blocks.save_array(layout.folder, f"tied-{part}", np.array([tied]))
    group, first = layout.group[part], layout.first[part]
    for number, summand in enumerate(made):
        item = np.full(log.rows, _NONE, np.int32)
        item[: summand.log.rows] = summand.log.item
        _write(layout.file(group, number, "item"), first, item)
        for name, array in _own_arrays(summand.pairs).items():
            numbers_rows = array.dtype.kind == "i"
            moved = array + array.dtype.type(first) if numbers_rows else array
            _write(layout.file(group, number, name), first, moved)


def _write(path: Path, first: int, array: Array) -> None:
    with path.open("r+b") as out:
        out.seek(first * array.itemsize)
        blocks.copy_to(out, array)


class Counted(NamedTuple):
    """What some targets have in M and K', and by how much that is multiplied."""

    sums: SparseSums
    share: float
    is_alike: bool  # K is G


def count_targets(
    counting: Counting, rows: Rows, layout: Layout, group: int, lo: int, hi: int
) -> Iterator[Counted]:
    """The sums of the targets lo..hi in all rows of a group, one summand after the other."""
    for number, one in enumerate(_example(counting, rows, layout)):
        pairs = _mapped_pairs(one.pairs, layout, group, number)
        item = _mapped(layout.file(group, number, "item"), np.dtype(np.int32))
        wanted = ONLY_G if one.is_alike else BOTH
        sums = assemble_targets(item, pairs, rows.items, layout.longest, lo, hi, wanted)
        yield Counted(sums, one.share, one.is_alike)


def _example(counting: Counting, rows: Rows, layout: Layout) -> list[Summand]:
    """The pairs of one user who has as many rows as any: their kernels, numbers and tables are those of all."""
    made, _ = counting.summands(rows.example(layout.longest))
    return made


def _mapped_pairs(pairs: Pairs, layout: Layout, group: int, number: int) -> Pairs:
    """The same pairs with the arrays of all rows of a group."""
    own = _own_arrays(pairs)
    found = {
        id(array): _mapped(layout.file(group, number, name), array.dtype)
        for name, array in own.items()
    }
    made: Pairs = _walk(pairs, lambda _, array: found.get(id(array), array))
    return made


def _mapped(path: Path, kind: np.dtype[Any]) -> Array:
    """A file of numbers, mapped; kernels are compiled for arrays that can be written, so that it looks like one."""
    if not path.stat().st_size:
        return np.empty(0, kind)
    return np.asarray(np.memmap(path, kind, "c"))


def _own_arrays(pairs: Pairs) -> dict[str, Array]:
    """The arrays that have an entry for each row, each under one name."""
    found: dict[int, tuple[str, Array]] = {}

    def note(name: str, array: Array) -> Array:
        if name.rpartition(".")[2] not in _TABLES:
            found.setdefault(id(array), (name, array))
        return array

    _walk(pairs, note)
    return dict(found.values())


def _walk(value: Any, seen: Callable[[str, Array], Array], name: str = "") -> Any:
    """A value of named tuples and arrays with every array as `seen(name, array)` gives it."""
    if isinstance(value, np.ndarray):
        return seen(name, value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(
            *(
                _walk(one, seen, f"{name}.{field}".lstrip("."))
                for field, one in zip(value._fields, value, strict=True)
            )
        )
    return value

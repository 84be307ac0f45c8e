"""Sums over pairs of rows on a cluster: its tasks, which need no Spark.

What the Gram kernels need of every row lies in files that all tasks map. Each partition of users
writes its rows to their place in the files of a *group* of partitions; then a task counts some
target items in all rows of a group, as a thread of one machine does. No pair of rows moves between
machines, and sums of pairs move once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from talerec.data import Log
from talerec.gram import BOTH, ONLY_G, GramTerm, Pairs, SparseSums, accumulate_targets, lag_term
from talerec.models.counting import LagCountModel
from talerec.models.linear import RidgeModel
from talerec.models.tempo import LogStatistics, Tempo
from talerec.runtime import Array
from talerec.spark import messages
from talerec.spark.partitions import RowFiles
from talerec.spark.work_plan import TargetRange

_GROUP_ROWS = 100_000_000  # rows of a group: about 40 bytes of each are mapped
_LOOKUP_TABLES = ("lag_weights",)  # arrays of pairs that do not have one entry per row
_NO_ITEM = -1  # the item of a row that a Gram term leaves out


#: Builds Gram terms from some users' rows, and the weight of simultaneous rows in K.
TermBuilder = Callable[[Log], tuple[list[GramTerm], float]]


def build_model_terms(model: RidgeModel, log: Log) -> tuple[list[GramTerm], float]:
    """Return the Gram terms of a model for the rows of a log, and the number 0.

    A Gram term is a summand of G = S'S and K = S'T, added up from pairs of rows. The 0 is what
    simultaneous rows add to the sum of K, which only tempo has (see `build_tempo_terms`). G and K
    are those of the normal equations: S and T have, per training example, the weights of its source
    and its target items.
    """
    return model.gram_terms(log), 0.0


def build_count_terms(model: LagCountModel, log: Log) -> tuple[list[GramTerm], float]:
    """Return the pairs of rows that a model counts, as a term of which K is used, and 0."""
    return [lag_term(log, model.lag_weights, model.max_history)], 0.0


def build_tempo_terms(
    model: Tempo, statistics: LogStatistics, log: Log
) -> tuple[list[GramTerm], float]:
    """Return the Gram term of the model tempo for the rows of a log, in a list, and a weight.

    A Gram term is a summand of G = S'S and K = S'T. The weight is what simultaneous rows add to the
    sum of K. log: the rows to sum, maybe a part of a log; statistics: of the whole log. G and K are
    those of the normal equations: S and T have, per training example, the weights of its source and
    its target items.
    """
    term, simultaneous = model.gram_term(log, statistics.median_interval, statistics.is_joint)
    return [term], simultaneous


class RowLayout(NamedTuple):
    """Offsets of each partition of users in the files that all Spark tasks read.

    A partition is a set of users. Consecutive partitions form a numbered group; a group has one
    file for each array of its rows.
    """

    folder: str  # of the files
    group: list[int]  # number of each partition's group
    first: list[int]  # number of each partition's first row in its group
    group_sizes: list[int]  # rows of each group
    longest: int  # rows of the user with the most rows

    @classmethod
    def build(
        cls, folder: str | Path, latest: Sequence[Array], max_rows: int = _GROUP_ROWS
    ) -> RowLayout:
        """Return a layout in which consecutive partitions form groups of at most `max_rows` rows.

        A partition is a set of users; a group has at least one. folder: of the files. latest: of
        each partition, its number of rows, and that of its user with the most rows.
        """
        group, first, group_sizes = [], [], [0]
        for n_rows, _ in latest:
            if group_sizes[-1] and group_sizes[-1] + n_rows > max_rows:
                group_sizes.append(0)
            group.append(len(group_sizes) - 1)
            first.append(group_sizes[-1])
            group_sizes[-1] += int(n_rows)
        longest = max(int(user_rows) for _, user_rows in latest)
        return cls(str(folder), group, first, group_sizes, longest)

    def file(self, group: int, term: int, name: str) -> Path:
        """Return the path of the raw file of one array of the rows of a group of users.

        term: number of the Gram term, a summand of G = S'S and K = S'T, whose pairs of rows need
        the array; name: of the array, a field of `Pairs`. The file need not exist. G and K are
        those of the normal equations: S and T have, per training example, the weights of its source
        and its target items.
        """
        return Path(self.folder) / f"pairs-{group}-{term}-{name}.raw"


class TermShare(NamedTuple):
    """What the sums of a Gram term, a summand of G = S'S and K = S'T, are multiplied by.

    G and K are those of the normal equations: S and T have, per training example, the weights of
    its source and its target items.
    """

    share: float
    target_equals_source: bool  # K is G, and is not stored


def create_pair_files(builder: TermBuilder, rows: RowFiles, layout: RowLayout) -> list[TermShare]:
    """Create files of zeros, to which partitions write what the pairs of each Gram term need.

    A Gram term is a summand of G = S'S and K = S'T, added up from pairs of a user's rows. builder:
    returns the terms of some rows; layout: the files, one per array and group of users. Returns the
    share of each term, and whether its K equals its G. G and K are those of the normal equations: S
    and T have, per training example, the weights of its source and its target items.
    """
    terms = _build_example_terms(builder, rows, layout)
    for number, term in enumerate(terms):
        dtypes = {name: array.dtype for name, array in _list_row_arrays(term.pairs).items()}
        for name, dtype in {**dtypes, "item": np.dtype(np.int32)}.items():
            for group, n_rows in enumerate(layout.group_sizes):
                create_file(layout.file(group, number, name), n_rows * dtype.itemsize)
    return [TermShare(term.share, term.target_equals_source) for term in terms]


def create_file(path: Path, size: int) -> None:
    """Create a file of `size` zero bytes that every user of the operating system may write to."""
    with path.open("wb") as out:
        out.truncate(size)
    path.chmod(0o666)


def write_partition(
    builder: TermBuilder, rows: RowFiles, partition: int, layout: RowLayout
) -> None:
    """Write what the pairs of each Gram term need of a partition's rows to its group's files.

    A partition is a set of users, a group some partitions that share files (`layout`). A Gram term
    is a summand of G = S'S and K = S'T; builder: returns the terms of some rows. Arrays of integers
    hold row numbers, which are shifted to those of the group. A second run writes identical bytes.
    The weight of simultaneous rows in K is saved, too. G and K are those of the normal equations: S
    and T have, per training example, the weights of its source and its target items.
    """
    log = rows.load_latest(partition)
    terms, simultaneous = builder(log)
    messages.save_array(layout.folder, f"simultaneous-{partition}", np.array([simultaneous]))
    group, first = layout.group[partition], layout.first[partition]
    for number, term in enumerate(terms):
        item = np.full(log.rows, _NO_ITEM, np.int32)
        item[: term.log.rows] = term.log.item
        write_at(layout.file(group, number, "item"), first, item)
        for name, array in _list_row_arrays(term.pairs).items():
            is_row_number = array.dtype.kind == "i"
            shifted = array + array.dtype.type(first) if is_row_number else array
            write_at(layout.file(group, number, name), first, shifted)


def write_at(path: Path, first: int, array: Array) -> None:
    """Write an array's bytes over those of an existing file, from entry number `first` on."""
    with path.open("r+b") as out:
        out.seek(first * array.itemsize)
        messages.write_bytes(out, array)


class TargetSums(NamedTuple):
    """Sums over pairs of rows, for a range of target items, not yet multiplied by a share.

    Rows are targets, columns sources: M, whose sum M + M' is the Gram matrix G = S'S, and K = S'T
    transposed. They belong to one Gram term, a summand of G and K. G and K are those of the normal
    equations: S and T have, per training example, the weights of its source and its target items.
    """

    sums: SparseSums  # M and the transpose of K, with the same entries
    target_equals_source: bool  # K is G, and is not stored


def sum_targets(
    builder: TermBuilder, rows: RowFiles, layout: RowLayout, targets: TargetRange
) -> Iterator[TargetSums]:
    """Yield, for each Gram term, the sums over pairs of rows of a range of target items.

    A Gram term is a summand of G = S'S and K = S'T (source x target). targets: the range, and the
    group of users whose rows are summed. builder: returns the terms of some rows; rows: gives the
    number of items; layout: the files of the groups, which are memory-mapped. G and K are those of
    the normal equations: S and T have, per training example, the weights of its source and its
    target items.
    """
    group, lo, hi = targets
    for number, term in enumerate(_build_example_terms(builder, rows, layout)):
        pairs = _map_pairs(term.pairs, layout, group, number)
        item = _map_file(layout.file(group, number, "item"), np.dtype(np.int32))
        parts = ONLY_G if term.target_equals_source else BOTH
        sums = accumulate_targets(item, pairs, rows.n_items, layout.longest, lo, hi, parts)
        yield TargetSums(sums, term.target_equals_source)


def _build_example_terms(builder: TermBuilder, rows: RowFiles, layout: RowLayout) -> list[GramTerm]:
    """Return the Gram terms of an artificial user who has as many rows as the longest history.

    A Gram term is a summand of G = S'S and K = S'T; builder: returns the terms of some rows. These
    have the kernels and lookup tables of every user's terms, but other arrays of rows. G and K are
    those of the normal equations: S and T have, per training example, the weights of its source and
    its target items.
    """
    terms, _ = builder(rows.example_log(layout.longest))
    return terms


def _map_pairs(pairs: Pairs, layout: RowLayout, group: int, term: int) -> Pairs:
    """Return `pairs` with the arrays of one user's rows replaced by those of a group's files.

    pairs: the arrays that a kernel needs to sum pairs of rows. group: number of a group of users
    whose rows share files (`layout`); term: number of the Gram term (a summand of G = S'S and K =
    S'T). Files are mapped copy-on-write. G and K are those of the normal equations: S and T have,
    per training example, the weights of its source and its target items.
    """
    mapped = {
        id(array): _map_file(layout.file(group, term, name), array.dtype)
        for name, array in _list_row_arrays(pairs).items()
    }
    all_pairs: Pairs = _replace_arrays(pairs, lambda _, array: mapped.get(id(array), array))
    return all_pairs


def _map_file(path: Path, dtype: np.dtype[Any]) -> Array:
    """Return a file of numbers as an array, mapped copy-on-write: kernels need it writable.

    The array has one dimension; an empty file gives an empty array.
    """
    if not path.stat().st_size:
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, "c"))


def _list_row_arrays(pairs: Pairs) -> dict[str, Array]:
    """Return the distinct arrays of `pairs` with one entry per row, by dotted field name.

    pairs: nested named tuples of the arrays that a kernel needs to sum pairs of rows. Lookup
    tables, which do not have an entry per row, are left out.
    """
    arrays: dict[int, tuple[str, Array]] = {}

    def note(name: str, array: Array) -> Array:
        """Remember an array under its name, unless it is a lookup table; return it unchanged."""
        if name.rpartition(".")[2] not in _LOOKUP_TABLES:
            arrays.setdefault(id(array), (name, array))
        return array

    _replace_arrays(pairs, note)
    return dict(arrays.values())


def _replace_arrays(value: Any, replace: Callable[[str, Array], Array], name: str = "") -> Any:
    """Return nested named tuples with every array replaced by `replace(name, array)`.

    name: the dotted path of field names from the outermost tuple to the array.
    """
    if isinstance(value, np.ndarray):
        return replace(name, value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        fields = zip(value._fields, value, strict=True)
        return type(value)(
            *(_replace_arrays(part, replace, f"{name}.{key}".lstrip(".")) for key, part in fields)
        )
    return value

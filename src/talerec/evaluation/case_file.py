"""Cases written to a file while a model is evaluated, so that memory stays bounded.

A case is one evaluated query: a history and the held-out item that came next, its target. A split
of every row has millions of them. Their rows go to a Parquet file, chunk after chunk; the result
has the sums from which metrics and intervals are computed, as the result of a cluster has.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from talerec import columns
from talerec.evaluation.list_metrics import list_column_names
from talerec.evaluation.queries import merge_sums, sum_cases
from talerec.evaluation.result import Evaluation
from talerec.evaluation.saved_results import METADATA
from talerec.evaluation.user_sums import merge_user_sums, tabulate_user_sums, user_sum_columns
from talerec.runtime import atomic_write

_CHUNKS_PER_MERGE = 16  # chunks whose sums are added up at a time
_CASES_PER_PASS = 1_000_000  # about as many are in memory while sums over users are computed


class CaseFile:
    """A Parquet file of cases (evaluated queries) that is being written, and sums over them."""

    def __init__(self, path: Path, ks: Sequence[int]) -> None:
        """Prepare to write to `path`; ks: the lengths of the lists."""
        self._path, self._ks = path, list(ks)
        self._writer: Any = None
        self._n_cases = 0
        self._sums: list[pl.DataFrame] = []
        self._list_sums: dict[str, tuple[float, int]] = {}

    @classmethod
    @contextmanager
    def open(cls, path: str | Path, ks: Sequence[int]) -> Iterator[CaseFile]:
        """Yield a file to add cases to; it appears at `path` once all of them are written.

        ks: the lengths of the lists.
        """
        with atomic_write(path) as unfinished:
            file = cls(unfinished, ks)
            try:
                yield file
            finally:
                file._close()

    def add(self, frame: pl.DataFrame) -> None:
        """Write a chunk of cases, one row per case, and add it to the sums."""
        import pyarrow.parquet as pq

        table = frame.to_arrow()
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, table.schema)
        self._writer.write_table(table.cast(self._writer.schema))
        self._n_cases += len(frame)
        self._sums.append(sum_cases(frame, self._ks))
        if len(self._sums) >= _CHUNKS_PER_MERGE:
            self._sums = [merge_sums(self._sums, self._ks, is_final=False)]
        for name in list_column_names(self._ks):
            if name in frame.columns:
                total, count = self._list_sums.get(name, (0.0, 0))
                values = frame[name].drop_nulls()
                self._list_sums[name] = (total + float(values.sum()), count + len(values))

    def finish(self, result: Evaluation) -> Evaluation:
        """Complete the file, and return the result with sums over cases and users in it.

        result: the evaluation of all cases that were added, with an empty frame. Its frame gets a
        row per kind of case with equal ranks and groups, and their number (`merge_sums`); the file
        gets the other fields as metadata, so that `Evaluation.load` reads a whole result from it.
        """
        means = {name: total / n if n else None for name, (total, n) in self._list_sums.items()}
        result = replace(result, frame=merge_sums(self._sums, self._ks), list_means=means)
        self._writer.add_key_value_metadata({METADATA: json.dumps(result.facts()).encode()})
        self._close()
        return replace(result, user_sums=merge_user_sums(self._sum_users()))

    def _sum_users(self) -> Iterator[pl.DataFrame]:
        """Yield tables of sums over users, each of other users: the file is read once per table.

        A user's cases are anywhere in the file, and must be summed together. So each pass takes the
        cases of some users, chosen by a hash of their ids, and there are so many passes that about
        a million cases are in memory at a time.
        """
        cases = pl.scan_parquet(self._path)
        cases = cases.select(user_sum_columns(cases.collect_schema()))
        n_passes = max(1, math.ceil(self._n_cases / _CASES_PER_PASS))
        for n in range(n_passes):
            is_in_pass = pl.col(columns.USER).hash() % n_passes == n
            yield tabulate_user_sums(cases.filter(is_in_pass).collect(), self._ks)

    def _close(self) -> None:
        """Close the file; nothing can be added any more."""
        if self._writer is not None:
            self._writer.close()

"""Work on all cores: compiled kernels release the GIL, so plain threads are enough.

Work is cut into chunks that do not depend on the number of threads, and each chunk writes
only what it owns: the result is the same bit for bit on one core or on a hundred.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import pairwise

import numpy as np

from talerec.errors import TalerecError
from talerec.runtime.progress import stage

VARIABLE = "TALEREC_THREADS"


def thread_count() -> int:
    """Threads to use: TALEREC_THREADS, or the cores this process may run on."""
    asked = os.environ.get(VARIABLE)
    if asked is not None:
        if not asked.isdecimal() or int(asked) < 1:
            raise TalerecError(f"{VARIABLE} is {asked!r}; it takes a whole number from 1")
        return int(asked)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def equal_work(cumulative: np.ndarray, chunks: int) -> list[tuple[int, int]]:
    """Cut 0..n into at most `chunks` ranges of about equal work, given its running sum (n + 1 long)."""
    total = cumulative[-1]
    marks = np.searchsorted(cumulative, total * np.arange(1, chunks) / chunks)
    edges = np.unique(np.concatenate([[0], marks, [len(cumulative) - 1]]))
    return [(int(a), int(b)) for a, b in pairwise(edges)]


def even(n: int, size: int) -> list[tuple[int, int]]:
    """Cut 0..n into ranges of `size`."""
    return [(a, min(a + size, n)) for a in range(0, n, size)]


def run_chunks(
    name: str, work: Callable[[int, int], None], chunks: Sequence[tuple[int, int]]
) -> None:
    """Call `work(start, stop)` for every chunk on all cores, reporting the items done as stage `name`."""
    tick = stage(name, float(sum(b - a for a, b in chunks)))
    threads = min(thread_count(), len(chunks))
    if threads <= 1:
        for a, b in chunks:
            work(a, b)
            tick(b - a)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting = {pool.submit(work, a, b): b - a for a, b in chunks}
        try:
            for done in as_completed(waiting):
                done.result()
                tick(waiting[done])
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise

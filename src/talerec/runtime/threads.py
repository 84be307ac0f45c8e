"""Work on all cores: compiled kernels release the GIL, so plain threads are enough.

Work is cut into chunks that do not depend on the number of threads, and each chunk writes
only what it owns: results are identical on one core or on a hundred.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from contextvars import copy_context
from itertools import pairwise

import numpy as np

from talerec.errors import TalerecError
from talerec.runtime.progress import stage

VARIABLE = "TALEREC_THREADS"


def thread_count() -> int:
    """Threads to use: TALEREC_THREADS, or the cores that this process may run on."""
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
    """Cut 0..n into ranges of `size`; the last may be shorter."""
    return [(a, min(a + size, n)) for a in range(0, n, size)]


def run_chunks(
    name: str, work: Callable[[int, int], None], chunks: Sequence[tuple[int, int]]
) -> None:
    """Call `work(start, stop)` for every chunk on all cores, reporting progress as stage `name`.

    An error in a chunk, or Ctrl-C, cancels the chunks that have not begun, waits for the others and
    is raised. Chunks that themselves call `run_chunks` work through theirs alone.
    """
    tick = stage(name, float(sum(b - a for a, b in chunks)))
    threads = thread_count()
    if min(threads, len(chunks)) <= 1 or _thread.is_worker:
        for a, b in chunks:
            work(a, b)
            tick(b - a)
        return
    pool = _pool(threads)
    sizes = {pool.submit(copy_context().run, work, a, b): b - a for a, b in chunks}
    try:
        for done in as_completed(sizes):
            done.result()
            tick(sizes[done])
    except BaseException:
        for future in sizes:
            future.cancel()
        wait(sizes)
        raise


# -- threads that stay -----------------------------------------------------------------------------


class _Thread(threading.local):
    """What is known of the thread that asks."""

    is_worker = False


def _begin_worker() -> None:
    _thread.is_worker = True


_thread = _Thread()
_pools: dict[int, ThreadPoolExecutor] = {}
_making = threading.Lock()


def _pool(threads: int) -> ThreadPoolExecutor:
    """The pool of so many threads, made once per process; a thread starts when there is work for it."""
    with _making:
        if threads not in _pools:
            _pools[threads] = ThreadPoolExecutor(threads, "talerec", _begin_worker)
        return _pools[threads]


def _forget_pools() -> None:
    """A forked process has none of its parent's threads, and perhaps a lock that nobody will open."""
    global _making
    _pools.clear()
    _making = threading.Lock()
    _thread.is_worker = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pools)

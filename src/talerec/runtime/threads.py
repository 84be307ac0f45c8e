"""Work on all cores: compiled kernels release the GIL, so plain threads are enough.

Work is cut into chunks that do not depend on the number of threads, and no two chunks write to the
same place: results are identical on one core or on a hundred.
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
    """Return how many threads to use: TALEREC_THREADS, or the cores available to this process."""
    text = os.environ.get(VARIABLE)
    if text is not None:
        if not text.isdecimal() or int(text) < 1:
            raise TalerecError(f"{VARIABLE} is {text!r}; it takes a whole number from 1")
        return int(text)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def balanced_chunks(cumulative: np.ndarray, chunks: int) -> list[tuple[int, int]]:
    """Cut 0..n into at most `chunks` ranges (start, stop) of about equal work.

    `cumulative` is the running sum of the work, n + 1 long, from 0. Empty ranges are left out.
    """
    total = cumulative[-1]
    marks = np.searchsorted(cumulative, total * np.arange(1, chunks) / chunks)
    edges = np.unique(np.concatenate([[0], marks, [len(cumulative) - 1]]))
    return [(int(a), int(b)) for a, b in pairwise(edges)]


def sized_chunks(n: int, size: int) -> list[tuple[int, int]]:
    """Cut 0..n into ranges (start, stop) of `size` each; the last may be shorter."""
    return [(a, min(a + size, n)) for a in range(0, n, size)]


def run_chunks(
    name: str, work: Callable[[int, int], None], chunks: Sequence[tuple[int, int]]
) -> None:
    """Call `work(start, stop)` for every chunk on all cores; progress is stage `name`.

    An error in a chunk, or Ctrl-C, cancels the chunks that have not begun, waits for the running
    ones and is raised. Inside a chunk, `run_chunks` runs its chunks one by one.
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


# -- thread pools, one per number of threads -------------------------------------------------------


class _Thread(threading.local):
    """A flag per thread: whether the thread is a worker of a thread pool of this module."""

    is_worker = False


def _begin_worker() -> None:
    """Mark the calling thread as a worker of a pool, so that it starts no pool itself."""
    _thread.is_worker = True


_thread = _Thread()
_pools: dict[int, ThreadPoolExecutor] = {}
_pools_lock = threading.Lock()


def _pool(threads: int) -> ThreadPoolExecutor:
    """Return this process's pool of `threads` threads, created on first use and then reused."""
    with _pools_lock:
        if threads not in _pools:
            _pools[threads] = ThreadPoolExecutor(threads, "talerec", _begin_worker)
        return _pools[threads]


def _forget_pools() -> None:
    """Forget all thread pools, in a process that was just forked.

    Such a process has none of its parent's threads; the calling thread is no longer a worker.
    """
    global _pools_lock
    _pools.clear()
    _pools_lock = threading.Lock()
    _thread.is_worker = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pools)

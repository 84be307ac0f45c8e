"""Work in chunks: everything once, on any number of threads. And free and used memory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talerec.errors import TalerecError
from talerec.runtime import (
    VARIABLE,
    Tick,
    balanced_chunks,
    listening,
    memory,
    run_chunks,
    sized_chunks,
    stage,
    thread_count,
)
from talerec.runtime import threads as pool
from waiting import LONG_S

THREADS = ["1", "2", "7"]
SOURCE = str(Path(memory.__file__).parents[2])


def covered(chunks: list[tuple[int, int]]) -> list[int]:
    return [i for a, b in chunks for i in range(a, b)]


# -- cutting ---------------------------------------------------------------------------------------


@given(st.integers(0, 500), st.integers(1, 80))
def test_sized_chunks_cover_everything_once_and_are_at_most_the_given_size(
    n: int, size: int
) -> None:
    chunks = sized_chunks(n, size)
    assert covered(chunks) == list(range(n))
    assert all(0 < b - a <= size for a, b in chunks)


@given(st.lists(st.integers(0, 10**6), max_size=60), st.integers(1, 20))
def test_ranges_of_equal_work_cover_everything_once(work: list[int], chunks: int) -> None:
    ranges = balanced_chunks(np.concatenate([[0], np.cumsum(work, dtype=np.int64)]), chunks)
    assert covered(ranges) == list(range(len(work)))
    assert all(a < b for a, b in ranges)
    assert len(ranges) <= chunks


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=60), st.integers(1, 20))
def test_no_range_exceeds_its_share_by_more_than_one_piece(work: list[int], chunks: int) -> None:
    ranges = balanced_chunks(np.concatenate([[0], np.cumsum(work, dtype=np.int64)]), chunks)
    most = sum(work) / chunks + max(work)
    assert all(sum(work[a:b]) <= most * (1 + 1e-9) for a, b in ranges)


# -- running ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", THREADS)
def test_every_piece_is_done_once(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, threads)
    done = np.zeros(1000, np.int64)

    def work(a: int, b: int) -> None:
        done[a:b] += 1

    run_chunks("test", work, sized_chunks(1000, 7))
    assert (done == 1).all()


def test_without_chunks_nothing_is_done() -> None:
    run_chunks("test", lambda a, b: pytest.fail("called"), [])


@pytest.mark.parametrize("error", [ZeroDivisionError("chunk 30"), KeyboardInterrupt("chunk 30")])
@pytest.mark.parametrize("threads", THREADS)
def test_an_error_in_a_chunk_is_raised_and_no_work_remains(
    threads: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failing chunk cancels the others.

    Chunks after it wait until then, so that each thread begins at most one more.
    """
    monkeypatch.setenv(VARIABLE, threads)
    begun: list[int] = []
    ended: list[int] = []
    cancelled, wait = threading.Event(), pool.wait

    def wait_for_the_others(futures: Any) -> Any:
        cancelled.set()
        return wait(futures)

    def work(a: int, b: int) -> None:
        begun.append(a)
        if a > 30:
            assert cancelled.wait(LONG_S)
        ended.append(a)
        if a == 30:
            raise error

    monkeypatch.setattr(pool, "wait", wait_for_the_others)
    with pytest.raises(type(error), match="chunk 30"):
        run_chunks("test", work, sized_chunks(1000, 10))
    assert sorted(begun) == sorted(ended)
    assert {0, 10, 20, 30} <= set(begun)
    assert len(begun) <= 4 + int(threads)
    done = len(begun)
    run_chunks(
        "test", lambda a, b: None, sized_chunks(1000, 10)
    )  # the threads are free for other work
    assert len(begun) == done


@pytest.mark.parametrize("threads", ["2", "7"])
def test_threads_are_reused(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, threads)
    workers: set[int] = set()

    def work(a: int, b: int) -> None:
        workers.add(threading.get_ident())
        time.sleep(0.001)

    for _ in range(20):
        run_chunks("test", work, sized_chunks(100, 10))
    assert threading.get_ident() not in workers
    assert 1 <= len(workers) <= int(threads)


@pytest.mark.parametrize("threads", THREADS)
def test_nested_work_terminates(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, threads)
    done = np.zeros((20, 30), np.int64)

    def outer(a: int, b: int) -> None:
        def inner(c: int, d: int) -> None:
            done[a:b, c:d] += 1

        run_chunks("inner", inner, sized_chunks(30, 3))

    run_chunks("outer", outer, sized_chunks(20, 1))
    assert (done == 1).all()


def test_callers_in_several_threads_share_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "2")
    done = np.zeros((8, 100), np.int64)

    def call(row: int) -> None:
        def work(a: int, b: int) -> None:
            done[row, a:b] += 1

        run_chunks("test", work, sized_chunks(100, 3))

    callers = [threading.Thread(target=call, args=(row,)) for row in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(LONG_S)
    assert (done == 1).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_starts_its_own_threads() -> None:
    code = (
        "import os, numpy as np\n"
        "from talerec.runtime.threads import sized_chunks, run_chunks\n"
        "def total():\n"
        "    done = np.zeros(100)\n"
        "    run_chunks('t', lambda a, b: done[a:b].__iadd__(1), sized_chunks(100, 3))\n"
        "    return done.sum()\n"
        "assert total() == 100\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(0 if total() == 100 else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert total() == 100\n"
    )
    environment = {**os.environ, VARIABLE: "2", "PYTHONPATH": SOURCE}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=LONG_S, env=environment)


def test_work_is_shared_among_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "2")
    both = threading.Barrier(2, timeout=LONG_S)
    run_chunks("test", lambda a, b: both.wait() and None, [(0, 1), (1, 2)])


@pytest.mark.parametrize("threads", THREADS)
def test_progress_adds_up_to_the_work(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, threads)
    heard: dict[str, list[float]] = {}

    def listener(name: str, total: float) -> Tick:
        heard[name] = [total]
        return heard[name].append

    with listening(listener):
        run_chunks("rank", lambda a, b: None, sized_chunks(100, 9))
    total, *steps = heard["rank"]
    assert total == sum(steps) == 100


@pytest.mark.parametrize("threads", THREADS)
def test_a_stage_that_begins_in_a_chunk_is_reported(
    threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, threads)
    heard: list[str] = []

    def listener(name: str, total: float) -> Tick:
        heard.append(name)
        return lambda done: None

    with listening(listener):
        run_chunks("outer", lambda a, b: stage("inner", 1.0)(1.0), sized_chunks(4, 1))
    assert sorted(heard) == ["inner"] * 4 + ["outer"]


def test_the_listener_is_removed_after_the_block() -> None:
    heard: list[str] = []

    def listener(name: str, total: float) -> Tick:
        heard.append(name)
        return lambda done: None

    with listening(listener):
        stage("inside", 1.0)
    stage("outside", 1.0)(1.0)
    assert heard == ["inside"]


# -- how many --------------------------------------------------------------------------------------


def test_the_variable_sets_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "3")
    assert thread_count() == 3


def test_without_the_variable_there_is_at_least_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert thread_count() >= 1


@pytest.mark.parametrize("text", ["0", "-1", "two", "", "1.5", "²", " 2"])
def test_a_bad_variable_is_refused_by_name(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(TalerecError, match=f"{VARIABLE} is '{text}'; it takes a whole number"):
        thread_count()


# -- memory ----------------------------------------------------------------------------------------


def test_memory_is_free_and_was_used() -> None:
    assert memory.available_bytes() > 0
    peak = memory.peak_rss_mb()
    assert peak is None or peak > 10


def container(folder: Path, limit: str, used: int, cached: int) -> tuple[str, ...]:
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cached}\nslab 1\n")
    return (str(folder), "memory.max", "memory.current", "inactive_file")


def test_cached_files_of_a_container_count_as_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_CONTAINERS", [container(tmp_path, "1000", 900, 600)])
    assert memory.available_bytes() == 700
    (tmp_path / "memory.stat").unlink()
    assert memory.available_bytes() == 100


def test_a_container_without_a_limit_has_what_the_machine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_machine_bytes", lambda: 12345)
    monkeypatch.setattr(memory, "_CONTAINERS", [container(tmp_path, "max", 900, 600)])
    assert memory.available_bytes() == 12345


def test_work_that_does_not_fit_is_refused_before_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 10**9)
    memory.require_memory(10**9, "this", "wait")
    with pytest.raises(TalerecError, match=r"this needs 2.0 GB, but 1.0 GB is free; use less"):
        memory.require_memory(2 * 10**9, "this", "use less")


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (999_999, "1 MB"), (12_345, "12.3 KB"),
     (999_600_000, "1.0 GB"), (3.5e12, "3,500.0 GB")],
)  # fmt: skip
def test_sizes_are_formatted_with_units(size: float, text: str) -> None:
    assert memory.format_bytes(size) == text

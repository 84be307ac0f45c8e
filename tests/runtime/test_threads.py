"""Work in chunks: everything once, whatever the number of threads. And what is free and what was used."""

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
from talerec.runtime import memory
from talerec.runtime import threads as pool
from talerec.runtime.progress import Tick, listening, stage
from talerec.runtime.threads import VARIABLE, equal_work, even, run_chunks, thread_count
from waiting import LONG_S

THREADS = ["1", "2", "7"]
SOURCE = str(Path(memory.__file__).parents[2])


def covered(chunks: list[tuple[int, int]]) -> list[int]:
    return [i for a, b in chunks for i in range(a, b)]


# -- cutting ---------------------------------------------------------------------------------------


@given(st.integers(0, 500), st.integers(1, 80))
def test_even_ranges_cover_everything_once_and_are_no_longer_than_asked(n: int, size: int) -> None:
    chunks = even(n, size)
    assert covered(chunks) == list(range(n))
    assert all(0 < b - a <= size for a, b in chunks)


@given(st.lists(st.integers(0, 10**6), max_size=60), st.integers(1, 20))
def test_ranges_of_equal_work_cover_everything_once(work: list[int], chunks: int) -> None:
    ranges = equal_work(np.concatenate([[0], np.cumsum(work, dtype=np.int64)]), chunks)
    assert covered(ranges) == list(range(len(work)))
    assert all(a < b for a, b in ranges)
    assert len(ranges) <= chunks


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=60), st.integers(1, 20))
def test_no_range_has_more_than_its_share_and_one_piece(work: list[int], chunks: int) -> None:
    ranges = equal_work(np.concatenate([[0], np.cumsum(work, dtype=np.int64)]), chunks)
    most = sum(work) / chunks + max(work)
    assert all(sum(work[a:b]) <= most * (1 + 1e-9) for a, b in ranges)


# -- running ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", THREADS)
def test_every_piece_is_done_once(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, threads)
    done = np.zeros(1000, np.int64)

    def work(a: int, b: int) -> None:
        done[a:b] += 1

    run_chunks("test", work, even(1000, 7))
    assert (done == 1).all()


def test_no_chunks_are_no_work() -> None:
    run_chunks("test", lambda a, b: pytest.fail("called"), [])


@pytest.mark.parametrize("error", [ZeroDivisionError("chunk 30"), KeyboardInterrupt("chunk 30")])
@pytest.mark.parametrize("threads", THREADS)
def test_an_error_in_a_chunk_comes_out_and_no_work_stays(
    threads: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks behind the one that fails take until the others are cancelled, so that each thread begins one more at most."""
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
        run_chunks("test", work, even(1000, 10))
    assert sorted(begun) == sorted(ended)
    assert {0, 10, 20, 30} <= set(begun)
    assert len(begun) <= 4 + int(threads)
    done = len(begun)
    run_chunks("test", lambda a, b: None, even(1000, 10))  # the threads are free for other work
    assert len(begun) == done


@pytest.mark.parametrize("threads", ["2", "7"])
def test_threads_are_kept_for_the_next_work(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, threads)
    workers: set[int] = set()

    def work(a: int, b: int) -> None:
        workers.add(threading.get_ident())
        time.sleep(0.001)

    for _ in range(20):
        run_chunks("test", work, even(100, 10))
    assert threading.get_ident() not in workers
    assert 1 <= len(workers) <= int(threads)


@pytest.mark.parametrize("threads", THREADS)
def test_work_inside_of_work_ends(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, threads)
    done = np.zeros((20, 30), np.int64)

    def outer(a: int, b: int) -> None:
        def inner(c: int, d: int) -> None:
            done[a:b, c:d] += 1

        run_chunks("inner", inner, even(30, 3))

    run_chunks("outer", outer, even(20, 1))
    assert (done == 1).all()


def test_callers_in_several_threads_share_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "2")
    done = np.zeros((8, 100), np.int64)

    def call(row: int) -> None:
        def work(a: int, b: int) -> None:
            done[row, a:b] += 1

        run_chunks("test", work, even(100, 3))

    callers = [threading.Thread(target=call, args=(row,)) for row in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(LONG_S)
    assert (done == 1).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_has_threads_of_its_own() -> None:
    code = (
        "import os, numpy as np\n"
        "from talerec.runtime.threads import even, run_chunks\n"
        "def total():\n"
        "    done = np.zeros(100)\n"
        "    run_chunks('t', lambda a, b: done[a:b].__iadd__(1), even(100, 3))\n"
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
        run_chunks("rank", lambda a, b: None, even(100, 9))
    total, *steps = heard["rank"]
    assert total == sum(steps) == 100


@pytest.mark.parametrize("threads", THREADS)
def test_a_stage_that_a_chunk_opens_is_heard(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, threads)
    heard: list[str] = []

    def listener(name: str, total: float) -> Tick:
        heard.append(name)
        return lambda done: None

    with listening(listener):
        run_chunks("outer", lambda a, b: stage("inner", 1.0)(1.0), even(4, 1))
    assert sorted(heard) == ["inner"] * 4 + ["outer"]


def test_after_the_block_nobody_listens() -> None:
    heard: list[str] = []

    def listener(name: str, total: float) -> Tick:
        heard.append(name)
        return lambda done: None

    with listening(listener):
        stage("inside", 1.0)
    stage("outside", 1.0)(1.0)
    assert heard == ["inside"]


# -- how many --------------------------------------------------------------------------------------


def test_the_variable_says_how_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_container_lets_go_of_cached_files(
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


def test_what_does_not_fit_is_refused_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 10**9)
    memory.require(10**9, "this", "wait")
    with pytest.raises(TalerecError, match=r"this needs 2.0 GB, but 1.0 GB is free; use less"):
        memory.require(2 * 10**9, "this", "use less")


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (999_999, "1 MB"), (12_345, "12.3 KB"),
     (999_600_000, "1.0 GB"), (3.5e12, "3,500.0 GB")],
)  # fmt: skip
def test_sizes_are_for_people(size: float, text: str) -> None:
    assert memory.human(size) == text

"""A folder is complete at every moment: writers that die, fail, are interrupted, or meet."""

from __future__ import annotations

import errno
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import talerec as tr
from bundles import no_strays, same, tiny_log
from command import PYTHONPATH
from talerec.artifact import Bundle, read_artifact, write_artifact
from talerec.artifact import format as artifact
from talerec.errors import TalerecError
from talerec.runtime import files
from waiting import LONG_S, until

KILLS = int(os.environ.get("TALEREC_KILLS", "6"))

# -- writers that fail -----------------------------------------------------------------------------


class Died(BaseException):
    """The process is no more: nothing that it would do happens."""


class Steps:
    """Calls by which a writer changes the disk.

    From step `at` on, each raises `error` (or only that one).
    """

    def __init__(self, at: float, error: BaseException, *, once: bool) -> None:
        self.at, self.error, self.once, self.count = at, error, once, 0

    def watch(self, call: Callable[..., Any], *, torn: bool = False) -> Callable[..., Any]:
        def watched(*args: Any, **options: Any) -> Any:
            self.count += 1
            if self.count == self.at and torn:
                writer, part = args
                call(writer, part[: len(part) // 2])
            if self.count == self.at or (self.count > self.at and not self.once):
                raise self.error
            return call(*args, **options)

        return watched

    @contextmanager
    def patched(self, *names: str) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in names:
                patch.setattr(os, name, self.watch(getattr(os, name)))
            patch.setattr(files, "_write_part", self.watch(files._write_part, torn=True))
            yield


CHANGES = ("replace", "fsync", "unlink", "mkdir", "rmdir")


def steps_to_save(model: tr.Model, folder: Path, names: tuple[str, ...]) -> int:
    steps = Steps(math.inf, Died(), once=False)
    with steps.patched(*names):
        model.save(folder)
    return steps.count


def test_a_crash_at_any_step_leaves_the_old_model_or_the_new_one(
    old: tr.Model, new: tr.Model, tmp_path: Path
) -> None:
    start = old.save(tmp_path / "start.tale")
    total = steps_to_save(new, Path(shutil.copytree(start, tmp_path / "count")), CHANGES)
    assert total > 25
    result = []
    for at in range(1, total + 1):
        folder = Path(shutil.copytree(start, tmp_path / f"{at}.tale"))
        with Steps(at, Died(), once=False).patched(*CHANGES), pytest.raises(Died):
            new.save(folder)
        loaded = tr.load(folder, verify=True)
        result.append(same(loaded, new))
        assert result[-1] or same(loaded, old)
        assert same(tr.load(new.save(folder), verify=True), new)
        assert no_strays(folder)
    assert result == sorted(result)  # first the old one, then the new one
    assert set(result) == {False, True}


def test_a_crash_at_any_step_of_the_first_save_leaves_no_model_or_a_whole_one(
    new: tr.Model, tmp_path: Path
) -> None:
    total = steps_to_save(new, tmp_path / "count" / "m.tale", CHANGES)
    for at in range(1, total + 1, 2):
        folder = tmp_path / str(at) / "m.tale"
        with Steps(at, Died(), once=False).patched(*CHANGES), pytest.raises(Died):
            new.save(folder)
        if (folder / "manifest.json").exists():
            assert same(tr.load(folder, verify=True), new)
        assert same(tr.load(new.save(folder), verify=True), new)
        assert no_strays(folder)


FILLED = ("replace", "fsync", "mkdir")


def test_a_full_disk_at_any_step_leaves_the_old_model_and_nothing_else(
    old: tr.Model, new: tr.Model, saved: Path
) -> None:
    copy = Path(shutil.copytree(saved, saved.with_name("count")))
    total = steps_to_save(new, copy, FILLED)
    before = sorted(saved.iterdir())
    failed = 0
    for at in range(1, total + 1):
        full = Steps(at, OSError(errno.ENOSPC, "No space left on device"), once=True)
        try:
            with full.patched(*FILLED):
                new.save(saved)
            old.save(saved)  # a folder that could not be synced is no failure
        except TalerecError as error:
            failed += 1
            message = f"{saved} cannot be written: No space left on device"
            assert str(error) == message  # noqa: PT017
            assert same(tr.load(saved, verify=True), old)
            assert sorted(saved.iterdir()) == before
    assert failed > 20


def test_a_full_disk_during_the_first_save_leaves_nothing(new: tr.Model, tmp_path: Path) -> None:
    total = steps_to_save(new, tmp_path / "count", FILLED)
    failed = 0
    for at in range(1, total + 1):
        full = Steps(at, OSError(errno.ENOSPC, "No space left on device"), once=True)
        try:
            with full.patched(*FILLED):
                new.save(tmp_path / "some" / "where" / "m.tale")
            shutil.rmtree(tmp_path / "some")
        except TalerecError:
            failed += 1
            assert not (tmp_path / "some").exists()
    assert failed > 20


def test_a_file_that_the_system_cuts_short_is_a_failed_save(
    old: tr.Model, saved: Path, tmp_path: Path
) -> None:
    big = read_artifact(saved)
    big = Bundle(big.facts, {**big.arrays, "weights": np.zeros(10**6)}, big.tables)
    resource = pytest.importorskip("resource", exc_type=ImportError)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        with pytest.raises(TalerecError, match=f"{saved} cannot be written: File too large"):
            write_artifact(saved, big)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert same(tr.load(saved, verify=True), old)
    assert no_strays(saved)


def interrupted_at(line: int, work: Callable[[], object]) -> bool:
    """Run `work` with Ctrl-C at the n-th line of artifact/format.py or files.py that it runs.

    Returns whether it came that far.
    """
    seen = 0

    def trace(frame: Any, event: str, arg: object) -> Any:
        nonlocal seen
        if frame.f_code.co_filename not in (artifact.__file__, files.__file__):
            return None
        seen += event == "line"
        if seen >= line:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_anywhere_leaves_one_of_the_two_models_and_no_other_files(
    old: tr.Model, new: tr.Model, saved: Path
) -> None:
    line = 1
    while interrupted_at(line, lambda: new.save(saved)):
        loaded = tr.load(saved, verify=True)
        assert same(loaded, old) or same(loaded, new)
        assert no_strays(saved)
        old.save(saved)
        line += 19
    assert line > 150


# -- writers and readers at once -------------------------------------------------------------------

WRITER = """
import sys, numpy as np, polars as pl
from pathlib import Path
from talerec.artifact.format import Bundle, write_artifact
path, number, enough = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
facts = {"model": "tale", "params": {}, "training": {"rows": number}}
print("ready", flush=True)
while True:
    last = enough.exists()
    for mine in (number, number + 1):
        array = np.full(20_000, mine)
        arrays = {"weights": array, "ptr": array[:9]}
        tables = {"items": pl.DataFrame({"item_id": [mine]})}
        write_artifact(path, Bundle({**facts, "training": {"rows": mine}}, arrays, tables))
    if last:
        break
"""


def start_writer(folder: Path, number: int, enough: Path) -> subprocess.Popen[str]:
    """Write two artifacts in turns until there is a file `enough`; the second is the last."""
    command = [sys.executable, "-c", WRITER, str(folder), str(number), str(enough)]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def check_writers_bundle(folder: Path) -> int:
    bundle = read_artifact(folder, verify=True)
    number = bundle.facts["training"]["rows"]
    assert (bundle.arrays["weights"] == number).all()
    assert (bundle.arrays["ptr"] == number).all()
    assert bundle.tables["items"].item() == number
    return int(number)


def test_two_writers_and_a_reader_at_once_never_see_a_mixture(tmp_path: Path) -> None:
    folder, enough = tmp_path / "m.tale", tmp_path / "enough"
    writers = [start_writer(folder, number, enough) for number in (10, 20)]
    seen: list[int] = []

    def has_read_enough() -> bool:
        if (folder / "manifest.json").exists():
            seen.append(check_writers_bundle(folder))
        ended = any(writer.poll() is not None for writer in writers)
        return ended or (len(seen) > 10 and len(set(seen)) > 2)

    try:
        until(has_read_enough)
    finally:
        enough.touch()
        codes = [writer.wait(LONG_S) for writer in writers]
    assert codes == [0, 0]
    for writer in writers:
        writer.communicate()
    assert len(seen) > 10
    assert set(seen) <= {10, 11, 20, 21}
    assert check_writers_bundle(folder) in (11, 21)
    assert no_strays(folder)


def test_a_writer_waits_for_a_folder_that_another_removes(
    new: tr.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first writer fails and removes the folder while the second waits for its lock."""
    folder, wait = tmp_path / "m.tale", files._acquire
    removed = []

    def wait_and_lose(handle: Any, where: Path) -> None:
        wait(handle, where)
        if not removed:
            removed.append(where)
            shutil.rmtree(where)

    monkeypatch.setattr(files, "_acquire", wait_and_lose)
    assert same(tr.load(new.save(folder)), new)
    assert removed


@pytest.mark.parametrize("delay", [0.005, 0.02])
def test_kill_9_in_the_middle_of_writing_leaves_a_whole_artifact(
    tmp_path: Path, delay: float
) -> None:
    folder = tmp_path / "m.tale"
    (tmp_path / "enough").touch()
    first = start_writer(folder, 0, tmp_path / "enough")
    assert first.wait() == 0
    first.communicate()
    writer = start_writer(folder, 10, tmp_path / "never")
    assert writer.stdout.readline() == "ready\n"
    time.sleep(delay)
    writer.kill()
    writer.communicate()
    assert check_writers_bundle(folder) in (1, 10, 11)


def fit_command(log: Path, folder: Path) -> list[str]:
    run = "from talerec.cli.main import main; main()"
    return [sys.executable, "-c", run, "fit", str(log), "-o", str(folder), "--set", "reg=3"]


def kill_while_fitting(folder: Path, log: Path, kills: int, seed: int = 0) -> int:
    """Kill `talerec fit` at times spread over its run, load after each; count the kills."""
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    options: dict[str, Any] = {"env": environment, "stdout": -3, "stderr": -3}
    start = time.perf_counter()
    assert subprocess.run(fit_command(log, folder), **options).returncode == 0
    duration = time.perf_counter() - start
    moments, died = random.Random(seed), 0
    for number in range(kills):
        fitting = subprocess.Popen(fit_command(log, folder), **options)
        time.sleep(duration * (number + moments.random()) / kills)
        fitting.kill()
        died += fitting.wait() == -signal.SIGKILL
        tr.load(folder, verify=True)
    return died


def test_kill_9_of_the_command_leaves_a_whole_model(
    old: tr.Model, saved: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log.csv"
    tiny_log().to_frame().write_csv(log)
    assert kill_while_fitting(saved, log, KILLS) > 0
    assert tr.load(saved, verify=True).params["reg"] == 3.0

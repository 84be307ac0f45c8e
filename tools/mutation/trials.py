"""Trying faults: each is planted in a copy of the package, and chosen tests run on the copy."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from mutation.calls import add_recording
from mutation.choice import Plan
from mutation.faults import Fault
from mutation.plugin import PLAN
from mutation.recorder import FILE

TOOLS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Trial:
    """What the tests said of one fault."""

    fault: Fault
    outcome: str  # "seen", "survived", or "unfinished" if tests that may see it did not run
    tests: int  # how many tests were chosen
    by: str  # the first failing test
    seconds: float


def read_trials(path: Path) -> dict[Fault, Trial]:
    """Return the trials of a results file (JSON lines) by fault; the last of a fault counts."""
    trials = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        fields = json.loads(line)
        fault = Fault(**fields.pop("fault"))
        trials[fault] = Trial(fault, **fields)
    return trials


def write_trial(path: Path, trial: Trial) -> None:
    """Append a trial to a results file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(trial)) + "\n")


@contextmanager
def copy_package(package: Path) -> Iterator[Path]:
    """Provide a copy of a package, with its compiled kernels, in a folder of its own.

    The files are hard links where the file system allows: replace a file, never write into it.
    """
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder) / package.name
        try:
            shutil.copytree(package, copy, copy_function=os.link)
        except (OSError, shutil.Error):  # another file system
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(package, copy)
        yield copy


def record_calls(package: Path, paths: list[str], file: Path) -> int:
    """Run the tests of `paths` on a recording copy; append what they call to `file`.

    Returns pytest's exit status.
    """
    with copy_package(package) as copy:
        add_recording(copy)
        variables = {FILE: str(file.resolve())}
        return _run_pytest(paths, copy, variables, None)


def try_fault(fault: Fault, package: Path, plan: Plan, limit: float, loop: float) -> Trial:
    """Run the tests of a plan on a copy of the package with a fault, for `limit` seconds.

    A test that needs `loop` seconds of processor time more than expected counts as failed.
    """
    if not plan.order:
        return Trial(fault, "unfinished", 0, "", 0.0)
    start = time.monotonic()
    with copy_package(package) as copy:
        target = copy / fault.path
        text = target.read_text(encoding="utf-8")
        target.unlink()
        target.write_text(fault.plant(text), encoding="utf-8")
        orders, started = copy.parent / "plan.json", copy.parent / "started"
        fields = asdict(plan) | {"limit": limit, "loop": loop, "started": str(started)}
        orders.write_text(json.dumps(fields), encoding="utf-8")
        started.touch()
        variables = {PLAN: str(orders), "PYTHONDONTWRITEBYTECODE": "1"}
        status = _run_pytest(["-x", *plan.files], copy, variables, 2 * limit)
        notes = ["collecting tests", *started.read_text(encoding="utf-8").splitlines()]
    by, outcome = "", "unfinished"
    if status not in (0, 5):  # 5: nothing was collected
        by, outcome = [note for note in notes if note != "end"][-1], "seen"
        by += f" (signal {-status})" if status < 0 else ""
    elif plan.is_complete and notes[-1] == "end":
        outcome = "survived"
    return Trial(fault, outcome, len(plan.order), by, round(time.monotonic() - start, 1))


def _run_pytest(
    arguments: list[str], copy: Path, variables: dict[str, str], timeout: float | None
) -> int:
    """Run pytest with the plugin on a copy of the package; return its exit status.

    After `timeout` seconds the status is 0. All processes that tests started end with the run.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "mutation.plugin"]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", *arguments]
    path = os.pathsep.join([str(copy.parent), str(TOOLS)])
    environment = {**os.environ, "PYTHONPATH": path, **variables}
    output = None if timeout is None else subprocess.DEVNULL
    process = subprocess.Popen(
        command, env=environment, stdout=output, stderr=output, start_new_session=True
    )
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        return 0
    finally:
        process.kill()
        if hasattr(os, "killpg"):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()

"""The pytest plugin of `mutants.py`: it records what tests call, or runs chosen tests in order."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from mutation import recorder

#: The environment variable with the path of a plan: a JSON object, see `OrderedTests`.
PLAN = "MUTANTS_PLAN"


def pytest_configure(config: pytest.Config) -> None:
    """Register the part that an environment variable asks for."""
    if recorder.FILE in os.environ:
        recorder.pytest_process = os.getpid()
        config.pluginmanager.register(CallsOfTests())
    if PLAN in os.environ:
        config.pluginmanager.register(OrderedTests(Path(os.environ[PLAN])))


class CallsOfTests:
    """Writes a line per test: its id, its seconds, whether it passed, the functions it called."""

    def __init__(self) -> None:
        self.not_passed: set[str] = set()  # ids of tests that failed or were skipped

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Run a test, its fixtures included, and write its line."""
        recorder.called.clear()
        start = time.monotonic()
        result = yield
        recorder.write_line(
            {
                "test": item.nodeid,
                "seconds": round(time.monotonic() - start, 3),
                "passed": item.nodeid not in self.not_passed,
                "calls": sorted(recorder.called),
            }
        )
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note tests that did not pass."""
        if report.outcome != "passed":
            self.not_passed.add(report.nodeid)


class OrderedTests:
    """Runs the tests of a plan in its order, and writes the id of each before it starts.

    The plan is a JSON object: `order` lists the ids of tests to run, `skip` those to leave out.
    Tests in neither list, which are new since calls were recorded, run first. `seconds` has the
    recorded duration of tests. After `limit` seconds no further test starts. A test that uses ten
    times its duration and `loop` seconds of processor time is killed by a signal: kernels may have
    to be compiled, but a loop may never end.
    `started` is the path of the file that gets the ids; its last line is "end" once all tests ran.
    """

    def __init__(self, path: Path) -> None:
        plan = json.loads(path.read_text(encoding="utf-8"))
        self.order = {test: place for place, test in enumerate(plan["order"])}
        self.skip = set(plan["skip"])
        self.seconds: dict[str, float] = plan["seconds"]
        self.loop = float(plan["loop"])
        self.deadline = time.monotonic() + float(plan["limit"])
        self.started = Path(plan["started"])

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out what the plan leaves out, and sort the rest."""
        items[:] = [item for item in items if item.nodeid not in self.skip]
        items.sort(key=lambda item: self.order.get(item.nodeid, -1))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Run a test within its processor time."""
        if time.monotonic() > self.deadline:
            pytest.exit("the time for this fault is over", returncode=0)
        self._note(item.nodeid)
        self._limit_processor_time(self.loop + 10 * self.seconds.get(item.nodeid, 0.0))
        result = yield
        self._limit_processor_time(0)
        return result

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Note that no test was left out for want of time."""
        if time.monotonic() <= self.deadline:
            self._note("end")

    def _note(self, line: str) -> None:
        with self.started.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    @staticmethod
    def _limit_processor_time(seconds: float) -> None:
        """Have this process killed once it has used so many seconds; 0 for no limit."""
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, seconds)

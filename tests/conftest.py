"""Shared by all tests: where the real logs are, and which heavy parts are wanted."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import bare

#: Idle threads of torch sleep, and BLAS starts none: test workers use all cores already, and would
#: wait for each other's spinning. In the fit of a ranker, threads of BLAS double the time.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

#: The same examples in every run, without a deadline, so that a failure can be repeated.
#: `pytest --hypothesis-profile=search` looks for other examples.
CALM = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("steady", derandomize=True, database=None, **CALM)
settings.register_profile("search", **CALM)
settings.load_profile("steady")

#: The same tests as on a system that has neither these modules nor these files.
BARE = bool(os.environ.get("TALEREC_BARE"))
if BARE:
    bare.make()


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Restore logging after a test: a service that starts in this process configures it."""
    loggers = logging.getLogger("talerec"), logging.getLogger()
    before = [(logger, logger.level, logger.handlers[:]) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real logs; tests that need it say that they were skipped without it."""
    folder = os.environ.get("TALEREC_DATA")
    if not folder:
        pytest.skip("needs the real logs: set TALEREC_DATA to their folder")
    path = Path(folder).resolve()
    if not path.is_dir():
        pytest.fail(f"TALEREC_DATA is {folder}, which is no folder")
    return path


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was skipped, and why: one line for each reason rather than for each test."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", ())
    )
    if reasons:
        terminalreporter.section("what was skipped", "=")
    for reason, tests in reasons.most_common():
        terminalreporter.line(f"{tests:>5}  {reason}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run groups with slow tests first, so that short ones are left for workers without work."""
    slow = {group_of(item.nodeid) for item in items if item.get_closest_marker("slow")}

    def place(item: pytest.Item) -> tuple[bool, bool, str]:
        group = group_of(item.nodeid)
        return group not in SHARED, group not in slow, group

    items.sort(key=place)


#: Folders whose tests share something expensive: a Spark cluster, a service behind a browser.
SHARED = ("tests/spark/", "tests/serve/page/")


def group_of(node_id: str) -> str:
    """Return which tests a test runs with, in one worker: those of its file, or of its folder."""
    return next((s for s in SHARED if node_id.startswith(s)), node_id.partition("::")[0])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile`, give workers whole groups: what tests share is made once."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class GroupScheduling(LoadFileScheduling):
        """Gives the tests of a group to one worker, groups in the order of collection."""

        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False
    return GroupScheduling(config, log)

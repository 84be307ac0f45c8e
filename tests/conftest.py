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

#: Idle threads of torch sleep: two workers on two cores would wait for each other's spinning.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

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
    """Run slow tests first, so that short ones are left for workers that run out of work."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)

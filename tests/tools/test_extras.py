"""Extras, each installed alone from the wheel into an empty environment, do their jobs."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import pytest

import extras

#: Those that are small to install, `trace` with `serve`; `make release-check` tries each of them.
LIGHT = ["tune", "trace", "databases"]
#: Extras for work on this project.
PROJECT = {"browser", "dev", "docs", "release", "stand-ins"}


def test_every_extra_has_a_job():
    project = tomllib.loads((extras.ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(project["optional-dependencies"]) == set(extras.JOBS) | PROJECT


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="the service is stopped by SIGTERM")
def test_light_extras_installed_alone_do_their_jobs(tmp_path: Path):
    try:
        problems = extras.try_extras(LIGHT, tmp_path)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"pip cannot install packages here: {error.stderr.strip().splitlines()[-1]}")
    assert problems == []

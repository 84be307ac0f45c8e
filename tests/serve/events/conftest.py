"""A log, its model, and a service with a store, for every test of events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import talerec as tr


@pytest.fixture(scope="module")
def log() -> tr.Log:
    return tr.synthetic_log(1500, users=80, items=60, seed=3)


@pytest.fixture(scope="module")
def saved(log: tr.Log, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tr.TALE(reg=20).fit(log).save(tmp_path_factory.mktemp("models") / "shop.tale")


@pytest.fixture
def service(saved: Path, tmp_path: Path) -> Iterator[Any]:
    from service import service_with_store

    with service_with_store(saved, tmp_path / "run", f"sqlite:///{tmp_path}/shop.db") as local:
        yield local

"""A log, a model, and the application that serves it, for all test files of the service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import talerec as tr


@pytest.fixture(scope="session")
def log() -> tr.Log:
    return tr.synthetic_log(3000, users=300, items=150, seed=3)


@pytest.fixture(scope="session")
def model(log: tr.Log) -> tr.Model:
    return tr.TALE(reg=20).fit(log)


@pytest.fixture(scope="session")
def saved(model: tr.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model.save(tmp_path_factory.mktemp("models") / "shop.tale", metrics={"HR@10": 0.25})


@pytest.fixture(scope="module")
def service(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from service import Local

    return Local(saved, tmp_path_factory.mktemp("run"))

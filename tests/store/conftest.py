"""Stores of both kinds for tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from postgres import postgres
from talerec.store import Store


@pytest.fixture(scope="session")
def server() -> Iterator[Any]:
    with postgres() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shop.db"
    server = request.getfixturevalue("server")
    name = f"shop_{uuid.uuid4().hex}"
    with server.connect() as connection:
        connection.execute(f"create database {name}")
    return str(server.address).rpartition("/")[0] + f"/{name}"


@pytest.fixture
def opened() -> Iterator[Any]:
    """Return a function that opens stores, which are closed at the end."""
    with ExitStack() as every:
        yield lambda address: every.enter_context(Store.open(address))

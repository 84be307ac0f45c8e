"""A shop whose users stay with a color, its model of content, and a service with a store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import talerec as tr

COLORS = ["red", "green", "blue", "black"]
N_ITEMS = 24  # item i has the color i % 4


@pytest.fixture(scope="session")
def shop() -> tr.Log:
    items = range(N_ITEMS)
    rows = [(u, 4 * ((u + n) % 6) + u % 4, 1.6e9 + 86_400 * n) for u in range(24) for n in range(5)]
    log = tr.Log.from_frame(pl.DataFrame(rows, ["user_id", "item_id", "timestamp"], orient="row"))
    table = {
        "item_id": items,
        "title": [f"{COLORS[i % 4]} tent number {i}" for i in items],
        "brand": [f"brand {COLORS[i % 4]}" for i in items],
        "tags": [[COLORS[i % 4], f"size {i % 3}"] for i in items],
        "price": [float(10 + i) for i in items],
        "stock": items,
        "since": [f"2020-0{1 + i % 9}-01" for i in items],
        "vector": [[float(i % 4 == c) for c in range(4)] for i in items],
    }
    return log.with_items(pl.DataFrame(table))


@pytest.fixture(scope="session")
def content(shop: tr.Log, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sklearn", reason="the extra content is not installed")
    return tr.Content().fit(shop).save(tmp_path_factory.mktemp("models") / "content.tale")


@pytest.fixture(scope="session")
def markov(shop: tr.Log, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tr.Markov().fit(shop).save(tmp_path_factory.mktemp("models") / "markov.tale")


@pytest.fixture
def service(content: Path, tmp_path: Path) -> Iterator[Any]:
    from service import service_with_store

    address = f"sqlite:///{tmp_path}/shop.db"
    with service_with_store(content, tmp_path / "run", address, ids="integer") as local:
        yield local

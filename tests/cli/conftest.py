"""A log, titles and a model for every test of the command."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from command import works, write_log


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("log") / "log.csv")


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("items") / "items.csv"
    titles = ["Tent [red]", "Stove :fire:", "Café", "New\nline", "[/bold]"]
    ids = [f"i{n}" for n in range(5)]
    pl.DataFrame({"item_id": ids, "title": titles}).write_csv(path)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, log: Path, items: Path) -> Path:
    folder = tmp_path_factory.mktemp("model") / "shop.tale"
    works("fit", log, "-o", folder, "--items", items, "--model", "tale", "--set", "reg=2")
    return folder

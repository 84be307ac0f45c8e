"""Two models of different logs, and the first of them saved."""

from __future__ import annotations

import math
from pathlib import Path

import polars as pl
import pytest

import talerec as tr
from bundles import tiny_log


@pytest.fixture(scope="module")
def old() -> tr.Model:
    titles = pl.DataFrame({"item_id": ["i1", "i2"], "title": ["Één", "[b]two[/b]"]})
    return tr.TALE(reg=1.0, solver="exact").fit(tiny_log().with_items(titles))


@pytest.fixture(scope="module")
def new() -> tr.Model:
    return tr.TALE(reg=2.0, decay=math.inf, solver="exact").fit(tiny_log(1))


@pytest.fixture
def saved(old: tr.Model, tmp_path: Path) -> Path:
    return old.save(tmp_path / "m.tale")

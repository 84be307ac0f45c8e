"""Items that only the item table has: models of ids answer as if there were none."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

import talerec as tr
from kinds import maker
from talerec.data.split import time_split
from talerec.models import MODELS

COLORS = ["red", "green", "blue", "black"]


def log_with_late_items() -> tr.Log:
    """Return a log of 60 users and 30 items, of which the last ten come late."""
    draw = np.random.default_rng(3)
    rows = []
    for user in range(60):
        for step in range(8):
            day = step * 10 + int(draw.integers(0, 9))
            n_items = 20 if day < 40 else 26 if day < 52 else 30
            rows.append((user, int(draw.integers(0, n_items)), 86_400 * (19_000 + day)))
    frame = pl.DataFrame(rows, ["user_id", "item_id", "timestamp"], orient="row")
    return tr.Log.from_frame(frame)


def item_table(n_items: int = 50) -> pl.DataFrame:
    """Return a table of items 0 to n_items - 1, except 7, which only the log has."""
    colors = [COLORS[item % 4] for item in range(n_items)]
    table = pl.DataFrame({"item_id": range(n_items), "color": colors})
    return table.filter(pl.col("item_id") != 7)


SPLIT_DAY = "2022-03-01"  # day 52: items from 20 on have few rows before it, or none


@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name].extra != "content"])
def test_models_of_ids_answer_as_without_the_table(name: str) -> None:
    plain = log_with_late_items()
    described = plain.with_items(item_table())
    make = maker(name, **({"content": "off"} if name == "ranker" else {}))
    lists = [make().fit(log).recommend(list(range(60)), k=10) for log in (plain, described)]
    assert lists[0].equals(lists[1])
    splits = [time_split(log, SPLIT_DAY) for log in (plain, described)]
    assert splits[1].train.catalogue is not None
    assert len(splits[1].train.catalogue) > 20  # of the table alone, and of held-out rows alone
    results = [tr.evaluate(make().fit(split.train), split) for split in splits]
    frames = [result.frame.select(results[0].frame.columns) for result in results]
    assert frames[0].equals(frames[1])  # the table adds diversity and calibration of lists
    assert results[0].metrics == results[1].metrics
    assert results[0].coverage == results[1].coverage
    assert results[0].solver == results[1].solver


def test_cases_know_items_of_the_catalogue_only_on_request() -> None:
    log = log_with_late_items().with_items(item_table())
    split = time_split(log, SPLIT_DAY)
    n_items, plain = len(split.train.items), split.cases("test")
    assert plain.target.max() < n_items
    assert plain.histories.item.max() < n_items
    extended = split.cases("test", catalogue=True)
    ids = split.train.with_catalogue().items.ids
    rows = plain.histories.stop
    expected: list[Any] = log.items.ids.gather(log.item[rows]).to_list()
    targets = [None if t < 0 else ids[int(t)] for t in extended.target]
    assert targets == expected
    assert (extended.target[plain.target >= 0] == plain.target[plain.target >= 0]).all()
    assert (extended.target[plain.target < 0] >= n_items).all()


def test_items_without_a_row_in_the_table_stay_unknown() -> None:
    log = log_with_late_items()
    late = pl.DataFrame({"item_id": [20, 21], "color": ["red", "blue"]})
    split = time_split(log.with_items(late), "2022-02-17")
    cases = split.cases("test", catalogue=True)
    unknown = log.items.ids.gather(log.item[cases.histories.stop[cases.target < 0]]).to_list()
    assert set(unknown).isdisjoint({20, 21})


def test_targets_are_grouped_by_their_training_rows() -> None:
    log = log_with_late_items().with_items(item_table())
    split = time_split(log, SPLIT_DAY)
    result = tr.evaluate(tr.Popular().fit(split.train), split)
    counts = np.append(np.bincount(split.train.item), 0)[split.cases("test").target]
    expected = ["none" if n == 0 else "few" if n < 5 else "many" for n in counts]
    assert result.frame["item_rows"].to_list() == expected
    assert set(expected) == {"none", "few", "many"}
    groups = result.groups["item_rows"]
    assert sum(int(part["cases"] or 0) for part in groups.values()) == result.cases
    assert groups["none"]["HR@10"] == 0.0

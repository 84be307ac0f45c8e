"""Rows on their way to the parts of their users, without a cluster."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import talerec as tr
from logs import START
from talerec.spark import evaluation_tasks as judging
from talerec.spark import partitions as parts


def saved(rows: pl.DataFrame, log: tr.Log, ties: str, limit: int | None, folder) -> list[tr.Log]:
    """The rows of all parts, sent in two batches, the later one first."""
    rank = np.arange(len(log.items), dtype=np.int32)
    items = folder / "items.parquet"
    pl.DataFrame({"id": log.items.ids, "position": rank, "rank": rank}).write_parquet(items)
    order = parts.Order(str(items), ties == "item", limit, 1.0)
    users = parts.Users.cut(log.users.ids, 2, numeric=False)
    into = parts.Rows(str(folder), len(log.items), limit or 100, None, True)
    sent = [
        batch
        for half in (rows[len(rows) // 2 :], rows[: len(rows) // 2])
        for batch in parts.spread(half.to_arrow().to_batches(), users, order, 10**6)
    ]
    for part in range(users.parts):
        mine = [batch for batch in sent if batch.column("block")[0].as_py() == part]
        parts.save_part(mine, part, users, into, 0)
    return [into.newest(part) for part in range(users.parts)]


def tied_rows() -> pl.DataFrame:
    """Rows of one user, item and time too: what they are worth tells them apart."""
    rng = np.random.default_rng(1)
    return pl.DataFrame(
        {
            "user_id": rng.integers(0, 6, 90),
            "item_id": rng.integers(0, 3, 90),
            "timestamp": START + rng.integers(0, 2, 90),
            "worth": rng.permutation(90) + 1.0,
        }
    )


@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize("ties", ["file", "item"])
def test_simultaneous_rows_have_the_order_of_one_machine(tmp_path, ties, limit):
    frame = tied_rows()
    log = tr.order_ties(tr.Log.from_frame(frame, weight="worth", time_unit="us"), ties)
    rows = frame.rename({"user_id": "user", "item_id": "item", "timestamp": "time", "worth": "weight"})  # fmt: skip
    found = saved(rows.with_columns(place=pl.int_range(90)), log, ties, limit, tmp_path)
    expected = log if limit is None else log.keep(log.recent(limit))
    for name in ("item", "time"):
        ours = np.concatenate([getattr(part, name) for part in found])
        np.testing.assert_array_equal(ours, getattr(expected, name))
    worth = np.concatenate([part.weight for part in found])
    np.testing.assert_allclose(worth, expected.weight * log.weight_unit)


@pytest.mark.parametrize("ties", ["file", "item"])
def test_rows_that_are_judged_have_the_order_of_one_machine(tmp_path, ties):
    frame = tied_rows()
    log = tr.order_ties(tr.Log.from_frame(frame, weight="worth", time_unit="us"), ties)
    rows = frame.rename({"user_id": "user", "item_id": "item", "timestamp": "time", "worth": "weight"})  # fmt: skip
    shuffled = rows.with_columns(pl.col("item").cast(pl.Int32), place=pl.int_range(90)).reverse()
    into = parts.Rows(str(tmp_path), 3, 90, None, True)
    judging.save_rows(shuffled.to_arrow().to_batches(), 0, into, ties == "item")
    found = into.log(0)
    np.testing.assert_array_equal(found.item, log.item)
    np.testing.assert_allclose(found.weight, log.weight * log.weight_unit)

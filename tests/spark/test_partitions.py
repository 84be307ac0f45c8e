"""Rows on their way to the partitions of their users, without a cluster."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import talerec as tr
from logs import START
from talerec.spark import evaluation_tasks, messages, partitions


def save(rows: pl.DataFrame, log: tr.Log, ties: str, limit: int | None, folder) -> list[tr.Log]:
    """Return the rows of all partitions, sent in two batches, the later one first."""
    rank = np.arange(len(log.items), dtype=np.int32)
    items = folder / "items.parquet"
    pl.DataFrame({"id": log.items.ids, "position": rank, "rank": rank}).write_parquet(items)
    options = partitions.RowOptions(str(items), ties == "item", limit, 1.0)
    users = partitions.UserPartitions.from_sample(log.users.ids, 2, is_numeric=False)
    saved = partitions.RowFiles(str(folder), len(log.items), limit or 100, None, True)
    sent = [
        batch
        for frame in (rows[len(rows) // 2 :], rows[: len(rows) // 2])
        for batch in partitions.send_rows(frame.to_arrow().to_batches(), users, options, 10**6)
    ]
    for partition in range(users.n_partitions):
        received = [batch for batch in sent if batch.column("block")[0].as_py() == partition]
        partitions.save_partition(received, partition, users, saved, 0)
    return [saved.load_latest(partition) for partition in range(users.n_partitions)]


def rows_with_ties() -> pl.DataFrame:
    """Return rows that may share user, item and time: only their weights differ."""
    rng = np.random.default_rng(1)
    return pl.DataFrame(
        {
            "user_id": rng.integers(0, 6, 90),
            "item_id": rng.integers(0, 3, 90),
            "timestamp": START + rng.integers(0, 2, 90),
            "worth": rng.permutation(90) + 1.0,
        }
    )


def as_events(frame: pl.DataFrame) -> pl.DataFrame:
    """Return rows with the columns that tasks read."""
    names = {"user_id": "user", "item_id": "item", "timestamp": "time", "worth": "weight"}
    return frame.rename(names).with_columns(row_number=pl.int_range(len(frame)))


@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize("ties", ["file", "item"])
def test_rows_with_equal_times_have_the_order_of_one_machine(tmp_path, ties, limit):
    frame = rows_with_ties()
    log = tr.order_ties(tr.Log.from_frame(frame, weight="worth", time_unit="us"), ties)
    saved = save(as_events(frame), log, ties, limit, tmp_path)
    expected = log if limit is None else log.keep(log.recent(limit))
    for name in ("item", "time"):
        ours = np.concatenate([getattr(partition, name) for partition in saved])
        np.testing.assert_array_equal(ours, getattr(expected, name))
    weight = np.concatenate([partition.weight for partition in saved])
    np.testing.assert_allclose(weight, expected.weight * log.weight_unit)


@pytest.mark.parametrize("ties", ["file", "item"])
def test_rows_that_are_evaluated_have_the_order_of_one_machine(tmp_path, ties):
    frame = rows_with_ties()
    log = tr.order_ties(tr.Log.from_frame(frame, weight="worth", time_unit="us"), ties)
    shuffled = as_events(frame).with_columns(pl.col("item").cast(pl.Int32)).reverse()
    rows = partitions.RowFiles(str(tmp_path), 3, 90, None, True)
    batches = shuffled.to_arrow().to_batches()
    evaluation_tasks.save_user_rows(batches, 0, rows, ties == "item")
    saved = rows.load_log(0)
    np.testing.assert_array_equal(saved.item, log.item)
    np.testing.assert_allclose(saved.weight, log.weight * log.weight_unit)


@pytest.mark.parametrize("limit", [3, 100])
def test_the_sizes_of_a_partition_count_pairs_of_latest_rows(tmp_path, limit):
    frame = rows_with_ties()
    log = tr.Log.from_frame(frame, weight="worth", time_unit="us")
    save(as_events(frame), log, "file", limit, tmp_path)
    sizes = sum(messages.read_array(tmp_path, f"sizes-{partition}") for partition in range(2))
    counts = [min(int(count), limit) for count in np.diff(log.ptr)]
    n_pairs = sum(1 for count in counts for last in range(count) for _ in range(last + 1))
    assert sizes[[0, 2]].tolist() == [len(log.users), n_pairs]
    assert sizes[1] >= sum(counts)  # each batch may send that many rows of a user


@pytest.mark.parametrize("count", [2, 5])
def test_cuts_of_an_items_times_leave_equal_slices(count):
    """Of a popular item, sampled by sets of users whose rows differ in number and time."""
    rng = np.random.default_rng(4)
    sets = [np.sort(rng.integers(a, b, n)) for a, b, n in [(0, 900, 4_000), (500, 2_000, 700)]]
    other = partitions._sample_item_times(3, rng.integers(0, 10**6, 500))
    sampled = [partitions._sample_item_times(7, times) for times in sets]
    cuts = partitions.cut_times(np.concatenate([other, *sampled], axis=1), 7, count)
    assert len(cuts) == count - 1
    times = np.sort(np.concatenate(sets))
    sizes = np.diff([0, *np.searchsorted(times, cuts), len(times)])
    np.testing.assert_allclose(sizes, len(times) / count, atol=0.05 * len(times))
    assert partitions.cut_times(other, 7, count).tolist() == []


@pytest.mark.parametrize("values", [[], [1.5], list(range(100))])
def test_arrays_come_back_empty_ones_too(tmp_path, values):
    messages.save_array(tmp_path, "x", np.array(values))
    for read in (messages.map_array, messages.read_array):
        assert read(tmp_path, "x").tolist() == values

"""The synthetic shop: exact in size, equal on any number of threads, and like real logs."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talerec.data import Log, synthetic_log
from talerec.data.synthetic import END, START, _write_times
from talerec.errors import TalerecError
from talerec.runtime import Array

HOUR, DAY = 3600 * 10**6, 86_400 * 10**6


@pytest.fixture(scope="module")
def log() -> Log:
    return synthetic_log(100_000, items=3_000, seed=7)


def same(a: Log, b: Log) -> bool:
    columns = zip((a.ptr, a.item, a.time), (b.ptr, b.item, b.time), strict=True)
    return all(np.array_equal(x, y) for x, y in columns)


def steps(log: Log) -> tuple[Array, Array, Array]:
    """Each row and the one after it of the same user: items before and after, and the gap."""
    user = log.user_codes()
    rows = np.flatnonzero(user[1:] == user[:-1])
    return log.item[rows], log.item[rows + 1], log.time[rows + 1] - log.time[rows]


def codes(names: pl.Series) -> Array:
    return names.rank("dense").to_numpy()


# -- size and form ---------------------------------------------------------------------------------


def test_users_have_ten_rows_on_average_unless_their_number_is_set() -> None:
    assert len(synthetic_log(1_009, items=50).users) == 100
    assert len(synthetic_log(9, items=50).users) == 1
    assert len(synthetic_log(1_000, items=50, users=30).users) == 30


@pytest.mark.parametrize("rows", [1, 2, 19, 1000, 20_000])
def test_the_number_of_rows_is_exact(rows: int) -> None:
    log = synthetic_log(rows)
    assert log.rows == rows == log.ptr[-1] == len(log.time)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(1, 400), st.integers(1, 60), st.integers(-(2**70), 2**70))
def test_any_size_gives_a_well_formed_log(
    data: st.DataObject, rows: int, items: int, seed: int
) -> None:
    users = data.draw(st.integers(1, rows))
    log = synthetic_log(rows, items=items, users=users, seed=seed)
    assert (log.rows, len(log.users), len(log.items)) == (rows, users, items)
    assert (np.diff(log.ptr) >= 1).all()
    assert 0 <= log.item.min() <= log.item.max() < items
    _, _, gap = steps(log)
    assert (gap >= 0).all()


def test_times_are_whole_seconds_of_the_two_years(log: Log) -> None:
    assert (log.time % 10**6 == 0).all()
    assert log.time.min() >= START.timestamp() * 10**6
    assert log.time.max() < END.timestamp() * 10**6
    assert np.ptp(log.time) > 0.95 * (END - START).total_seconds() * 10**6


def test_one_user_of_many_rows_still_fits_the_two_years() -> None:
    log = synthetic_log(50_000, users=1)
    assert (np.diff(log.time) >= 0).all()
    assert log.time[-1] < END.timestamp() * 10**6


@pytest.mark.parametrize("seed", range(5))
def test_times_that_do_not_fit_are_shrunk_to_the_whole_two_years(seed: int) -> None:
    """Gaps lose less than a second each: the first row is at the start, the last near the end."""
    time, span = np.zeros(5_000, np.int64), int((END - START).total_seconds())
    _write_times(np.array([seed], np.uint64), time)
    assert time[0] == 0
    assert span - 1 - len(time) <= time[-1] <= span - 1


def test_columns_are_those_of_any_log(log: Log) -> None:
    assert (log.ptr.dtype, log.item.dtype, log.time.dtype) == (np.int64, np.int32, np.int64)
    repeated = Log.from_frame(log.to_frame())
    assert same(repeated, log.compact())
    assert repeated.items.ids.to_list() == log.compact().items.ids.to_list()


def test_histories_are_long_tailed_but_not_endless(log: Log) -> None:
    length = np.diff(log.ptr)
    assert length.mean() == 10
    assert np.median(length) < 8
    assert 100 < length.max() <= 600
    assert 10 < (length**2).sum() / 2 / log.rows < 20


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rows": 0}, "rows is 0"),
        ({"rows": 100_000_001}, "rows is 100000001"),
        ({"rows": 2.5}, "rows is 2.5"),
        ({"rows": 5, "items": 0}, "items is 0"),
        ({"rows": 5, "users": 0}, "users is 0"),
        ({"rows": 5, "users": 6}, "users is 6, but 5 rows"),
    ],
)
def test_impossible_sizes_are_refused_in_one_line(arguments: dict[str, int], words: str) -> None:
    with pytest.raises(TalerecError, match=f"^{words}.*$"):
        synthetic_log(**arguments)


# -- determinism -----------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_log_and_another_seed_another() -> None:
    assert same(synthetic_log(2_000, seed=3), synthetic_log(2_000, seed=3))
    assert not same(synthetic_log(2_000, seed=3), synthetic_log(2_000, seed=4))


def test_titles_do_not_change_the_rows() -> None:
    bare = synthetic_log(2_000, titles=False)
    assert bare.info is None
    assert same(bare, synthetic_log(2_000))


def test_the_number_of_threads_does_not_change_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALEREC_THREADS", "1")
    alone = synthetic_log(30_000)
    monkeypatch.setenv("TALEREC_THREADS", "3")
    assert same(alone, synthetic_log(30_000))


# -- what real logs have ---------------------------------------------------------------------------


def test_a_row_follows_at_once_within_half_an_hour_or_after_seven_hours(log: Log) -> None:
    """Of users whose rows fit into the two years; the gaps of others are shrunk."""
    time, span = np.zeros(20, np.int64), int((END - START).total_seconds())
    gaps = []
    for seed in range(2_000):
        _write_times(np.array([seed], np.uint64), time)
        if time[-1] - time[0] < span / 2:
            gaps.append(np.diff(time))
    gap = np.concatenate(gaps)
    assert (gap >= 0).all()
    assert gap[(gap > 0) & (gap < 7 * 3600)].min() == 5
    assert gap[gap < 7 * 3600].max() == 5 + 1800


def test_some_rows_are_simultaneous_and_visits_are_bursts(log: Log) -> None:
    _, _, gap = steps(log)
    assert 0.08 < (gap == 0).mean() < 0.2
    assert 0.5 < (gap < HOUR).mean() < 0.8
    assert ((gap > HOUR) & (gap < DAY / 4)).mean() < 0.01
    away = gap[gap > HOUR] / DAY
    assert 3 < np.median(away) < 14
    assert np.quantile(away, 0.99) > 8 * np.median(away)


def test_some_users_buy_an_item_again(log: Log) -> None:
    pairs = np.unique(log.user_codes().astype(np.int64) * len(log.items) + log.item)
    assert 0.01 < 1 - len(pairs) / log.rows < 0.1


def test_few_rows_repeat_one_of_the_last_thirty_items(log: Log) -> None:
    """Three of a hundred rows repeat an item on purpose; others avoid what was just bought."""
    near = rows = 0
    for first, end in pairwise(log.ptr[:3_000].tolist()):
        items = log.item[first:end].tolist()
        near += sum(items[r] in items[max(r - 30, 0) : r] for r in range(1, len(items)))
        rows += max(len(items) - 1, 0)
    assert rows > 10_000
    assert 0.02 < near / rows < 0.06


def test_few_items_have_most_rows_and_most_items_have_some(log: Log) -> None:
    count = np.sort(np.bincount(log.item, minlength=len(log.items)))[::-1]
    assert 0.5 < count[: len(count) // 5].sum() / log.rows < 0.9
    assert count[0] < 0.05 * log.rows
    assert (count > 0).mean() > 0.7


def test_an_id_does_not_reveal_popularity_or_category(log: Log) -> None:
    assert log.info is not None
    place = np.arange(len(log.items))
    count = np.bincount(log.item, minlength=len(log.items))
    assert abs(np.corrcoef(place, count)[0, 1]) < 0.08
    assert abs(np.corrcoef(place, codes(log.info["category"]))[0, 1]) < 0.08


def test_interest_lasts_through_a_visit_and_drifts_between_visits(log: Log) -> None:
    assert log.info is not None
    category = codes(log.info["category"])
    before, after, gap = steps(log)
    stays = category[before] == category[after]
    shares = [stays[(gap >= a) & (gap < b)].mean() for a, b in ((0, HOUR), (DAY, 3 * DAY))]
    shares.append(stays[gap > 7 * DAY].mean())
    assert shares[0] > shares[1] + 0.15
    assert shares[1] > shares[2] + 0.1
    assert shares[0] > 2 * shares[2]


def test_companions_follow_each_other_far_more_often_than_chance(log: Log) -> None:
    assert log.info is not None
    name = pl.col("title").str.splitn(" ", 3).struct
    line = codes(log.info.select(pl.concat_str("category", name[0], name[1])).to_series())
    before, after, gap = steps(log)
    chance = ((np.bincount(line[log.item]) / log.rows) ** 2).sum()
    together = line[before] == line[after]
    assert together[gap < HOUR].mean() > 10 * chance
    assert together[gap > 7 * DAY].mean() < 0.3 * together[gap < HOUR].mean()


def test_items_come_into_fashion_and_go(log: Log) -> None:
    popular = np.flatnonzero(np.bincount(log.item) >= 50)
    shuffled = np.random.default_rng(0).permutation(log.time)
    spread = np.array([log.time[log.item == i].std() for i in popular])
    by_chance = np.array([shuffled[log.item == i].std() for i in popular])
    assert np.median(spread / by_chance) < 0.6


# -- titles ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("items", [1, 11, 600, 30_000])
def test_every_item_has_a_unique_title(items: int) -> None:
    info = synthetic_log(10, items=items).info
    assert info is not None
    assert info.columns == ["item_id", "title", "category"]
    assert info["item_id"].to_list() == list(range(1, items + 1))
    assert info.null_count().sum_horizontal().item() == 0
    assert info["title"].n_unique() == items
    assert info["title"].str.contains(r"^\w+ \w+ \S.*\S$").all()

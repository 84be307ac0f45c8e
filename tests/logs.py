"""Tiny logs, and Hypothesis strategies that make nasty ones."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import polars as pl
from hypothesis import settings
from hypothesis import strategies as st

from talerec.data import Log

SECOND = 10**6
DAY = 86_400 * SECOND
YEAR = 365 * DAY
START = 1_262_304_000 * SECOND  # 2010-01-01

#: For properties of cheap functions; no deadline, since the first example may compile a kernel.
quick = settings(max_examples=40, deadline=None)

Row = tuple[Any, Any, int]  # user, item, microseconds


def tiny_log(rows: list[tuple[Any, Any, float]]) -> Log:
    """A log from (user, item, seconds since 1970), rows in any order."""
    return log_of([(user, item, round(seconds * SECOND)) for user, item, seconds in rows])


def log_of(rows: list[Row]) -> Log:
    """A log from (user, item, microseconds since 1970), rows in any order."""
    users, items, times = (list(column) for column in zip(*rows, strict=True))
    frame = pl.DataFrame({"user_id": users, "item_id": items, "timestamp": times})
    return Log.from_frame(frame, time_unit="us")


def hour_log(users: int = 420, rows: int = 12, items: int = 40, seed: int = 0) -> Log:
    """Every user has one item in the morning and another one in the evening, in random order.

    Items have a title and a color. Only features that know hours tell which of the two comes next.
    """
    rng = np.random.default_rng(seed)
    log: list[Row] = []
    for user in range(users):
        pair = rng.permutation(items)[:2]
        day = rng.integers(0, 60)
        for step in range(rows):
            evening = int(rng.integers(0, 2))
            hours = 8 + 12 * evening + rng.random() / 2
            when = 1_600_000_000 * SECOND + int(day + step) * DAY + round(hours * DAY / 24)
            log.append((user, int(pair[evening]), when))
    names = [f"Item {item}" for item in range(items)]
    colors = (["red", "blue"] * items)[:items]
    table = pl.DataFrame({"item_id": list(range(items)), "title": names, "color": colors})
    return log_of(log).with_items(table)


def count_last_week(log: Log) -> np.ndarray:
    """Return the rows by item of a log's last week, as the service counts what is popular.

    The week has the latest 1,000 rows at least; a user's rows with an item count three times.
    """
    frame = log.to_frame().sort("timestamp")
    last = frame["timestamp"][-1]
    since = min(last - timedelta(days=7), frame["timestamp"][-min(1000, len(frame))])
    rows = frame.filter(pl.col("timestamp") >= since)
    pairs = rows.group_by("user_id", "item_id").agg(pl.len().clip(0, 3).alias("n"))
    counts = dict(pairs.group_by("item_id").agg(pl.col("n").sum()).iter_rows())
    return np.array([float(counts.get(item, 0)) for item in log.items.ids])


def device_frame(rows: int = 4000, users: int = 250, seed: int = 0) -> pl.DataFrame:
    """On each device, four rows in five are of the 20 items that belong to it."""
    rng = np.random.default_rng(seed)
    device = rng.integers(0, 2, rows)
    own = device * 20 + rng.integers(0, 20, rows)
    item = np.where(rng.random(rows) < 0.8, own, rng.integers(0, 40, rows))
    columns = {
        "user_id": rng.integers(0, users, rows),
        "item_id": item,
        "timestamp": (1_600_000_000 * SECOND + np.arange(rows) * DAY // 200) // SECOND,
        "device": np.where(device == 1, "phone", "desk"),
    }
    return pl.DataFrame(columns)


def at(microseconds: int) -> Any:
    """A moment that is no number, whose unit its size would tell."""
    return np.datetime64(microseconds, "us")


def rows_of(log: Log) -> list[Row]:
    """The rows of a log as it keeps them, with external ids."""
    ids = zip(log.user_codes(), log.item, log.time, strict=True)
    return [(log.users.ids[int(u)], log.items.ids[int(i)], int(t)) for u, i, t in ids]


def histories_of(rows: list[Row]) -> dict[Any, list[Row]]:
    """Rows by user, in the order of the users' ids; a user's rows by time, ties as they stand."""
    users = sorted({user for user, _, _ in rows})
    return {u: sorted((row for row in rows if row[0] == u), key=lambda row: row[2]) for u in users}


#: Few distinct instants, so that ties are common; gaps of a microsecond, of hours and of 14 years.
instants = st.one_of(
    st.sampled_from([START, START + 1, START + SECOND, START + DAY // 8, START + 14 * YEAR]),
    st.integers(0, 20).map(lambda hours: START + hours * DAY // 24),
    st.integers(0, 89 * YEAR),
)


@st.composite
def rows(draw: st.DrawFn, max_users: int = 5, max_items: int = 5, max_rows: int = 30) -> list[Row]:
    """Unsorted rows with ties, repeats and duplicates; at times one user or one item."""
    users = st.integers(0, draw(st.sampled_from([1, max_users, max_users])) - 1)
    items = st.integers(0, draw(st.sampled_from([1, max_items, max_items])) - 1)
    row = st.tuples(users, items.map("i{}".format), instants)
    drawn = draw(st.lists(row, min_size=1, max_size=max_rows))
    repeated = draw(st.lists(st.sampled_from(drawn), max_size=min(3, max_rows - len(drawn))))
    return drawn + repeated


def logs(max_users: int = 5, max_items: int = 5, max_rows: int = 30) -> st.SearchStrategy[Log]:
    """Logs of such rows; every time lies inside 1970 to 2100."""
    return rows(max_users, max_items, max_rows).map(log_of)


def described(log: Log) -> Log:
    """Return the log with an item table for models of content: a direction for each id.

    Ids are whole numbers below 128. Items without rows are unknown, as without the table.
    """
    ids = log.items.ids
    vectors = [[float(number == item) for number in range(128)] for item in ids.to_list()]
    table = pl.DataFrame({"item_id": ids, "vector": vectors})
    return replace(log.with_items(table), catalogue=None)

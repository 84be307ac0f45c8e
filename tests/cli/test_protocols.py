"""Splits, sessions and baskets that a log does not allow: one line each, before any fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from command import refusal, talerec

SPARK = ["--engine", "spark", "--split", "every:last:10%", "--model", "tale"]


def times(day: Any, second: Any) -> Any:
    """Return the times that lie so many days and seconds after 2020-09-13."""
    return np.datetime64("2020-09-13", "us") + (day * 86_400 + second) * np.timedelta64(10**6, "us")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of 20 users with 8 rows, a day apart, in sessions and baskets of several kinds.

    Columns: alone (a session per row), shared (the day, so that a session has rows of all users),
    visit (four rows of a user), empty (without a value in one row).
    """
    path = tmp_path_factory.mktemp("shop") / "shop.csv"
    row = np.arange(160)
    user, day = row // 8, row % 8
    frame = {
        "user_id": user,
        "item_id": (user * 3 + day) % 11,
        "timestamp": times(day, user),
        "alone": row,
        "shared": day,
        "visit": row // 4,
        "empty": [None, *row[1:].tolist()],
    }
    pl.DataFrame(frame).write_csv(path)
    return path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        # a moment with nothing before or behind
        (["--split", "every:2019-01-01"], "no row lies before"),
        (["--split", "every:2031-01-01"], "no row lies after"),
        (["--split", "every:2031-01-01", "--refit-every", "7d"], "no row lies after"),
        (["--split", "at:2019-01-01"], "no row lies before"),
        (["--split", "at:2031-01-01"], "no row lies after"),
        (["--split", "every:last:0%"], "last takes a percentage of the rows"),
        (["--split", "last:100%"], "last takes a percentage of the rows"),
        (["--split", "leave-one-out", "--refit-every", "7d"], "--refit-every needs --split every:"),
        # sessions of one row
        (["--session", "alone", "--split", "every:2020-09-16"], "has an earlier row of its"),
        (["--session", "alone"], "no session has three rows"),
        (["--session-gap", "1h", "--split", "every:2020-09-16"], "has an earlier row of its"),
        # columns of sessions and baskets
        (["--session", "shared"], "has rows of users"),
        (["--session", "shared", "--across"], "has rows of users"),
        (["--session", "empty"], "row 1: empty is empty"),
        (["--basket", "empty"], "row 1: empty is empty"),
        (["--session", "nothing"], "there is no column 'nothing'"),
        (["--basket", "nothing"], "there is no column 'nothing'"),
        # baskets that leave no case
        (["--basket", "time", "--split", "at:2019-01-01"], "no row lies before"),
        (["--basket", "user_id"], "no user has three baskets"),
        # what does not go together
        (["--basket", "time", "--target", "buy"], "--target does not go with baskets"),
        (["--session", "visit", "--basket", "time"], "--basket and sessions exclude each other"),
        ([*SPARK, "--session", "visit"], "sessions and baskets need --engine"),
        ([*SPARK, "--basket", "time"], "sessions and baskets need --engine"),
    ],
)  # fmt: skip
def test_what_a_log_does_not_allow_is_one_line(
    shop: Path, options: list[str], message: str
) -> None:
    model = [] if {"--models", "--model"} & {*options} else ["--model", "popular"]
    assert message in refusal("evaluate", shop, *model, *options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--session-gap", "30m"], "timestamp"),
        (["--basket", "time"], "timestamp"),
        (["--split", "every:2020-09-16"], "the log has no times"),
        (["--split", "every:last:10%"], "the log has no times"),
        (["--model", "tifuknn"], "timestamp"),
    ],
)
def test_a_log_without_times_is_one_line(
    shop: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    path = tmp_path / "plain.csv"
    pl.read_csv(shop).select("user_id", "item_id", "visit").write_csv(path)
    model = [] if "--model" in options else ["--model", "popular"]
    assert message in refusal("evaluate", path, *model, *options)
    assert talerec("evaluate", path, "--model", "popular", "--session", "visit").code == 0


@pytest.mark.parametrize(("size", "n_users"), [(1, 40), (10_000, 2)])
def test_baskets_of_one_item_and_of_ten_thousand_are_evaluated(
    tmp_path: Path, size: int, n_users: int
) -> None:
    path, row = tmp_path / "baskets.csv", np.arange(n_users * 4 * size)
    basket = row // size
    frame = {"user_id": basket // 4, "item_id": row % max(size, 7), "order": basket}
    frame["timestamp"] = times(basket % 4, row % size)  # rows of a basket have times of their own
    pl.DataFrame(frame).write_csv(path)
    options = ("--basket", "order", "--model", "popular", "-k", "5", "--json")
    shown = talerec("evaluate", path, *options).json
    assert (shown["cases"], shown["basket_size"]) == (n_users, size)

"""What was shown and clicked: rates with intervals, and the candidate's difference.

A click is an event on a shown item, by the same user (by anybody, if the visitor was anonymous),
within the attribution window after the answer. An event that names an answer can be a click of that
answer only; an event that names none is a click of the user's latest answer with the item. However
many events there are, an item of an answer is clicked once or not at all.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

import polars as pl

from talerec import columns
from talerec.evaluation import (
    OutcomeSums,
    describe_difference,
    difference_sequence,
    mean_intervals,
    sum_users,
)
from talerec.serve import Settings
from talerec.store import ImpressionStore, StoreError, expand_impressions, now_us

_MAX_ANSWERS = 250_000  # answers that are counted, the latest ones
_PERIOD_US = 28 * 86_400_000_000  # microseconds of the past that are counted
_MIN_AGE_S, _AGE_FACTOR = 1.0, 20.0  # how long counts are shown: seconds, and times their duration
_MAX_RANK = 50  # ranks whose rates are shown
_KEY = ["recommendation_id", columns.ITEM]
_EVENT_SCHEMA: dict[str, Any] = {
    columns.USER: pl.String, columns.ITEM: pl.String, "time": pl.Int64,
    "recommendation_id": pl.String,
}  # fmt: skip


def attribute_clicks(
    shown: pl.DataFrame, events: pl.DataFrame, window: int
) -> tuple[pl.DataFrame, dict[str, int]]:
    """Return the shown items with a column `clicked`, and why other events are no clicks.

    Parameters
    ----------
    shown : DataFrame
        A row per shown item, as `expand_impressions` returns them, with `time` in microseconds.
    events : DataFrame
        Columns user_id, item_id, time (microseconds) and recommendation_id, null without one.
    window : int
        Microseconds after an answer in which an event counts as its click.
    """
    is_named = pl.col("recommendation_id").is_not_null()
    named, plain = events.filter(is_named), events.filter(~is_named)
    by_id, reasons = _match_named(shown, named, window)
    latest = (
        plain.drop("recommendation_id")
        .sort("time")
        .join_asof(
            shown.filter(pl.col(columns.USER).is_not_null())
            .select(*_KEY, columns.USER, "time")
            .sort("time"),
            on="time", by=[columns.USER, columns.ITEM], strategy="backward", tolerance=window,
            check_sortedness=False,
        )
        .filter(is_named)
    )  # fmt: skip
    every = pl.concat([by_id, latest.select(_KEY)])
    clicks = every.unique()
    reasons["repeated"] = len(every) - len(clicks)
    clicked = clicks.with_columns(pl.lit(value=True).alias("clicked"))
    frame = shown.join(clicked, on=_KEY, how="left")
    return frame.with_columns(pl.col("clicked").fill_null(value=False)), reasons


def _match_named(
    shown: pl.DataFrame, events: pl.DataFrame, window: int
) -> tuple[pl.DataFrame, dict[str, int]]:
    """Return the clicks among events that name their answer, and counts of the others.

    An event of an answer that is not kept is neither.
    """
    answers = shown.select("recommendation_id", "time", columns.USER).unique("recommendation_id")
    pairs = events.join(answers, on="recommendation_id", suffix=" shown")
    pairs = pairs.join(
        shown.select(*_KEY, pl.lit(value=True).alias("is_shown")), on=_KEY, how="left"
    )
    delay = pl.col("time") - pl.col("time shown")
    same_user = (pl.col(columns.USER) == pl.col(f"{columns.USER} shown")).fill_null(value=True)
    reason = (
        pl.when(~same_user)
        .then(pl.lit("other_user"))
        .when(pl.col("is_shown").is_null())
        .then(pl.lit("not_shown"))
        .when(delay < 0)
        .then(pl.lit("early"))
        .when(delay > window)
        .then(pl.lit("late"))
    )
    pairs = pairs.with_columns(reason.alias("reason"))
    names = ("other_user", "not_shown", "early", "late")
    counts = {name: int((pairs["reason"] == name).sum()) for name in names}
    return pairs.filter(pl.col("reason").is_null()).select(_KEY), counts


def count_rates(frame: pl.DataFrame, *by: str) -> list[dict[str, Any]]:
    """Return impressions, clicks and their rate with a 95 % interval, by columns.

    `frame` is what `attribute_clicks` returns, a row per shown item. The unit of the interval is
    the user, since the clicks of a user depend on each other; an anonymous answer is a unit too.
    """
    unit = pl.coalesce(columns.USER, "recommendation_id").alias("unit")
    sums = [pl.col("clicked").sum().cast(pl.Float64), pl.len().cast(pl.Float64).alias("shown")]
    units = frame.with_columns(unit).group_by(*by, "unit").agg(*sums)
    groups = units.partition_by(*by, as_dict=True) if by else {(): units}
    rows = []
    for key in sorted(groups, key=lambda values: tuple(str(value) for value in values)):
        group = groups[key].sort("unit")
        sums_of_users = sum_users(group.select("clicked").to_numpy(), group["shown"].to_numpy())
        low, high = mean_intervals(sums_of_users)
        clicks, shown = int(group["clicked"].sum()), int(group["shown"].sum())
        rate = clicks / shown if shown else None
        interval = [float(low[0]), float(high[0])]
        values = {"impressions": shown, "clicks": clicks, "ctr": rate, "interval": interval}
        rows.append({**dict(zip(by, key, strict=True)), **values, "users": len(group)})
    return rows


def compare_candidate(frame: pl.DataFrame, window: int, now: int) -> dict[str, Any] | None:
    """Return the candidate's difference in click rate, with an interval valid at every look.

    Each user enters once: with the clicks per shown item of the answers in one window after the
    user's first answer, as soon as a further window has passed, in which the last of these answers
    could be clicked. Counted are answers since the latest candidate's first one, of users who got
    all answers from one of both. None without a candidate. Times are in microseconds.
    """
    frame = frame.filter(pl.col(columns.USER).is_not_null())
    candidates = frame.filter(pl.col("role") == "candidate")
    if candidates.is_empty():
        return None
    version = candidates.sort("time")["model"][-1]
    start = candidates.filter(pl.col("model") == version)["time"].min()
    is_compared = (pl.col("role") == "current") | (pl.col("model") == version)
    users = (
        frame.filter(is_compared & (pl.col("time") >= start))
        .with_columns(pl.col("time").min().over(columns.USER).alias("first"))
        .filter(pl.col("role").n_unique().over(columns.USER) == 1)
        .filter(pl.col("first") + 2 * window <= now, pl.col("time") < pl.col("first") + window)
        .group_by(columns.USER, "role")
        .agg(pl.col("clicked").mean().alias("rate"))
    )
    sums = {}
    for role in ("current", "candidate"):
        rates = users.filter(pl.col("role") == role)["rate"]
        sums[role] = OutcomeSums(len(rates), float(rates.sum()), float((rates**2).sum()))
    interval = difference_sequence(sums["current"], sums["candidate"])
    return {
        "candidate": version,
        "users": {role: total.users for role, total in sums.items()},
        "ctr": {role: total.mean for role, total in sums.items()},
        "difference": sums["candidate"].mean - sums["current"].mean,
        "interval": None if interval is None else list(interval),
        "advice": describe_difference(interval),
    }


def summarize_impressions(
    shown: pl.DataFrame, events: pl.DataFrame, window: int, now: int
) -> dict[str, Any]:
    """Return all figures about what was shown, as /v1/stats has them.

    `shown` and `events` are those of `attribute_clicks`; `window` and `now` are in microseconds.
    """
    frame, reasons = attribute_clicks(shown, events, window)
    totals = count_rates(frame)[0]
    by_rank = count_rates(frame.filter(pl.col("rank") <= _MAX_RANK), "rank")
    lists = count_rates(frame.with_columns(pl.col("list").fill_null("recommend")), "list")
    explored = {row["explored"]: row for row in count_rates(frame, "explored")}
    return {
        "answers": frame["recommendation_id"].n_unique(),
        **totals,
        "by_model": {row["model"]: row for row in count_rates(frame, "model", "role")},
        "by_rank": {
            str(row["rank"]): row for row in sorted(by_rank, key=lambda row: int(row["rank"]))
        },
        "by_list": {row["list"]: row for row in lists},
        "explored": explored.get(True),
        "not_clicks": reasons,
        "comparison": compare_candidate(frame, window, now),
    }


class ImpressionCounts:
    """The figures about impressions, as a worker reads them from the store and shows them.

    They are kept for a second, or for twenty times as long as it took to count them.
    """

    def __init__(self, settings: Settings) -> None:
        self._address = settings.store if settings.impressions else None
        self._window = round(1e6 * settings.attribution)
        self._lock = threading.Lock()
        self._valid_until = 0.0
        self.latest: dict[str, Any] | None = None  # the figures that were counted last

    def read(self) -> dict[str, Any] | None:
        """Return the figures; None if no impressions are kept, or the store never answered."""
        if self._address is None:
            return None
        with self._lock:
            started = time.monotonic()
            if started >= self._valid_until:
                with suppress(StoreError):
                    self.latest = self._count(self._address)
                seconds = time.monotonic() - started
                self._valid_until = time.monotonic() + max(_MIN_AGE_S, _AGE_FACTOR * seconds)
            return self.latest

    def _count(self, address: str) -> dict[str, Any]:
        """Read the latest impressions and events of the store, and return the figures."""
        now = now_us()
        with ImpressionStore(address) as store:
            since = store.find_start(now - _PERIOD_US, _MAX_ANSWERS)
            groups = [expand_impressions(group) for group in store.read_impressions(since)]
            rows = [event for group in store.read_shown_events(since) for event in group]
        shown = pl.concat([expand_impressions([]), *groups])
        shown = shown.with_columns(pl.col(columns.TIME).cast(pl.Int64).alias("time"))
        events = pl.DataFrame(rows, _EVENT_SCHEMA, orient="row")
        return {"since": since / 1e6, **summarize_impressions(shown, events, self._window, now)}


def impression_lines(summary: dict[str, Any] | None) -> list[str]:
    """Return the figures about impressions as lines in Prometheus' text format."""
    if summary is None:
        return []
    texts = {
        "impressions": ("talerec_shown_items", "Items of kept answers, by model and by rank."),
        "clicks": ("talerec_shown_clicks", "Clicked items of kept answers, by model and by rank."),
    }
    lines: list[str] = []
    for field, (name, text) in texts.items():
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
        for row in summary["by_model"].values():
            labels = f'role="{row["role"]}",version="{row["model"]}"'
            lines.append(f"{name}{{{labels}}} {row[field]}")
        for rank, row in summary["by_rank"].items():
            lines.append(f'{name}{{rank="{rank}"}} {row[field]}')
    return lines

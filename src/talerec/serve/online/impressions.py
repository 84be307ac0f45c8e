"""The figures about impressions, as a worker counts them from the store and shows them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import polars as pl

from talerec import columns
from talerec.evaluation import summarize_impressions
from talerec.serve import Settings
from talerec.store import (
    Impression,
    ImpressionStore,
    StoreError,
    expand_impressions,
    now_us,
    read_events_on_lists,
)

logger = logging.getLogger("talerec")

_MAX_ANSWERS = 100_000  # answers that are counted, the latest ones
_PERIOD_US = 28 * 86_400_000_000  # microseconds of the past that are counted
_MIN_AGE_S, _AGE_FACTOR = 1.0, 20.0  # how long counts are shown: seconds, and times their duration


class ImpressionCounts:
    """The figures about impressions, as a worker counts them in a thread of its own.

    They are kept for a second, or for twenty times as long as it took to count them.
    """

    def __init__(self, settings: Settings) -> None:
        self._address = settings.store if settings.impressions else None
        self._window = round(1e6 * settings.attribution)
        self._negative = settings.feedback.names
        self._lock = threading.Lock()  # held while figures are counted
        self._valid_until = 0.0
        self.latest: dict[str, Any] | None = None  # the figures that were counted last

    def read(self) -> dict[str, Any] | None:
        """Return the figures; if another thread is counting, those that were counted last.

        None if no impressions are kept, or the store never answered.
        """
        if self._address is None or not self._lock.acquire(blocking=False):
            return self.latest
        try:
            started = time.monotonic()
            if started >= self._valid_until:
                try:
                    self.latest = self._count(self._address)
                except StoreError as error:
                    logger.warning("impressions could not be counted: %s", error)
                seconds = time.monotonic() - started
                self._valid_until = time.monotonic() + max(_MIN_AGE_S, _AGE_FACTOR * seconds)
            return self.latest
        finally:
            self._lock.release()

    def _count(self, address: str) -> dict[str, Any]:
        """Read the latest impressions and events of the store, and return the figures."""
        now = now_us()
        with ImpressionStore(address) as store:
            since = store.find_start(now - _PERIOD_US, _MAX_ANSWERS)
            groups = [_list_items(group) for group in store.read_impressions(since)]
            events = read_events_on_lists(store, since)
        shown = pl.concat([_list_items([]), *groups])
        figures = summarize_impressions(shown, events, self._window, now, self._negative)
        return {"since": since / 1e6, "counted_at": now / 1e6, **figures}


def _list_items(impressions: Sequence[Impression]) -> pl.DataFrame:
    """Return the shown items of impressions with what is counted, times in microseconds.

    Texts that repeat are categories, which need a fraction of the memory.
    """
    frame = expand_impressions(impressions).drop("rules", "probability")
    categories = pl.col("model", "role", "list").cast(pl.Categorical)
    time = pl.col(columns.TIME).cast(pl.Int64).alias("time")
    return frame.with_columns(categories, time, pl.col("rank").cast(pl.Int32)).drop(columns.TIME)


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
        for version, row in summary["by_model"].items():
            labels = f'role="{row["role"]}",version="{version}"'
            lines.append(f"{name}{{{labels}}} {row[field]}")
        for rank, row in summary["by_rank"].items():
            lines.append(f'{name}{{rank="{rank}"}} {row[field]}')
    return lines

"""The figures about impressions, as a worker counts them from the store and shows them."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import polars as pl

from talerec.evaluation import summarize_impressions
from talerec.serve import Settings
from talerec.serve.online.comparison import CandidateComparison
from talerec.serve.online.shown_items import list_items
from talerec.store import ImpressionStore, StoreError, now_us, read_events_on_lists

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
        self._comparison = CandidateComparison(self._window, self._negative)
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
            groups = [list_items(group) for group in store.read_impressions(since)]
            events = read_events_on_lists(store, since)
            shown = pl.concat([list_items([]), *groups])
            versions = shown.filter(pl.col("role") == "candidate")["model"]
            comparison = None
            if len(versions):
                comparison = self._comparison.update(store, str(versions[-1]), now)
        figures = summarize_impressions(shown, events, self._window, self._negative)
        times = {"since": since / 1e6, "counted_at": now / 1e6}
        return {**times, **figures, "comparison": comparison}


def impression_lines(summary: dict[str, Any] | None) -> list[str]:
    """Return the figures about impressions as lines in Prometheus' text format."""
    if summary is None:
        return []
    texts = {
        "impressions": ("talerec_shown_items", "Items of kept answers, by model, rank and list."),
        "clicks": (
            "talerec_shown_clicks",
            "Clicked items of kept answers, by model, rank and list.",
        ),
    }
    lines: list[str] = []
    for field, (name, text) in texts.items():
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
        for version, row in summary["by_model"].items():
            labels = f'role="{row["role"]}",version="{version}"'
            lines.append(f"{name}{{{labels}}} {row[field]}")
        for label, rows in (("rank", summary["by_rank"]), ("list", summary["by_list"])):
            lines += [f'{name}{{{label}="{key}"}} {row[field]}' for key, row in rows.items()]
    return lines

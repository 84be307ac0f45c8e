"""The figures about impressions, as the workers of a service count them and show them."""

from __future__ import annotations

import json
import logging
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl

from talerec.evaluation import summarize_impressions
from talerec.runtime import atomic_replace
from talerec.serve import Settings
from talerec.serve.online.comparison import CandidateComparison
from talerec.serve.online.shown_items import shown_item_frame
from talerec.store import ImpressionStore, StoreError, load_possible_clicks, now_us

logger = logging.getLogger("talerec")

_MAX_RESPONSES = 100_000  # responses that are counted, the latest ones,
_MAX_ITEMS = 2_000_000  # and items of these responses: about a gigabyte while they are counted
_PERIOD_US = 28 * 86_400_000_000  # microseconds of the past that are counted
_MIN_AGE_S, _MAX_AGE_S = 1.0, 60.0  # how long figures are shown,
_AGE_FACTOR = 20.0  # between these limits: times the seconds that it took to count them
_FILE = "impressions.json"  # in the folder of the run


class ImpressionCounts:
    """The figures about impressions, which one worker counts and all workers of a run show.

    Figures are shown for a second, or for twenty times as long as it took to count them, but not
    for more than a minute; then the first worker that gets a request counts again, in a thread of
    its own, and writes them to a file of the run.

    Parameters
    ----------
    settings : Settings
        The settings of the service.
    folder : Path
        The folder of the run, which all workers share.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._address = settings.store if settings.impressions else None
        self._window = round(1e6 * settings.attribution)
        self._negative = settings.feedback.names
        self._comparison = CandidateComparison(self._window, self._negative)
        self._path = folder / _FILE
        self._lock = threading.Lock()  # held while figures are counted
        self._valid_until = 0.0  # Unix seconds
        self.latest: dict[str, Any] | None = None  # the figures that were counted last

    def read(self) -> dict[str, Any] | None:
        """Return the figures; if another thread is counting, those that were counted last.

        None if no impressions are kept, or the store never answered.
        """
        if self._address is None or not self._lock.acquire(blocking=False):
            return self.latest
        try:
            self._read_file()
            started = time.time()
            if not started < self._valid_until < started + _MAX_AGE_S:  # the clock may be set back
                try:
                    self.latest = self._count(self._address)
                except StoreError as error:
                    logger.warning("impressions could not be counted: %s", error)
                self._publish(time.time() - started)
            return self.latest
        finally:
            self._lock.release()

    def _read_file(self) -> None:
        """Take the figures that a worker has counted last, if there are any."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            published = json.loads(self._path.read_bytes())
            self._valid_until, self.latest = published["valid_until"], published["figures"]

    def _publish(self, seconds: float) -> None:
        """Write the figures, which took `seconds` to count, to the file that all workers read."""
        has_answers = self.latest is not None and self.latest["answers"]
        age = _AGE_FACTOR * seconds if has_answers else 0.0
        self._valid_until = time.time() + min(max(age, _MIN_AGE_S), _MAX_AGE_S - 1)
        published = {"valid_until": self._valid_until, "figures": self.latest}
        with suppress(OSError), atomic_replace(self._path) as unfinished:
            unfinished.write_text(json.dumps(published), encoding="utf-8")

    def _count(self, address: str) -> dict[str, Any]:
        """Read the latest impressions and events of the store, and return the figures."""
        now = now_us()
        with ImpressionStore(address) as store:
            since = store.find_start_of_latest(now - _PERIOD_US, _MAX_RESPONSES, _MAX_ITEMS)
            groups = [shown_item_frame(group) for group in store.read_impressions(since)]
            events = load_possible_clicks(store, since)
            shown = pl.concat([shown_item_frame([]), *groups])
            versions = shown.filter(pl.col("role") == "candidate")["model"]
            comparison = None
            if len(versions):
                comparison = self._comparison.update(store, str(versions[-1]), now)
                comparison = self._choose_later(comparison)
        figures = summarize_impressions(shown, events, self._window, self._negative)
        first = since if shown.is_empty() else int(shown["time"][0])  # they are in order of time
        times = {"since": first / 1e6, "counted_at": now / 1e6}
        return {**times, **figures, "comparison": comparison}

    def _choose_later(self, comparison: dict[str, Any]) -> dict[str, Any]:
        """Return this worker's comparison, or that of another worker, which has read further."""
        other: dict[str, Any] | None = None if self.latest is None else self.latest["comparison"]
        if other is None or other["candidate"] != comparison["candidate"]:
            return comparison
        return max(comparison, other, key=lambda each: float(each["until"]))


def impression_lines(summary: dict[str, Any] | None) -> list[str]:
    """Return the figures about impressions as lines in Prometheus' text format."""
    if summary is None:
        return []
    texts = {
        "impressions": ("talerec_shown_items", "Items of kept responses, by model, rank and list."),
        "clicks": (
            "talerec_shown_clicks",
            "Clicked items of kept responses, by model, rank and list.",
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

"""What was measured, as every worker tells it: read from the store now and then, for /v1/stats and /metrics."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from typing import Any

from talerec.serve.online.summary import WINDOWS
from talerec.serve.settings import Settings
from talerec.store.events import StoreError
from talerec.store.measurements import Measures

_FRESH_S = 1.0  # seconds for which what was read is told again
_GAUGES = {
    "events": "Events on which a model was measured in the last hour or day.",
    "HR@10": "Share of arriving events whose item was among the first ten right before.",
    "MRR@10": "Mean of 1/place among the first ten (0 behind them) of arriving events.",
}
_NAMES = {
    "events": "talerec_live_events",
    "HR@10": "talerec_live_hr10",
    "MRR@10": "talerec_live_mrr10",
}
_ALL = {
    "share": ("talerec_measured_share", "Share of users on whose events models are measured."),
    "behind": ("talerec_measure_behind", "Events that arrived and are not measured yet."),
    "left_out": ("talerec_measure_left_out", "Events that were left out, since measuring lagged."),
}  # fmt: skip


class Live:
    """The figures of the process that measures; None where nothing is measured. While the store does not answer, the last ones."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._store: Measures | None = None
        self._lock = threading.Lock()
        self._read = 0.0
        self._found: dict[str, Any] | None = None

    def begin(self) -> None:
        """Let the events from now on be measured: whoever measures starts later than the workers."""
        if self._settings.measure and self._settings.store is not None:
            with suppress(StoreError), Measures(self._settings.store) as store:
                store.begin()

    @property
    def last(self) -> dict[str, Any] | None:
        """What was read last."""
        return self._found

    def figures(self) -> dict[str, Any] | None:
        """What was measured; this may take a while, where the store does."""
        if not self._settings.measure or self._settings.store is None:
            return None
        with self._lock:
            if time.monotonic() >= self._read + _FRESH_S:
                self._found = self._look(self._settings.store)
                self._read = time.monotonic()
            return self._found

    def _look(self, address: str) -> Any:
        try:
            if self._store is None:
                self._store = Measures(address)
            text = self._store.summary()
        except StoreError:
            return self._found
        return None if text is None else json.loads(text)


def prometheus_lines(found: dict[str, Any] | None) -> list[str]:
    """Figures in the text format of Prometheus."""
    if found is None:
        return []
    lines: list[str] = []
    for name, (full, about) in _ALL.items():
        lines += [*_about(full, about), f"{full} {found[name]:g}"]
    for name, about in _GAUGES.items():
        lines += _about(_NAMES[name], about)
        for window in WINDOWS:
            for one in found[window]["models"]:
                labels = f'role="{one["role"]}",version="{one["version"]}",window="{window}"'
                lines.append(f"{_NAMES[name]}{{{labels}}} {one[name]:.6g}")
    return lines


def _about(name: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} gauge"]

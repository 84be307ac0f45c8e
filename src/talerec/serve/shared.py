"""Numbers that all workers share: a small file that every worker maps into memory, one row for each.

A worker writes only its own row, so there are no locks; the outside sees sums over the rows.
A restarted worker continues the row of the one it replaces, so counters never fall.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from talerec.errors import TalerecError
from talerec.runtime.arrays import Array

BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 10.0)  # seconds
STATUSES = (
    200,
    202,
    204,
    304,
    400,
    401,
    403,
    404,
    405,
    408,
    409,
    413,
    415,
    421,
    422,
    429,
    431,
    500,
    503,
)
GAUGES = ("in_flight", "resident_bytes", "unread_bytes", "events_waiting")
COUNTERS = (
    "fallbacks",
    "reloads_done",
    "reloads_refused",
    "dropped_connections",
    "events_accepted",
    "events_duplicate",
    "store_failures",
    "store_commits",
    "store_commit_seconds",
)
HELP = {
    "talerec_in_flight": "Requests whose answer has not been taken yet.",
    "talerec_resident_bytes": "Memory of all workers; pages of the mapped model count once for each.",
    "talerec_unread_bytes": "Bytes of large answers that wait for their clients.",
    "talerec_events_waiting": "Events that wait for the disk.",
    "talerec_events_accepted_total": "Events that were kept.",
    "talerec_events_duplicate_total": "Events that were known already.",
    "talerec_store_failures_total": "Requests that the store failed.",
    "talerec_store_commits_total": "Commits to the store; one holds the events of all requests that waited.",
    "talerec_store_commit_seconds_total": "Time that commits took.",
    "talerec_learned_timestamp_seconds": "When a model was last learned from events, in Unix seconds; 0: not yet.",
    "talerec_learned_rows": "New rows of that.",
    "talerec_learn_seconds": "How long that took.",
    "talerec_learn_failures_total": "Attempts to learn that failed.",
    "talerec_fallbacks_total": "Answers of trending items, because the model knew nothing of the history.",
    "talerec_reloads_done_total": "Models that took the place of another, per worker.",
    "talerec_reloads_refused_total": "Artifacts that were refused.",
    "talerec_dropped_connections_total": "Connections that were refused, or cut off because a client was too slow.",
    "talerec_workers_ready": "Workers that serve a model.",
    "talerec_model_workers": "Workers by the version of the model that they serve.",
    "talerec_requests_total": "Requests by route and status.",
    "talerec_request_seconds": "Time from the headers of a request until its answer is made.",
    "talerec_model_saved_timestamp_seconds": "When the model in use was saved, in Unix seconds.",
    "talerec_model_loaded_timestamp_seconds": "When the model in use was loaded, in Unix seconds.",
}
NOTHING: Mapping[str, float] = {}
_VERSION, _READY, _SEQ, _STATE_COLUMNS = 0, 1, 2, 3


class SharedState:
    """The row of one worker, and the sums over all rows."""

    def __init__(self, folder: Path, workers: int, worker: int, routes: tuple[str, ...]) -> None:
        self.workers, self.worker, self.routes = workers, worker, routes
        self._column = {name: n for n, name in enumerate((*GAUGES, *COUNTERS))}
        self._status = {status: n for n, status in enumerate(STATUSES)}
        per_route = len(STATUSES) + len(BOUNDS) + 2
        self._route = {route: len(self._column) + n * per_route for n, route in enumerate(routes)}
        width = len(self._column) + per_route * len(routes)
        self._numbers = _mapped(folder / "numbers", (workers, width), np.float64)
        self._states = _mapped(folder / "states", (workers + 1, _STATE_COLUMNS), np.uint64)
        self._own: Any = memoryview(self._numbers[worker])  # faster than NumPy for one number
        self._own[self._column["in_flight"]] = 0.0
        self.set_version(None)

    # -- the row of this worker --

    def increment(self, name: str, value: float = 1.0) -> None:
        self._own[self._column[name]] += value

    def set_gauge(self, name: str, value: float) -> None:
        self._own[self._column[name]] = value

    def record(self, route: str, status: int, seconds: float) -> None:
        """Count one response and its duration."""
        own, start = self._own, self._route[route]
        own[start + self._status[status]] += 1.0
        start += len(STATUSES)
        own[start + bisect_left(BOUNDS, seconds)] += 1.0
        own[start + len(BOUNDS) + 1] += seconds

    def set_version(self, version: str | None) -> None:
        """Publish which model this worker serves; None if it serves none."""
        self._states[self.worker, _READY] = version is not None
        self._states[self.worker, _VERSION] = int(version or "0", 16)

    def set_seq(self, seq: int) -> None:
        """Publish up to where this worker has read the store."""
        self._states[self.worker, _SEQ] = max(seq, 0)

    # -- all workers --

    def is_known_everywhere(self, seq: int) -> bool:
        """Has every ready worker read the store up to here?"""
        rows = self._states[: self.workers]
        return bool((rows[rows[:, _READY] > 0, _SEQ] >= seq).all())

    def total(self, name: str) -> float:
        """The sum of a gauge or counter over all workers."""
        return float(self._numbers[:, self._column[name]].sum())

    def versions(self) -> list[str]:
        """The model version that each ready worker serves."""
        rows = self._states[: self.workers]
        return [f"{int(row[_VERSION]):016x}" for row in rows if row[_READY]]

    @property
    def reload_requests(self) -> int:
        """How often workers were asked to look for a new model at once."""
        return int(self._states[self.workers, 0])

    def request_reload(self) -> None:
        self._states[self.workers, 0] += np.uint64(1)

    def prometheus_text(
        self,
        times: dict[str, float] | None = None,
        more: Mapping[str, float] = NOTHING,
        written: Sequence[str] = (),
    ) -> bytes:
        """All metrics, summed over the workers, in the text format of Prometheus; `times` are those of this worker's model.

        `more`: metrics by their whole names, which `HELP` has; `written`: lines of others.
        """
        with suppress(OSError):
            self.set_gauge("resident_bytes", resident_bytes())
        total = self._numbers.sum(axis=0)
        lines = [*self._single_values(total), *self._requests(total), *self._durations(total)]
        for name, seconds in (times or {}).items():
            full = f"talerec_model_{name}_timestamp_seconds"
            lines += [*_about(full, "gauge"), f"{full} {seconds:.3f}"]
        for full, value in more.items():
            kind = "counter" if full.endswith("_total") else "gauge"
            lines += [*_about(full, kind), f"{full} {value:.15g}"]
        lines += written
        return ("\n".join(lines) + "\n").encode()

    def _single_values(self, total: Array) -> list[str]:
        lines = []
        for name, column in self._column.items():
            full = f"talerec_{name}" + ("" if name in GAUGES else "_total")
            kind = "gauge" if name in GAUGES else "counter"
            digits = 6 if name.endswith("_seconds") else 0
            lines += [*_about(full, kind), f"{full} {total[column]:.{digits}f}"]
        versions = self.versions()
        lines += [
            *_about("talerec_workers_ready", "gauge"),
            f"talerec_workers_ready {len(versions)}",
        ]
        lines += _about("talerec_model_workers", "gauge")
        for version in sorted(set(versions)):
            lines.append(f'talerec_model_workers{{version="{version}"}} {versions.count(version)}')
        return lines

    def _requests(self, total: Array) -> list[str]:
        lines = _about("talerec_requests_total", "counter")
        for route, start in self._route.items():
            for status, column in self._status.items():
                if count := total[start + column]:
                    labels = f'route="{route}",status="{status}"'
                    lines.append(f"talerec_requests_total{{{labels}}} {count:.0f}")
        return lines

    def _durations(self, total: Array) -> list[str]:
        lines = _about("talerec_request_seconds", "histogram")
        for route, start in self._route.items():
            start += len(STATUSES)
            counts = np.cumsum(total[start : start + len(BOUNDS) + 1])
            if not counts[-1]:
                continue
            for bound, count in zip((*BOUNDS, "+Inf"), counts, strict=True):
                lines.append(
                    f'talerec_request_seconds_bucket{{route="{route}",le="{bound}"}} {count:.0f}'
                )
            seconds = float(total[start + len(BOUNDS) + 1])
            lines.append(f'talerec_request_seconds_sum{{route="{route}"}} {seconds!r}')
            lines.append(f'talerec_request_seconds_count{{route="{route}"}} {counts[-1]:.0f}')
        return lines


def _about(name: str, kind: str) -> list[str]:
    return [f"# HELP {name} {HELP[name]}", f"# TYPE {name} {kind}"]


def _mapped(path: Path, shape: tuple[int, int], dtype: type) -> Array:
    """An array in a file that all workers map; it begins with zeros.

    The file gets its room on the disk now: writing into a hole of a mapped file ends the process if the disk is full.
    """
    try:
        with path.open("ab") as file:
            _reserve(file.fileno(), shape[0] * shape[1] * 8)
    except OSError as error:
        raise TalerecError(f"{path} cannot be written: {error.strerror or error}") from None
    return np.asarray(np.memmap(path, dtype, "r+", shape=shape))


def _reserve(file: int, size: int) -> None:
    """Give a file room on the disk; where the system has no call for it, as macOS, its length at least."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    elif os.fstat(file).st_size < size:
        os.ftruncate(file, size)


def resident_bytes() -> int:
    """The memory of this process, including the pages of the artifact that it has mapped."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")

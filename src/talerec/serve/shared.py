"""What workers tell each other: a small file that all of them map, one line of numbers for each.

A worker writes its own line alone, so nothing is locked; sums over lines are what the outside sees.
A worker that is started again goes on with the line of the one it replaces, so counts never fall.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from talerec.runtime.arrays import Array

BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 10.0)  # seconds
STATUSES = (200, 204, 304, 400, 401, 403, 404, 405, 408, 409, 413, 415, 422, 431, 500, 503)
GAUGES = ("in_flight", "resident_bytes")
COUNTERS = ("fallbacks", "reloads_done", "reloads_refused", "dropped_connections")
_VERSION, _READY, _STATES = 0, 1, 2


class Board:
    """Line `line` of the shared numbers, and the sums of all lines."""

    def __init__(self, folder: Path, workers: int, line: int, routes: tuple[str, ...]) -> None:
        self.workers, self.line, self.routes = workers, line, routes
        self._column = {name: place for place, name in enumerate((*GAUGES, *COUNTERS))}
        self._status = {status: place for place, status in enumerate(STATUSES)}
        per_route = len(STATUSES) + len(BOUNDS) + 2
        self._route = {
            route: len(self._column) + number * per_route for number, route in enumerate(routes)
        }
        width = len(self._column) + per_route * len(routes)
        self._numbers = _shared(folder / "numbers", (workers, width), np.float64)
        self._states = _shared(folder / "states", (workers + 1, _STATES), np.uint64)
        self._mine: Any = memoryview(self._numbers[line])  # quicker than NumPy for one number
        self._mine[self._column["in_flight"]] = 0.0
        self.ready(None)

    # -- this worker's own line --

    def add(self, name: str, value: float = 1.0) -> None:
        self._mine[self._column[name]] += value

    def put(self, name: str, value: float) -> None:
        self._mine[self._column[name]] = value

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count one answer and its time."""
        mine, start = self._mine, self._route[route]
        mine[start + self._status[status]] += 1.0
        start += len(STATUSES)
        mine[start + bisect_left(BOUNDS, seconds)] += 1.0
        mine[start + len(BOUNDS) + 1] += seconds

    def ready(self, version: str | None) -> None:
        """Say which model this worker serves, or that it serves none."""
        self._states[self.line, _READY] = version is not None
        self._states[self.line, _VERSION] = int(version or "0", 16)

    # -- all workers --

    def versions(self) -> list[str]:
        """The version that each ready worker serves."""
        lines = self._states[: self.workers]
        return [f"{int(line[_VERSION]):016x}" for line in lines if line[_READY]]

    @property
    def wanted(self) -> int:
        """Grows when somebody wants every worker to look at the artifact at once."""
        return int(self._states[self.workers, 0])

    def want(self) -> None:
        self._states[self.workers, 0] += np.uint64(1)

    def text(self) -> bytes:
        """Everything, summed over workers, as Prometheus reads it."""
        with suppress(OSError):
            self.put("resident_bytes", resident_bytes())
        total = self._numbers.sum(axis=0)
        lines = [*self._plain(total), *self._requests(total), *self._seconds(total)]
        return ("\n".join(lines) + "\n").encode()

    def _plain(self, total: Array) -> list[str]:
        lines = []
        for name, place in self._column.items():
            full = f"talerec_{name}" + ("" if name in GAUGES else "_total")
            kind = "gauge" if name in GAUGES else "counter"
            lines += [f"# TYPE {full} {kind}", f"{full} {total[place]:.0f}"]
        versions = self.versions()
        lines += ["# TYPE talerec_workers_ready gauge", f"talerec_workers_ready {len(versions)}"]
        lines += ["# TYPE talerec_model_workers gauge"]
        for version in sorted(set(versions)):
            lines.append(f'talerec_model_workers{{version="{version}"}} {versions.count(version)}')
        return lines

    def _requests(self, total: Array) -> list[str]:
        lines = ["# TYPE talerec_requests_total counter"]
        for route, start in self._route.items():
            for status, place in self._status.items():
                if count := total[start + place]:
                    labels = f'route="{route}",status="{status}"'
                    lines.append(f"talerec_requests_total{{{labels}}} {count:.0f}")
        return lines

    def _seconds(self, total: Array) -> list[str]:
        lines = ["# TYPE talerec_request_seconds histogram"]
        for route, start in self._route.items():
            start += len(STATUSES)
            counts = np.cumsum(total[start : start + len(BOUNDS) + 1])
            if not counts[-1]:
                continue
            for bound, count in zip((*BOUNDS, "+Inf"), counts, strict=True):
                lines.append(
                    f'talerec_request_seconds_bucket{{route="{route}",le="{bound}"}} {count:.0f}'
                )
            spent = float(total[start + len(BOUNDS) + 1])
            lines.append(f'talerec_request_seconds_sum{{route="{route}"}} {spent!r}')
            lines.append(f'talerec_request_seconds_count{{route="{route}"}} {counts[-1]:.0f}')
        return lines


def _shared(path: Path, shape: tuple[int, int], kind: type) -> Array:
    """An array in a file that all workers map, zeros at first."""
    with path.open("ab") as file:
        file.truncate(shape[0] * shape[1] * 8)
    return np.asarray(np.memmap(path, kind, "r+", shape=shape))


def resident_bytes() -> int:
    """Memory that this process holds now, shared pages of the artifact among it."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")

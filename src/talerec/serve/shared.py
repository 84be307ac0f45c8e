"""Metrics and state that all workers of a service share, in small memory-mapped files.

Each worker writes only its row of a file, so there are no locks; readers sum over the rows.
A restarted worker continues the row of the worker it replaces, so counters never decrease.
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
from talerec.runtime import Array

BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 10.0)  # seconds
STATUSES = (
    200, 202, 204, 304, 400, 401, 403, 404, 405, 408, 409, 413, 415, 421, 422, 429, 431, 500, 503,
)  # fmt: skip
GAUGES = ("in_flight", "resident_bytes", "unread_bytes", "events_waiting")
COUNTERS = (
    "fallbacks", "reloads_done", "reloads_refused", "dropped_connections",
    "events_accepted", "events_duplicate",
    "store_failures", "store_commits", "store_commit_seconds",
    "impressions_queued", "impressions_written", "impressions_lost", "impression_writer_seconds",
    "recommendation_ids_refused",
)  # fmt: skip
HELP = {
    "talerec_in_flight": "Requests whose response has not been sent yet.",
    "talerec_resident_bytes": "Memory of all workers; mapped model pages count once per worker.",
    "talerec_unread_bytes": "Bytes of large responses that wait for their clients.",
    "talerec_events_waiting": "Events that wait for the store.",
    "talerec_events_accepted_total": "Events that were stored.",
    "talerec_events_duplicate_total": "Events that had been stored before.",
    "talerec_store_failures_total": "Requests that failed because of the store.",
    "talerec_store_commits_total": "Commits to the store; waiting requests share a commit.",
    "talerec_store_commit_seconds_total": "Time that commits took.",
    "talerec_impressions_queued_total": "Responses of the kept share of users.",
    "talerec_impressions_written_total": "Responses that the store has, or that deletions removed.",
    "talerec_impressions_lost_total": "Responses that were not kept: the queue was full, or a"
    " worker was killed.",
    "talerec_impression_writer_seconds_total": "Processor time of threads that write responses.",
    "talerec_recommendation_ids_refused_total": "Events whose id no response of this service had.",
    "talerec_catalogue_items": "Items of the store, without deleted ones.",
    "talerec_catalogue_changed_timestamp_seconds": "When an item of the store last changed.",
    "talerec_learned_timestamp_seconds": "Time of the last background fit; 0 before the first.",
    "talerec_learned_rows": "New rows of the last background fit.",
    "talerec_learn_seconds": "Duration of the last background fit.",
    "talerec_learn_failures_total": "Background fits that failed.",
    "talerec_fallbacks_total": "Responses with trending items, for lack of a usable history.",
    "talerec_reloads_done_total": "Models that replaced another one, per worker.",
    "talerec_reloads_refused_total": "Artifacts that were refused.",
    "talerec_dropped_connections_total": "Connections refused, or closed for slow clients.",
    "talerec_workers_ready": "Workers that serve a model.",
    "talerec_model_workers": "Workers by the version of the model that they serve.",
    "talerec_workers_replaced_total": "Workers that ended, or were killed, and were replaced.",
    "talerec_workers_hung_total": "Workers that were killed for giving no sign of life.",
    "talerec_requests_total": "Requests by route and status.",
    "talerec_request_seconds": "Time from a request's headers to its response.",
    "talerec_model_saved_timestamp_seconds": "When the model in use was saved, in Unix seconds.",
    "talerec_model_loaded_timestamp_seconds": "When the model in use was loaded, in Unix seconds.",
}
_RESTARTS = ("workers_replaced", "workers_hung")
_VERSION, _READY, _SEQ, _ITEM_SEQ, _STATE_COLUMNS = 0, 1, 2, 3, 4


class SharedState:
    """The metrics and state of one worker process, and sums over all workers of a service.

    Metrics are gauges (current values), counters, and counts of HTTP responses by route. The state
    is the version of the worker's model and how far it has read the event store.

    Parameters
    ----------
    folder : Path
        The folder of the memory-mapped files, which all workers share.
    workers : int
        The number of workers.
    worker : int
        The index of this worker, from 0; it writes only its own row of the files.
    routes : tuple of str
        The URL paths whose requests are counted.
    """

    def __init__(self, folder: Path, workers: int, worker: int, routes: tuple[str, ...]) -> None:
        self.folder, self.workers, self.worker, self.routes = folder, workers, worker, routes
        # The file of metrics has a row per worker: gauges and counters, then for each route the
        # number of responses by status and by duration, and the sum of durations in seconds.
        self._metric_columns = {name: n for n, name in enumerate((*GAUGES, *COUNTERS))}
        self._status_offsets = {status: n for n, status in enumerate(STATUSES)}
        route_width = len(STATUSES) + len(BOUNDS) + 2
        self._route_columns = {
            route: len(self._metric_columns) + n * route_width for n, route in enumerate(routes)
        }
        width = len(self._metric_columns) + route_width * len(routes)
        self._metrics = _map_array(folder / "metrics", (workers, width), np.float64)
        self._worker_states = _map_array(
            folder / "states", (workers + 1, _STATE_COLUMNS), np.uint64
        )
        self._worker_metrics: Any = memoryview(
            self._metrics[worker]
        )  # faster than NumPy for one value
        self._worker_metrics[self._metric_columns["in_flight"]] = 0.0
        self.set_version(None)

    # -- this worker --

    def increment(self, name: str, value: float = 1.0) -> None:
        """Add `value` to a counter of this worker, such as "store_commits".

        The counter is a float in a file that all worker processes map; metrics show the workers'
        sum.
        """
        self._worker_metrics[self._metric_columns[name]] += value

    def value(self, name: str) -> float:
        """Return a gauge or counter of this worker alone, such as "impressions_lost"."""
        return float(self._worker_metrics[self._metric_columns[name]])

    def set_gauge(self, name: str, value: float) -> None:
        """Set a gauge of this worker, such as "resident_bytes"; metrics show the workers' sum."""
        self._worker_metrics[self._metric_columns[name]] = value

    def record(self, route: str, status: int, seconds: float) -> None:
        """Count one response of a route by HTTP status and by duration in seconds.

        The columns of a route in this worker process's row of metrics are a count per status of
        `STATUSES`, a count per bucket of the histogram with upper bounds `BOUNDS`, and the sum of
        the durations.
        """
        row, column = self._worker_metrics, self._route_columns[route]
        row[column + self._status_offsets[status]] += 1.0
        column += len(STATUSES)
        row[column + bisect_left(BOUNDS, seconds)] += 1.0
        row[column + len(BOUNDS) + 1] += seconds

    def set_version(self, version: str | None) -> None:
        """Publish to all workers the version of this worker's model; None: it serves no model.

        A version is a hexadecimal number of at most 64 bits. A worker is a process that answers
        requests.
        """
        self._worker_states[self.worker, _READY] = version is not None
        self._worker_states[self.worker, _VERSION] = int(version or "0", 16)

    def set_seq(self, seq: int) -> None:
        """Publish the number of the last store row that this worker has read; negative means 0."""
        self._worker_states[self.worker, _SEQ] = max(seq, 0)

    def set_item_seq(self, seq: int) -> None:
        """Publish the number of the last change of items that this worker's models have."""
        self._worker_states[self.worker, _ITEM_SEQ] = seq

    # -- all workers --

    def has_items_everywhere(self, seq: int) -> bool:
        """Have the models of every worker that serves one the change of items number `seq`?

        Workers publish the last change by `set_item_seq`.
        """
        rows = self._worker_states[: self.workers]
        return bool((rows[rows[:, _READY] > 0, _ITEM_SEQ] >= seq).all())

    def is_read_by_all(self, seq: int) -> bool:
        """Has every worker that serves a model read the event store up to the row number `seq`?

        Workers publish how far they have read by `set_seq`. A worker is a process that answers
        requests.
        """
        rows = self._worker_states[: self.workers]
        return bool((rows[rows[:, _READY] > 0, _SEQ] >= seq).all())

    def total(self, name: str) -> float:
        """Return the sum of a gauge or counter, by its name, over all workers."""
        return float(self._metrics[:, self._metric_columns[name]].sum())

    def versions(self) -> list[str]:
        """Return the model version of each worker that serves a model, in the order of workers.

        Versions have 16 hexadecimal digits; worker processes without a model are left out.
        """
        rows = self._worker_states[: self.workers]
        return [f"{int(row[_VERSION]):016x}" for row in rows if row[_READY]]

    @property
    def reload_requests(self) -> int:
        """The number of requests to all workers to check the artifact for a new model.

        A worker is a process that answers requests.
        """
        return int(self._worker_states[self.workers, 0])

    def request_reload(self) -> None:
        """Ask all workers to check the artifact for a new model at once."""
        self._worker_states[self.workers, 0] += np.uint64(1)

    # -- metrics --

    def prometheus_text(
        self, model_times: Mapping[str, float] | None = None,
        values: Mapping[str, float] | None = None, lines: Sequence[str] = (),
    ) -> bytes:  # fmt: skip
        """Return all metrics, summed over the workers, in the text format of Prometheus.

        The gauge of this worker's resident memory is updated first.

        Parameters
        ----------
        model_times : mapping, optional
            When this worker's model was "saved" and "loaded", in Unix seconds.
        values : mapping, optional
            More metrics by their full names, which are keys of `HELP`.
        lines : sequence of str
            Formatted lines to append.
        """
        with suppress(OSError):
            self.set_gauge("resident_bytes", resident_bytes())
        total = self._metrics.sum(axis=0)
        text = [
            *self._format_single_values(total),
            *self._format_request_counts(total),
            *self._format_response_times(total),
        ]
        for name, seconds in (model_times or {}).items():
            text += _format_metric_lines(
                f"talerec_model_{name}_timestamp_seconds", f"{seconds:.3f}"
            )
        for name, value in (values or {}).items():
            text += _format_metric_lines(name, f"{value:.15g}")
        return ("\n".join([*text, *lines]) + "\n").encode()

    def _format_single_values(self, total: Array) -> list[str]:
        """Return the Prometheus lines of gauges, counters, and worker processes by model version.

        `total` is the sum of all workers' rows of metrics, one value per column of the shared file;
        `_metric_columns` maps the name of each gauge and counter to its column.
        """
        lines = []
        for name, column in self._metric_columns.items():
            full_name = f"talerec_{name}" + ("" if name in GAUGES else "_total")
            digits = 6 if name.endswith("_seconds") else 0
            lines += _format_metric_lines(full_name, f"{total[column]:.{digits}f}")
        versions = self.versions()
        lines += _format_metric_lines("talerec_workers_ready", str(len(versions)))
        lines += _format_metric_header("talerec_model_workers", "gauge")
        for version in sorted(set(versions)):
            lines.append(f'talerec_model_workers{{version="{version}"}} {versions.count(version)}')
        return lines

    def _format_request_counts(self, total: Array) -> list[str]:
        """Return the Prometheus lines of the number of requests by route and HTTP status.

        `total` is the sum of all workers' rows of metrics, one value per column of the shared file.
        The counts of a route begin at its column in `_route_columns`, one per status. Zeros are
        left out. A worker is a process that answers requests.
        """
        lines = _format_metric_header("talerec_requests_total", "counter")
        for route, route_column in self._route_columns.items():
            for status, status_offset in self._status_offsets.items():
                if count := total[route_column + status_offset]:
                    labels = f'route="{route}",status="{status}"'
                    lines.append(f"talerec_requests_total{{{labels}}} {count:.0f}")
        return lines

    def _format_response_times(self, total: Array) -> list[str]:
        """Return the Prometheus lines of the histogram of response times (seconds) by route.

        `total` is the sum of all workers' rows of metrics, one value per column of the shared file.
        A route has counts per status, then per bucket of the histogram (upper bounds `BOUNDS`),
        then the sum of its times. Routes without responses are left out. A worker is a process that
        answers requests.
        """
        lines = _format_metric_header("talerec_request_seconds", "histogram")
        for route, column in self._route_columns.items():
            column += len(STATUSES)
            counts = np.cumsum(total[column : column + len(BOUNDS) + 1])
            if not counts[-1]:
                continue
            for bound, count in zip((*BOUNDS, "+Inf"), counts, strict=True):
                labels = f'route="{route}",le="{bound}"'
                lines.append(f"talerec_request_seconds_bucket{{{labels}}} {count:.0f}")
            seconds = float(total[column + len(BOUNDS) + 1])
            lines.append(f'talerec_request_seconds_sum{{route="{route}"}} {seconds!r}')
            lines.append(f'talerec_request_seconds_count{{route="{route}"}} {counts[-1]:.0f}')
        return lines


class RestartCounters:
    """Counts of the workers that the supervisor replaced, in a file that all processes share.

    The supervisor starts and replaces the workers, and alone counts; workers report the counts.
    folder: the folder of the run of the service.
    """

    def __init__(self, folder: Path) -> None:
        self._values = _map_array(folder / "restarts", (1, len(_RESTARTS)), np.float64)[0]

    def increment(self, name: str) -> None:
        """Add 1 to a counter: "workers_replaced" or "workers_hung"."""
        self._values[_RESTARTS.index(name)] += 1

    def metrics(self) -> dict[str, float]:
        """Return the counts by the full names of their metrics."""
        return {
            f"talerec_{name}_total": float(value)
            for name, value in zip(_RESTARTS, self._values, strict=True)
        }


def _format_metric_header(name: str, kind: str) -> list[str]:
    """Return the HELP and TYPE lines of a Prometheus metric; `kind` is its type."""
    return [f"# HELP {name} {HELP[name]}", f"# TYPE {name} {kind}"]


def _format_metric_lines(name: str, value: str) -> list[str]:
    """Return the Prometheus lines of a metric without labels: help, type and value.

    The metric is a counter if its name ends with "_total", else a gauge.
    """
    kind = "counter" if name.endswith("_total") else "gauge"
    return [*_format_metric_header(name, kind), f"{name} {value}"]


def _map_array(path: Path, shape: tuple[int, int], dtype: type) -> Array:
    """Map a file, shared by all workers, as an array of 8-byte values; a new file has zeros.

    Disk space is reserved now: writing to a hole of a mapped file kills the process if the disk is
    full. Where the system has no call for it, as macOS, the file only gets its length. TalerecError
    if the file cannot be written.
    """
    size = shape[0] * shape[1] * 8
    try:
        with path.open("ab") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            elif os.fstat(file.fileno()).st_size < size:
                os.ftruncate(file.fileno(), size)
    except OSError as error:
        raise TalerecError(f"{path} cannot be written: {error.strerror or error}") from None
    return np.asarray(np.memmap(path, dtype, "r+", shape=shape))


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes, including mapped pages (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")

"""Online metrics: samples of users, HR@10 and MRR@10 per model, and their display."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any

import polars as pl

from talerec.evaluation import difference_intervals, sum_users
from talerec.serve import Settings
from talerec.store import Exclusion, Measurement, MeasurementStore, StoreError

DAY = 86_400  # seconds
WINDOWS = {"hour": 3600, "day": DAY}
LIST_LENGTH = 10  # items of a list that are ranked
ROLES = ("current", "candidate")
_MAX_VERSIONS = 10  # shown, the latest first
_METRICS = ("HR@10", "MRR@10")
_MAX_AGE_S = 1.0  # seconds for which a summary is shown before it is read again
_MODEL_GAUGES = {
    "events": ("talerec_live_events", "Events in the last hour or day that a model was ranked on."),
    "HR@10": ("talerec_live_hr10", "Share of new events whose item was in the top ten before."),
    "MRR@10": ("talerec_live_mrr10", "Mean of 1/rank in the top ten before (else 0) of new events.")
}  # fmt: skip
_EXCLUSION_GAUGE = (
    "talerec_live_not_measured",
    "Events in the last hour or day that a model was not ranked on, by reason.",
)
_PROGRESS_GAUGES = {
    "share": ("talerec_measured_share", "Share of users on whose events models are evaluated."),
    "behind": ("talerec_measure_behind", "Events that arrived and are not evaluated yet."),
    "left_out": ("talerec_measure_left_out", "Events skipped because evaluation lagged behind."),
}


# -- samples of users ------------------------------------------------------------------------------

#: Keys of two independent samples: users served by the candidate, and users evaluated.
MEASURED, CANDIDATE = b"measured", b"candidate"


def hash_user(user: str, sample: bytes) -> int:
    """Return a 63-bit hash that depends only on the user id and the key of the sample.

    `sample` names an independent random split of the users, MEASURED or CANDIDATE.
    """
    digest = blake2b(user.encode(), digest_size=8, key=sample).digest()
    return int.from_bytes(digest, "big") >> 1


def is_in_share(user: str, share: float, sample: bytes) -> bool:
    """Is a user in this share of all users, the same on every machine?

    `share` is from 0 to 1; `sample` names an independent random split of the users. A user in a
    smaller share is also in every larger one.

    Examples
    --------
    >>> is_in_share("ann", 1.0, MEASURED), is_in_share("ann", 0.0, MEASURED)
    (True, False)
    """
    return share >= 1 or hash_user(user, sample) < share * 2**63


# -- summary ---------------------------------------------------------------------------------------


def measurement_frame(measurements: Sequence[Measurement]) -> pl.DataFrame:
    """Return measurements as a frame with the fields of Measurement, HR@10 and MRR@10.

    A measurement is the rank of an event's item in a model's list; HR@10 is 1 and MRR@10 is 1/rank
    if the rank is from 1 to 10, else both are 0. A rank below 0 is an `Exclusion`.
    """
    texts = ("role", "version")
    schema = {name: pl.String if name in texts else pl.Int64 for name in Measurement._fields}
    frame = pl.DataFrame(measurements, schema=schema, orient="row")
    is_hit = pl.col("rank").is_between(1, LIST_LENGTH)
    return frame.with_columns(
        is_hit.cast(pl.Float64).alias(_METRICS[0]),
        pl.when(is_hit).then(1 / pl.col("rank")).otherwise(0.0).alias(_METRICS[1]),
    )


def summarize(frame: pl.DataFrame, now: float) -> dict[str, Any]:
    """Return the metrics of the last hour and the last day before `now`, in Unix seconds.

    `frame` is a `measurement_frame`. For each window ("hour", "day"): the metrics of each model
    version and of each role (current, candidate), and the candidate's difference from the current.
    """
    return {
        name: _summarize_window(frame.filter(pl.col("measured_at") > now - seconds))
        for name, seconds in WINDOWS.items()
    }


def _summarize_window(frame: pl.DataFrame) -> dict[str, Any]:
    """Return the mean HR@10 and MRR@10 of measurements, by model version and by role.

    `frame` has the measurements of the last hour or day, a row per event and model. "models" lists
    the latest ten versions; "current" and "candidate" have the means of these roles; "difference"
    compares the candidate with the current model on the same events; "not_measured" counts the
    events that were not measured, by role and reason.
    """
    exclusions, frame = _count_exclusions(frame), frame.filter(pl.col("rank") >= 0)
    means = [pl.len().alias("events"), *(pl.col(name).mean() for name in _METRICS)]
    by_version = frame.group_by("role", "version").agg(*means, pl.col("seq").max())
    latest = by_version.sort("seq", "role", descending=True).head(_MAX_VERSIONS).drop("seq")
    by_role = {row.pop("role"): row for row in frame.group_by("role").agg(*means).to_dicts()}
    return {
        "models": latest.to_dicts(),
        **{role: by_role[role] for role in ROLES if role in by_role},
        **_compare_candidate(frame),
        "not_measured": exclusions,
    }


def _count_exclusions(frame: pl.DataFrame) -> dict[str, dict[str, int]]:
    """Return how many events of a `measurement_frame` were not measured, by role and reason.

    Roles without rows are missing; reasons are the names of `Exclusion` in lower case.
    """
    counts = frame.group_by("role").agg(
        (pl.col("rank") == int(reason)).sum().alias(reason.name.lower()) for reason in Exclusion
    )
    return {row.pop("role"): row for row in counts.sort("role").to_dicts()}


def _compare_candidate(frame: pl.DataFrame) -> dict[str, Any]:
    """Return the latest candidate's paired difference from the current model; {} if no pairs.

    Pairs are measurements of the same event. For each metric: the mean difference and its 95 %
    interval, clustered by user, so that one active user does not make it narrow.
    """
    current, candidate = (frame.filter(pl.col("role") == role) for role in ROLES)
    if candidate.is_empty():
        return {}
    version = candidate.sort("seq")["version"][-1]
    latest = candidate.filter(pl.col("version") == version)
    pairs = latest.join(current, on="seq", suffix=" of current")
    if pairs.is_empty():
        return {}
    differences = [(pl.col(name) - pl.col(f"{name} of current")).alias(name) for name in _METRICS]
    users = (
        pairs.select("user", *differences)
        .group_by("user")
        .agg(*(pl.col(name).sum() for name in _METRICS), pl.len().alias("events"))
        .sort("user")
    )
    sums, events = users.select(_METRICS).to_numpy(), users["events"].to_numpy()
    low, high = difference_intervals(sum_users(sums, events))
    means = sums.sum(axis=0) / events.sum()
    metrics = {
        name: {"difference": float(means[n]), "interval": [float(low[n]), float(high[n])]}
        for n, name in enumerate(_METRICS)
    }
    counts = {"candidate": version, "events": int(events.sum()), "users": len(users)}
    return {"difference": {**counts, **metrics}}


# -- what workers show -----------------------------------------------------------------------------


class OnlineMetrics:
    """The metrics of the served models on arriving events, as a worker reads them.

    A background process measures them and stores a summary in the event store; the summary is None
    where no events are evaluated. While the store does not answer, it is the last one that was
    read.
    """

    def __init__(self, settings: Settings) -> None:
        """Keep the store's address, None if no events are evaluated; nothing is read yet."""
        self._address = settings.store if settings.measure else None
        self._store: MeasurementStore | None = None
        self._lock = threading.Lock()
        self._read_at = 0.0
        self.latest: dict[str, Any] | None = None  # the summary that was read last

    def start_measuring(self) -> None:
        """Mark the events from now on for evaluation by a process that starts later.

        A store that does not answer is ignored.
        """
        if self._address is not None:
            with suppress(StoreError), MeasurementStore(self._address) as store:
                store.start_measuring()

    def read(self) -> dict[str, Any] | None:
        """Return the metrics of models on new events, at most a second old, as last published.

        Keys: share, at, behind, left_out, and "hour" and "day" with metrics by model. This waits
        for the store. None if no events are evaluated, or nothing was published yet.
        """
        if self._address is None:
            return None
        with self._lock:
            if time.monotonic() >= self._read_at + _MAX_AGE_S:
                with suppress(StoreError):
                    self.latest = self._read_summary(self._address)
                self._read_at = time.monotonic()
            return self.latest

    def _read_summary(self, address: str) -> dict[str, Any] | None:
        """Read the published metrics from the store at `address`; None if none were published.

        The summary has the fields "share", "at", "behind", "left_out", and the metrics of the
        windows "hour" and "day". The connection is opened at the first call.
        """
        if self._store is None:
            self._store = MeasurementStore(address)
        text = self._store.read_summary()
        return None if text is None else dict(json.loads(text))


def prometheus_lines(summary: dict[str, Any] | None) -> list[str]:
    """Return the summary of online metrics as lines in Prometheus' text format.

    `summary` is what `OnlineMetrics.read` returns: progress by name, and for each window ("hour",
    "day") the metrics of "models", one dict per model version. The last lines count events by the
    reason why they were not measured. None: no lines.
    """
    if summary is None:
        return []
    lines: list[str] = []
    for key, (name, help_text) in _PROGRESS_GAUGES.items():
        lines += [f"# HELP {name} {help_text}", f"# TYPE {name} gauge", f"{name} {summary[key]:g}"]
    for key, (name, help_text) in _MODEL_GAUGES.items():
        lines += [f"# HELP {name} {help_text}", f"# TYPE {name} gauge"]
        for window in WINDOWS:
            for row in summary[window]["models"]:
                labels = f'role="{row["role"]}",version="{row["version"]}",window="{window}"'
                lines.append(f"{name}{{{labels}}} {row[key]:.6g}")
    return lines + _format_exclusion_lines(summary)


def _format_exclusion_lines(summary: dict[str, Any]) -> list[str]:
    """Return how many events were not measured, by role, reason and window, for Prometheus.

    `summary` is that of `prometheus_lines`; one published by an earlier version has no such counts.
    """
    name, text = _EXCLUSION_GAUGE
    lines = [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
    for window in WINDOWS:
        for role, counts in summary[window].get("not_measured", {}).items():
            for reason, count in counts.items():
                labels = f'role="{role}",reason="{reason}",window="{window}"'
                lines.append(f"{name}{{{labels}}} {count}")
    return lines

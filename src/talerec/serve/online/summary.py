"""Figures of what was measured: HR@10 and MRR@10 by model version, and how a candidate differs from the current model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from talerec.evaluation.intervals import bootstrap_means
from talerec.store.measurements import Measured

HOUR, DAY = 3600, 86_400  # seconds
PLACES = 10  # of a list that is looked at
WINDOWS = {"hour": HOUR, "day": DAY}
ROLES = ("current", "candidate")
_VERSIONS = 10  # that are shown, the latest first
_METRICS = ("HR@10", "MRR@10")


def frame_of(measured: Sequence[Measured]) -> pl.DataFrame:
    """What was measured, with the value of each metric."""
    kinds = dict.fromkeys(Measured._fields, pl.Int64) | {"role": pl.String, "version": pl.String}
    frame = pl.DataFrame(measured, schema=kinds, orient="row")
    inside = pl.col("place").is_between(1, PLACES)
    return frame.with_columns(
        inside.cast(pl.Float64).alias(_METRICS[0]),
        pl.when(inside).then(1 / pl.col("place")).otherwise(0.0).alias(_METRICS[1]),
    )


def summary(frame: pl.DataFrame, now: float) -> dict[str, Any]:
    """For the last hour and the last day: the figures of each version, of each role, and the candidate's difference."""
    return {
        name: _window(frame.filter(pl.col("moment") > now - seconds))
        for name, seconds in WINDOWS.items()
    }


def _window(frame: pl.DataFrame) -> dict[str, Any]:
    means = [pl.len().alias("events"), *(pl.col(name).mean() for name in _METRICS)]
    by_version = frame.group_by("role", "version").agg(*means, pl.col("seq").max())
    latest = by_version.sort("seq", "role", descending=True).head(_VERSIONS).drop("seq")
    by_role = {row["role"]: row for row in frame.group_by("role").agg(*means).to_dicts()}
    return {
        "models": latest.to_dicts(),
        **{role: _without_role(by_role[role]) for role in ROLES if role in by_role},
        **_difference(frame),
    }


def _without_role(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "role"}


def _difference(frame: pl.DataFrame) -> dict[str, Any]:
    """How the candidate of now differs from the current model on the events that both were measured on; users are drawn for the interval."""
    mine, other = (frame.filter(pl.col("role") == role) for role in reversed(ROLES))
    if mine.is_empty():
        return {}
    version = mine.sort("seq")["version"][-1]
    both = mine.filter(pl.col("version") == version).join(other, on="seq", suffix=" of current")
    if both.is_empty():
        return {}
    change = [(pl.col(name) - pl.col(f"{name} of current")).alias(name) for name in _METRICS]
    users = (
        both.select("user", *change)
        .group_by("user")
        .agg(*(pl.col(name).sum() for name in _METRICS), pl.len().alias("events"))
        .sort("user")
    )
    sums, events = users.select(_METRICS).to_numpy(), users["events"].to_numpy()
    low, high = bootstrap_means(sums, events.astype(np.float64))
    means = sums.sum(axis=0) / events.sum()
    found = {
        name: {"difference": float(means[n]), "interval": [float(low[n]), float(high[n])]}
        for n, name in enumerate(_METRICS)
    }
    facts = {"candidate": version, "events": int(events.sum()), "users": len(users)}
    return {"difference": {**facts, **found}}

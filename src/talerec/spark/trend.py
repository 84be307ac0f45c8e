"""Trend counts (Eq. 14) on a cluster: all rows of an item meet in one task, or in slices of time."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from talerec.runtime.arrays import Array
from talerec.spark import blocks, tasks
from talerec.spark.partitions import Rows, time_cuts
from talerec.spark.session import Run, map_tasks, run_tasks, send_tasks
from talerec.spark.sizes import edges


def count_trends(
    run: Run, rows: Rows, parts: int, plan: tasks.TrendPlan, window: float, side: str
) -> Rows:
    """The same rows with their trend counts."""
    folder = f"{rows.folder}/{rows.kind}times"  # not that of the first fit, whose late attempts may still write
    if plan.cuts:
        Path(folder).mkdir()
        Path(folder).chmod(0o777)
        popular = send_tasks(run, parts, lambda p: tasks.trend_cells(rows, p, plan, popular=True))
        with run.stage("trend"):
            run_tasks(popular, plan.total, lambda t, b: tasks.save_sorted_times(b, folder, t))
    sent = send_tasks(run, parts, lambda p: tasks.trend_cells(rows, p, plan, popular=False))
    counted = map_tasks(
        sent,
        plan.total,
        "block",
        lambda t, b: tasks.counted_cells(b, t, plan, window, side, folder),
        blocks.CELLS,
    )
    with run.stage("trend"):
        run_tasks(counted, parts, lambda p, b: tasks.save_counts(b, p, rows))
    return rows._replace(is_counted=True)


def trend_plan(rows_of: Array, sampled: Array, cores: int, task_rows: int) -> tasks.TrendPlan:
    """Which rows are counted together: an item with more than `task_rows` rows is cut into slices of time."""
    popular = int(np.count_nonzero(rows_of > task_rows))
    others = rows_of[popular:]
    buckets = max(cores, math.ceil(int(others.sum()) / task_rows))
    cuts = [
        time_cuts(sampled, item, math.ceil(int(rows_of[item]) / task_rows))
        for item in range(popular)
    ]
    bounds = popular + edges(others.astype(np.float64), buckets) if len(others) else [popular] * 2
    return tasks.TrendPlan(np.asarray(bounds), cuts)

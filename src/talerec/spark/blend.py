"""A blend on a cluster: its parts are fitted one after the other, and what each counts is learned as on one machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame

from talerec.models.blend.model import Blend, stacked
from talerec.models.blend.parts import weights_of
from talerec.models.core.base import Model
from talerec.models.core.persistence import Fitted
from talerec.runtime.arrays import Array
from talerec.runtime.clock import summed
from talerec.spark import blocks
from talerec.spark.log_stats import Tally, of_rows
from talerec.spark.partitions import Rows
from talerec.spark.session import Run, map_tasks
from talerec.spark.tables import arrow_type, replaced, spark_schema
from talerec.spark.tempo import Study

Learn = Callable[[Run, Tally, Model, str], Fitted]  # one part, whose weights go to a table too
Begin = Callable[[Run, Tally], Study]  # the log in parts


def blended(
    run: Run, known: Tally, blend: Blend, parquet: str, learn: Learn, begin: Begin
) -> Fitted:
    """What a blend learns of a log; the weights of each part that counts are a table of their own within `parquet`."""
    parts = blend.made()
    weight, enough = blend.weighed(parts, lambda: _weights(run, known, parts, learn, begin))
    with replaced(run.session, parquet):  # maybe by parts that count no more
        for number, part in enumerate(parts):
            part._fitted = None
            if weight[number]:
                place = _within(run, f"part-{number}")
                part._fitted = learn(place, known, part, f"{parquet}/{number}-{part.name}")
    counting = [part if part._fitted else None for part in parts]
    found = [part.fitted for part in counting if part is not None]
    lately = [one.kept_recent_counts for one in found if one.kept_recent_counts is not None]
    return replace(
        found[0],
        weights=stacked(counting, weight, enough),
        log=next((one.log for one in found if one.log is not None), None),
        solver=None,
        seconds=summed(one.seconds for one in found),
        kept_recent_counts=lately[0] if lately else None,
    )


def _within(run: Run, name: str) -> Run:
    """A run in a folder of its own, which knows the items of this one."""
    folder = run.folder / name
    folder.mkdir()
    shutil.copy(run.folder / "items.parquet", folder)
    return Run(run.session, folder)


def _weights(
    run: Run, known: Tally, parts: list[Model], learn: Learn, begin: Begin
) -> Array | None:
    """What each part counts, by questions about rows that a first fit of all parts has not seen; None: the log is too small."""
    study = begin(_within(run, "questions"), known)
    study.order_by_time(study.rows)
    held = study.held_back(every_item=True)
    if held is None:
        return None
    place = run.folder / "first"
    place.mkdir()
    first = Run(run.session, place)
    events = first.save("rows", _rows_of(study, held.rows, known.events), "learn")
    told = of_rows(first, known, events, every_item=True)
    for number, part in enumerate(parts):
        own = _within(first, f"part-{number}")
        part._fitted = learn(own, told, part, f"file://{own.folder / 'weights.parquet'}")
    repeats = study.habits_of(held.rows).does_repeat
    with run.stage("learn"):
        return weights_of(parts, held.questions, len(known.ids), repeats=repeats)


def _rows_of(study: Study, rows: Rows, events: DataFrame) -> DataFrame:
    """The rows of a first fit as a table like `events`, in the order of their users' rows."""
    kinds = {name: arrow_type(events.schema[name].dataType) for name in ("user", "item")}
    more = {"weight": pa.float64()} if rows.is_weighed else {}
    schema = pa.schema({**kinds, "time": pa.int64(), "place": pa.int64(), **more})

    def send(part: int, batches: blocks.Batches) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield from blocks.in_schema(_frame(rows, part), schema)

    numbers = study.run.numbers(study.parts)
    return map_tasks(numbers, study.parts, "block", send, spark_schema(schema))


def _frame(rows: Rows, part: int) -> pl.DataFrame:
    log = rows.log(part)
    users = pl.read_parquet(rows.users_file(part))["id"]
    items = pl.read_parquet(Path(rows.folder) / "items.parquet").sort("rank")["id"]
    worth = {} if log.weight is None else {"weight": log.weight}
    return pl.DataFrame(
        {
            "user": users.gather(log.user_codes()),
            "item": items.gather(log.item),
            "time": log.time,
            "place": np.arange(log.rows),
            **worth,
        }
    )

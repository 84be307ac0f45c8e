"""What fitting leaves behind, and how it goes into an artifact and comes back."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from talerec import columns
from talerec.artifact import format as artifact
from talerec.data.log import Log
from talerec.data.vocabulary import Vocabulary
from talerec.models.core.update_state import Settled
from talerec.ranking.blocks import DenseBlock
from talerec.ranking.weights import Weights
from talerec.runtime import memory
from talerec.runtime.arrays import Array

logger = logging.getLogger("talerec")

#: Days before the log's last row: what was popular in them is shown where nothing is known of the asker.
RECENT_DAYS = 7.0

#: Facts of the training of a model: the store whose events its histories hold, and up to which seq.
STORE, STORE_SEQ = "store", "store_seq"


@dataclass(frozen=True, eq=False)
class Fitted:
    """What fitting leaves behind."""

    weights: Weights
    items: Vocabulary
    info: pl.DataFrame | None
    log: Log | None  # training histories; None in an artifact saved without them
    solver: str | None
    seconds: dict[str, float]
    training: dict[str, Any]
    kept_recent_counts: Array | None = None
    settled: Settled | None = None  # what an update needs

    @property
    def unit(self) -> str:
        """What the log's times were read as: numbers whose size does not tell their unit count in it too."""
        return str(self.training.get("time_read_as", "s"))

    @cached_property
    def recent_counts(self) -> Array | None:
        """Rows of each item in the training log's last days, for askers of whom nothing is known."""
        return self.kept_recent_counts if self.log is None else self.log.counts(RECENT_DAYS)


def training_facts(log: Log) -> dict[str, Any]:
    """What is said of the rows that a model was fitted on."""
    return {
        "users": len(log.users),
        "items": len(log.items),
        "rows": log.rows,
        "first_time": int(log.time.min()),
        "last_time": int(log.time.max()),
        "ties": log.ties,
        "time_read_as": log.unit,
        **({} if log.weight is None else {"weighed": True}),
        **({} if log.weight_unit is None else {"weight_unit": log.weight_unit}),
    }


def not_updatable(fitted: Fitted) -> Fitted:
    """What fitting left behind, without what only an update needs."""
    training = {name: value for name, value in fitted.training.items() if name != "updatable"}
    bare = None if fitted.log is None else replace(fitted.log, trends=None)
    return replace(fitted, log=bare, training=training, settled=None)


_WORTH_SAYING = 16 * 2**20  # bytes of dense weights


def say_size(fitted: Fitted) -> None:
    """Say how large dense weights are, where they are large, before they are written."""
    size = sum(b.values.nbytes for b in fitted.weights.blocks if isinstance(b, DenseBlock))
    if size >= _WORTH_SAYING:
        logger.info("dense weights take %s; solver=local keeps few of them", memory.human(size))


def bundle(
    name: str, params: dict[str, Any], fitted: Fitted, *, histories: bool
) -> artifact.Bundle:
    """A fitted model as plain facts, arrays and tables."""
    blocks, arrays = fitted.weights.stored()
    items = pl.DataFrame({columns.ITEM: fitted.items.ids}) if fitted.info is None else fitted.info
    tables = {"items": items}
    if histories and fitted.log is not None:
        log = fitted.log
        arrays |= {"ptr": log.ptr, "item": log.item, "time": log.time}
        arrays |= {} if log.weight is None else {"worth": log.weight}
        arrays |= {} if log.trends is None else {"trends": log.trends.astype(np.int32)}
        arrays |= {} if fitted.settled is None else fitted.settled.arrays()
        tables["users"] = pl.DataFrame({columns.USER: log.users.ids})
    elif fitted.recent_counts is not None:
        arrays["lately"] = fitted.recent_counts
    facts = {
        "model": name,
        "params": params,
        "solver": fitted.solver,
        "seconds": fitted.seconds,
        "training": fitted.training,
        "has_item_info": fitted.info is not None,
        "blocks": blocks,
    }
    if histories and fitted.settled is not None:
        facts["settled"] = fitted.settled.facts()
    return artifact.Bundle(facts, arrays, tables)


def restored(kept: artifact.Bundle) -> Fitted:
    """What `bundle` kept."""
    arrays, facts = kept.arrays, kept.facts
    table = kept.tables["items"]
    items = Vocabulary(table[columns.ITEM])
    info = table if facts["has_item_info"] else None
    return Fitted(
        Weights.restored(facts.get("blocks"), arrays, len(items)),
        items,
        info,
        _log(kept, items, info),
        facts["solver"],
        facts["seconds"],
        facts["training"],
        arrays.get("lately"),
        Settled.restored(facts.get("settled"), arrays),
    )


def _log(kept: artifact.Bundle, items: Vocabulary, info: pl.DataFrame | None) -> Log | None:
    arrays, training = kept.arrays, kept.facts["training"]
    if "ptr" not in arrays:
        return None
    users = Vocabulary(kept.tables["users"][columns.USER])
    unit, ties = training.get("time_read_as", "us"), training.get("ties", "file")
    rows = (arrays["ptr"], arrays["item"], arrays["time"])
    trends, worth = arrays.get("trends"), arrays.get("worth")
    divisor = training.get("weight_unit")
    return Log(*rows, users, items, info, unit, ties, trends, weight=worth, weight_unit=divisor)

"""Fit and evaluate on Apache Spark, for logs that outgrow one machine, and recommend to all users of a log.

    from talerec import TALE, spark

    with spark.connected("spark://host:7077") as session:
        spark.fit(TALE(reg=200), "s3a://shop/events", "shop.tale", session=session)
        spark.recommend("shop.tale", "s3a://shop/events", "s3a://shop/next", session=session)
        spark.evaluate(TALE(reg=200), "s3a://shop/events", "at:2026-10-01", session=session)

Spark moves rows; counting and solving is done by the kernels of one machine (`talerec.spark.tasks`, which needs no
Spark). `docs/scale.md` says how large a cluster has to be, and what is too large for one. Names are loaded when they are
first used, so that the tasks can be imported where pyspark is not installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from talerec.errors import TalerecError

_HOMES = {
    "Columns": "talerec.spark.events",
    "check_fit": "talerec.spark.fitting",
    "check_model": "talerec.spark.fitting",
    "fit": "talerec.spark.fitting",
    "check_evaluation": "talerec.spark.evaluating",
    "evaluate": "talerec.spark.evaluating",
    "recommend": "talerec.spark.recommending",
    "connected": "talerec.spark.sessions",
}

if TYPE_CHECKING:
    from talerec.spark.evaluating import check_evaluation as check_evaluation
    from talerec.spark.evaluating import evaluate as evaluate
    from talerec.spark.events import Columns as Columns
    from talerec.spark.fitting import check_fit as check_fit
    from talerec.spark.fitting import check_model as check_model
    from talerec.spark.fitting import fit as fit
    from talerec.spark.recommending import recommend as recommend
    from talerec.spark.sessions import connected as connected


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'talerec.spark' has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("pyspark", "py4j"):
            raise
        raise TalerecError(
            "Spark needs pyspark, which is not installed: pip install 'talerec[spark]'"
        ) from None

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
    "Columns": "talerec.spark.read",
    "check_fit": "talerec.spark.fit_job",
    "check_model": "talerec.spark.fit_job",
    "fit": "talerec.spark.fit_job",
    "check_evaluation": "talerec.spark.evaluate_job",
    "evaluate": "talerec.spark.evaluate_job",
    "recommend": "talerec.spark.recommend_job",
    "connected": "talerec.spark.session",
}

if TYPE_CHECKING:
    from talerec.spark.evaluate_job import check_evaluation as check_evaluation
    from talerec.spark.evaluate_job import evaluate as evaluate
    from talerec.spark.fit_job import check_fit as check_fit
    from talerec.spark.fit_job import check_model as check_model
    from talerec.spark.fit_job import fit as fit
    from talerec.spark.read import Columns as Columns
    from talerec.spark.recommend_job import recommend as recommend
    from talerec.spark.session import connected as connected


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

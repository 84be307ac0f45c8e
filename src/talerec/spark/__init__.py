"""The same work on an Apache Spark cluster, for logs that outgrow one machine.

This package fits and evaluates models on a cluster, and recommends to all users of a log. Spark
moves rows and messages; counting and solving are done by the kernels of one machine, on a part of
the work (`gram`, `trends`, `triangles`, `tasks`, `tempo_tasks` and `evaluation_tasks`, which need
no Spark). `docs/scale.md` says how large a cluster has to be. Names are loaded when they are first
used, so that tasks can be imported where pyspark is not installed.

    from talerec import TALE, spark

    with spark.connected("spark://host:7077") as session:
        spark.fit(TALE(reg=200), "s3a://shop/events", "shop.tale", session=session)
        spark.recommend("shop.tale", "s3a://shop/events", "s3a://shop/next", session=session)
        spark.evaluate(TALE(reg=200), "s3a://shop/events", "at:2026-10-01", session=session)
"""

from __future__ import annotations

from typing import Any

from talerec.errors import require_extra
from talerec.exports import lazy_exports

_load, __dir__, __all__ = lazy_exports(__name__)


def __getattr__(name: str) -> Any:
    """Return a public name of this package, loaded from its module when first used.

    TalerecError if that needs pyspark and it is not installed.
    """
    try:
        return _load(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("pyspark", "py4j"):
            raise
        require_extra("spark", "Spark", ("pyspark", "py4j"))
        raise

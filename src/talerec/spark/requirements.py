"""Requirements of a Spark session: packages, and Java. No Spark."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from talerec.errors import TalerecError, require_extra

#: The variable that spark-submit sets for the Python program that it starts: Java runs already.
_STARTED_BY_SPARK = "PYSPARK_GATEWAY_PORT"


def check_installed(is_running: bool = False) -> None:
    """Raise TalerecError if Spark cannot work here: a package, or Java, is missing.

    is_running: whether Spark runs already, so that Java need not be found. Spark starts the Java in
    the folder JAVA_HOME, or else the one on the PATH.
    """
    # tasks exchange Arrow tables with Spark, which PySpark refuses to do without pandas
    require_extra("spark", "Spark", ("pyspark", "py4j", "pandas"))
    if is_running or os.environ.get(_STARTED_BY_SPARK):
        return
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java", path=str(Path(home) / "bin") if home else None) is None:
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "no java is on the PATH"
        raise TalerecError(f"Spark needs Java 17 or newer: {where}")

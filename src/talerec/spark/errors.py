"""Errors of Spark as a TalerecError of one line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException, PythonException

import talerec
from talerec import errors
from talerec.errors import TalerecError

NANOSECONDS = "spark.sql.legacy.parquet.nanosAsLong"  #: the setting that reads such times
_TALEREC_ERROR = re.compile(r"talerec\.(?:\w+\.)+(\w+Error): (.*)")  # as a task's traceback ends
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '(talerec[\w.]*)'")
_TYPE_MISMATCH = re.compile(
    r"reading file (\S+)\. Data type mismatches when reading Parquet column \[(.+?)\]\. "
    r"Expected Spark type (\S+), actual Parquet type (\w+)"
)
_UNREADABLE_FILE = re.compile(r"reading file (\S+)\.\s")


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise errors of Spark in the `with` block as TalerecErrors of one line.

    Errors of talerec that a Spark task raised keep their class.
    """
    try:
        yield
    except PySparkException as error:
        raise translate_pyspark_error(error) from error
    except Py4JJavaError as error:
        raise TalerecError(describe_java_error(str(error))) from error
    except Py4JError as error:
        raise TalerecError(f"Spark no longer responds: {first_line(error)}") from error


def translate_pyspark_error(error: PySparkException) -> TalerecError:
    """Return a TalerecError for an error of pyspark, which has a task's error only as text.

    If the text ends with an error of talerec, its class, message and parameter names are restored;
    else the message is one line of the text. A missing module names the version to install.
    """
    text = str(error)
    if not isinstance(error, PythonException):
        reason = first_line(error)
        if "TIMESTAMP(NANOS" in reason:
            reason = f"the log has times in nanoseconds, which Spark reads with {NANOSECONDS}=true"
        return TalerecError(f"Spark: {reason}")
    if raised := _TALEREC_ERROR.search(text):
        error_class = getattr(errors, raised[1], TalerecError)
        translated: TalerecError = error_class(raised[2])
        translated.parameters = tuple(re.findall(r"`(\w+)`", raised[2]))
        return translated
    if missing := _NO_MODULE.search(text):
        return TalerecError(
            f"an executor has no {missing[1]}: install talerec {talerec.__version__} "
            "on all machines, as on the driver"
        )
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(" ")]
    return TalerecError(f"a Spark task failed: {lines[-1] if lines else type(error).__name__}")


def describe_java_error(text: str) -> str:
    """Return one line for the text of a Java error of Spark: its cause, and the file if any.

    For a Parquet file whose column has another type than in other files, or that cannot be read,
    the line names the file.
    """
    causes = re.findall(r"Caused by: [\w.$]+: (.+)", text)
    if mismatch := _TYPE_MISMATCH.search(text):
        file, column, expected, actual = mismatch.groups()
        return (
            f"{file}: column {column!r} holds {actual} values, and {expected} in other files: "
            "write one type to all files"
        )
    if unreadable := _UNREADABLE_FILE.search(text):
        reason = causes[-1] if causes else "it is damaged"
        return f"{unreadable[1]} cannot be read as Parquet: {reason}"
    lines = [line for line in text.splitlines() if line.strip()]
    return f"Spark: {causes[-1] if causes else lines[min(1, len(lines) - 1)].lstrip(': ')}"


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]

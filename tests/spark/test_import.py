"""Tasks need no Spark; what needs it reports so; the driver raises the errors of tasks."""

from __future__ import annotations

import json
import subprocess
import sys
from zipfile import ZipFile

import pytest

import talerec.spark
from talerec.errors import InvalidLogError, TalerecError, UnknownIdError

BLOCKED = "import sys\nsys.modules['pyspark'] = sys.modules['py4j'] = None\n"


def run(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_tasks_are_imported_and_run_where_pyspark_is_missing():
    code = (
        "import numpy as np\n"
        "from talerec.spark import evaluation_tasks, gram, messages, partitions\n"
        "from talerec.spark import tasks, tempo_tasks, trends, triangles, work_plan\n"
        "from talerec.runtime.csr import CSR\n"
        "rows = CSR(np.arange(3), np.zeros(2, np.int32), np.ones((2, 2)))\n"
        "sent = list(triangles.send_owner_rows(rows, np.arange(3), 0))\n"
        "print([batch.column('block')[0].as_py() for batch in sent], tasks.send_gram.__name__)\n"
    )
    assert run(BLOCKED + code) == "[0, 1] send_gram\n"


def test_importing_tasks_does_not_load_pyspark():
    code = "import sys, json, talerec.spark.tasks\nprint(json.dumps('pyspark' in sys.modules))"
    assert json.loads(run(code)) is False


@pytest.mark.parametrize("name", ["fit", "evaluate", "recommend", "connected", "Columns"])
def test_a_name_that_needs_pyspark_says_how_to_install_it(name):
    code = (
        "from talerec import spark\nfrom talerec.errors import TalerecError\n"
        f"try:\n    spark.{name}\nexcept TalerecError as error:\n    print(error)\n"
    )
    message = "Spark needs the extra `spark` (pyspark is missing): pip install 'talerec[spark]'\n"
    assert run(BLOCKED + code) == message


def test_a_name_that_spark_does_not_have_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"module 'talerec\.spark' has no attribute 'nothing'"):
        _ = talerec.spark.nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        ("talerec.errors.TalerecError: reg is 0", TalerecError, "reg is 0"),
        ("talerec.errors.InvalidLogError: no rows", InvalidLogError, "no rows"),
        ("talerec.errors.UnknownIdError: no item 7", UnknownIdError, "no item 7"),
        ("talerec.store.events.StoreError: no answer", TalerecError, "no answer"),
        ("ValueError: odd", TalerecError, "a Spark task failed: ValueError: odd"),
        (
            "ModuleNotFoundError: No module named 'talerec'",
            TalerecError,
            f"an executor has no talerec: install talerec {talerec.__version__} "
            "on all machines, as on the driver",
        ),
    ],
)
def test_an_error_of_a_task_arrives_as_it_was_raised(line, kind, message):
    errors = pytest.importorskip("pyspark.errors", reason="needs pyspark: EXTRAS=all make test")
    from talerec.spark.errors import translate_errors

    traceback = f"Traceback (most recent call last):\n  File 'a.py', line 1\n{line}\n"
    with pytest.raises(TalerecError) as raised, translate_errors():
        raise errors.PythonException(traceback)
    assert type(raised.value) is kind
    assert str(raised.value) == message


def test_an_error_of_a_task_names_its_parameters():
    errors = pytest.importorskip("pyspark.errors", reason="needs pyspark: EXTRAS=all make test")
    from talerec.spark.errors import translate_pyspark_error

    text = "Traceback:\ntalerec.errors.TalerecError: use a smaller `task_pairs` or `task_rows`\n"
    error = translate_pyspark_error(errors.PythonException(text))
    assert error.parameters == ("task_pairs", "task_rows")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "An error occurred while calling o1.parquet.\n: org.apache.spark.SparkException: x "
            "reading file file:/a/1.parquet. Data type mismatches when reading Parquet column "
            "[user_id]. Expected Spark type bigint, actual Parquet type BINARY.\n",
            "file:/a/1.parquet: column 'user_id' holds BINARY values, and bigint in other files: "
            "write one type to all files",
        ),
        (
            "Error while reading file file:/a/1.csv. \nCaused by: java.lang.RuntimeException: "
            "file:/a/1.csv is not a Parquet file\n",
            "file:/a/1.csv cannot be read as Parquet: file:/a/1.csv is not a Parquet file",
        ),
        ("reading file file:/b. ", "file:/b cannot be read as Parquet: it is damaged"),
        ("An error occurred.\n: java.io.IOException: disk", "Spark: java.io.IOException: disk"),
        ("An error.\nCaused by: java.io.IOException: disk", "Spark: disk"),
        ("An error", "Spark: An error"),
    ],
)
def test_an_error_of_java_is_one_line(text, message):
    pytest.importorskip("pyspark", reason="needs pyspark: EXTRAS=all make test")
    from talerec.spark.errors import describe_java_error

    assert describe_java_error(text) == message


def test_modules_of_archives_are_found_after_their_caches_are_cleared(tmp_path):
    pytest.importorskip("pyspark", reason="needs pyspark: EXTRAS=all make test")
    with ZipFile(tmp_path / "some.zip", "w") as archive:
        for name in ("packed/__init__", "packed/one", "packed/two"):
            archive.writestr(f"{name}.py", f"name = {name!r}\n")
    code = (
        "import importlib, sys, zipimport\n"
        f"sys.path.insert(0, {str(tmp_path / 'some.zip')!r})\n"
        "import packed.one\n"
        "from talerec.spark.session import _reduce_task_cleanup\n"
        "def count_archives():\n"
        "    finders = sys.path_importer_cache.values()\n"
        "    return sum(isinstance(finder, zipimport.zipimporter) for finder in finders)\n"
        "before = count_archives()\n"
        "_reduce_task_cleanup()\n"
        "after = count_archives()\n"
        "importlib.invalidate_caches()\n"
        "import packed.two\n"
        "print(before > 0, after, packed.two.name)\n"
    )
    assert run(code) == "True 0 packed/two\n"

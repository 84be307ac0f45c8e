"""What needs no Spark works without it, and what does says so; errors of tasks arrive as they were raised."""

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
        "from talerec.spark import counting, habits, halves, parts, sizes, tasks\n"
        "lines, edges = halves.Lines(np.arange(3), np.zeros(2, np.int32), np.ones((2, 2))), np.arange(3)\n"
        "sent = list(halves.line_cells(lines, edges, 0))\n"
        "print([batch.column('block')[0].as_py() for batch in sent], tasks.gram_cells.__name__)\n"
    )
    assert run(BLOCKED + code) == "[0, 1] gram_cells\n"


def test_importing_tasks_does_not_load_pyspark():
    code = "import sys, json, talerec.spark.tasks\nprint(json.dumps('pyspark' in sys.modules))"
    assert json.loads(run(code)) is False


@pytest.mark.parametrize("name", ["fit", "evaluate", "recommend", "connected", "Columns"])
def test_a_name_that_needs_pyspark_says_how_to_install_it(name):
    code = (
        "from talerec import spark\nfrom talerec.errors import TalerecError\n"
        f"try:\n    spark.{name}\nexcept TalerecError as error:\n    print(error)\n"
    )
    said = "Spark needs pyspark, which is not installed: pip install 'talerec[spark]'\n"
    assert run(BLOCKED + code) == said


def test_a_name_that_spark_does_not_have_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"module 'talerec\.spark' has no attribute 'nothing'"):
        _ = talerec.spark.nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("raised", "kind", "said"),
    [
        ("talerec.errors.TalerecError: reg is 0", TalerecError, "reg is 0"),
        ("talerec.errors.InvalidLogError: no rows", InvalidLogError, "no rows"),
        ("talerec.errors.UnknownIdError: no item 7", UnknownIdError, "no item 7"),
        ("talerec.store.events.StoreError: no answer", TalerecError, "no answer"),
        ("ValueError: odd", TalerecError, "a Spark task failed: ValueError: odd"),
        (
            "ModuleNotFoundError: No module named 'talerec'",
            TalerecError,
            f"an executor has no talerec: install talerec {talerec.__version__}, as on the driver, on all machines",
        ),
    ],
)
def test_an_error_of_a_task_arrives_as_it_was_raised(raised, kind, said):
    errors = pytest.importorskip("pyspark.errors", reason="needs pyspark: EXTRAS=all make test")
    from talerec.spark.session import readable_errors

    traceback = f"Traceback (most recent call last):\n  File 'a.py', line 1\n{raised}\n"
    with pytest.raises(TalerecError) as found, readable_errors():
        raise errors.PythonException(traceback)
    assert type(found.value) is kind
    assert str(found.value) == said


def test_modules_of_archives_are_found_after_what_python_knows_of_archives_is_forgotten(tmp_path):
    pytest.importorskip("pyspark", reason="needs pyspark: EXTRAS=all make test")
    with ZipFile(tmp_path / "some.zip", "w") as archive:
        for name in ("packed/__init__", "packed/one", "packed/two"):
            archive.writestr(f"{name}.py", f"name = {name!r}\n")
    code = (
        "import importlib, sys, zipimport\n"
        f"sys.path.insert(0, {str(tmp_path / 'some.zip')!r})\n"
        "import packed.one\n"
        "from talerec.spark.session import _keep_warm\n"
        "def known(): return sum(isinstance(f, zipimport.zipimporter) for f in sys.path_importer_cache.values())\n"
        "before = known()\n"
        "_keep_warm()\n"
        "after = known()\n"
        "importlib.invalidate_caches()\n"
        "import packed.two\n"
        "print(before > 0, after, packed.two.name)\n"
    )
    assert run(code) == "True 0 packed/two\n"

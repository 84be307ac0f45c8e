"""What Spark needs and this machine lacks is one line, before anything is read or started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from command import talerec
from talerec.errors import TalerecError
from talerec.spark import check_installed

pytest.importorskip("pyspark", reason="needs pyspark: EXTRAS=all make test")

FIT = ["fit", "none.parquet", "-o", "m.tale", "--items", "none.csv", "--engine", "spark"]


@pytest.fixture(autouse=True)
def new_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with Java, whatever this one has, and a program that Spark did not start."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)


def test_with_everything_there_nothing_is_refused() -> None:
    check_installed()


@pytest.mark.parametrize("module", ["pyspark", "pandas"])
def test_a_missing_package_is_named(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    line = f"Spark needs the extra `spark` ({module} is missing): pip install 'talerec[spark]'"
    for is_running in (False, True):
        with pytest.raises(TalerecError) as caught:
            check_installed(is_running)
        assert str(caught.value) == line
    outcome = talerec(*FIT)
    assert (outcome.code, outcome.err) == (2, f"error: {line}\n")


def test_missing_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    line = (
        f"error: Spark needs Java 17 or newer: JAVA_HOME is {tmp_path}/none, which has no bin/java"
    )
    outcome = talerec(*FIT)
    assert (outcome.code, outcome.err.replace("\n", " ").strip()) == (2, line)
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    with pytest.raises(TalerecError, match="Java 17 or newer: no java is on the PATH"):
        check_installed()
    check_installed(is_running=True)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "4711")
    check_installed()

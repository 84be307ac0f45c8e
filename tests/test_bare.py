"""Everything but `serve` works where there are no `resource`, `fcntl`, `os.fork` and /proc."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import talerec
from command import PYTHONPATH, write_log
from talerec.artifact import read_artifact, read_manifest
from talerec.models import load

SOURCE = Path(talerec.__file__).parent
PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); import bare; bare.make(); "
    "from talerec.cli.main import main; main()"
)


def run(*args: object, code: int = 0) -> str:
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), *map(str, args)]
    env = {**os.environ, "PYTHONPATH": PYTHONPATH}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_commands_work_on_a_bare_system(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.csv")
    result = json.loads(run("evaluate", log, "--json"))
    assert result["peak_rss_mb"] is None
    assert "peak memory" not in run("evaluate", log, "--model", "popular")
    run("fit", log, "-o", tmp_path / "m.tale")
    run("fit", log, "-o", tmp_path / "m.tale", "--set", "reg=7")
    run("recommend", tmp_path / "m.tale", "--users", "all", "-o", tmp_path / "lists.parquet")
    assert "is intact" in run("verify", tmp_path / "m.tale")


def test_updates_work_on_a_bare_system_and_serve_names_its_systems(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.csv")
    lines = log.read_text().splitlines()
    (tmp_path / "old.csv").write_text("\n".join(lines[:-5]))
    run("fit", tmp_path / "old.csv", "-o", tmp_path / "m.tale", "--updatable")
    assert "5 new rows" in " ".join(run("update", tmp_path / "m.tale", log).split())
    assert "density" in run("describe", log)
    assert "recommend" in run("--help")
    message = run("serve", tmp_path / "m.tale", code=2)
    assert "serve runs on Linux and macOS" in message
    assert "Traceback" not in message


@pytest.mark.parametrize("library", ["resource", "fcntl", "pwd", "grp", "msvcrt"])
def test_modules_of_one_system_are_imported_only_where_that_may_fail(library: str) -> None:
    """Outside of serve, every such import stands in a `try`."""
    for path in SOURCE.rglob("*.py"):
        if "serve" in path.parts:
            continue
        tree = ast.parse(path.read_text("utf-8"))
        guarded = {id(n) for t in ast.walk(tree) if isinstance(t, ast.Try) for n in ast.walk(t)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import) and library in {a.name for a in node.names}:
                assert id(node) in guarded, path


def test_a_mapped_artifact_is_replaced_where_mapped_files_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Windows a mapped file is neither replaced nor removed; the next writer removes it."""
    log = talerec.read_log(write_log(tmp_path / "log.csv"))
    folder = talerec.TALE(reg=2.0).fit(log).save(tmp_path / "m.tale")
    mapped = {name for name in os.listdir(folder) if name.endswith(".npy")}
    replace, unlink = os.replace, Path.unlink

    def windows_replace(source: Path, target: Path) -> None:
        if Path(target).name in mapped:
            raise PermissionError(13, "the file is mapped", str(target))
        replace(source, target)

    def windows_unlink(path: Path, missing_ok: bool = False) -> None:
        if path.name in mapped:
            raise PermissionError(13, "the file is mapped", str(path))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(os, "replace", windows_replace)
    monkeypatch.setattr(Path, "unlink", windows_unlink)
    before = load(folder)
    for reg in (3.0, 2.0):
        talerec.TALE(reg=reg).fit(log).save(folder)
        assert load(folder).params["reg"] == reg
        assert read_artifact(folder, verify=True)
    assert before.recommend([1], 3).height == 3
    monkeypatch.undo()
    talerec.TALE(reg=5.0).fit(log).save(folder)
    named = {entry["file"] for entry in read_manifest(folder)["files"].values()}
    assert {name for name in os.listdir(folder) if name.endswith((".npy", ".parquet"))} == named

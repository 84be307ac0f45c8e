"""Packages export what their stubs declare, on first use, wherever the package lies."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import talerec

SOURCE = Path(talerec.__file__).parent
STUBS = sorted(SOURCE.rglob("__init__.pyi"))


def package_of(stub: Path) -> str:
    return ".".join(stub.parent.relative_to(SOURCE.parent).parts)


def declared(stub: Path) -> dict[str, str]:
    """Return the exported names of a stub, with the module of each."""
    return {
        alias.asname: node.module
        for node in ast.parse(stub.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }


def test_every_package_that_exports_lazily_has_a_stub():
    lazy = [p for p in SOURCE.rglob("__init__.py") if "lazy_exports" in p.read_text("utf-8")]
    assert sorted(path.with_suffix(".pyi") for path in lazy) == STUBS


@pytest.mark.parametrize("stub", STUBS, ids=package_of)
def test_every_line_of_a_stub_resolves_to_a_name_of_its_own_package(stub):
    package = package_of(stub)
    for name, home in declared(stub).items():
        assert home.startswith(f"{package}."), f"{package} exports {name} of {home}"
        try:
            module = importlib.import_module(home)
        except ModuleNotFoundError as error:  # an extra that is not installed
            if (error.name or "").startswith("talerec"):
                raise
            continue
        assert getattr(importlib.import_module(package), name) is getattr(module, name)
        assert name in vars(importlib.import_module(package)), "it is looked up once"


@pytest.mark.parametrize("stub", STUBS, ids=package_of)
def test_all_and_dir_are_the_names_of_the_stub(stub):
    try:
        package = importlib.import_module(package_of(stub))
    except ImportError as error:
        pytest.skip(f"{error.name} is missing")
    public = {name for name in declared(stub) if not name.startswith("_")}
    version = {"__version__"} if package is talerec else set()
    assert set(package.__all__) == public | version
    assert package.__all__ == sorted(package.__all__) == dir(package)


@pytest.mark.parametrize("stub", STUBS, ids=package_of)
def test_an_unknown_name_is_an_attribute_error(stub):
    try:
        package = importlib.import_module(package_of(stub))
    except ImportError as error:
        pytest.skip(f"{error.name} is missing")
    message = f"module '{package_of(stub)}' has no attribute 'nothing'"
    with pytest.raises(AttributeError, match=message):
        _ = package.nothing


def test_a_package_in_a_zip_file_exports_its_names(tmp_path):
    archive = tmp_path / "talerec.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in SOURCE.rglob("*"):
            if path.suffix in (".py", ".pyi"):
                file.write(path, path.relative_to(SOURCE.parent))
    code = (
        "import talerec, talerec.errors as e; from talerec import TalerecError; "
        "assert TalerecError is e.TalerecError and 'tune' in talerec.__all__; "
        "print(talerec.__file__)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path,
        env={"PYTHONPATH": str(archive)},
    )  # fmt: skip
    assert Path(out.stdout.strip()) == archive / "talerec" / "__init__.py"

"""Examples in docstrings run, and every public name has one."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import talerec

SOURCE = Path(talerec.__file__).parent


def modules_with_examples() -> list[str]:
    """Return modules with examples, found by reading: the others need not be imported."""
    return sorted(
        ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in SOURCE.rglob("*.py")
        if ">>> " in path.read_text(encoding="utf-8")
    )


#: Modules whose examples need an extra.
NEEDS = {"talerec.evaluation.tuning": "optuna"}


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_in_docstrings_run(name):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    module = importlib.import_module(name)
    found: list[str] = []
    runner = doctest.DocTestRunner()
    for test in doctest.DocTestFinder().find(module):
        runner.run(test, out=found.append)
    assert not runner.failures, "".join(found)
    assert runner.tries


#: An error says all in its message; a dictionary and a text have no docstring of their own.
WITHOUT = {
    "InvalidLogError", "NotFittedError", "TalerecError", "UnknownIdError", "MODELS", "__version__"
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(talerec.__all__) - WITHOUT))
def test_a_public_name_has_an_example(name):
    assert ">>> " in (getattr(talerec, name).__doc__ or "")

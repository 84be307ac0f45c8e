"""A library that a command needs and that is not installed is named before the log is read."""

from __future__ import annotations

import sys

import pytest

from command import talerec


@pytest.mark.parametrize(
    ("arguments", "module", "line"),
    [
        (["tune", "none.csv"], "optuna", "tuning needs the extra `tune` (optuna is missing)"),
        (
            ["fit", "none.csv", "-o", "m.tale", "--model", "ranker"],
            "lightgbm",
            "the ranker needs the extra `rank` (lightgbm is missing)",
        ),
        (["fit", "none.csv", "-o", "m.tale", "--model", "sasrec"], "torch", "needs torch"),
        (["evaluate", "none.csv", "--model", "content"], "sklearn", "needs scikit-learn"),
        (
            ["evaluate", "none.csv", "--model", "blend", "--set", "parts=tempo,sasrec"],
            "torch",
            "needs torch",
        ),
        (
            ["evaluate", "none.csv", "--model", "tale", "--set", "solver=torch"],
            "torch",
            "solver=torch needs the extra `torch`",
        ),
    ],
)
def test_a_missing_library_of_a_command_is_named_before_the_log_is_read(
    arguments: list[str], module: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("talerec.neural")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    outcome = talerec(*arguments)
    assert outcome.code == 2
    assert line in outcome.err
    assert "pip install 'talerec[" in outcome.err
    assert outcome.err.count("\n") == 1

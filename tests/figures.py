"""Results of evaluations, number by number."""

from __future__ import annotations

from typing import Any

import pytest

#: Statistics of lists that a cluster does not compute.
ONE_MACHINE = ("gini@", "new@", "diversity@", "calibration@")


def without_one_machine(figures: dict[str, Any]) -> dict[str, Any]:
    """Figures by name or path, without those that a cluster does not compute."""
    return {p: v for p, v in figures.items() if not p.split("/")[-1].startswith(ONE_MACHINE)}


def flat(given: Any, path: str = "") -> dict[str, Any]:
    """Every number and word of nested lists and dicts, by its path."""
    if isinstance(given, dict):
        parts = [flat(value, f"{path}/{name}") for name, value in given.items()]
    elif isinstance(given, list | tuple):
        parts = [flat(value, f"{path}/{number}") for number, value in enumerate(given)]
    else:
        return {path: given}
    return {name: value for part in parts for name, value in part.items()}


def assert_same_figures(found: Any, expected: Any, *left_out: str, rel: float = 1e-12) -> None:
    """The same JSON of two results: words to the letter, numbers to rounding."""
    assert_same_json(found.to_dict(), expected.to_dict(), *left_out, rel=rel)


def assert_same_json(found: Any, expected: Any, *left_out: str, rel: float = 1e-12) -> None:
    """The same object: words to the letter, numbers to rounding."""
    ours, theirs = (
        {
            path: value
            for path, value in without_one_machine(flat(one)).items()
            if path.split("/")[1] not in left_out
        }
        for one in (found, expected)
    )
    assert list(ours) == list(theirs)
    for path, value in theirs.items():
        is_number = isinstance(value, float)
        assert ours[path] == (pytest.approx(value, rel=rel, nan_ok=True) if is_number else value), (
            path
        )

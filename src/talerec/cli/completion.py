"""What a shell offers when Tab is pressed.

A shell waits for this, and importing the models takes most of a second: names and parameters are
read from the models' source files instead, which takes milliseconds.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import typer

Offers = list[tuple[str, str]]  # each with a word of help, for shells that show it
Complete = Callable[[typer.Context, str], Offers]

_FOLDER = Path(__file__).parents[1] / "models"


def among(*values: str) -> Complete:
    """Offer fixed values."""

    def offer(context: typer.Context, incomplete: str) -> Offers:
        return [(value, "") for value in values if value.startswith(incomplete)]

    return offer


def models(context: typer.Context, incomplete: str) -> Offers:
    """Offer the names of models."""
    found = sorted((kind.name, kind.about) for kind in _kinds().values() if kind.name)
    return [(name, about) for name, about in found if name.startswith(incomplete)]


def settings(context: typer.Context, incomplete: str) -> Offers:
    """Offer parameters of the chosen model: NAME=, or NAME=VALUE where the values are known."""
    name = context.params.get("model") or _default()
    kinds = _kinds()
    chosen = next((kind for kind in kinds.values() if kind.name == name), None)
    if chosen is None:
        return []
    offers = [
        (f"{parameter}={value}", help)
        for parameter, (help, values) in _parameters(chosen, kinds).items()
        for value in values or ("",)
    ]
    return [(offer, help) for offer, help in offers if offer.startswith(incomplete)]


@dataclass
class _Kind:
    """A class of the models' source: its name on the command line, and its own parameters."""

    name: str
    about: str
    bases: list[str]
    parameters: dict[str, tuple[str, tuple[str, ...]]]  # name -> help, values that it takes


def _parameters(kind: _Kind, kinds: dict[str, _Kind]) -> dict[str, tuple[str, tuple[str, ...]]]:
    """A model's parameters, its own before those of its base classes."""
    found = dict(kind.parameters)
    for base in kind.bases:
        inherited = _parameters(kinds[base], kinds) if base in kinds else {}
        found |= {name: what for name, what in inherited.items() if not any(found.get(name, ()))}
    return found


@cache
def _kinds() -> dict[str, _Kind]:
    """Every class of the models' source files; none where there are no source files."""
    return {
        node.name: _kind(node)
        for path in sorted(_FOLDER.glob("*.py"))
        for node in ast.parse(path.read_bytes()).body
        if isinstance(node, ast.ClassDef)
    }


def _kind(node: ast.ClassDef) -> _Kind:
    values = dict(_assigned(node.body))
    name = values.get("name")
    about = (ast.get_docstring(node) or "").split("\n")[0]
    parameters = {
        field: _told(value)
        for field, value in values.items()
        if isinstance(value, ast.Call)
        and isinstance(value.func, ast.Name)
        and value.func.id in ("param", "other")
    }
    bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
    return _Kind(_text(name) if name else "", about, bases, parameters)


def _told(call: ast.Call) -> tuple[str, tuple[str, ...]]:
    """Help and values of a parameter; nothing where it is a base class's with another default (`other`)."""
    if getattr(call.func, "id", "") == "other" or len(call.args) < 2:
        return "", ()
    return _text(call.args[1]), _choices(call)


def _assigned(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    for line in body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.value:
            yield line.target.id, line.value
        elif isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            yield line.targets[0].id, line.value


def _text(node: ast.expr) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else ""


def _choices(call: ast.Call) -> tuple[str, ...]:
    """The values of `choices=(...)`; none where they are not written out there."""
    for keyword in call.keywords:
        if keyword.arg == "choices" and isinstance(keyword.value, ast.Tuple):
            return tuple(_text(value) for value in keyword.value.elts)
    return ()


@cache
def _default() -> str:
    source = (_FOLDER / "__init__.py").read_bytes() if _FOLDER.is_dir() else b""
    values = dict(_assigned(ast.parse(source).body))
    return _text(values["DEFAULT"]) if "DEFAULT" in values else ""

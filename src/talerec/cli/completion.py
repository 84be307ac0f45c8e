"""Shell completion: the values that a shell offers when Tab is pressed.

A shell waits for them, and importing the models takes most of a second. So the names and parameters
of models are read from the models' source files instead, which takes milliseconds.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import typer

Offers = list[tuple[str, str]]  # values, each with a short help text for shells that show it
Complete = Callable[[typer.Context, str], Offers]
Parameters = dict[str, tuple[str, tuple[str, ...]]]  # name -> help text, choices

_FOLDER = Path(__file__).parents[1] / "models"


def complete_values(*values: str) -> Complete:
    """Return a completion function for an option that takes one of `values`.

    The function gets Click's context and the typed text, and returns (value, "") of those values
    that start with the text.
    """

    def offer(context: typer.Context, incomplete: str) -> Offers:
        return [(value, "") for value in values if value.startswith(incomplete)]

    return offer


def complete_models(context: typer.Context, incomplete: str) -> Offers:
    """Return the name and help text of each model whose name starts with the typed text.

    For a shell that completes --model; `context` is not used.
    """
    models = sorted(
        (model.name, model.help) for model in _read_model_sources().values() if model.name
    )
    return [(name, help) for name, help in models if name.startswith(incomplete)]


def complete_settings(context: typer.Context, incomplete: str) -> Offers:
    """Return completions of --set: NAME=, or NAME=VALUE for each choice, with help texts.

    The parameters are those of the model that --model names, else of the default model.
    """
    named = context.params.get("model") or [_find_default_model()]
    name = named if isinstance(named, str) else named[-1]
    sources = _read_model_sources()
    model = next((source for source in sources.values() if source.name == name), None)
    if model is None:
        return []
    offers = [
        (f"{parameter}={value}", help)
        for parameter, (help, values) in _list_parameters(model, sources).items()
        for value in values or ("",)
    ]
    return [(offer, help) for offer, help in offers if offer.startswith(incomplete)]


@dataclass
class _ModelSource:
    """A class in the models' source files, as its syntax tree declares it."""

    name: str  # the model's name on the command line; empty for a base class
    help: str  # the first line of the docstring
    bases: list[str]  # names of the base classes
    parameters: Parameters  # help text and choices of those that the class declares itself


def _list_parameters(model: _ModelSource, sources: dict[str, _ModelSource]) -> Parameters:
    """Return the help text and choices of each parameter of a model, inherited ones included.

    `sources` are all classes by name. Where the model declares a parameter without help text and
    choices, those of the base class apply.
    """
    parameters = dict(model.parameters)
    for base in model.bases:
        inherited = _list_parameters(sources[base], sources) if base in sources else {}
        parameters |= {
            name: entry for name, entry in inherited.items() if not any(parameters.get(name, ()))
        }
    return parameters


@cache
def _read_model_sources() -> dict[str, _ModelSource]:
    """Return every class in the models' source files by class name; empty without such files.

    The files are parsed, not imported, which takes milliseconds; the result is cached.
    """
    return {
        node.name: _read_class(node)
        for path in sorted(_FOLDER.rglob("*.py"))
        for node in ast.parse(path.read_bytes()).body
        if isinstance(node, ast.ClassDef)
    }


def _read_class(node: ast.ClassDef) -> _ModelSource:
    """Return what the syntax tree of a class declares: name, help text, bases and parameters.

    Parameters are the class attributes with a value `param(...)` or `with_default(...)`.
    """
    values = dict(_iterate_assignments(node.body))
    name = values.get("name")
    summary = (ast.get_docstring(node) or "").split("\n")[0]
    parameters = {
        field: _read_parameter(value)
        for field, value in values.items()
        if isinstance(value, ast.Call)
        and isinstance(value.func, ast.Name)
        and value.func.id in ("param", "with_default")
    }
    bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
    return _ModelSource(_format_constant(name) if name else "", summary, bases, parameters)


def _read_parameter(call: ast.Call) -> tuple[str, tuple[str, ...]]:
    """Return the help text and choices in the declaration `param(default, help, ...)`.

    Both are empty for `with_default(Base, "name", value)`, which changes the default that a base
    class declares.
    """
    if getattr(call.func, "id", "") == "with_default" or len(call.args) < 2:
        return "", ()
    return _format_constant(call.args[1]), _read_choices(call)


def _iterate_assignments(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """Yield the name and the value's syntax tree of each assignment `name = value` in `body`."""
    for line in body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.value:
            yield line.target.id, line.value
        elif isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            yield line.targets[0].id, line.value


def _format_constant(node: ast.expr) -> str:
    """Return the value of a literal as text, or an empty text for any other expression."""
    return str(node.value) if isinstance(node, ast.Constant) else ""


def _read_choices(call: ast.Call) -> tuple[str, ...]:
    """Return the values in a literal argument `choices=(...)` of a call; empty without one.

    `call` is the syntax tree of `param(...)`, the declaration of a model's parameter.
    """
    for keyword in call.keywords:
        if keyword.arg == "choices" and isinstance(keyword.value, ast.Tuple):
            return tuple(_format_constant(value) for value in keyword.value.elts)
    return ()


@cache
def _find_default_model() -> str:
    """Return the name of the default model, the constant DEFAULT in models/catalog.py.

    The text is empty if the file has no such constant, or if there are no source files.
    """
    source = (_FOLDER / "catalog.py").read_bytes() if _FOLDER.is_dir() else b""
    values = dict(_iterate_assignments(ast.parse(source).body))
    return _format_constant(values["DEFAULT"]) if "DEFAULT" in values else ""

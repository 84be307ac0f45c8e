"""Hyper-parameters: declared once, on the model, and read by save, load, command line and tuner."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Iterable
from fractions import Fraction
from numbers import Real
from typing import Any

from talerec.errors import TalerecError

_LARGEST = 2**31 - 1  # of whole numbers: far above any use, far below where kernels overflow


#: The steps of a fit: rows are counted (a Gram), a system is solved, histories are weighed.
LEARN, SOLVE, SCORE = STAGES = ("learn", "solve", "score")


def param(
    default: Any,
    help: str,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    above: float = -math.inf,
    choices: tuple[str, ...] = (),
    search: tuple[float, float] | None = None,
    grid: tuple[float, ...] = (),
    stage: str = LEARN,
) -> Any:
    """A hyper-parameter: default, meaning, and what it may be (low <= v <= high, v > above, or a choice).

    search: where a tuner looks. A range that begins above 0 is searched by factors, else by differences.
    grid:   the values that the model's paper tried
    stage:  the first step of a fit that asks for it: what was made before that step serves other values too
    """
    limits = {"help": help, "low": low, "high": high, "above": above, "choices": choices}
    tuning = {"search": search, "grid": grid, "stage": stage}
    return dataclasses.field(default=default, metadata={**limits, **tuning})


def until(model: Any, stage: str) -> dict[str, Any]:
    """The parameters on which what a fit has made by the end of `stage` depends."""
    last = STAGES.index(stage)
    return {
        field.name: getattr(model, field.name)
        for field in fields(model)
        if STAGES.index(field.metadata["stage"]) <= last
    }


def fields(model: Any) -> list[dataclasses.Field[Any]]:
    """The parameters of a model, its own before those that it shares with others."""
    every = {field.name: field for field in dataclasses.fields(model)}
    kind = model if isinstance(model, type) else type(model)
    own = [name for base in kind.__mro__ for name in inspect.get_annotations(base)]
    return [every[name] for name in dict.fromkeys(own) if name in every]


def check(model: Any) -> None:
    """Refuse values outside what the model's parameters declare; whole numbers become floats where those are meant."""
    for field in fields(model):
        value = getattr(model, field.name)
        object.__setattr__(model, field.name, _checked(field, value))


def _checked(field: dataclasses.Field[Any], value: Any) -> Any:
    limits, name = field.metadata, field.name
    if limits["choices"]:
        if value not in limits["choices"]:
            raise TalerecError(f"{name} is {value!r}; it takes {' or '.join(limits['choices'])}")
        return value
    if not _is_number(value):
        raise TalerecError(f"{name} is {value!r}; it takes a number")
    whole = isinstance(field.default, int)
    if whole and value > _LARGEST:
        raise TalerecError(f"{name} is {value}; it must be at most {_LARGEST}")
    if whole and (value == -math.inf or value != int(value)):
        raise TalerecError(f"{name} is {value}; it takes a whole number")
    if value < limits["low"] or value > limits["high"] or value <= limits["above"]:
        raise TalerecError(f"{name} is {value}; it must be {_range(limits)}")
    return int(value) if whole else float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value)


def _range(limits: Any) -> str:
    if limits["low"] > -math.inf and limits["high"] < math.inf:
        return f"from {limits['low']:g} to {limits['high']:g}"
    parts = []
    if limits["above"] > -math.inf:
        parts.append(f"above {limits['above']:g}")
    if limits["low"] > -math.inf:
        parts.append(f"at least {limits['low']:g}")
    if limits["high"] < math.inf:
        parts.append(f"at most {limits['high']:g}")
    return " and ".join(parts)


def described(model: type) -> list[dict[str, Any]]:
    """Every parameter in words: name, default, help, and what it takes."""
    return [
        {
            "name": field.name,
            "default": field.default,
            "help": field.metadata["help"],
            "takes": " or ".join(field.metadata["choices"]) or _range(field.metadata) or "any",
            "search": field.metadata["search"],
        }
        for field in fields(model)
    ]


def build(model: type, values: dict[str, Any]) -> Any:
    """A model with these parameters; one that it does not have is refused by name."""
    for name in values:
        _field(model, name)
    return model(**values)


def parse(model: type, settings: Iterable[str]) -> dict[str, Any]:
    """`name=value` texts as keyword arguments of `model`; numbers may be fractions such as 1/512."""
    values: dict[str, Any] = {}
    for setting in settings:
        name, sign, text = (part.strip() for part in setting.partition("="))
        if not (name and sign and text):
            raise TalerecError(f"--set takes name=value, not {setting!r}")
        if name in values:
            raise TalerecError(f"--set gives {name} twice")
        choices = _field(model, name).metadata["choices"]
        values[name] = text if choices else _number(name, text)
    return values


def _field(model: Any, name: str) -> dataclasses.Field[Any]:
    known = {field.name: field for field in fields(model)}
    if name not in known:
        names = f"its parameters are {', '.join(known)}" if known else "it has none"
        raise TalerecError(f"{model.name} has no parameter {name!r}; {names}")
    return known[name]


def _number(name: str, text: str) -> float:
    try:
        return float(Fraction(text)) if "/" in text else float(text)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise TalerecError(f"{name} is {text!r}; it takes a number such as 0.5 or 1/512") from None

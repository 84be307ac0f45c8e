"""Hyper-parameters: declared once, on the model, and read by docstrings, save, load, command line and tuner."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Iterable
from fractions import Fraction
from numbers import Real
from typing import Any, Self

from talerec.errors import TalerecError

_LARGEST = 2**31 - 1  # of whole numbers: far above any use, far below where kernels overflow


AUTO = "auto"  # the value of a number that is left to the model

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
    auto: bool = False,
    text: bool = False,
) -> Any:
    """A hyper-parameter: default, meaning, and what it may be (low <= v <= high, v > above, or a choice).

    search: where a tuner looks. A range that begins above 0 is searched by factors, else by differences.
    grid:   the values that the model's paper tried
    stage:  the first step of a fit that asks for it: what was made before that step serves other values too
    auto:   whether a number may be left to the model, as "auto"
    text:   any text, which the model reads itself
    """
    limits = {"help": help, "low": low, "high": high, "above": above, "choices": choices}
    tuning = {"search": search, "grid": grid, "stage": stage, "auto": auto, "text": text}
    return dataclasses.field(default=default, metadata={**limits, **tuning})


def is_auto(value: Any) -> bool:
    """Is a number left to the model?"""
    return isinstance(value, str) and value == AUTO


def until(model: Any, stage: str) -> dict[str, Any]:
    """The parameters on which what a fit has made by the end of `stage` depends."""
    last = STAGES.index(stage)
    return {
        field.name: getattr(model, field.name)
        for field in fields(model)
        if STAGES.index(field.metadata["stage"]) <= last
    }


def values(model: Any) -> dict[str, Any]:
    """The parameters of a model by name."""
    return {field.name: getattr(model, field.name) for field in fields(model)}


def update(model: Any, changes: dict[str, Any]) -> str | None:
    """Set parameters of a model, all or none; returns the first stage of a fit that asks for one that changed.

    A name that the model does not have and a value that it does not take are refused with a TalerecError.
    """
    known = {name: _field(model, name) for name in changes}
    checked = {name: _checked(known[name], value) for name, value in changes.items()}
    changed = [name for name, value in checked.items() if value != getattr(model, name)]
    for name, value in checked.items():
        setattr(model, name, value)
    return min((known[name].metadata["stage"] for name in changed), key=STAGES.index, default=None)


class HasParams:
    """A dataclass whose fields are hyper-parameters: checked when it is made, listed in its docstring."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.__doc__ = documented(cls)

    def __post_init__(self) -> None:
        check(self)

    @property
    def params(self) -> dict[str, Any]:
        """Hyper-parameters by name."""
        return values(self)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Hyper-parameters by name, for `sklearn.base.clone` and other tools that ask this way.

        Parameters
        ----------
        deep : bool, default True
            Taken for scikit-learn's sake; a model has no models inside it.

        Returns
        -------
        dict
            Every hyper-parameter and its value.

        Examples
        --------
        >>> import talerec as tr
        >>> tr.Rules(steps=5).get_params()["steps"]
        5
        """
        return values(self)

    def set_params(self, **changes: Any) -> Self:
        """Change hyper-parameters; a fit that they would have changed is forgotten.

        Parameters
        ----------
        **changes
            Values by the names that `get_params` lists.

        Returns
        -------
        Self
            The model itself.

        Raises
        ------
        TalerecError
            Where the model has no such parameter, or it does not take the value; nothing is changed then.

        Examples
        --------
        >>> import talerec as tr
        >>> tr.Rules(steps=5).set_params(steps=7).steps
        7
        """
        if update(self, changes) in (LEARN, SOLVE):
            self._forget_fit()
        return self

    def _forget_fit(self) -> None:
        """Called when a parameter changes that a fit depends on."""


def fields(model: Any) -> list[dataclasses.Field[Any]]:
    """The parameters of a model, its own before those that it shares with others."""
    return list(_declared(model if isinstance(model, type) else type(model)).values())


def _declared(kind: type) -> dict[str, dataclasses.Field[Any]]:
    """The parameters of a class by name, its own first; also of one that `dataclass` has not yet looked at."""
    found: dict[str, dataclasses.Field[Any]] = {}
    for base in kind.__mro__:
        known = {**vars(base), **vars(base).get("__dataclass_fields__", {})}
        for name in inspect.get_annotations(base):
            field = known.get(name)
            if isinstance(field, dataclasses.Field) and "help" in field.metadata:
                found.setdefault(name, field)
    return found


def check(model: Any) -> None:
    """Refuse values outside what the model's parameters declare; whole numbers become floats where those are meant."""
    for field in fields(model):
        value = getattr(model, field.name)
        object.__setattr__(model, field.name, _checked(field, value))


def _checked(field: dataclasses.Field[Any], value: Any) -> Any:
    limits, name = field.metadata, field.name
    if limits["choices"]:
        if not isinstance(value, str) or value not in limits["choices"]:
            raise TalerecError(f"{name} is {value!r}; it takes {' or '.join(limits['choices'])}")
        return value
    if limits["auto"] and is_auto(value):
        return value
    if limits["text"]:
        if not isinstance(value, str):
            raise TalerecError(f"{name} is {value!r}; it takes text")
        return value
    number = _as_float(name, value)
    whole = isinstance(field.default, int)
    if whole and value > _LARGEST:
        raise TalerecError(f"{name} is {value}; it must be at most {_LARGEST}")
    if whole and (value == -math.inf or value != int(value)):
        raise TalerecError(f"{name} is {value}; it takes a whole number")
    if value < limits["low"] or value > limits["high"] or value <= limits["above"]:
        raise TalerecError(f"{name} is {value}; it must be {_range(limits)}")
    return int(value) if whole else number


def _as_float(name: str, value: Any) -> float:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TalerecError(f"{name} is {value!r}; it takes a number")
    try:
        number = float(value)
    except OverflowError:
        raise TalerecError(
            f"{name} is out of range; it takes a number from -1.8e308 to 1.8e308"
        ) from None
    if math.isnan(number):
        raise TalerecError(f"{name} is {value!r}; it takes a number")
    return number


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


_EXAMPLES = "\nExamples\n--------\n"


def documented(kind: type) -> str | None:
    """The docstring of a model with a section that lists its parameters, before its examples if it has some."""
    doc, declared = kind.__doc__, _declared(kind)
    if doc is None or not declared:
        return doc
    text, mark, examples = inspect.cleandoc(doc).partition(_EXAMPLES)
    section = "".join(_entry(name, field) for name, field in declared.items())
    return f"{text.rstrip()}\n\nParameters\n----------\n{section}{mark}{examples}"


def _entry(name: str, field: dataclasses.Field[Any]) -> str:
    """A parameter as numpydoc lists it: type and default, meaning, range."""
    choices, limits = field.metadata["choices"], _range(field.metadata)
    kind = f"{{{', '.join(map(repr, choices))}}}" if choices else type(field.default).__name__
    sentences = [field.metadata["help"], *([limits] if limits else [])]
    meaning = " ".join(f"{text[0].upper()}{text[1:]}." for text in sentences)
    return f"{name} : {kind}, default {field.default!r}\n    {meaning}\n"


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
        limits = _field(model, name).metadata
        is_text = limits["choices"] or limits["text"] or (limits["auto"] and text == AUTO)
        values[name] = text if is_text else _number(name, text)
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

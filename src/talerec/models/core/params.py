"""Hyper-parameters: declared once, on the model, for docstrings, artifacts and the tuner."""

from __future__ import annotations

import dataclasses
import inspect
import math
import warnings
from collections.abc import Iterable
from fractions import Fraction
from functools import wraps
from numbers import Real
from typing import Any, Self, TypeVar

from talerec.errors import TalerecError, suggest_name

_MAX_INTEGER = 2**31 - 1  # far above any use, far below where kernels overflow

AUTO = "auto"  # the value of a number that the model chooses

#: The steps of a fit: count pairs of rows (a Gram), solve for weights, weigh histories.
LEARN, SOLVE, SCORE = STAGES = ("learn", "solve", "score")

_Class = TypeVar("_Class", bound=type)


def param(
    default: Any, help: str, *,
    low: float = -math.inf, high: float = math.inf, above: float = -math.inf,
    choices: tuple[str, ...] = (), search: tuple[float, float] | None = None,
    grid: tuple[float, ...] = (), stage: str = LEARN, auto: bool = False, text: bool = False,
    former: str | None = None,
) -> Any:  # fmt: skip
    """Declare a hyper-parameter as a dataclass field.

    Parameters
    ----------
    default, help
        The default value, and the meaning in a few words.
    low, high, above, choices
        What it may be: low <= value <= high, value > above, or one of the choices.
    search
        The range that a tuner searches: by factors if it begins above 0, else by differences.
    grid
        The values that the model's paper tried.
    stage
        The first step of a fit that uses it; results of earlier steps are the same for all values.
    auto
        Whether the model can choose the number: the value "auto".
    text
        Whether any text is a value, which the model parses.
    former
        The former name of the parameter, still accepted (see `accept_former_names`).
    """
    limits = {"help": help, "low": low, "high": high, "above": above, "choices": choices}
    tuning = {"search": search, "grid": grid, "stage": stage, "auto": auto, "text": text}
    return dataclasses.field(default=default, metadata={**limits, **tuning, "former": former})


def is_auto(value: Any) -> bool:
    """Return whether a parameter's value is "auto": the model chooses the number."""
    return isinstance(value, str) and value == AUTO


def params_until(model: Any, stage: str) -> dict[str, Any]:
    """Return the parameters, by name, on which the fit depends up to and including a stage.

    Stages: "learn", "solve", "score". A parameter of a later stage appears if the fit chooses it.
    """
    last = STAGES.index(stage)
    return {
        field.name: getattr(model, field.name)
        for field in param_fields(model)
        if STAGES.index(field.metadata["stage"]) <= last or is_auto(getattr(model, field.name))
    }


def change_params(model: Any, changes: dict[str, Any]) -> str | None:
    """Set parameters of a model, all or none; return the first stage of the fit they change.

    Stages are "learn", "solve" and "score"; None if no value differs from the present one. A name
    or a value that the model does not take is a TalerecError.
    """
    fields = {name: _find_field(model, name) for name in changes}
    values = {name: _check_value(fields[name], value) for name, value in changes.items()}
    changed = [name for name, value in values.items() if value != getattr(model, name)]
    for name, value in values.items():
        setattr(model, name, value)
    stages = (fields[name].metadata["stage"] for name in changed)
    return min(stages, key=STAGES.index, default=None)


class HasParams:
    """A dataclass whose fields are hyper-parameters: checked at construction, documented."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.__doc__ = _document_params(cls)

    def __post_init__(self) -> None:
        """Check each parameter and convert it to its type; TalerecError for invalid values."""
        for field in param_fields(self):
            value = _check_value(field, getattr(self, field.name))
            object.__setattr__(self, field.name, value)

    @property
    def params(self) -> dict[str, Any]:
        """Hyper-parameters by name."""
        return {field.name: getattr(self, field.name) for field in param_fields(self)}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the hyper-parameters by name, as `sklearn.base.clone` and other tools expect.

        Parameters
        ----------
        deep : bool, default True
            For scikit-learn's sake; a model has no models inside it.

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
        return self.params

    def set_params(self, **changes: Any) -> Self:
        """Change hyper-parameters; a fit that depends on them is dropped.

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
            If the model has no such parameter, or does not take a value; nothing is changed then.

        Examples
        --------
        >>> import talerec as tr
        >>> tr.Rules(steps=5).set_params(steps=7).steps
        7
        """
        if change_params(self, use_current_names(type(self), changes, warn=True)) in (LEARN, SOLVE):
            self._forget_fit()
        return self

    def _copy_with(self, changes: dict[str, Any]) -> Self:
        """Return a new, unfitted model with this one's parameters and the given changes."""
        model: Self = build_model(type(self), {**self.params, **changes})
        return model

    def _forget_fit(self) -> None:
        """Drop the fit; called when a parameter changes that it depends on."""


def param_fields(model: Any) -> list[dataclasses.Field[Any]]:
    """Return the dataclass fields of the parameters of a model or class, bases' last."""
    return list(_declared_fields(model if isinstance(model, type) else type(model)).values())


def _declared_fields(kind: type) -> dict[str, dataclasses.Field[Any]]:
    """Return the hyper-parameters (fields made by `param`) of a class and its bases, by name.

    Works before `dataclass` has processed the class.
    """
    declared: dict[str, dataclasses.Field[Any]] = {}
    for base in kind.__mro__:
        processed = vars(base).get("__dataclass_fields__", {})
        for name in inspect.get_annotations(base):
            field = processed.get(name, vars(base).get(name))
            if isinstance(field, dataclasses.Field) and "help" in field.metadata:
                declared.setdefault(name, field)
    return declared


def _check_value(field: dataclasses.Field[Any], value: Any) -> Any:
    """Return a value in the type of its parameter; TalerecError for a value not allowed.

    field: a field made by `param`, whose metadata holds the allowed range or choices.
    """
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
    is_integer = isinstance(field.default, int)
    if is_integer and value > _MAX_INTEGER:
        raise TalerecError(f"{name} is {value}; it must be at most {_MAX_INTEGER}")
    if is_integer and (value == -math.inf or value != int(value)):
        raise TalerecError(f"{name} is {value}; it takes a whole number")
    if value < limits["low"] or value > limits["high"] or value <= limits["above"]:
        raise TalerecError(f"{name} is {value}; it must be {_describe_range(limits)}")
    return int(value) if is_integer else number


def _as_float(name: str, value: Any) -> float:
    """Return a real number as float; TalerecError, naming parameter `name`, for anything else."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TalerecError(f"{name} is {value!r}; it takes a number")
    try:
        number = float(value)
    except OverflowError:
        limits = "from -1.8e308 to 1.8e308"
        raise TalerecError(f"{name} is out of range; it takes a number {limits}") from None
    if math.isnan(number):
        raise TalerecError(f"{name} is {value!r}; it takes a number")
    return number


def _describe_range(limits: Any) -> str:
    """Return the range of a number in words; empty where any number is allowed.

    `limits` is the metadata of a parameter's field, with the bounds low, high and above.
    """
    if limits["low"] > -math.inf and limits["high"] < math.inf:
        return f"from {limits['low']:g} to {limits['high']:g}"
    words = {"above": "above", "low": "at least", "high": "at most"}
    bounds = ((word, limits[name]) for name, word in words.items())
    return " and ".join(f"{word} {bound:g}" for word, bound in bounds if math.isfinite(bound))


def _document_params(kind: type) -> str | None:
    """Return a class's docstring (or None) with its hyper-parameters before the examples."""
    doc, declared = kind.__doc__, _declared_fields(kind)
    if doc is None or not declared:
        return doc
    text, heading, examples = inspect.cleandoc(doc).partition("\nExamples\n--------\n")
    section = "".join(_document_param(name, field) for name, field in declared.items())
    return f"{text.rstrip()}\n\nParameters\n----------\n{section}{heading}{examples}"


def _document_param(name: str, field: dataclasses.Field[Any]) -> str:
    """Return one hyper-parameter as numpydoc lists it: type and default, meaning, range.

    field: made by `param`; its metadata has the meaning ("help"), the choices and the range.
    """
    choices, limits = field.metadata["choices"], _describe_range(field.metadata)
    kind = f"{{{', '.join(map(repr, choices))}}}" if choices else type(field.default).__name__
    sentences = [field.metadata["help"], *([limits] if limits else [])]
    meaning = " ".join(f"{text[0].upper()}{text[1:]}." for text in sentences)
    return f"{name} : {kind}, default {field.default!r}\n    {meaning}\n"


def describe_params(model: type) -> list[dict[str, Any]]:
    """Return a dict for each hyper-parameter of a model class, for a table.

    Keys: name, default, help (its meaning), takes (range or choices, as text), search (the tuner's
    range, or None).
    """
    rows = []
    for field in param_fields(model):
        limits = field.metadata
        takes = " or ".join(limits["choices"]) or _describe_range(limits) or "any"
        row = {"name": field.name, "default": field.default, "help": limits["help"]}
        rows.append({**row, "takes": takes, "search": limits["search"]})
    return rows


def build_model(model: type, values: dict[str, Any]) -> Any:
    """Return a model of a class with these parameters; an unknown name is a TalerecError.

    Former names of parameters are accepted, without a warning.
    """
    values = use_current_names(model, values)
    declared = _declared_fields(model)
    for name in values:
        if name not in declared:
            _find_field(model, name)  # raises the error
    return model(**values)


def parse_settings(model: type, settings: Iterable[str]) -> dict[str, Any]:
    """Return texts ``name=value`` as a dict of parameter values of a model class.

    Numbers may be fractions: 1/512. An unknown name, or a name given twice, is a TalerecError.
    """
    values: dict[str, Any] = {}
    for setting in settings:
        name, sign, text = (part.strip() for part in setting.partition("="))
        if not (name and sign and text):
            raise TalerecError(f"`set` takes name=value, not {setting!r}", "set")
        name = former_names(model).get(name, name)
        if name in values:
            raise TalerecError(f"`set` gives {name} twice", "set")
        limits = _find_field(model, name).metadata
        is_text = limits["choices"] or limits["text"] or (limits["auto"] and text == AUTO)
        values[name] = text if is_text else _parse_number(name, text)
    return values


def _find_field(model: Any, name: str) -> dataclasses.Field[Any]:
    """Return the field of a parameter of a model; TalerecError if it has no such parameter."""
    fields = {field.name: field for field in param_fields(model)}
    if name not in fields:
        names = f"its parameters are {', '.join(fields)}" if fields else "it has none"
        remedy = suggest_name(name, fields, names)
        raise TalerecError(f"{model.name} has no parameter {name!r}; {remedy}")
    return fields[name]


def _parse_number(name: str, text: str) -> float:
    """Parse a decimal number or a fraction (1/512) as the value of parameter `name`."""
    try:
        return float(Fraction(text)) if "/" in text else float(text)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise TalerecError(f"{name} is {text!r}; it takes a number such as 0.5 or 1/512") from None


# -- former names ----------------------------------------------------------------------------------


def former_names(kind: type) -> dict[str, str]:
    """Return current names of a class's hyper-parameters by their former names (if renamed)."""
    fields = _declared_fields(kind).values()
    return {field.metadata["former"]: field.name for field in fields if field.metadata["former"]}


def use_current_names(kind: type, values: dict[str, Any], *, warn: bool = False) -> dict[str, Any]:
    """Return values of parameters by current names; `warn` gives a DeprecationWarning.

    kind: the model class. values: by current or former names; TalerecError if these two differ.
    """
    current = former_names(kind)
    renamed = {name: value for name, value in values.items() if name not in current}
    for former in current.keys() & values.keys():
        name = current[former]
        if renamed.setdefault(name, values[former]) != values[former]:
            raise TalerecError(f"{former} is the former name of {name}: give one of the two")
        if warn:
            _warn_former(kind, former, name)
    return renamed


def add_former_names(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    """Return parameter values with a copy of each renamed one under its former name, too.

    For JSON, whose fields are never removed.
    """
    current = former_names(kind)
    formers = {former: values[name] for former, name in current.items() if name in values}
    return {**values, **formers}


def accept_former_names(kind: _Class) -> _Class:
    """Class decorator: accept former names of parameters, with a DeprecationWarning.

    They work as keywords of the constructor and as attributes. Write it above `dataclass`.
    """
    initialize = kind.__init__  # type: ignore[misc]

    @wraps(initialize)
    def __init__(self: Any, *args: Any, **values: Any) -> None:
        initialize(self, *args, **use_current_names(kind, values, warn=True))

    kind.__init__ = __init__  # type: ignore[misc]
    for former, name in former_names(kind).items():
        setattr(kind, former, _former_attribute(kind, former, name))
    return kind


def _former_attribute(kind: type, former: str, name: str) -> property:
    """Return a property that reads and sets attribute `name` with a DeprecationWarning.

    `former` is the attribute's old name.
    """

    def get(model: Any) -> Any:
        _warn_former(kind, former, name)
        return getattr(model, name)

    def set(model: Any, value: Any) -> None:
        _warn_former(kind, former, name)
        setattr(model, name, value)

    return property(get, set, doc=f"Former name of `{name}`.")


def _warn_former(kind: type, former: str, name: str) -> None:
    message = f"parameter {former} is now {name}; the old name goes with version 0.4"
    warnings.warn(f"{kind.__name__}: {message}", DeprecationWarning, stacklevel=4)

"""Models that people write themselves: found by name once their class exists, and checked, since kernels check nothing.

Kernels read arrays without looking at their bounds: weights of a wrong shape, or a source that is not there, would end the process or
give numbers of another array. talerec's own models are tested for that; what others give is looked at each time.
"""

from __future__ import annotations

import os
import sys
from functools import wraps
from importlib import import_module
from typing import Any

import numpy as np

from talerec.errors import TalerecError
from talerec.models.core import checks
from talerec.ranking.weights import Query, Weights

#: Classes of models by their names: talerec's, and every other that was defined in this process.
KNOWN: dict[str, type[Any]] = {}
#: Modules (with commas between) that define models, for commands that load one.
VARIABLE = "TALEREC_MODELS"

_OURS = "talerec."


def adopt(kind: type[Any]) -> None:
    """Remember a new class of models under its name, and check what it gives unless it is one of talerec's."""
    name = kind.__dict__.get("name")
    if isinstance(name, str):
        before = KNOWN.get(name)
        if before is not None and is_own(kind) and not is_own(before):
            raise TalerecError(
                f"there is a model {name!r} already: give {kind.__name__} another name"
            )
        KNOWN[name] = kind
    if is_own(kind):
        for method, checked in (("learn_weights", _learns), ("query", _asks)):
            if method in kind.__dict__:
                setattr(kind, method, checked(kind.__dict__[method]))


def is_own(kind: type[Any]) -> bool:
    """Is it a class that others wrote?"""
    return not kind.__module__.startswith(_OURS)


def check_named(kind: type[Any]) -> None:
    """Refuse to save a model that could not be found again."""
    name = getattr(kind, "name", None)
    if not isinstance(name, str) or KNOWN.get(name) not in kind.__mro__:
        known = "" if name is None else f" of its own ({name!r} is another model's)"
        raise TalerecError(
            f'{kind.__name__} needs a name{known}: name: ClassVar[str] = "{kind.__name__.lower()}"'
        )


def find(name: str) -> type[Any] | None:
    """The class with this name, or at this place (``module:Class``); modules that TALEREC_MODELS names are imported."""
    if ":" in name:
        module, _, attribute = name.partition(":")
        found = getattr(_imported(module), attribute, None)
        if not (isinstance(found, type) and hasattr(found, "learn_weights")):
            raise TalerecError(f"{module} has no model {attribute!r}")
        return found
    if name not in KNOWN:
        _import_named()
    return KNOWN.get(name)


def named() -> list[type[Any]]:
    """The models of modules that TALEREC_MODELS names."""
    modules = _import_named()
    return [kind for kind in KNOWN.values() if kind.__module__ in modules]


def _import_named() -> list[str]:
    modules = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    for module in modules:
        _imported(module)
    return modules


def _imported(module: str) -> Any:
    sys.path.insert(0, os.getcwd())
    try:
        return import_module(module)
    except ImportError as error:
        raise TalerecError(
            f"the module {module!r} of a model cannot be imported: {error}"
        ) from None
    finally:
        sys.path.remove(os.getcwd())


# -- what own models give --------------------------------------------------------------------------


def _learns(method: Any) -> Any:
    @wraps(method)
    def learn_weights(self: Any, log: Any, clock: Any) -> tuple[Weights, str | None]:
        found = method(self, log, clock)
        what = f"learn_weights of {type(self).__name__}"
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], Weights)):
            raise TalerecError(f"{what} returns (talerec.Weights, name of the solver or None)")
        try:
            checks.check_weights(found[0], len(log.items))
        except TalerecError as error:
            raise TalerecError(f"{what}: {error}") from None
        return found

    return learn_weights


def _asks(method: Any) -> Any:
    @wraps(method)
    def query(self: Any, histories: Any) -> Query:
        found = method(self, histories)
        what = f"query of {type(self).__name__}"
        if not isinstance(found, Query):
            raise TalerecError(f"{what} returns a talerec.Query, not {type(found).__name__}")
        sources = sum(block.sources for block in self.fitted.weights.blocks)
        try:
            checks.bounds("ptr", np.asarray(found.ptr), len(histories), len(found.source))
            checks.inside("source", np.asarray(found.source), 0, sources)
            same = np.shape(found.weight) == np.shape(found.source)
            checks.need(same, "there are other weights than sources")
        except TalerecError as error:
            raise TalerecError(f"{what}: {error}") from None
        return found

    return query

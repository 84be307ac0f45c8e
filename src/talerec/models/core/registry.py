"""Registry of model classes by name, and checks of what third-party models return.

Kernels read arrays without bounds checks: weights of a wrong shape or a source out of range would
end the process or read other memory. The library's models are tested; the results of
`learn_weights` and `query` of third-party models are checked at every call.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from functools import wraps
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import numpy as np

from talerec.errors import TalerecError
from talerec.models.core.checks import check_indptr, check_range, check_weights, require
from talerec.ranking import Query, Weights

#: Class names of the library's models, by package of talerec.models; the default model first.
_FAMILIES = {
    "tempo": "Tempo",
    "linear": "TALE SLIS SLIT SLIST EASE EDLAE RDLAE SWalk",
    "neighbors": "SKNN STAN TIFUKNN",
    "counting": "Markov Rules Association Popular Trending Personal LastBasket",
    "factors": "FPMC",
    "content": "Content",
    "networks": "SASRec GSASRec ESASRec GRU4Rec BERT4Rec DuoRec FEARec BSARec TiSASRec TCPSRec "
    "TiCoSeRec LinRec LRURec HSTU",
    "blend": "Blend",
    "ranker": "Ranker",
}


class LibraryModels(Mapping[str, type[Any]]):
    """The library's model classes by name; a class is imported when it is first looked up.

    A model's name is the name of its class in lower case.
    """

    def __init__(self) -> None:
        self._homes = {
            name.lower(): (f"talerec.models.{package}", name)
            for package, names in _FAMILIES.items()
            for name in names.split()
        }

    def __getitem__(self, name: str) -> type[Any]:
        package, class_name = self._homes[name]
        kind: type[Any] = getattr(import_module(package), class_name)
        return kind

    def __contains__(self, name: object) -> bool:
        return name in self._homes

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)


#: Every model class of the library by name.
LIBRARY_MODELS: Mapping[str, type[Any]] = LibraryModels()
#: Model classes by name that are defined in this process, the library's and others.
REGISTRY: dict[str, type[Any]] = {}
#: Environment variable: module or module:Class (separated by commas) of third-party models.
VARIABLE = "TALEREC_MODELS"
#: Group of entry points by which installed packages offer models; a point has the model's name.
ENTRY_POINTS = "talerec.models"

#: Attributes of models that were renamed in version 0.3: old name -> new name.
FORMER_ATTRIBUTES = {
    "good_for": "summary",
    "grows": "supports_update",
    "weighs_items": "sources_are_items",
    "chosen": "describe_learned",
}

_LIBRARY = "talerec."


def register(kind: type[Any]) -> None:
    """Add a model class to the registry under its `name`, if it defines one.

    A third-party class (defined outside this library) must not take a name of the library:
    TalerecError. Its methods `learn_weights` and `query` are wrapped in checks of their results.
    """
    name = kind.__dict__.get("name")
    if isinstance(name, str):
        if name in LIBRARY_MODELS and is_third_party(kind):
            advice = f"give {kind.__name__} another name"
            raise TalerecError(f"there is a model {name!r} already: {advice}")
        REGISTRY[name] = kind
    if is_third_party(kind):
        _adapt_former_attributes(kind)
        for method, checked in (("learn_weights", _check_learned), ("query", _check_query)):
            if method in kind.__dict__:
                setattr(kind, method, checked(kind.__dict__[method]))


def is_third_party(kind: type[Any]) -> bool:
    """Return whether a model class is defined outside this library."""
    return not kind.__module__.startswith(_LIBRARY)


def check_has_name(kind: type[Any]) -> None:
    """Raise TalerecError for a class that loading could not find by its saved name.

    kind: a model class. Its attribute `name` must be text, under which it is registered.
    """
    name = getattr(kind, "name", None)
    if not isinstance(name, str) or REGISTRY.get(name) not in kind.__mro__:
        other = "" if name is None else f" of its own ({name!r} is another model's)"
        example = f'name: ClassVar[str] = "{kind.__name__.lower()}"'
        raise TalerecError(f"{kind.__name__} needs a name{other}: {example}")


def find_class(name: str) -> type[Any] | None:
    """Return the model class that is registered under a name; None for an unknown name.

    The name may come from a file that a stranger wrote: it never decides which code is imported.
    If the name is not registered yet, what the operator has named is imported: the modules of the
    environment variable TALEREC_MODELS, and the entry points `talerec.models` of this name.
    TalerecError if one of these cannot be imported.
    """
    if name not in REGISTRY:
        _import_third_party()
    if name not in REGISTRY:
        _load_entry_points(name)
    return REGISTRY.get(name)


def import_class(address: str) -> type[Any]:
    """Import a module and return its model class; `address` is ``module:Class``.

    Only for an address that the caller or the operator gives, never for one from a file.
    TalerecError if the module cannot be imported, or has no such model class.
    """
    module, _, attribute = address.partition(":")
    kind = getattr(_import_module(module), attribute, None)
    if not (isinstance(kind, type) and hasattr(kind, "learn_weights")):
        raise TalerecError(f"{module} has no model {attribute!r}")
    return kind


def third_party_classes() -> list[type[Any]]:
    """Return the model classes of TALEREC_MODELS and of entry points, importing them.

    TALEREC_MODELS is an environment variable: addresses ``module`` or ``module:Class``, separated
    by commas. Installed packages offer models as entry points of the group `talerec.models`.
    """
    classes = _load_entry_points()
    modules = {address.partition(":")[0] for address in _import_third_party()}
    classes += [kind for kind in REGISTRY.values() if kind.__module__ in modules]
    return list(dict.fromkeys(classes))


def _import_third_party() -> list[str]:
    """Import the modules that TALEREC_MODELS names, and return its addresses.

    It is an environment variable: ``module`` or ``module:Class``, separated by commas.
    """
    texts = os.environ.get(VARIABLE, "").split(",")
    addresses = [text.strip() for text in texts if text.strip()]
    for address in addresses:
        (import_class if ":" in address else _import_module)(address)
    return addresses


def _load_entry_points(name: str | None = None) -> list[type[Any]]:
    """Import the models that installed packages offer, and return their classes.

    They are entry points of the group `talerec.models`. `name`: only the model of this name.
    TalerecError, naming the entry point, if one cannot be imported.
    """
    classes = []
    for point in entry_points(group=ENTRY_POINTS):
        if name not in (None, point.name):
            continue
        try:
            classes.append(point.load())
        except (ImportError, AttributeError) as error:
            message = f"the model {point.name!r} of an installed package cannot be imported"
            raise TalerecError(f"{message} ({point.value}): {error}") from None
    return classes


def _import_module(module: str) -> Any:
    """Import a module by name, also from the working directory; return it.

    TalerecError, naming the module, if that fails.
    """
    sys.path.insert(0, os.getcwd())
    try:
        return import_module(module)
    except ImportError as error:
        message = f"the module {module!r} of a model cannot be imported: {error}"
        raise TalerecError(message) from None
    finally:
        sys.path.remove(os.getcwd())


def _adapt_former_attributes(kind: type[Any]) -> None:
    """Copy attributes that a third-party class defines under former names to current names.

    Each gives a DeprecationWarning.
    """
    for former, name in FORMER_ATTRIBUTES.items():
        if former in kind.__dict__ and name not in kind.__dict__:
            _warn_renamed(kind.__name__, former, name, stacklevel=6)
            setattr(kind, name, kind.__dict__[former])


class FormerAttribute:
    """Descriptor: read an attribute by its former name, with a DeprecationWarning.

    former: the old name, which FORMER_ATTRIBUTES maps to the current one.
    """

    def __init__(self, former: str) -> None:
        self._former, self._name = former, FORMER_ATTRIBUTES[former]

    def __get__(self, model: Any, kind: type[Any]) -> Any:
        """Return the attribute by its current name, of the model (None: of the class `kind`)."""
        _warn_renamed(kind.__name__, self._former, self._name, stacklevel=3)
        return getattr(kind if model is None else model, self._name)


def _warn_renamed(kind: str, former: str, name: str, *, stacklevel: int) -> None:
    """Give a DeprecationWarning: attribute `former` of class `kind` is now `name`."""
    message = f"{kind}: {former} is now {name}; the old name goes with version 0.4"
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel)


# -- what third-party models return ----------------------------------------------------------------


def _check_learned(method: Any) -> Any:
    """Wrap `learn_weights` of a third-party class: its result is checked at every call.

    The wrapper returns (weights, solver's name or None); weights of a wrong shape are a
    TalerecError.
    """

    @wraps(method)
    def learn_weights(self: Any, log: Any, clock: Any) -> tuple[Weights, str | None]:
        """Return the result of `method`; TalerecError if its type or arrays are not valid.

        method: `learn_weights` of a third-party model class, which returns (weights, solver's
        name).
        """
        result = method(self, log, clock)
        where = f"learn_weights of {type(self).__name__}"
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Weights)):
            raise TalerecError(f"{where} returns (talerec.Weights, name of the solver or None)")
        try:
            check_weights(result[0], len(log.items))
        except TalerecError as error:
            raise TalerecError(f"{where}: {error}") from None
        return result

    return learn_weights


def _check_query(method: Any) -> Any:
    """Wrap `query` of a third-party class: its result is checked at every call.

    A `Query` has, per history (ptr), sources, which are row numbers of the weights, and a weight of
    each. Sources must be in range, with one weight each: else TalerecError.
    """

    @wraps(method)
    def query(self: Any, histories: Any) -> Query:
        """Return the result of `method`; TalerecError if its type or arrays are not valid.

        method: `query` of a third-party model class: sources (rows of the weights) of each history.
        """
        result = method(self, histories)
        where = f"query of {type(self).__name__}"
        if not isinstance(result, Query):
            raise TalerecError(f"{where} returns a talerec.Query, not {type(result).__name__}")
        n_sources = sum(block.sources for block in self.fitted.weights.blocks)
        try:
            check_indptr("ptr", np.asarray(result.ptr), len(histories), len(result.source))
            check_range("source", np.asarray(result.source), 0, n_sources)
            is_paired = np.shape(result.weight) == np.shape(result.source)
            require(is_paired, "there are other weights than sources")
        except TalerecError as error:
            raise TalerecError(f"{where}: {error}") from None
        return result

    return query

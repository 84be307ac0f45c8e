"""Errors that a caller can correct: one line with what is wrong, where, and the way out.

A message writes the name of a parameter in backticks and the error lists the name in `parameters`,
so that the command line can write the flag instead. Everything that a caller may decide by
(parameter, row, source, column) is a field: no decision rests on the text of a message.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import wraps
from importlib.util import find_spec
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def spell_parameters(text: str, parameters: Iterable[str], spell: Callable[[str], str]) -> str:
    """Return a text with each parameter name in backticks replaced by what `spell` returns.

    Only names in `parameters` are replaced: `time_unit` becomes --time-unit on the command line.
    """
    for name in parameters:
        text = text.replace(f"`{name}`", spell(name))
    return text


def suggest_name(name: str, names: Iterable[str], otherwise: str) -> str:
    """Return "did you mean 'tempo'?" with the name closest to an unknown one.

    If none of `names` is close, `otherwise` is returned, which says what the names are.
    """
    from difflib import get_close_matches

    close = get_close_matches(name, names, n=1, cutoff=0.75)
    return f"did you mean {close[0]!r}?" if close else otherwise


class TalerecError(ValueError):
    """Bad input, or a request that cannot be met.

    Parameters
    ----------
    message : str
        What is wrong and the way out; parameters are written in backticks.
    parameters : str
        The names of the parameters that the message mentions.
    row : int, optional
        The row at fault, counted from 1; it is written before the message.
    source : str, optional
        The file or log at fault, where the message names it already.
    """

    def __init__(
        self, message: str, *parameters: str, row: int | None = None, source: str | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.parameters = message, parameters
        self.row, self.source = row, source
        self._prefix = ""  # "FILE: ", set by `locate`

    def __str__(self) -> str:
        return self._prefix + ("" if self.row is None else f"row {self.row}: ") + self.message

    def locate(self, source: str, row: int | None = None) -> None:
        """Put `source`, the file or log at fault, before the message; `row` replaces its row.

        Called where an error passes through code that knows the file. Nothing changes if the error
        names a source already. Rows count from 1. `self._prefix` is written before the message.
        """
        if self.source is None:
            self.source, self._prefix = source, f"{source}: "
            self.row = self.row if row is None else row

    def rename_parameters(self, names: dict[str, str]) -> None:
        """Replace parameter names in the message and in `parameters`; `names` are new by old.

        A function uses this when it has other names for the parameters of a function it calls.
        """
        self.message = spell_parameters(
            self.message, self.parameters, lambda name: f"`{names.get(name, name)}`"
        )
        self.parameters = tuple(names.get(name, name) for name in self.parameters)


class InvalidLogError(TalerecError):
    """A log that cannot be used: a column, row, id or time in it is missing or wrong."""


class MissingColumnError(InvalidLogError):
    """A log or item table without a column that was named."""


class UnknownIdError(TalerecError):
    """A user or an item that the model does not know."""


class UndescribedItemsError(TalerecError):
    """An item table says nothing that items of the log have in common."""


class NotFittedError(TalerecError):
    """A model that is used before it is fitted."""


class ArtifactError(TalerecError):
    """A saved model that cannot be read or written.

    Parameters
    ----------
    problem : str
        What is wrong; written after the folder and file: "model.tale: manifest.json is damaged".
    folder : path
        The model's folder.
    file : str, optional
        The name of the file at fault; None if the folder as a whole is at fault.
    """

    def __init__(self, problem: str, folder: object = "model", file: str | None = None) -> None:
        super().__init__(problem)
        self.folder, self.file = folder, file

    def __str__(self) -> str:
        place = f"{self.folder}: {self.file}" if self.file else f"{self.folder}"
        return f"{place} {self.message}"

    def with_folder(self, folder: object) -> ArtifactError:
        """Return the same error with another folder in its message.

        It is used for a model that was read from a copy: the message then names the original.
        `self.file` is the file at fault, None for the whole folder.
        """
        return type(self)(self.message, folder, self.file)


class ReplacedArtifactError(ArtifactError):
    """A saved model that another process replaced after this one had read it."""


def require_extra(extra: str, purpose: str, modules: Iterable[str]) -> None:
    """Raise TalerecError if a module that an extra of this package installs is missing.

    The modules are looked for, and not imported. purpose: what needs them, such as "tuning"; the
    message starts with it.
    """
    for name in modules:
        if find_spec(name) is None:
            advice = f"({name} is missing): pip install 'talerec[{extra}]'"
            raise TalerecError(f"{purpose} needs the extra `{extra}` {advice}")


def _warn_of_rename(old: str, new: str) -> None:
    """Give a DeprecationWarning that `old` is now called `new`.

    The warning points at the user's line: the one that calls the function that calls this one
    (stacklevel 3).
    """
    message = f"{old} is now {new}; the old name goes with version 0.4"
    warnings.warn(message, DeprecationWarning, stacklevel=3)


def forward_renamed(names: dict[str, str]) -> Callable[[object, str], Any]:
    """Return a `__getattr__` for a class whose attributes were renamed.

    `names` maps each former attribute to its new name. Reading a former attribute returns the new
    one's value and gives a DeprecationWarning; other names raise AttributeError.
    """

    def __getattr__(self: object, name: str) -> Any:
        kind = type(self).__name__
        if name not in names:
            raise AttributeError(f"{kind!r} object has no attribute {name!r}")
        _warn_of_rename(f"{kind}.{name}", names[name])
        return getattr(self, names[name])

    return __getattr__


def accept_renamed(old: str, new: str) -> Callable[[F], F]:
    """Return a decorator for a function whose keyword parameter `old` is now called `new`.

    The decorated function accepts both names, the former with a DeprecationWarning.
    """

    def decorate(function: F) -> F:
        """Return the function, made to accept its parameter `new` under the name `old` too."""

        @wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            """Call the function with the argument `old`, if there is one, passed as `new`."""
            if old in named:
                _warn_of_rename(f"the parameter {old}", new)
                named[new] = named.pop(old)
            return function(*args, **named)

        return cast(F, call)

    return decorate

"""Exports of a package, declared once in its `__init__.pyi` and imported on first use.

A package's `__init__.py` says what the package is for and ends with

    __getattr__, __dir__, __all__ = lazy_exports(__name__)

Its `__init__.pyi` has one line per exported name, which type checkers read too:

    from talerec.data.log import Log as Log
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

_EXPORT = re.compile(r"^from ([\w.]+) import (\w+) as \2$", re.MULTILINE)


def lazy_exports(
    package: str, *defined: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package, as its stub declares them.

    The returned `__getattr__` imports an exported name from its module on first use. The stub has
    one line `from MODULE import NAME as NAME` per export.

    Parameters
    ----------
    package : str
        The package's full name; its stub `__init__.pyi` stands beside its `__init__.py`.
    defined : str
        Public names that the package's `__init__.py` defines itself.
    """
    module = sys.modules[package]
    homes = {name: home for home, name in _EXPORT.findall(_read_stub(module))}
    names = sorted([*homes, *defined])

    def load(name: str) -> Any:
        """Return an exported name's value, imported from its module and set on the package."""
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(module, name, value)
        return value

    return load, lambda: names, names


def import_export(package: str, name: str) -> Any:
    """Return a name that a package exports, looked up when it is used.

    For the few methods that lead to a room above their own: an object that shows itself, say. Code
    that needs a name of a room below imports it.
    """
    return getattr(import_module(package), name)


def _read_stub(module: Any) -> str:
    """Return the text of a package's stub `__init__.pyi`.

    The package's loader reads it, because a package may lie in a zip file.
    """
    path = str(Path(module.__file__).with_suffix(".pyi"))
    return str(module.__spec__.loader.get_data(path), "utf-8")

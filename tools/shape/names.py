"""The files of a project, and the names that its modules and classes define.

Nothing is imported.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shape.tree import FunctionNode, last_word


@dataclass
class Class:
    """A class by its members: methods, fields, and what methods set on self."""

    members: set[str]
    bases: list[str]


@dataclass
class Scope:
    """A module by what it defines; a package's `__init__` also by what it hands on."""

    names: set[str] = field(default_factory=set)
    classes: dict[str, Class] = field(default_factory=dict)


class Project:
    """Files, modules and classes of a folder with one package in `src/`, and other code."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = {path.relative_to(root).as_posix() for path in _walk(root)}
        self.folders = {
            parent.as_posix()
            for file in self.files
            for parent in Path(file).parents
            if parent != Path()
        }
        (init,) = root.glob("src/*/__init__.py")
        self.package = init.parent.name
        self.modules: dict[str, Scope] = {}
        self.classes: dict[str, list[Class]] = defaultdict(list)
        self.foreign = set(sys.stdlib_module_names)
        self.aliases = {self.package}
        for file in sorted(self.files):
            if file.endswith(".py"):
                self._read(file)
        for file in sorted(self.files):
            if file.endswith("__init__.pyi"):
                self._read_exports(file)

    def _read(self, file: str) -> None:
        tree = ast.parse((self.root / file).read_text(encoding="utf-8"), file)
        is_package = file.endswith("/__init__.py")
        scope = Scope(set(_defined(tree.body, imports=is_package)))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                scope.classes[node.name] = _class(node)
                self.classes[_instance(node.name)].append(scope.classes[node.name])
            elif isinstance(node, ast.Import):
                self._note_imports(node)
            elif isinstance(node, ast.ImportFrom) and node.module:
                self.foreign.add(node.module.split(".")[0])
        parts = Path(file).with_suffix("").parts
        parts = parts[1:] if parts[0] == "src" else parts
        self.modules[".".join(parts).removesuffix(".__init__")] = scope

    def _read_exports(self, file: str) -> None:
        """Add the names that a package's stub exports to the names of the package."""
        tree = ast.parse((self.root / file).read_text(encoding="utf-8"), file)
        module = ".".join(Path(file).parent.parts).removeprefix("src.")
        self.modules[module].names |= set(_defined(tree.body, imports=True))

    def _note_imports(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name == self.package and alias.asname:
                self.aliases.add(alias.asname)
            elif alias.name.split(".")[0] != self.package:
                self.foreign |= {alias.name.split(".")[0], alias.asname or ""}

    # -- questions ---------------------------------------------------------------------------------

    def has_path(self, path: str) -> bool:
        """Return whether a file, folder or module has that path, from any folder on."""
        name = path.strip("/")
        paths = self.files | self.folders
        return any(
            path == ending or path.endswith(f"/{ending}")
            for ending in (name, f"{name}.py")
            for path in paths
        )

    def begins_in(self, path: str) -> bool:
        """Return whether a path begins with one of the project's folders."""
        first = path.split("/")[0]
        return any(first in folder.split("/") for folder in self.folders)

    def has_name(self, name: str) -> bool | None:
        """Return whether a dotted name exists; None if it belongs to another library."""
        parts = name.split(".")
        if parts[0] in self.aliases:
            return self._in_modules([self.package, *parts[1:]], whole=True)
        if self._in_modules(parts) or self._in_classes(parts):
            return True
        ours = any(module.split(".")[-1] == parts[0] for module in self.modules)
        if ours or _instance(parts[0]) in self.classes:
            return False
        return None if parts[0] in self.foreign else False

    def homes(self, name: str) -> list[str]:
        """The package's modules that define a name, as a function, class, constant or method."""
        return sorted(
            module.removeprefix(f"{self.package}.")
            for module, scope in self.modules.items()
            if module.startswith(f"{self.package}.")
            and (name in scope.names or any(name in c.members for c in scope.classes.values()))
        )

    def _in_modules(self, parts: list[str], whole: bool = False) -> bool:
        for size in range(len(parts), 0, -1):
            prefix, rest = ".".join(parts[:size]), parts[size:]
            for module, scope in self.modules.items():
                if module == prefix or (not whole and module.endswith(f".{prefix}")):
                    if not rest:
                        return True
                    if rest[0] in scope.names and self._has_member(rest):
                        return True
        return False

    def _in_classes(self, parts: list[str]) -> bool:
        """Return whether a class has a member: `Model.fit`.

        `model.fit` is the member of a class of that name, or of a class derived from it.
        """
        candidates = self.classes.get(_instance(parts[0]), [])
        if any(parts[1] in self._members(candidate) for candidate in candidates):
            return True
        name, lower = _instance(parts[0]), parts[0].islower()
        return lower and any(
            parts[1] in candidate.members and name in self._ancestors(candidate)
            for group in self.classes.values()
            for candidate in group
        )

    def _has_member(self, parts: list[str]) -> bool:
        """Return whether the rest of a dotted name can exist; of values nothing is checked."""
        if len(parts) == 1 or _instance(parts[0]) not in self.classes:
            return True
        return self._in_classes(parts)

    def _members(self, derived: Class) -> set[str]:
        """Return the members of a class and of its base classes."""
        parents = (self.classes.get(name, []) for name in self._ancestors(derived))
        return derived.members.union(*(parent.members for group in parents for parent in group))

    def _ancestors(self, derived: Class) -> set[str]:
        """Return the names of all base classes, indirect ones too."""
        ancestors: set[str] = set()
        todo = [_instance(base) for base in derived.bases]
        while todo:
            name = todo.pop()
            if name not in ancestors:
                ancestors.add(name)
                todo += [
                    _instance(b) for parent in self.classes.get(name, []) for b in parent.bases
                ]
        return ancestors


def _walk(folder: Path) -> Iterator[Path]:
    """Files that people wrote: no hidden folders, caches or environments."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if path.name[0] not in "._" and path.name not in ("build", "dist"):
                yield from _walk(path)
        else:
            yield path


def _instance(name: str) -> str:
    """`FitCache` as `fitcache`, and so `fit_cache` and `_FitCache`."""
    return name.replace("_", "").lower()


def _defined(body: list[ast.stmt], imports: bool) -> Iterator[str]:
    """Names of a module or class body, also those under `if` and `try`."""
    for node in body:
        if isinstance(node, FunctionNode | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name))
        elif isinstance(node, ast.ImportFrom) and imports:
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _defined(
                [n for n in ast.walk(node) if isinstance(n, ast.stmt) and n is not node], imports
            )


def _class(node: ast.ClassDef) -> Class:
    stored = (n for n in ast.walk(node) if isinstance(n, ast.Attribute))
    on_self = {
        n.attr for n in stored if isinstance(n.ctx, ast.Store) and last_word(n.value) == "self"
    }
    bases = [word for base in node.bases if (word := last_word(base))]
    return Class(on_self.union(_defined(node.body, imports=False)), bases)

"""The modules, functions and imports of a package; files are parsed, never imported."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

#: An import runs with its module, or when a function is called, or never (under TYPE_CHECKING).
KINDS = ("top", "late", "typing")

_BRANCHES = (
    ast.If,
    ast.For,
    ast.While,
    ast.IfExp,
    ast.ExceptHandler,
    ast.comprehension,
    ast.match_case,
    ast.AsyncFor,
)
_BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.AsyncFor, ast.AsyncWith, ast.Match)

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Function:
    """A function or method, and how hard it is to read."""

    name: str
    line: int
    lines: int
    parameters: int
    branches: int  # McCabe's number, less one
    depth: int  # of nested blocks


@dataclass
class Module:
    """One file of the package."""

    name: str  # without the package's own: models.base
    path: Path
    tree: ast.Module
    lines: int
    functions: list[Function]
    imports: dict[str, str] = field(default_factory=dict)  # module -> kind
    libraries: set[str] = field(default_factory=set)

    @property
    def is_package(self) -> bool:
        """Is it the `__init__` of a folder?"""
        return self.path.name == "__init__.py"


Modules = dict[str, Module]


def package_folder(root: Path) -> Path:
    """The folder of the one package at or in `root`."""
    if (root / "__init__.py").exists():
        return root
    inside = [child for child in sorted(root.iterdir()) if (child / "__init__.py").exists()]
    if len(inside) != 1:
        sys.exit(f"{root} holds {len(inside)} packages; name the folder of one package")
    return inside[0]


def read_package(root: Path) -> Modules:
    """Return every module by name.

    The package's own `__init__` is left out: it lists names and imports everything.
    """
    folder = package_folder(root)
    modules = {}
    for path in sorted(folder.rglob("*.py")):
        name = ".".join(path.relative_to(folder).with_suffix("").parts)
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text, str(path))
        name = name.removesuffix(".__init__")
        modules[name] = Module(name, path, tree, len(text.splitlines()), list(functions_of(tree)))
    for module in modules.values():
        _add_imports(module, module.tree, "top", (folder.name, set(modules)))
        stub = module.path.with_suffix(".pyi")
        if stub.exists():  # a package's stub lists what the package imports on first use
            tree = ast.parse(stub.read_text(encoding="utf-8"), str(stub))
            _add_imports(module, tree, "late", (folder.name, set(modules)))
    modules.pop("__init__", None)
    for module in modules.values():
        module.imports.pop("__init__", None)
    return modules


def functions_of(tree: ast.AST) -> Iterator[Function]:
    """Functions and methods at any depth, decorators and docstrings included in their lines."""
    for node in ast.walk(tree):
        if isinstance(node, FunctionNode):
            start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            arguments = node.args
            parameters = len(arguments.posonlyargs + arguments.args + arguments.kwonlyargs)
            branches = sum(isinstance(n, _BRANCHES) for n in ast.walk(node))
            branches += sum(len(n.values) - 1 for n in ast.walk(node) if isinstance(n, ast.BoolOp))
            lines = (node.end_lineno or start) - start + 1
            yield Function(node.name, start, lines, parameters, branches, _depth(node))


def last_word(node: ast.expr) -> str:
    """The last word of a name, dotted or subscripted: `np.ndarray[...]` is `ndarray`."""
    if isinstance(node, ast.Subscript):
        return last_word(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _depth(node: ast.AST) -> int:
    inner = (_depth(child) + isinstance(child, _BLOCKS) for child in ast.iter_child_nodes(node))
    return max(inner, default=0)


# -- imports ---------------------------------------------------------------------------------------


def _add_imports(
    module: Module, tree: ast.Module, kind_of_top: str, scope: tuple[str, set[str]]
) -> None:
    """Add the imports of a syntax tree to a module; `scope` is the package and its modules."""
    package, modules = scope
    for base, names, kind in _statements(module, tree, kind_of_top, package):
        if base.split(".")[0] != package:
            module.libraries.add(base.split(".")[0])
            continue
        for target in _targets(base.removeprefix(package).lstrip("."), names, modules):
            if target != module.name:
                before = module.imports.get(target, kind)
                module.imports[target] = min(before, kind, key=KINDS.index)


def _statements(
    module: Module, tree: ast.Module, kind_of_top: str, package: str
) -> Iterator[tuple[str, list[str], str]]:
    """(module, names taken from it, kind) of every import, relative ones made absolute."""

    def visit(node: ast.AST, kind: str) -> Iterator[tuple[str, list[str], str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, [], kind) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = _absolute(child, module, package)
                yield base, [alias.name for alias in child.names], kind
            else:
                yield from visit(child, _kind_within(child, kind))

    return visit(tree, kind_of_top)


def _kind_within(node: ast.AST, kind: str) -> str:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return "typing"
    if isinstance(node, FunctionNode | ast.Lambda) and kind == "top":
        return "late"
    return kind


def _absolute(node: ast.ImportFrom, module: Module, package: str) -> str:
    if not node.level:
        return node.module or ""
    here = [package, *(module.name.split(".") if module.name != "__init__" else [])]
    up = node.level - module.is_package
    here = here[: len(here) - up] if up else here
    return ".".join([*here, *filter(None, [node.module])])


def _targets(inside: str, names: list[str], modules: set[str]) -> Iterator[str]:
    """Modules that `from inside import names` reaches: a name may be a module itself."""
    for name in names or [""]:
        full = f"{inside}.{name}".strip(".")
        if full in modules:
            yield full
        elif (inside or "__init__") in modules:
            yield inside or "__init__"

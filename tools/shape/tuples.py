"""Find numbers as indices into tuples in compiled functions: `scratch[5]`.

Nothing is run: what is a tuple follows from annotations (`Arrays`, `tuple[...]`, a NamedTuple),
assignments, unpacking, calls and fields. A value of unknown type is no tuple, with one exception: a
parameter without a type, or of type Any, whose numbered element is indexed again (`left[0][i]`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from shape.tree import FunctionNode, Modules, last_word

_COMPILERS = {"kernel", "template", "reducing", "njit"}


@dataclass(frozen=True)
class Kind:
    """What is known of a value: is it a tuple, and what are its elements or fields?"""

    is_tuple: bool = False
    untyped: bool = False  # a parameter that could be anything
    elements: tuple[Kind, ...] = ()
    rest: Kind | None = None  # of every element, where the length is open
    fields: tuple[tuple[str, Kind], ...] = ()

    def element(self, index: int) -> Kind:
        """The element at an index, or nothing known."""
        if -len(self.elements) <= index < len(self.elements):
            return self.elements[index]
        return self.rest or OTHER

    def attribute(self, name: str) -> Kind:
        """The field of that name, or nothing known."""
        return dict(self.fields).get(name, OTHER)


OTHER = Kind()
UNTYPED = Kind(untyped=True)


@dataclass
class Names:
    """Types that are tuples, and what functions return, for a whole package."""

    aliases: dict[str, ast.expr] = field(default_factory=dict)  # Arrays = tuple[Any, ...]
    records: dict[str, list[tuple[str, ast.expr]]] = field(default_factory=dict)  # NamedTuples
    returns: dict[str, ast.expr] = field(default_factory=dict)

    @classmethod
    def of(cls, modules: Modules) -> Names:
        """Collect them from every module; a name stands for one thing throughout a package."""
        names = cls()
        for module in modules.values():
            for node in ast.walk(module.tree):
                names._take(node)
        return names

    def _take(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign) and _is_tuple_type(node.value):
            self.aliases.update({t.id: node.value for t in node.targets if isinstance(t, ast.Name)})
        elif isinstance(node, ast.AnnAssign) and node.value and _is_tuple_type(node.value):
            self.aliases[ast.unparse(node.target)] = node.value
        elif isinstance(node, ast.ClassDef) and any(
            last_word(b) == "NamedTuple" for b in node.bases
        ):
            rows = [row for row in node.body if isinstance(row, ast.AnnAssign)]
            self.records[node.name] = [(ast.unparse(row.target), row.annotation) for row in rows]
        elif isinstance(node, FunctionNode) and node.returns is not None:
            self.returns[node.name] = node.returns

    def kind(self, annotation: ast.expr | None, depth: int = 0) -> Kind:
        """What an annotation says."""
        if annotation is None or last_word(annotation) == "Any":
            return UNTYPED
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            return self.kind(ast.parse(annotation.value, mode="eval").body, depth)
        name = last_word(annotation)
        if depth > 8:  # a type that contains itself
            return OTHER
        if isinstance(annotation, ast.Subscript) and name in ("tuple", "Tuple"):
            return self._tuple(annotation.slice, depth + 1)
        if name in ("tuple", "Tuple"):
            return Kind(is_tuple=True)
        if name in self.records:
            fields = [(f, self._inner(kind, depth + 1)) for f, kind in self.records[name]]
            return Kind(True, elements=tuple(kind for _, kind in fields), fields=tuple(fields))
        return self.kind(self.aliases[name], depth + 1) if name in self.aliases else OTHER

    def _tuple(self, inside: ast.expr, depth: int) -> Kind:
        parts = inside.elts if isinstance(inside, ast.Tuple) else [inside]
        if len(parts) == 2 and isinstance(parts[1], ast.Constant) and parts[1].value is ...:
            return Kind(True, rest=self._inner(parts[0], depth))
        return Kind(True, elements=tuple(self._inner(part, depth) for part in parts))

    def _inner(self, annotation: ast.expr, depth: int) -> Kind:
        """An element: where its type is Any it is an array as likely as not."""
        kind = self.kind(annotation, depth)
        return OTHER if kind.untyped else kind


def _is_tuple_type(value: ast.expr) -> bool:
    return isinstance(value, ast.Subscript) and last_word(value) in ("tuple", "Tuple")


# -- one function ----------------------------------------------------------------------------------


def compiled_functions(tree: ast.Module) -> Iterator[FunctionNode]:
    """Functions that are decorated with a compiler of kernels, or handed to one by name."""
    handed = {
        last_word(argument)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and last_word(call.func) in _COMPILERS
        for argument in call.args
    }
    for node in ast.walk(tree):
        if isinstance(node, FunctionNode):
            marks = (d.func if isinstance(d, ast.Call) else d for d in node.decorator_list)
            if node.name in handed or any(last_word(mark) in _COMPILERS for mark in marks):
                yield node


def numbered_elements(function: FunctionNode, names: Names) -> list[tuple[int, str]]:
    """(line, text) of every tuple in a function that is indexed or sliced with numbers."""
    scope = _Scope(names)
    arguments = function.args
    for argument in arguments.posonlyargs + arguments.args + arguments.kwonlyargs:
        scope.kinds[argument.arg] = names.kind(argument.annotation)
    if arguments.vararg:
        scope.kinds[arguments.vararg.arg] = Kind(True, rest=names.kind(arguments.vararg.annotation))
    for _ in range(2):  # a loop may use what it assigns further down
        scope.follow(function.body)
    indexed = {id(n.value) for n in ast.walk(function) if isinstance(n, ast.Subscript)}
    elements = []
    for node in ast.walk(function):
        if isinstance(node, ast.Subscript) and _is_numbered(node.slice):
            kind = scope.kind(node.value)
            if kind.is_tuple or (kind.untyped and id(node) in indexed):
                elements.append((node.lineno, ast.unparse(node)))
    return sorted(elements)


def _is_numbered(index: ast.expr) -> bool:
    if isinstance(index, ast.Slice):
        return any(_number(e) is not None for e in (index.lower, index.upper, index.step) if e)
    return _number(index) is not None


def _number(index: ast.expr) -> int | None:
    if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub):
        inner = _number(index.operand)
        return None if inner is None else -inner
    if isinstance(index, ast.Constant) and type(index.value) is int:
        return index.value
    return None


class _Scope:
    """What is known of the names of one function."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.kinds: dict[str, Kind] = {}

    def follow(self, body: list[ast.stmt]) -> None:
        """Learn from assignments and loops, in the order in which they stand."""
        for node in (inner for statement in body for inner in ast.walk(statement)):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._bind(target, self.kind(node.value))
            elif isinstance(node, ast.AnnAssign):
                self._bind(node.target, self.names._inner(node.annotation, 0))
            elif isinstance(node, ast.For | ast.comprehension):
                self._bind(node.target, self._iterated(node.iter))

    def _bind(self, target: ast.expr, kind: Kind) -> None:
        if isinstance(target, ast.Name):
            if not self.kinds.get(
                target.id, OTHER
            ).is_tuple:  # once a tuple, always: types are fixed
                self.kinds[target.id] = kind
        elif isinstance(target, ast.Tuple):
            for place, part in enumerate(target.elts):
                self._bind(part, kind.element(place))

    def _iterated(self, iterable: ast.expr) -> Kind:
        """One element of what a loop goes over; `literal_unroll(blocks)` goes over blocks."""
        if isinstance(iterable, ast.Call) and iterable.args:
            inner = self._iterated(iterable.args[0])
            return (
                Kind(True, elements=(OTHER, inner))
                if last_word(iterable.func) == "enumerate"
                else inner
            )
        kind = self.kind(iterable)
        tuples = [k for k in (*kind.elements, kind.rest) if k and k.is_tuple]
        return tuples[0] if tuples else OTHER

    def kind(self, node: ast.expr) -> Kind:
        """What an expression is known to be."""
        if isinstance(node, ast.Name):
            return self.kinds.get(node.id, OTHER)
        if isinstance(node, ast.Tuple):
            return Kind(True, elements=tuple(self.kind(element) for element in node.elts))
        if isinstance(node, ast.Attribute):
            return self.kind(node.value).attribute(node.attr)
        if isinstance(node, ast.IfExp):
            return max(self.kind(node.body), self.kind(node.orelse), key=lambda k: k.is_tuple)
        if isinstance(node, ast.Call):
            name = last_word(node.func)
            is_record = name in self.names.records
            annotation = ast.Name(name) if is_record else self.names.returns.get(name)
            return self.names._inner(annotation, 0) if annotation else OTHER
        if isinstance(node, ast.Subscript):
            return self._element(self.kind(node.value), node.slice)
        return OTHER

    def _element(self, kind: Kind, index: ast.expr) -> Kind:
        if not kind.is_tuple:
            return OTHER
        if isinstance(index, ast.Slice):
            lower, upper = (_number(e) if e else None for e in (index.lower, index.upper))
            return Kind(True, elements=kind.elements[lower:upper], rest=kind.rest)
        number = _number(index)
        return kind.element(number) if number is not None else kind.rest or OTHER

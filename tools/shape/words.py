"""Figures of a package's language: banned names, long lines, wide functions and others.

Each rule returns the places that it counts. `FIGURES` lists the rules by the name that the file of
limits gives their ceiling.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator

from shape.limits import Limits
from shape.sources import Place, PlacedNode, Source
from shape.tree import FunctionNode, last_word

LONGEST_LINE = 100
LONGEST_SUMMARY = 88
MOST_PARAMETERS = 8

Figure = Callable[[list[Source], Limits], Iterator[Place]]

_FLAG = re.compile(r"(?<![\w-])(?<!var\()--[a-z]")  # `--sep`, but not var(--paper) of a style sheet


def find_banned_names(sources: list[Source], limits: Limits) -> Iterator[Place]:
    """Yield each function with a banned name, and each place that sets such a variable.

    A place sets a variable where the syntax tree has the name with the context `Store`: assignments
    (augmented and annotated ones too, and so the fields of classes), and the targets of `for`,
    `with`, comprehensions and `:=`. A variable that is set twice counts twice. Parameters and
    attributes are counted by `find_banned_parameters`. Leading underscores are ignored.
    """
    for source in sources:
        for node, owners in source.nodes:
            if isinstance(node, FunctionNode):
                yield from _banned(source, node, (*owners, node.name), limits)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield from _banned(source, node, (*owners, node.id), limits)


def find_banned_parameters(sources: list[Source], limits: Limits) -> Iterator[Place]:
    """Yield each parameter, assigned attribute and caught exception with a banned name."""
    for source in sources:
        for node, owners in source.nodes:
            if isinstance(node, ast.arg):
                yield from _banned(source, node, (*owners, node.arg), limits)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                classes = [owner for owner in owners if owner.lstrip("_")[:1].isupper()]
                yield from _banned(source, node, (*classes, node.attr), limits)
            elif isinstance(node, ast.ExceptHandler) and node.name:
                yield from _banned(source, node, (*owners, node.name), limits)


def _banned(
    source: Source, node: PlacedNode, path: tuple[str, ...], limits: Limits
) -> Iterator[Place]:
    """Yield the node's place if the last name of its path is banned and not exempt."""
    name = path[-1].lstrip("_")
    if name in limits.banned and ".".join(path[-2:]) not in limits.name_exceptions:
        yield source.place(node, name)


def find_repeated_classes(sources: list[Source], limits: Limits) -> Iterator[Place]:
    """Yield one place for each public class name that is defined in more than one module."""
    homes: dict[str, list[Place]] = defaultdict(list)
    for source in sources:
        for node, _ in source.nodes:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(source.place(node, node.name))
    for name, places in sorted(homes.items()):
        paths = sorted({place.path for place in places})
        if len(paths) > 1:
            yield places[-1]._replace(text=f"class {name} is in {', '.join(paths)}")


def find_long_lines(sources: list[Source], limits: Limits) -> Iterator[Place]:
    """Yield each line of more than 100 characters."""
    for source in sources:
        for number, line in enumerate(source.text.splitlines(), 1):
            if len(line) > LONGEST_LINE:
                yield Place(source.path, number, f"{len(line)} characters")


def find_long_summaries(sources: list[Source], limits: Limits) -> Iterator[Place]:
    """Yield each docstring whose first line has more than 88 characters."""
    for source in sources:
        for node in source.docstrings:
            summary = str(node.value).strip().split("\n")[0]
            if len(summary) > LONGEST_SUMMARY:
                yield source.place(node, f"{len(summary)} characters")


def find_wide_functions(sources: list[Source], limits: Limits) -> Iterator[Place]:
    """Yield each function of more than eight parameters, whatever their kind; none is exempt."""
    for source in sources:
        for node, owners in source.nodes:
            if isinstance(node, FunctionNode):
                n_parameters = _n_positional(node) + len(node.args.kwonlyargs)
                if n_parameters > MOST_PARAMETERS:
                    name = ".".join((*owners, node.name))
                    yield source.place(node, f"{name} has {n_parameters} parameters")


def find_wide_signatures(sources: list[Source], limits: Limits) -> Iterator[Place]:
    """Yield each function of more than eight parameters that count.

    Commands of Typer (functions under `cli/` with a decorator `command` or `callback`) are exempt,
    keyword-only parameters of public functions do not count, and the file of limits has exceptions.
    """
    for source in sources:
        for node, owners in source.nodes:
            if not isinstance(node, FunctionNode) or _is_command(source, node):
                continue
            n_parameters = _n_positional(node)
            if node.name.startswith("_"):
                n_parameters += len(node.args.kwonlyargs)
            name = ".".join((*owners, node.name))
            if n_parameters > MOST_PARAMETERS and name not in limits.wide_exceptions:
                yield source.place(node, f"{name} has {n_parameters} parameters")


def _n_positional(node: FunctionNode) -> int:
    return len(node.args.posonlyargs + node.args.args)


def _is_command(source: Source, node: FunctionNode) -> bool:
    """Return whether a function is a command of a Typer application in `cli/`."""
    calls = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
    is_decorated = any(last_word(call) in ("command", "callback") for call in calls)
    return source.path.startswith("cli/") and is_decorated


def find_flags_in_errors(sources: list[Source], limits: Limits) -> Iterator[Place]:
    """Yield each call of an `...Error` class, outside `cli/` and `spark/`, that names a flag."""
    for source in sources:
        if source.path.startswith(("cli/", "spark/")):
            continue
        for node, _ in source.nodes:
            if isinstance(node, ast.Call) and last_word(node.func).endswith("Error"):
                strings = (part for argument in node.args for part in _flagged_strings(argument))
                for text in list(strings)[:1]:
                    yield source.place(node, text)


def find_flags_in_messages(sources: list[Source], limits: Limits) -> Iterator[Place]:
    """Yield each string outside `cli/`, docstrings apart, that contains a command-line flag.

    The parts of an f-string count as one string.
    """
    for source in sources:
        if source.path.startswith("cli/") or source.path in limits.flag_exceptions:
            continue
        docstrings = set(source.docstrings)
        in_f_strings = {
            part
            for node, _ in source.nodes
            if isinstance(node, ast.JoinedStr)
            for part in ast.walk(node)
            if part is not node
        }
        for node, _ in source.nodes:
            if isinstance(node, ast.Constant | ast.JoinedStr) and node not in in_f_strings:
                strings = [] if node in docstrings else list(_flagged_strings(node))
                for text in strings[:1]:
                    yield source.place(node, text)


def _flagged_strings(node: ast.expr) -> Iterator[str]:
    """Yield the beginning of each string constant in an expression that contains a flag."""
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            match = _FLAG.search(part.value)
            if match:
                yield part.value[max(0, match.start() - 30) : match.start() + 30].strip()


FIGURES: dict[str, tuple[str, Figure]] = {
    "banned_names": ("banned names of functions and variables", find_banned_names),
    "banned_parameters": ("banned names of parameters and attributes", find_banned_parameters),
    "repeated_classes": ("public class names in two modules", find_repeated_classes),
    "long_lines": ("lines over 100 characters", find_long_lines),
    "long_summaries": ("first docstring lines over 88 characters", find_long_summaries),
    "wide_functions": ("functions over eight parameters, of any kind", find_wide_functions),
    "wide_signatures": ("functions over eight parameters, not exempt", find_wide_signatures),
    "flags_in_errors": ("errors that name a flag (not cli/, spark/)", find_flags_in_errors),
    "flags_in_messages": ("strings that name a flag (not cli/)", find_flags_in_messages),
}

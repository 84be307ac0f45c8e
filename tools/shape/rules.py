"""The rules that the source keeps, each a function from the package to what breaks it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shape.counts import broken_ceilings
from shape.graphs import cycles, import_graph
from shape.limits import Limits
from shape.rooms import Rooms, homes_of, imports_past_packages, upward
from shape.tree import Module, Modules
from shape.tuples import Names, compiled_functions, numbered_elements

MOST_FILES_IN_ROOT = 6
MOST_LINES_OF_FILE = 400
MOST_LINES_OF_FUNCTION = 60


@dataclass(frozen=True)
class House:
    """What the rules look at."""

    folder: Path
    modules: Modules
    rooms: Rooms | None
    limits: Limits | None = None
    doors: dict[str, str] | None = None  # modules open to other rooms; None: every module is

    def place(self, module: Module, line: int | None = None) -> str:
        """Where something is, as an editor opens it."""
        path = module.path.relative_to(self.folder.parent).as_posix()
        return f"{path}:{line}" if line else path


Rule = Callable[[House], Iterator[str]]


def no_cycles(house: House) -> Iterator[str]:
    """Imports of any kind, late and typing ones too, never lead back."""
    for group in cycles(import_graph(house.modules)):
        yield f"modules import each other in a circle: {', '.join(group)}"


def imports_point_down(house: House) -> Iterator[str]:
    """A room imports only from rooms that stand lower in the list."""
    if house.rooms is None:
        return
    for name, other in upward(house.rooms, import_graph(house.modules)):
        homes = [homes_of(house.rooms, module)[0] for module in (name, other)]
        kind = house.modules[name].imports[other]
        place = house.place(house.modules[name])
        yield f"{place}: imports {other} ({kind}), but room {homes[1]} stands above {homes[0]}"


def one_room_each(house: House) -> Iterator[str]:
    """Every module is in exactly one room."""
    for name, module in house.modules.items() if house.rooms is not None else ():
        homes = homes_of(house.rooms or {}, name)
        if len(homes) != 1:
            text = f"in {len(homes)} rooms: {', '.join(homes)}" if homes else "in no room"
            yield f"{house.place(module)}: {name} is {text}"


def imports_from_packages(house: House) -> Iterator[str]:
    """A module imports from the package of another room, never from the modules inside it."""
    if house.rooms is None or house.doors is None:
        return
    graph = import_graph(house.modules)
    for name, other, package in imports_past_packages(house.rooms, graph):
        if other not in house.doors:
            place = house.place(house.modules[name])
            yield f"{place}: imports {other} of another room; import from its package {package}"


def within_ceilings(house: House) -> Iterator[str]:
    """No figure of the package's language is above its ceiling."""
    if house.limits is not None:
        yield from broken_ceilings(house.folder, house.limits)


def few_files_in_the_root(house: House) -> Iterator[str]:
    """The root folder shows rooms, not files."""
    files = sorted(path.name for path in house.folder.glob("*.py"))
    if len(files) > MOST_FILES_IN_ROOT:
        text = f"{len(files)} files stand in the root folder, more than {MOST_FILES_IN_ROOT}"
        yield f"{house.folder.name}: {text}: {', '.join(files)}"


def short_files(house: House) -> Iterator[str]:
    """A file can be read in one sitting."""
    for module in house.modules.values():
        if module.lines > MOST_LINES_OF_FILE:
            yield f"{house.place(module)}: {module.lines} lines, more than {MOST_LINES_OF_FILE}"


def short_functions(house: House) -> Iterator[str]:
    """A function fits a screen."""
    for module in house.modules.values():
        for function in module.functions:
            if function.lines > MOST_LINES_OF_FUNCTION:
                text = f"{function.lines} lines, more than {MOST_LINES_OF_FUNCTION}"
                yield f"{house.place(module, function.line)}: {function.name} has {text}"


def named_elements(house: House) -> Iterator[str]:
    """Compiled functions name the elements of tuples: no number is an index into one."""
    names = Names.of(house.modules)
    for module in house.modules.values():
        for function in compiled_functions(module.tree):
            for line, text in numbered_elements(function, names):
                text = f"{function.name} indexes a tuple by number: {text}"
                yield f"{house.place(module, line)}: {text}"


RULES: tuple[Rule, ...] = (
    no_cycles,
    imports_point_down,
    one_room_each,
    imports_from_packages,
    few_files_in_the_root,
    short_files,
    short_functions,
    named_elements,
    within_ceilings,
)


def broken_rules(house: House) -> list[str]:
    """One line for everything that breaks a rule."""
    return [line for rule in RULES for line in rule(house)]

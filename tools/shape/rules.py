"""The rules that the source keeps, each a function from the package to what breaks it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shape.graphs import cycles, import_graph
from shape.rooms import Rooms, homes_of, upward
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
        homes = [homes_of(house.rooms, one)[0] for one in (name, other)]
        kind = house.modules[name].imports[other]
        place = house.place(house.modules[name])
        yield f"{place}: imports {other} ({kind}), but room {homes[1]} stands above {homes[0]}"


def one_room_each(house: House) -> Iterator[str]:
    """Every module is in exactly one room."""
    for name, module in house.modules.items() if house.rooms is not None else ():
        homes = homes_of(house.rooms or {}, name)
        if len(homes) != 1:
            said = f"in {len(homes)} rooms: {', '.join(homes)}" if homes else "in no room"
            yield f"{house.place(module)}: {name} is {said}"


def few_files_in_the_root(house: House) -> Iterator[str]:
    """The root folder shows rooms, not files."""
    files = sorted(path.name for path in house.folder.glob("*.py"))
    if len(files) > MOST_FILES_IN_ROOT:
        said = f"{len(files)} files stand in the root folder, more than {MOST_FILES_IN_ROOT}"
        yield f"{house.folder.name}: {said}: {', '.join(files)}"


def short_files(house: House) -> Iterator[str]:
    """A file can be read in one sitting."""
    for module in house.modules.values():
        if module.lines > MOST_LINES_OF_FILE:
            yield f"{house.place(module)}: {module.lines} lines, more than {MOST_LINES_OF_FILE}"


def short_functions(house: House) -> Iterator[str]:
    """A function fits a screen."""
    for module in house.modules.values():
        for one in module.functions:
            if one.lines > MOST_LINES_OF_FUNCTION:
                said = f"{one.lines} lines, more than {MOST_LINES_OF_FUNCTION}"
                yield f"{house.place(module, one.line)}: {one.name} has {said}"


def named_elements(house: House) -> Iterator[str]:
    """Compiled functions name the elements of tuples: no number is an index into one."""
    names = Names.of(house.modules)
    for module in house.modules.values():
        for function in compiled_functions(module.tree):
            for line, text in numbered_elements(function, names):
                said = f"{function.name} indexes a tuple by number: {text}"
                yield f"{house.place(module, line)}: {said}"


RULES: tuple[Rule, ...] = (
    no_cycles,
    imports_point_down,
    one_room_each,
    few_files_in_the_root,
    short_files,
    short_functions,
    named_elements,
)


def broken_rules(house: House) -> list[str]:
    """One line for everything that breaks a rule."""
    return [line for rule in RULES for line in rule(house)]

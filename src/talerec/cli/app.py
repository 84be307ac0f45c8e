"""The command's root: registration of commands, their help pages and renamed flags."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

Command = Callable[..., None]
Context = typer.Context
Exit = typer.Exit  # raised with the exit code of a command that has printed its result

#: Flags of version 0.1 that still work, with a warning: old -> new.
_RENAMED_FLAGS = {"--output": "--out"}


class _PlainFlags:
    """Mixin for help pages without "<bool>" after options that take no value (such as --help)."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return Click's parameters of the command; a flag without metavar gets an empty one.

        Help pages then show no "<bool>" after options that take no value. `ctx` is Click's context.
        """
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False) and param.metavar is None:
                param.metavar = ""
        return params


class _Command(_PlainFlags, TyperCommand):
    pass


class _Group(_PlainFlags, TyperGroup):
    """A group of commands that accepts flags under their former names, with a warning."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        """Return the command that `args` call: its name, the command, and the words after it.

        `args` are the words of the command line, `ctx` is Click's context. Former flags in these
        words are replaced by the flags that the command has now, with a warning.
        """
        name, command, words = super().resolve_command(ctx, args)
        flags = {flag for param in command.params for flag in param.opts} if command else set()
        renamed = {
            old: new for old, new in _RENAMED_FLAGS.items() if new in flags and old not in flags
        }
        if not ctx.resilient_parsing:  # completion prints no warnings
            for old in renamed.keys() & {word.partition("=")[0] for word in words}:
                print_warning(f"{old} is now {renamed[old]}")
        return name, command, [_rename_flag(word, renamed) for word in words]


def _rename_flag(word: str, renamed: dict[str, str]) -> str:
    """Return a word of the command line, `--flag` or `--flag=value`, with the flag's new name.

    `renamed` are new flags by former flags; a word without a former flag is returned unchanged.
    """
    flag, sign, value = word.partition("=")
    return f"{renamed.get(flag, flag)}{sign}{value}"


def print_warning(message: str) -> None:
    """Print a warning on standard error; the command continues."""
    print(f"warning: {message}", file=sys.stderr)


app = typer.Typer(
    name="talerec", cls=_Group, pretty_exceptions_enable=False, rich_markup_mode="rich"
)


def format_examples(*commands: str) -> str:
    """Return the heading "Examples:" and command lines, one per line, to end a help page with."""
    return "\n".join(["Examples:", *commands])


class Panel(StrEnum):
    """Headings under which the help page of `talerec` lists the commands, in this order."""

    START = "Start here"
    LOGS = "Logs"
    MODELS = "Models"
    EVALUATE = "Evaluate"
    ASK = "Query a saved model"


def command(
    panel: Panel,
    *examples: str,
    within: typer.Typer = app,
    name: str | None = None,
    **settings: Any,
) -> Callable[[Command], Command]:
    """Return a decorator that registers a function as a command and returns it unchanged.

    Parameters
    ----------
    panel : Panel
        The heading of the help page that lists the command.
    examples : str
        Command lines that the command's own help page shows.
    within : typer.Typer
        The group of commands that it belongs to.
    name : str, optional
        The command's name if it is not the function's.
    settings : dict
        Click's context settings of the command, such as allow_extra_args=True.
    """

    def register(function: Command) -> Command:
        """Add the function to the group `within` and return it unchanged."""
        add = within.command(
            name,
            cls=_Command,
            rich_help_panel=panel.value,
            epilog=format_examples(*examples),
            context_settings=settings or None,
        )
        add(flatten_groups(function))
        return function

    return register


def add_group(panel: Panel, name: str, help: str) -> typer.Typer:
    """Add a group of commands, called as talerec NAME COMMAND, to the app and return it.

    The help page of `talerec` lists the group under the heading `panel`; `help` is its help text.
    """
    group = typer.Typer(name=name, cls=_Group, help=help, no_args_is_help=True)
    app.add_typer(group, rich_help_panel=panel.value)
    return group


def flatten_groups(command: Command) -> Command:
    """Return a command with one parameter per field of each dataclass parameter, for Typer.

    A command is a function whose parameters are command-line options; a dataclass parameter is a
    group of options, which Typer does not support. The returned function builds the dataclasses
    from its parameters and calls the command.
    """
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    groups: dict[str, Any] = {
        p.name: p.annotation for p in parameters if dataclasses.is_dataclass(p.annotation)
    }

    def call(**values: Any) -> None:
        """Call the command with its dataclasses built from `values`, by field or parameter name."""
        for name, group in groups.items():
            fields = [field.name for field in dataclasses.fields(group)]
            values[name] = group(**{field: values.pop(field) for field in fields})
        command(**values)

    flat: list[inspect.Parameter] = []
    for p in parameters:
        group = groups.get(p.name)
        flat += [p.replace(kind=p.KEYWORD_ONLY)] if group is None else _group_parameters(group)
    call.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    call.__name__, call.__doc__, call.__annotations__ = command.__name__, command.__doc__, {}
    return call


def _group_parameters(group: Any) -> Iterator[inspect.Parameter]:
    """Yield each field of the dataclass `group` as a keyword-only parameter of a signature.

    The class is a group of command-line options that several commands share.
    """
    hints = get_type_hints(group, include_extras=True)
    for field in dataclasses.fields(group):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if default is dataclasses.MISSING:
            default = inspect.Parameter.empty
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=hints[field.name],
        )


def explicit_options(context: Context) -> set[str]:
    """Return the names of the parameters that the command line sets, even if to the default.

    `context` is Click's context of the running command. Defaults and environment variables do not
    count.
    """
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source and source.name == "COMMANDLINE"}


def sort_commands() -> None:
    """Sort the registered commands of the app by their headings, as ordered in `Panel`."""
    order = {panel.value: position for position, panel in enumerate(Panel)}
    app.registered_commands.sort(
        key=lambda registered: order.get(str(registered.rich_help_panel), len(order))
    )

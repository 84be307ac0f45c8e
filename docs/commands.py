"""The page of all commands, made from the command line itself: `pictures.py` writes it to docs/made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from talerec.cli.app import Panel
from talerec.cli.main import app

_FLAG = "--help"  # every command has it, and no page needs to say so


def page() -> str:
    """Every command with its arguments, options and examples, as Markdown."""
    root: Any = typer.main.get_command(app)
    parts: list[str] = []
    for panel in Panel:
        mine = [one for one in root.commands.values() if one.rich_help_panel == panel.value]
        parts += [f"## {panel.value}", *(_command(f"talerec {one.name}", one) for one in mine)]
    return "\n\n".join(parts) + "\n"


def _command(name: str, command: Any) -> str:
    """One command, or the commands of a group."""
    parts = [f"### {name}", _plain(command.help)]
    within = getattr(command, "commands", {}).values()
    parts += [_command(f"{name} {one.name}", one).replace("### ", "#### ", 1) for one in within]
    if not hasattr(command, "commands"):
        arguments = [one.metavar for one in command.params if not one.opts[0].startswith("-")]
        parts.append(_code(" ".join([name, *arguments, "[options]"])))
        parts += _lists(command.params)
        parts.append(_code((command.epilog or "").partition("\n")[2]))
    return "\n\n".join(parts)


def _lists(params: list[Any]) -> Iterator[str]:
    """Arguments and options, those of one heading in one list."""
    headings = dict.fromkeys(getattr(one, "rich_help_panel", None) for one in params)
    for heading in headings:
        mine = [one for one in params if getattr(one, "rich_help_panel", None) == heading]
        rows = [_row(one) for one in mine if _FLAG not in one.opts]
        if rows:
            yield "\n\n".join([*([f"**{heading}**"] if heading else []), *rows])


def _row(param: Any) -> str:
    is_option = param.opts[0].startswith("-")
    value = param.metavar if is_option else ""
    names = ", ".join(param.opts) if is_option else param.metavar
    needed = " (needed)" if param.required else ""
    return f"`{f'{names} {value}'.strip()}`\n: {_plain(param.help)}{needed}{_default(param)}"


def _default(param: Any) -> str:
    value = param.default
    if value in (None, False, "") or value == [] or callable(value) or param.required:
        return ""
    return f" [{_plain(value)}]"


def _plain(text: Any) -> str:
    """Text in which nothing is Markdown."""
    for sign in "\\`*_[]<>|$":
        text = str(text).replace(sign, f"\\{sign}")
    return text


def _code(text: str) -> str:
    return f"```text\n{text}\n```"

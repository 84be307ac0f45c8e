"""Generate the reference page of all commands from the command line; see `pictures.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from talerec.cli.app import Panel
from talerec.cli.main import app

_HELP_FLAG = "--help"  # every command has it, so the page does not list it


def render_commands() -> str:
    """Return Markdown with every command, its arguments, options and examples."""
    root: Any = typer.main.get_command(app)
    sections: list[str] = []
    for panel in Panel:
        commands = [c for c in root.commands.values() if c.rich_help_panel == panel.value]
        sections.append(f"## {panel.value}")
        sections += [_command_section(f"talerec {c.name}", c) for c in commands]
    return "\n\n".join(sections) + "\n"


def _command_section(name: str, command: Any) -> str:
    """Return the Markdown of one command, or of a group with its subcommands."""
    sections = [f"### {name}", _escape_markdown(command.help)]
    for subcommand in getattr(command, "commands", {}).values():
        section = _command_section(f"{name} {subcommand.name}", subcommand)
        sections.append(section.replace("### ", "#### ", 1))
    if not hasattr(command, "commands"):
        arguments = [p.metavar for p in command.params if not p.opts[0].startswith("-")]
        sections.append(_code_block(" ".join([name, *arguments, "[options]"])))
        sections += _parameter_lists(command.params)
        sections.append(_code_block((command.epilog or "").partition("\n")[2]))
    return "\n\n".join(sections)


def _parameter_lists(params: list[Any]) -> Iterator[str]:
    """Yield one definition list per help panel of the parameters."""
    panels = dict.fromkeys(getattr(p, "rich_help_panel", None) for p in params)
    for panel in panels:
        group = [p for p in params if getattr(p, "rich_help_panel", None) == panel]
        entries = [_parameter_entry(p) for p in group if _HELP_FLAG not in p.opts]
        if entries:
            yield "\n\n".join([*([f"**{panel}**"] if panel else []), *entries])


def _parameter_entry(param: Any) -> str:
    """Return the definition-list entry of an argument or option."""
    is_option = param.opts[0].startswith("-")
    value = param.metavar if is_option else ""
    names = ", ".join(param.opts) if is_option else param.metavar
    required = " (required)" if param.required else ""
    help_text = f"{_escape_markdown(param.help)}{required}{_default_suffix(param)}"
    return f"`{f'{names} {value}'.strip()}`\n: {help_text}"


def _default_suffix(param: Any) -> str:
    """Return the default of a parameter in brackets, or an empty string."""
    value = param.default
    if value in (None, False, "") or value == [] or callable(value) or param.required:
        return ""
    return f" [{_escape_markdown(value)}]"


def _escape_markdown(text: Any) -> str:
    """Return the text with all Markdown characters escaped."""
    for sign in "\\`*_[]<>|$":
        text = str(text).replace(sign, f"\\{sign}")
    return text


def _code_block(text: str) -> str:
    return f"```text\n{text}\n```"

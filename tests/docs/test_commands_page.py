"""The reference page of all commands has the same contents as `--help`."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from command import works

SCRIPT = Path(__file__).parents[2] / "docs" / "commands.py"
PAGE: str = runpy.run_path(str(SCRIPT))["render_commands"]()
SECTIONS = dict(re.findall(r"^#{3,4} talerec ([a-z -]+)\n(.*?)(?=^##|\Z)", PAGE, re.M | re.S))


def test_every_command_of_the_help_page_has_a_section() -> None:
    def subcommands(*words: str) -> set[str]:
        names = set(re.findall(r"^│ ([a-z][a-z-]+) {2,}", works(*words, "--help"), re.M))
        return {" ".join((*words, name)) for name in names}

    groups = [subcommands(group) for group in ("events", "items", "impressions")]
    assert set(SECTIONS) == subcommands().union(*groups)


@pytest.mark.parametrize("command", [*SECTIONS])
def test_a_section_has_every_option_and_every_example(command: str) -> None:
    help_page = works(*command.split(), "--help")
    section = SECTIONS[command]
    if command not in ("events", "items", "impressions"):  # a group has no options
        flags = set(re.findall(r"^│ [* ]*(?:-\w, )?(--[a-z-]+)", help_page, re.M)) - {"--help"}
        listed = set(re.findall(r"^`(?:-\w, )?(--[a-z-]+)", section, re.M))
        assert flags == listed
        first = help_page.partition("Examples:")[2].split("\n")[1].strip()
        assert first in section

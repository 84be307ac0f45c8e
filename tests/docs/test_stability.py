"""docs/stability.md lists exactly the former names that still work, and each of them warns."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import talerec as tr
from talerec.models.core.registry import FORMER_ATTRIBUTES

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
PAGE = (ROOT / "docs" / "stability.md").read_text("utf-8")
#: A warning of a former name, as the source writes it.
MESSAGE = re.compile(r"([\w.]+) is now [\w.]+; the old name goes with version")


def rows_of(section: str) -> list[tuple[str, str, str]]:
    """Return the rows of a section's table: what the name belongs to, old name, new name."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = [re.findall(r"(?<!\\)\|([^|]+)", line) for line in text.splitlines() if line[:1] == "|"]
    return [tuple(cell.strip() for cell in row) for row in rows[2:]]  # type: ignore[misc]


def bare(cell: str) -> str:
    """Return the name in a cell: the first one in backticks, without its arguments."""
    return cell.split("`")[1].partition("(")[0]


RENAMED = rows_of("Renamed in 0.3")


def former_names_of(path: Path) -> set[str]:
    """Return the former names that a module accepts with a warning."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= {found.rpartition(".")[2] for found in MESSAGE.findall(node.value)}
        if not isinstance(node, ast.Call):
            continue
        names |= {
            keyword.value.value
            for keyword in node.keywords
            if keyword.arg == "former" and isinstance(keyword.value, ast.Constant)
        }
        function = getattr(node.func, "id", None)
        if function in ("accept_renamed", "_warn_renamed") and isinstance(
            node.args[0], ast.Constant
        ):
            names.add(node.args[0].value)
        elif function == "forward_renamed":
            names |= set(evaluated(node.args[0], path))
    return names


def evaluated(node: ast.expr, path: Path) -> Any:
    """Return the value of an expression of a module: a literal, or a name of the module."""
    if not isinstance(node, ast.Name):
        return ast.literal_eval(node)
    module = ".".join(path.relative_to(SRC).with_suffix("").parts)
    return getattr(importlib.import_module(module), node.id)


def test_the_table_of_renamed_names_lists_each_former_name_of_the_source() -> None:
    in_source = set(FORMER_ATTRIBUTES).union(*map(former_names_of, SRC.rglob("*.py")))
    in_source = {"talerec.models.params" if name == "params" else name for name in in_source}
    assert {bare(old) for _, old, _ in RENAMED} == in_source


def log() -> tr.Log:
    return tr.synthetic_log(60, users=8, items=6, seed=1)


def evaluation() -> tr.Evaluation:
    split = tr.leave_one_out(log())
    return tr.evaluate(tr.Popular().fit(split.train), split)


def gram() -> tr.Gram:
    return tr.Gram(np.eye(3), np.eye(3))


def histories() -> tr.Histories:
    return tr.Histories.of_users(log())


#: How each former name is used: row of the table -> the old form.
USES: dict[tuple[str, str], Callable[[], object]] = {
    ("Tempo", "now"): lambda: tr.Tempo(now=1.0),
    ("Tempo", "even"): lambda: tr.Tempo(even=1.0),
    ("Model", "good_for"): lambda: tr.TALE.good_for,
    ("Model", "grows"): lambda: tr.TALE().grows,
    ("Model", "weighs_items"): lambda: tr.TALE().weighs_items,
    ("Model", "chosen"): lambda: tr.Popular().fit(log()).chosen(),
    ("Query", "one"): lambda: tr.Query.empty(2).one(0),
    ("Gram", "two_way"): lambda: gram().two_way(1.0, 0.5),
    ("Gram", "with_turned"): lambda: gram().with_turned(0.5),
    ("Gram", "turned_share"): lambda: gram().turned_share(1.0, 0.5),
    ("Log", "evenly_weighed"): lambda: log().evenly_weighed(),
    ("Log", "ordered"): lambda: log().ordered,
    ("Histories", "asked"): lambda: histories().asked,
    ("Histories", "known"): lambda: histories().known,
    ("Histories.from_ids", "given"): lambda: tr.Histories.from_ids(given=[[1]], items=log().items),
    ("Evaluation", "beside"): lambda: evaluation().beside,
    ("Evaluation", "without"): lambda: evaluation().without,
    ("Evaluation", "asked"): lambda: evaluation().asked,
    ("talerec.ranking.blocks", "RunsBlock"): lambda: (
        importlib.import_module("talerec.ranking.blocks").RunsBlock
    ),
    ("param", "talerec.models.params"): lambda: (
        importlib.import_module("talerec.models.params").param
    ),
}


def test_every_row_of_the_table_has_a_use() -> None:
    assert {(bare(of), bare(old)) for of, old, _ in RENAMED} == set(USES)


@pytest.mark.parametrize(("of", "old", "new"), RENAMED)
def test_a_former_name_works_and_names_the_new_one(of: str, old: str, new: str) -> None:
    pattern = rf"\b{re.escape(bare(old))} is now .*{re.escape(bare(new))}; .* version 0\.4"
    with pytest.warns(DeprecationWarning, match=pattern) as caught:
        USES[bare(of), bare(old)]()
    assert caught[0].filename == __file__


@pytest.mark.parametrize(("name", "replacement"), [row[:2] for row in rows_of("Removed in 0.3")])
def test_a_removed_name_is_gone_and_its_replacement_is_there(name: str, replacement: str) -> None:
    assert not hasattr(tr, bare(name))
    value: Any = tr
    for part in bare(replacement).split("."):
        value = getattr(value, part)

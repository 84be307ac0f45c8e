"""Code in the documentation runs, and the flags of the commands shown there exist."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl
import pytest
import typer

import talerec as tr
from talerec.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^(?:<!-- (?P<why>.*?) -->\n)?```python\n(?P<code>.*?)^```$", re.M | re.S)
COMMAND = re.compile(r"^ {4}talerec (?P<words>[a-z].*)$", re.M)


def code_blocks(page: Path) -> list[str]:
    """Return the Python blocks of a page, without those marked `<!-- not run: reason -->`."""
    matches = FENCE.finditer(page.read_text("utf-8"))
    return [match["code"] for match in matches if not (match["why"] or "").startswith("not run")]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the log used on the pages, as Parquet and CSV; it has users ann and 42."""
    monkeypatch.chdir(tmp_path)
    rows = tr.synthetic_log(3000, items=60, seed=1).to_frame()
    names = {3: "ann", 4: "42"}
    items = {2: "A17", 5: "B20", 7: "D4", 9: "C3"}
    rows = rows.with_columns(
        user_id=pl.col("user_id").cast(pl.String).replace({str(k): v for k, v in names.items()}),
        item_id=pl.col("item_id").cast(pl.String).replace({str(k): v for k, v in items.items()}),
    )
    rows.write_parquet("events.parquet")
    rows.write_csv("events.csv")
    return tmp_path


def page_variables(page: Path) -> dict[str, Any]:
    """Return the variables that the code of a page uses without defining them."""
    log = tr.read_log("events.parquet")
    if page.stem == "data":
        categories = ["tents" if n % 2 else "ropes" for n in range(len(log.items))]
        table = pl.DataFrame({"item_id": log.items.ids, "price": 30.0, "category": categories})
        model = tr.Rules().fit(log.with_items(table))
        return {"model": model, "users": log.users.ids.head(3).to_list()}
    if page.stem == "neural":
        pytest.importorskip("torch", reason="needs torch: EXTRAS=all make test")
        params = tr.SASRec(epochs=1, judges=0, dim=8).params
        rows = {"ptr": log.ptr, "item": log.item, "time": log.time, "items": len(log.items)}
        return {**rows, "params": params}
    return {}


@pytest.mark.parametrize("page", [p for p in PAGES if code_blocks(p)], ids=lambda p: p.stem)
def test_python_of_a_page_runs(page: Path, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(page.stem)  # dataclasses look up names in the module of their class
    monkeypatch.setitem(sys.modules, page.stem, module)
    module.__dict__.update(page_variables(page))
    for code in code_blocks(page):
        exec(compile(code, str(page), "exec"), module.__dict__)


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the words of every `talerec ...` line in the command blocks of a page."""
    text = page.read_text("utf-8").replace("\\\n", " ")
    for match in COMMAND.finditer(text):
        words = shlex.split(match["words"], comments=True)
        ends = [n for n, word in enumerate(words) if word in ("&&", "|", ">", "&")]
        ends += [n + 1 for n, word in enumerate(words) if word.endswith(";")]
        yield words[: min(ends, default=len(words))]


GROUP = typer.main.get_command(main.app)


def check_flags(words: list[str]) -> None:
    """Assert that the command exists and has every flag used with it."""
    group = GROUP
    while hasattr(group, "commands") and words:
        assert words[0] in group.commands, f"there is no command {words[0]}"
        group, words = group.commands[words[0]], words[1:]
    flags = {flag for param in group.params for flag in (*param.opts, *param.secondary_opts)}
    used = {word.split("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}
    assert used <= flags | {"--help"}, used - flags


@pytest.mark.parametrize("page", [p for p in PAGES if list(commands(p))], ids=lambda p: p.stem)
def test_commands_of_a_page_have_their_flags(page: Path) -> None:
    for words in commands(page):
        if words and words[0] != "--install-completion":
            check_flags(words)


NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path) -> None:
    if "serve" in path.stem:
        pytest.importorskip("uvicorn")
    cells = json.loads(path.read_text("utf-8"))["cells"]
    assert all(not cell.get("outputs") for cell in cells), "outputs are generated with the site"
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr

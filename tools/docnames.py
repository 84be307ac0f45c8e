#!/usr/bin/env python3
"""Does everything that the docs name in the code exist? Prints what does not, and exits with 1 if there is any.

    python tools/docnames.py [FOLDER]      # of the project; the one that this file is in by default

Looked at are `docs/*.md`, `ARCHITECTURE.md`, `CONTRIBUTING.md`, `README.md` and `benchmarks/README.md`. Between backticks:

- dotted names: `module.name`, `room.module.name`, `Class.method`, and `model.fit`, since what is named after its class is one.
  A name whose first part is neither ours nor a library's that the project imports is taken for a name of ours that is gone,
  unless its end says that it is a file of data.
- paths: `file.py`, `folder/`, and `folder/file` where the folder is one of the project's and the file is none of data.

In blocks of code: names of the package, what is imported from it, and paths of Python files.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shape.names import Project

DOCUMENTS = ("*.md", "docs/*.md", "benchmarks/README.md")
_HISTORY = ("CHANGELOG.md",)  # tells of names that are gone

_SOURCE = ("py", "css", "js", "toml")
_TEXT = ("md", "html", "txt")
_DATA = [
    "dat",
    "data",
    "csv",
    "tsv",
    "json",
    "jsonl",
    "ndjson",
    "parquet",
    "inter",
    "gz",
    "zst",
    "npy",
    "npz",
    "db",
    "tale",
    "log",
    "sock",
]

_FENCE = re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?<=\n\n)(?: {4}.*\n|\n)+")
_INLINE = re.compile(r"(`+)((?:[^`\n]|\n(?!\s*\n))+)\1(?!`)")
_WORD = re.compile(r"[^\s,;()|\[\]]+")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_FOLDER = re.compile(r"[a-z_]+/")
_IMPORT = re.compile(r"from ([\w.]+) import \(?([\w, ]+)")


@dataclass(frozen=True)
class Reference:
    """A name or path in a document."""

    text: str
    line: int


def main(root: Path) -> int:
    """Check a project; the exit status."""
    project, wrong, count = Project(root), 0, 0
    for path in documents(root):
        for found in references(path.read_text(encoding="utf-8"), project):
            count += 1
            if not exists(found.text, project):
                wrong += 1
                print(
                    f"{path.relative_to(root)}:{found.line}: {found.text} does not exist{hint(found.text, project)}"
                )
    print(f"names and paths in the docs: {count}, unknown: {wrong or 'none'}")
    return int(bool(wrong))


def documents(root: Path) -> list[Path]:
    """The documents that name code as it is now."""
    found = {path for pattern in DOCUMENTS for path in root.glob(pattern)}
    return sorted(path for path in found if path.name not in _HISTORY)


def references(text: str, project: Project) -> Iterator[Reference]:
    """Every name and path in a document that ought to exist."""
    prose = text
    for pattern in (_FENCE, _INDENTED):
        for block in pattern.finditer(prose):
            yield from _in_block(block[0], _line(text, block.start()), project)
        prose = pattern.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), prose)
    for code in _INLINE.finditer(prose):
        for word in _WORD.finditer(code[2]):
            if named := _reference(word[0], project):
                yield Reference(named, _line(text, code.start(2) + word.start()))


def _line(text: str, place: int) -> int:
    return 1 + text.count("\n", 0, place)


def _in_block(text: str, first: int, project: Project) -> Iterator[Reference]:
    for number, line in enumerate(text.splitlines(), first):
        for module, names in _IMPORT.findall(line):
            if module.split(".")[0] == project.package:
                yield from (
                    Reference(f"{module}.{name.split()[0]}", number)
                    for name in names.split(",")
                    if name.strip()
                )
        for word in _WORD.findall(line):
            is_path = word.endswith(".py") and project.begins_in(word)
            head = word.split(".")[0]
            if is_path or (
                _DOTTED.fullmatch(word) and head in project.aliases and not _is_file(word)
            ):
                yield Reference(word, number)


def _reference(word: str, project: Project) -> str | None:
    """What a word between backticks names of ours, if anything."""
    word = word.split("::")[0].rstrip(".:")
    ending = word.rpartition(".")[2] if "." in word.rpartition("/")[2] else ""
    if re.search(r"[*{}<>$~=\\\"'@]|^/|//", word):
        return None
    if ending in _SOURCE and re.fullmatch(r"[\w./-]+", word):
        return word
    if "/" in word:
        ours = _FOLDER.fullmatch(word) or (project.begins_in(word) and ending in ("", *_TEXT))
        return word if ours and re.fullmatch(r"[A-Za-z_][\w./-]*", word) else None
    if not _DOTTED.fullmatch(word) or project.has_name(word) is None:
        return None
    return None if _is_file(word) and not project.has_name(word) else word


def _is_file(word: str) -> bool:
    return word.rpartition(".")[2] in (*_DATA, *_TEXT)


def exists(text: str, project: Project) -> bool:
    """Is there such a path or name?"""
    is_path = "/" in text or text.rpartition(".")[2] in _SOURCE
    return project.has_path(text) if is_path else project.has_name(text) is not False


def hint(text: str, project: Project) -> str:
    """Where something of the last part's name is."""
    homes = project.homes(text.rpartition(".")[2]) if "/" not in text else []
    return f" ({text.rpartition('.')[2]} is in {', '.join(homes[:3])})" if homes else ""


if __name__ == "__main__":
    here = Path(__file__).resolve().parents[1]
    sys.exit(main(Path(sys.argv[1]).resolve() if sys.argv[1:] else here))

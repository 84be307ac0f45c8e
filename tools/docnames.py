#!/usr/bin/env python3
"""Print the names and paths in the docs that do not exist in the code; exit with 1 if any.

    python tools/docnames.py [FOLDER]      # of the project; by default the one of this file

The documents are `docs/*.md`, `benchmarks/README.md` and the Markdown files of the root folder.
Between backticks:

- dotted names: `module.name`, `room.module.name`, `Class.method`, and `model.fit` for an instance
  that is named after its class. A name that belongs neither to the project nor to a library that
  the project imports counts as a missing name of the project, unless it ends like a data file.
- paths: `file.py`, `folder/`, and `folder/file` where the folder is one of the project's and the
  file is no data file.

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
    """Check a project; return the exit status."""
    project, wrong, count = Project(root), 0, 0
    for path in documents(root):
        for reference in references(path.read_text(encoding="utf-8"), project):
            count += 1
            if not exists(reference.text, project):
                wrong += 1
                place = f"{path.relative_to(root)}:{reference.line}"
                text = f"{reference.text} does not exist{hint(reference.text, project)}"
                print(f"{place}: {text}")
    print(f"names and paths in the docs: {count}, unknown: {wrong or 'none'}")
    return int(bool(wrong))


def documents(root: Path) -> list[Path]:
    """Return the documents that name code as it is now."""
    paths = {path for pattern in DOCUMENTS for path in root.glob(pattern)}
    return sorted(path for path in paths if path.name not in _HISTORY)


def references(text: str, project: Project) -> Iterator[Reference]:
    """Yield every name and path in a document that ought to exist."""
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
    """Return the name or path of the project that a word between backticks is, or None."""
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
    """Return whether the project has such a path or name."""
    is_path = "/" in text or text.rpartition(".")[2] in _SOURCE
    return project.has_path(text) if is_path else project.has_name(text) is not False


def hint(text: str, project: Project) -> str:
    """Return a note of the modules that define the last part of a name, or ''."""
    homes = project.homes(text.rpartition(".")[2]) if "/" not in text else []
    return f" ({text.rpartition('.')[2]} is in {', '.join(homes[:3])})" if homes else ""


if __name__ == "__main__":
    here = Path(__file__).resolve().parents[1]
    sys.exit(main(Path(sys.argv[1]).resolve() if sys.argv[1:] else here))

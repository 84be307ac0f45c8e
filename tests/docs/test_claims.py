"""Every figure and guarantee of the pages is listed in docs/claims.toml with what holds it."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
GENERATED = {"commands.md"}
PAGES = [
    "README.md",
    "ARCHITECTURE.md",
    *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
]
PAGES = [page for page in PAGES if Path(page).name not in GENERATED]
LISTED = tomllib.loads((ROOT / "docs" / "claims.toml").read_text("utf-8"))
CLAIMS: list[dict[str, Any]] = LISTED["claim"]
IGNORED: dict[str, dict[str, str]] = LISTED["ignored"]

NUMBER = r"(?:\d[\d.,]*|two|three|four|five|seven|ten|twenty|sixty)"
CLAIM = re.compile(
    rf"""\d\ ?%|\bper\ cent\b               # shares
    |(?<![\w.])\.\d{{3,4}}\b                # metrics, such as .0611
    |\b{NUMBER}\ times\b                    # ratios
    |\b\d[\d.,]*\ (?:s|ms|us|microseconds|milliseconds|seconds|minutes|hours|[kMGT]i?B)\b
    |\ba\ (?:third|quarter|fifth|sixth|seventh|tenth)\b
    |\b(?:never|always|exactly|guarantees?d?|identical|beats?|kill\ -9|lossless)\b
    |\bto\ the\ (?:last\ |fourth\ )?(?:bit|digit)\b|\bsame\ bits\b
    |\b(?:better|more\ accurate)\ than\b|\b(?:failed|failing\ a)\ request\b""",
    re.VERBOSE | re.IGNORECASE,
)


class Unit(NamedTuple):
    """A sentence or a table of a page.

    `section` is the heading above it; `start` and `end` are its bounds in the text of the page
    with every run of white space written as one space.
    """

    section: str
    start: int
    end: int
    text: str


def normalize(text: str) -> str:
    """Return the text with every run of white space written as one space."""
    return " ".join(text.split())


def split_blocks(text: str) -> Iterator[tuple[str, str, bool]]:
    """Yield the heading, the text and "is a table" of each paragraph, list item and table.

    Code, fenced or indented by four spaces, is left out.
    """
    section, block, fenced = "", [], False
    for line in [*text.splitlines(), ""]:
        is_fence = line.lstrip().startswith("```")
        is_heading = line.startswith("#") and not fenced
        is_item = re.match(r" *(?:[-*]|\d+\.) ", line) is not None
        if not line.strip() or is_fence or is_heading or is_item:
            if block:
                yield section, " ".join(block), block[0].lstrip().startswith("|")
            block = []
        fenced ^= is_fence
        if is_heading:
            section = line.lstrip("# ").strip()
        elif not fenced and not is_fence and (block or is_item or not line.startswith("    ")):
            block += [line] if line.strip() else []


def split_units(text: str) -> list[Unit]:
    """Return the sentences and tables of a page, in order."""
    page, units, start = normalize(text), [], 0
    for section, block, is_table in split_blocks(text):
        whole = normalize(block)
        for part in [whole] if is_table else re.split(r"(?<=[.!?])\s+(?=[A-Z0-9`*\[(])", whole):
            start = page.index(part, start)
            units.append(Unit(section, start, start + len(part), part))
            start += len(part)
    return units


def find_spans(text: str, fragment: str) -> list[tuple[int, int]]:
    """Return the bounds of each occurrence of the fragment in the normalized text."""
    wanted = re.escape(normalize(fragment))
    return [match.span() for match in re.finditer(wanted, normalize(text))]


def find_uncovered(text: str, claims: list[dict[str, Any]], ignored: list[str]) -> list[str]:
    """Return the sentences and tables that state a claim and that no entry covers.

    An entry covers the units that its `text` overlaps, or with `section` alone those under it.
    """
    fragments = [*ignored, *(claim["text"] for claim in claims if "text" in claim)]
    sections = {claim["section"] for claim in claims if "section" in claim}
    spans = [span for fragment in fragments for span in find_spans(text, fragment)]
    return [
        unit.text
        for unit in split_units(text)
        if CLAIM.search(unit.text)
        and unit.section not in sections
        and not any(start < unit.end and unit.start < end for start, end in spans)
    ]


@cache
def read_page(page: str) -> str:
    """Return the text of a page, by its path below the project's folder."""
    return (ROOT / page).read_text("utf-8")


@cache
def functions_of(path: Path) -> set[str]:
    """Return the names of all functions in a Python file; empty if there is no such file."""
    if not path.is_file():
        return set()
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}


def does_exist(holder: str) -> bool:
    """Return whether a holder is a test function, a benchmark or a named source."""
    if holder.startswith("source: "):
        return True
    path, _, function = holder.partition("::")
    if path.startswith("tests/"):
        return function in functions_of(ROOT / path)
    return path.startswith("benchmarks/") and not function and (ROOT / path).is_file()


def test_every_entry_has_its_fields() -> None:
    for claim in CLAIMS:
        assert claim.keys() <= {"page", "text", "section", "held_by", "note"}, claim
        assert ("text" in claim) != ("section" in claim), f"a text or a section: {claim}"
        assert claim["held_by"], f"nothing holds {claim}"
    places = [(claim["page"], claim.get("text") or claim["section"]) for claim in CLAIMS]
    assert len(set(places)) == len(places), {place for place in places if places.count(place) > 1}
    assert all(reason for reasons in IGNORED.values() for reason in reasons.values())


def test_every_fragment_and_section_stands_on_its_page() -> None:
    fragments = [(claim["page"], claim["text"]) for claim in CLAIMS if "text" in claim]
    fragments += [(page, text) for page, reasons in IGNORED.items() for text in reasons]
    lost = [f"{page}: {text}" for page, text in fragments if not find_spans(read_page(page), text)]
    for claim in CLAIMS:
        sections = {unit.section for unit in split_units(read_page(claim["page"]))}
        if "section" in claim and claim["section"] not in sections:
            lost.append(f"{claim['page']}: section {claim['section']}")
    assert not lost, "\n".join(["the page no longer has it; adapt docs/claims.toml:", *lost])


def test_everything_that_holds_a_claim_exists() -> None:
    holders = sorted({holder for claim in CLAIMS for holder in claim["held_by"]})
    lost = [holder for holder in holders if not does_exist(holder)]
    assert not lost, "\n".join(["docs/claims.toml names what does not exist:", *lost])


def test_every_sentence_that_states_a_claim_has_an_entry() -> None:
    lost = []
    for page in PAGES:
        claims = [claim for claim in CLAIMS if claim["page"] == page]
        uncovered = find_uncovered(read_page(page), claims, [*IGNORED.get(page, {})])
        lost += [f"{page}: {text}" for text in uncovered]
    advice = "add an entry to docs/claims.toml, or a reason to its table [ignored]:"
    assert not lost, "\n".join([advice, *lost])


PAGE = """# Title

Fast on
Beauty: .0611. It is cheap.

    a code line with 95 % of everything

## Promises

- Never lost. Kept
  for 3 seconds.
- Nothing to see.

| model | NDCG@10 |
|---|---|
| tempo | .1585 |
"""


@pytest.mark.parametrize(
    ("claims", "ignored", "lost"),
    [
        ([], [], ["Fast on Beauty: .0611.", "- Never lost.", "Kept for 3 seconds.", "| model"]),
        ([{"text": "Beauty:  .0611"}], ["Never"], ["Kept for 3 seconds.", "| model"]),
        ([{"text": "lost. Kept for"}], ["| tempo |"], ["Fast on Beauty: .0611."]),
        ([{"section": "Promises"}], [], ["Fast on Beauty: .0611."]),
        ([{"section": "Title"}, {"section": "Promises"}], [], []),
    ],
)
def test_a_claim_without_an_entry_is_found(claims: Any, ignored: list[str], lost: Any) -> None:
    uncovered = find_uncovered(PAGE, claims, ignored)
    assert len(uncovered) == len(lost)
    assert all(text.startswith(begin) for text, begin in zip(uncovered, lost, strict=True))

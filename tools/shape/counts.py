"""The figures of a package against their ceilings: the check, the table and the JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from shape.limits import Limits
from shape.sources import Place, Source, count_code_lines, read_sources
from shape.words import FIGURES


class Counts(NamedTuple):
    """The figures of a package."""

    totals: dict[str, int]  # by the name of the figure, as the ceilings are; exempt ones left out
    places: dict[str, list[Place]]
    n_docstrings: int
    n_stub_lines: int  # of .pyi files, which are neither in the files nor in the lines of code


#: Figures that are a sum over files, not a list of places.
SIZES = {"files": "files", "code_lines": "lines of code without docstrings, comments, blanks"}

LABELS = {name: label for name, (label, _) in FIGURES.items()} | SIZES


def count_figures(folder: Path, limits: Limits) -> Counts:
    """Return every figure of the package in a folder."""
    sources = read_sources(folder)
    places = _find_places(sources, limits)
    totals = {name: len(listed) for name, listed in places.items()}
    totals["files"] = len(sources)
    totals["code_lines"] = sum(count_code_lines(source) for source in sources)
    n_docstrings = sum(len(source.docstrings) for source in sources)
    stubs = [path.read_text(encoding="utf-8") for path in folder.rglob("*.pyi")]
    n_stub_lines = sum(len(text.splitlines()) for text in stubs)
    return Counts(totals, places, n_docstrings, n_stub_lines)


def count_exempt(folder: Path, limits: Limits, counts: Counts) -> dict[str, int]:
    """Return for each figure how many places the exceptions leave out."""
    no_exceptions = replace(limits, name_exceptions={}, wide_exceptions={}, flag_exceptions={})
    places = _find_places(read_sources(folder), no_exceptions)
    return {name: len(listed) - counts.totals[name] for name, listed in places.items()}


def _find_places(sources: list[Source], limits: Limits) -> dict[str, list[Place]]:
    return {name: list(figure(sources, limits)) for name, (_, figure) in FIGURES.items()}


def broken_ceilings(folder: Path, limits: Limits) -> Iterator[str]:
    """Yield a line for each figure above its ceiling; each place too where the ceiling is 0."""
    counts = count_figures(folder, limits)
    for name, ceiling in limits.ceilings.items():
        total = counts.totals[name]
        if total <= ceiling:
            continue
        label, hint = LABELS[name], f" (--places {name})" if name in FIGURES else ""
        yield f"{folder.name}: {label}: {total:,}, more than {ceiling:,}{hint}"
        if ceiling == 0:
            for place in counts.places.get(name, []):
                yield f"{folder.name}/{place.path}:{place.line}: {place.text}"


def format_counts(counts: Counts, exempt: dict[str, int], limits: Limits) -> str:
    """Return the table of the figures, with banned names by name and by file."""
    lines = [f"{'figure':52}{'count':>8}{'exempt':>8}{'ceiling':>9}"]
    for name, total in counts.totals.items():
        ceiling = limits.ceilings.get(name)
        limit = "-" if ceiling is None else f"{ceiling:,}"
        n_exempt = exempt.get(name, 0)
        lines.append(f"{LABELS[name]:52}{total:8,}{n_exempt:8,}{limit:>9}")
    lines.append(f"{'docstrings':52}{counts.n_docstrings:8,}")
    lines.append(f"{'lines of stubs (.pyi)':52}{counts.n_stub_lines:8,}")
    places = counts.places["banned_names"]
    lines += ["", "banned names of functions and variables, by name"]
    lines += _format_counter(Counter(place.text for place in places))
    lines += ["", "banned names of functions and variables, by file"]
    lines += _format_counter(Counter(place.path for place in places))
    return "\n".join(lines)


def _format_counter(counter: Counter[str]) -> list[str]:
    return [f"{count:8,}  {name}" for name, count in counter.most_common()]


def counts_as_json(counts: Counts, exempt: dict[str, int]) -> dict[str, Any]:
    """Return the figures and their places as JSON can hold them."""
    return {
        "totals": counts.totals,
        "exempt": exempt,
        "docstrings": counts.n_docstrings,
        "stub_lines": counts.n_stub_lines,
        "banned_by_name": Counter(p.text for p in counts.places["banned_names"]),
        "banned_by_file": Counter(p.path for p in counts.places["banned_names"]),
        "places": {name: [list(p) for p in places] for name, places in counts.places.items()},
    }

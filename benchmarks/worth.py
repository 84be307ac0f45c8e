"""When is a neural model worth it? Accuracy against seconds of fitting, as one picture.

    python benchmarks/worth.py draw docs/worth.svg           # from benchmarks/worth.json
    python benchmarks/worth.py add gpu JUDGED [JUDGED ...]   # adds lines of `neural.py judge`
    python benchmarks/worth.py add cpu JUDGED [JUDGED ...]

The figures of linear models are those of `family.py`, on two CPU cores.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from talerec.reports.charts import scales

FIGURES = Path(__file__).with_suffix(".json")

#: How a point looks, by where the model was fitted.
PLACES = {"cpu": ("two CPU cores", "#1f6feb"), "gpu": ("one H200, beside 14 others", "#c2410c")}

#: Logs as `neural.py` names them, and as the picture does.
LOGS = {"beauty-item": "Beauty, item order", "ml-1m-file": "ML-1M, file order"}

_WIDE, _HIGH = 600.0, 640.0  # of a panel
_LEFT, _TOP, _BELOW = 56.0, 70.0, 46.0
_SIZE = 11.0  # of letters
_LETTER = 0.6 * _SIZE
_LEAST = 0.01  # seconds: what takes less stands here
_STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#1f2328}.h{font-size:14px;font-weight:600}"
    ".g{stroke:#d0d7de}.t{fill:#57606a}svg{background:#fff}"
)


class Figure(NamedTuple):
    """A model on a log: device, seconds to fit, and NDCG@10 with seen items hidden."""

    log: str
    model: str
    place: str
    seconds: float
    ndcg: float


def read() -> list[Figure]:
    """Return the measured figures."""
    return [Figure(*row) for row in json.loads(FIGURES.read_text())]


def add(place: str, files: Sequence[Path]) -> None:
    """Add evaluated trainings to the figures, in place of earlier ones of the same models."""
    by_key = {(figure.log, figure.model, figure.place): figure for figure in read()}
    for line in (line for file in files for line in file.read_text().splitlines()):
        result = json.loads(line)
        name = result["model"] + (
            " (prefixes)" if result["set"].get("samples") == "prefixes" else ""
        )
        log = LOGS[result["log"]]
        new = Figure(
            log, name, place, round(result["seconds"]), round(result["hidden"]["NDCG@10"], 4)
        )
        by_key[log, name, place] = new
    rows = ",\n".join(f"  {json.dumps(list(by_key[key]))}" for key in sorted(by_key))
    FIGURES.write_text(f"[\n{rows}\n]\n")


# -- drawing ---------------------------------------------------------------------------------------


def draw(figures: Sequence[Figure]) -> str:
    """Return an SVG with one panel per log."""
    logs = sorted({figure.log for figure in figures}, reverse=True)
    width, height = _WIDE * len(logs), _TOP + _HIGH + _BELOW
    head = (
        _text(_LEFT, 18, "NDCG@10, seen items hidden, against seconds of fitting", "h") + _legend()
    )
    panels = [
        f'<g transform="translate({_WIDE * n:g} 0)">{_panel(log, figures)}</g>'
        for n, log in enumerate(logs)
    ]
    said = "; ".join(f"{x.model} on {x.log}: {x.ndcg} in {x.seconds:g} s" for x in figures)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">'
        f"<title>When is a neural model worth it?</title><desc>{escape(said)}</desc>"
        f"<style>{_STYLE}</style>{head}{''.join(panels)}</svg>\n"
    )


def _legend() -> str:
    svg, x = "", _LEFT
    for said, colour in PLACES.values():
        svg += f'<circle cx="{x + 5:g}" cy="34" r="4" fill="{colour}"/>' + _text(x + 14, 38, said)
        x += 40 + _LETTER * len(said)
    return svg


def _panel(log: str, figures: Sequence[Figure]) -> str:
    of_log = sorted((x for x in figures if x.log == log), key=lambda x: -x.ndcg)
    x = scales.log_axis([_shown(figure) for figure in of_log], _LEFT, _WIDE - 120)
    y = scales.linear_axis([0, *(figure.ndcg for figure in of_log)], _TOP + _HIGH, _TOP)
    bottom = _TOP + _HIGH
    svg = _text(_LEFT, _TOP - 12, log, "h")
    for value, label in y.ticks:
        at = y(value)
        svg += f'<path class="g" d="M{_LEFT:g} {at:.1f}H{_WIDE - 20:g}"/>'
        svg += _text(_LEFT - 6, (at or 0) + 4, label, "t", "end")
    for value, label in x.ticks:
        svg += _text(x(value) or 0, bottom + 16, label, "t", "middle")
    svg += _text(_WIDE / 2, bottom + 34, "seconds of fitting", "t", "middle")
    dots = [(figure, x(_shown(figure)) or 0.0, y(figure.ndcg) or 0.0) for figure in of_log]
    return svg + "".join(_dot(*dot) for dot in dots) + _names(dots)


def _shown(figure: Figure) -> float:
    return max(figure.seconds, _LEAST)


def _dot(figure: Figure, x: float, y: float) -> str:
    tip = escape(
        f"{figure.model}: {figure.ndcg} in {figure.seconds:g} s, {PLACES[figure.place][0]}"
    )
    colour = PLACES[figure.place][1]
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"><title>{tip}</title></circle>'


def _names(dots: Sequence[tuple[Figure, float, float]]) -> str:
    """Return labels of the points, moved up or down where they would overlap."""
    occupied = [(x - 4, x + 4, y) for _, x, y in dots]
    svg = ""
    for figure, x, y in dots:
        left, right = x + 7, x + 7 + _LETTER * len(figure.model)
        steps = sorted((n * _SIZE / 2 for n in range(-60, 61)), key=abs)
        steps = [step for step in steps if y + step > _TOP - 4]
        free = (s for s in steps if not any(_meets(left, right, y + s, z) for z in occupied))
        at = y + next(free, 0.0)
        occupied.append((left, right, at))
        if abs(at - y) > _SIZE / 2:
            svg += f'<path class="g" d="M{x:.1f} {y:.1f}L{left:.1f} {at:.1f}"/>'
        svg += _text(left, at + 4, figure.model)
    return svg


def _meets(left: float, right: float, y: float, other: tuple[float, float, float]) -> bool:
    return left < other[1] and other[0] < right and abs(y - other[2]) < _SIZE


def _text(x: float, y: float, said: str, kind: str = "", anchor: str = "start") -> str:
    looks = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{looks} text-anchor="{anchor}">{escape(said)}</text>'


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    todo = parser.add_subparsers(dest="what", required=True)
    todo.add_parser("draw").add_argument("out", type=Path)
    command = todo.add_parser("add")
    command.add_argument("place", choices=list(PLACES))
    command.add_argument("judged", type=Path, nargs="+")
    args: dict[str, Any] = vars(parser.parse_args())
    if args["what"] == "draw":
        args["out"].write_text(draw(read()), encoding="utf-8")
    else:
        add(args["place"], args["judged"])


if __name__ == "__main__":
    main()

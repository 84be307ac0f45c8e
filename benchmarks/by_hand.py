"""The cost of hand-written parts, and of the libraries that could replace them.

    python benchmarks/by_hand.py   # needs matplotlib, jinja2 and starlette, in its own venv

Seconds to import, bytes installed, time for the same work and size of the output;
docs/by-hand.md draws the conclusions.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import io
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

TURNS = 5


def median(work: Callable[[], Any], repeat: int) -> float:
    """Return microseconds of one call: the median over turns of the mean over calls."""
    seconds = []
    work()
    for _ in range(TURNS):
        started = time.perf_counter()
        for _ in range(repeat):
            work()
        seconds.append((time.perf_counter() - started) / repeat)
    return 1e6 * sorted(seconds)[TURNS // 2]


def imported(module: str) -> float:
    """Return the seconds that an import takes in a new process, beyond Python's own start."""

    def seconds(code: str) -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - started

    return min(seconds(f"import {module}") for _ in range(3)) - min(
        seconds("pass") for _ in range(3)
    )


def installed(*names: str) -> float:
    """Return the megabytes of the files that distributions install."""
    sizes = [
        file.locate().stat().st_size
        for name in names
        for file in importlib.metadata.files(name) or []
        if file.locate().exists()
    ]
    return sum(sizes) / 1e6


def charts() -> dict[str, tuple[float, int]]:
    """Return microseconds and bytes of a chart with the same two lines."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    from talerec.reports import Series, line_chart, standalone_svg

    x = np.arange(20)
    ys = [np.exp(-x / 6), np.exp(-x / 2)]

    def ours() -> str:
        series = [Series(name, x, y) for name, y in zip(("a", "b"), ys, strict=True)]
        return standalone_svg(
            line_chart(series, title="Weights", x_label="rows since then", y_label="weight")
        )

    def theirs() -> str:
        figure, axes = pyplot.subplots(figsize=(6.8, 3.4))
        for name, y in zip(("a", "b"), ys, strict=True):
            axes.plot(x, y, marker="o", label=name)
        axes.set(title="Weights", xlabel="rows since then", ylabel="weight")
        axes.legend()
        out = io.StringIO()
        figure.savefig(out, format="svg")
        pyplot.close(figure)
        return out.getvalue()

    return {
        "ours": (median(ours, 20), len(ours())),
        "matplotlib": (median(theirs, 2), len(theirs())),
    }


def tables() -> dict[str, float]:
    """Return microseconds to render a table of 200 rows as HTML."""
    from jinja2 import Environment

    from talerec.reports import page

    rows = [[f"item {n}", n, n / 7] for n in range(200)]
    text = (
        "<table><thead><tr>{% for h in header %}<th>{{ h }}</th>{% endfor %}</tr></thead><tbody>"
        "{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>"
        "{% endfor %}</tbody></table>"
    )
    template = Environment(autoescape=True).from_string(text)
    header = ["item", "rows", "share"]
    return {
        "ours": median(lambda: page.table(header, rows), 20),
        "jinja2": median(lambda: template.render(header=header, rows=rows), 20),
    }


def routes() -> dict[str, float]:
    """Return microseconds of a small JSON response through ASGI, without a network."""
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Route

    body = json.dumps({"model": "a", "items": list(range(10))}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]

    async def handler(request: Any) -> Response:
        await request.body()
        return Response(body, media_type="application/json")

    paths = [f"/v1/{name}" for name in "abcdefghijk"]
    starlette = Starlette(
        routes=[Route(path, handler, methods=["POST"]) for path in (*paths, "/v1/recommend")]
    )
    known_paths = dict.fromkeys((*paths, "/v1/recommend"))

    async def bare(scope: Any, receive: Any, send: Any) -> None:
        assert scope["path"] in known_paths
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    scope = {
        "type": "http", "method": "POST", "path": "/v1/recommend",
        "raw_path": b"/v1/recommend", "root_path": "", "query_string": b"",
        "headers": [(b"host", b"a"), (b"content-type", b"application/json")], "client": ("a", 1),
        "server": ("a", 2), "scheme": "http", "http_version": "1.1", "asgi": {"version": "3.0"},
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        return None

    loop = asyncio.new_event_loop()
    costs = {}
    for name, app in (("bare ASGI", bare), ("starlette", starlette)):

        async def many(app: Any = app) -> None:
            for _ in range(200):
                await app(dict(scope), receive, send)

        run = lambda many=many: loop.run_until_complete(many())  # type: ignore[misc] # noqa: E731
        costs[name] = median(run, 3) / 200
    loop.close()
    return costs


def main() -> None:
    sizes = {
        "matplotlib": installed(
            "matplotlib", "fonttools", "pillow", "contourpy", "kiwisolver", "cycler", "pyparsing"
        ),
        "jinja2": installed("jinja2", "markupsafe"),
        "starlette": installed("starlette", "anyio"),
    }
    for name, size in sizes.items():
        module = "matplotlib.pyplot" if name == "matplotlib" else name
        print(f"{name}: {size:.1f} MB installed, {imported(module):.2f} s to import")
    print(f"ours: {imported('talerec.reports.page'):.2f} s to import")
    for name, (micros, size) in charts().items():
        print(f"a chart, {name}: {micros / 1000:.2f} ms, {size:,} bytes")
    for name, micros in tables().items():
        print(f"a table of 200 rows, {name}: {micros / 1000:.2f} ms")
    for name, micros in routes().items():
        print(f"a request without a network, {name}: {micros:.1f} us")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""List the files of a package that one command runs, in order: a newcomer's walk.

    python tools/walk.py [LOG] [--source src] [--functions]
    python tools/walk.py --source src --run "recommend shop.tale --users 17"
    python tools/walk.py --source src --request /v1/recommend [--functions]

Without --run the command is `talerec evaluate LOG`; without LOG, it reads a small random log. The
command runs in this process, with a profile hook in every thread; the hook starts after the import
of the command line. A file counts when one of its functions or class bodies runs. Module bodies do
not count: an import alone is no step of the walk. The hook does not see calls of functions that
Numba compiled. The last line also reports the number of files without the class bodies.

With --request, the walk is that of a POST request: a model is fitted to the log and saved, the ASGI
application serves it in this process, and the second of two equal requests is walked.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import json
import random
import shlex
import sys
import tempfile
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple


class Step(NamedTuple):
    """The first call of a function, or the run of a class body."""

    path: str  # from the package's folder
    line: int
    name: str
    is_function: bool


class Recorder:
    """A profile hook that notes each function and class body of a folder once, in order."""

    def __init__(self, folder: Path) -> None:
        self._prefix = f"{folder.resolve()}/"
        self._steps: dict[tuple[str, int, str], Step] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code.co_name == "<module>":
            return
        if code.co_filename.startswith(self._prefix):
            path = code.co_filename.removeprefix(self._prefix)
            is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)
            step = Step(path, code.co_firstlineno, code.co_qualname, is_function)
            self._steps.setdefault(step[:3], step)

    def run(self, function: Callable[[], object]) -> object:
        """Call a function under the hook; return its exit status or its result."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            return function()
        except SystemExit as end:
            return end.code
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @property
    def steps(self) -> list[Step]:
        """Every step, in the order of the first calls."""
        return list(self._steps.values())


def files_of(steps: list[Step]) -> list[str]:
    """Return the distinct files of the steps, in order."""
    return list(dict.fromkeys(step.path for step in steps))


def write_log(path: Path, n_users: int = 300, n_items: int = 150) -> None:
    """Write a log of random users, items and times, the same at every call."""
    draw = random.Random(7)
    start = datetime(2024, 1, 1)
    lines = ["user_id,item_id,timestamp"]
    for user in range(n_users):
        time = start + timedelta(hours=draw.randrange(4000))
        item = draw.randrange(n_items)
        for _ in range(draw.randrange(3, 20)):
            item = (item + draw.choice((0, 1, 1, 2, draw.randrange(n_items)))) % n_items
            time += timedelta(seconds=draw.randrange(30, 90_000))
            lines.append(f"u{user},i{item},{time.isoformat()}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def walk(source: Path, entry: str, arguments: list[str]) -> tuple[object, list[Step]]:
    """Run a command line of the package in `source`; return its exit status and the steps."""
    sys.path.insert(0, str(source.resolve()))
    module_name, _, function_name = entry.partition(":")
    main = getattr(importlib.import_module(module_name), function_name)
    recorder = Recorder(source / module_name.split(".")[0])
    before = sys.argv
    sys.argv = [module_name.split(".")[0], *arguments]
    try:
        return recorder.run(main), recorder.steps
    finally:
        sys.argv = before


def walk_request(source: Path, route: str, log: str, app_class: str) -> list[Step]:
    """Fit a model to a log, and return the steps of a POST request to an application with it."""
    sys.path.insert(0, str(source.resolve()))
    talerec = importlib.import_module("talerec")
    settings_module = importlib.import_module("talerec.serve.settings")
    module_name, _, class_name = app_class.partition(":")
    app_module = importlib.import_module(module_name)
    recorder = Recorder(source / "talerec")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "walk.tale"
        events = talerec.read_log(log)
        talerec.Tempo().fit(events).save(path)
        app = getattr(app_module, class_name)(settings_module.Settings(path=path), Path(folder), 0)
        app.holder.refresh()
        items = events.to_frame()["item_id"].to_list()[:3]
        body = {"history": [{"item_id": item} for item in items], "k": 5}
        for call in (lambda function: function(), recorder.run):  # the first request only warms up
            status = call(lambda: asyncio.run(_post(app, route, json.dumps(body).encode())))
            if status != 200:
                sys.exit(f"{route} answered with status {status}")
    return recorder.steps


async def _post(app: Any, route: str, body: bytes) -> int:
    """Send a POST request with a JSON body to an ASGI application; return the HTTP status."""
    messages: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": route,
        "query_string": b"",
        "client": ("127.0.0.1", 40_000),
        "headers": [(b"content-type", b"application/json")],
    }
    await app(scope, receive, send)
    return int(messages[0]["status"])


def print_walk(steps: list[Step], with_functions: bool) -> None:
    """Print the files, or the functions, in order, and how many files there are."""
    if with_functions:
        for number, step in enumerate((step for step in steps if step.is_function), 1):
            print(f"{number:4}  {step.path}:{step.line}  {step.name}")
    else:
        for number, path in enumerate(files_of(steps), 1):
            print(f"{number:4}  {path}")
    functions = [step for step in steps if step.is_function]
    text = f"{len(files_of(steps))} files; {len(files_of(functions))} of them run a function"
    print(f"{text} ({len(functions)} functions)")


def main() -> int:
    """Walk a command and print its steps; return the exit status of that command."""
    summary, _, details = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("log", nargs="?", help="the log to evaluate (default: a small random one)")
    parser.add_argument("--source", type=Path, default=Path("src"), help="the package's parent")
    parser.add_argument("--entry", default="talerec.cli.main:main", help="what starts a command")
    parser.add_argument("--run", metavar="ARGUMENTS", help="another command than evaluate LOG")
    parser.add_argument("--request", metavar="ROUTE", help="walk a POST request, not a command")
    parser.add_argument("--app", default="talerec.serve.http.app:App", help="the application")
    parser.add_argument("--functions", action="store_true", help="list functions, not files")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = options.log or str(Path(folder) / "log.csv")
        if not options.log:
            write_log(Path(log))
        if options.request:
            status: object = 0
            steps = walk_request(options.source, options.request, log, options.app)
        else:
            arguments = shlex.split(options.run) if options.run else ["evaluate", log]
            status, steps = walk(options.source, options.entry, arguments)
    print_walk(steps, options.functions)
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    sys.exit(main())

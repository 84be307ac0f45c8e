"""The command that compiles ahead of time, so that the first answer is as fast as the second."""

from __future__ import annotations

import time

from talerec.cli.app import app, examples, talking
from talerec.cli.options import Json


@app.command(rich_help_panel="Start here", epilog=examples("talerec warm"))
def warm(json: Json = False) -> None:
    """Compile everything that any command may need, once, after an installation."""
    from talerec.cli import terminal
    from talerec.models.warmup import warm_up

    start = time.perf_counter()
    with talking(json):
        found = warm_up()
    seconds = time.perf_counter() - start
    if json:
        terminal.as_json({"kernels": found.kernels, "seconds": seconds})
    elif found.kernels:
        terminal.line(f"{found.kernels} kernels compiled in {seconds:.0f} s")
    else:
        terminal.line("nothing to do: every kernel was compiled before")

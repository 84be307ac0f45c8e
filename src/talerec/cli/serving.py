"""The command that serves a saved model over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from talerec.cli.app import app, examples, run_service
from talerec.cli.options import Artifact, flag, option

_LIMITS = "Limits"


@app.command(
    rich_help_panel="Ask a saved model",
    epilog=examples(
        "talerec serve shop.tale",
        "TALEREC_TOKEN=... talerec serve shop.tale --host 0.0.0.0 --workers 4",
    ),
)
def serve(
    model: Artifact,
    host: Annotated[
        str,
        option(
            "--host",
            metavar="ADDRESS",
            help="Where to listen; beyond this machine only with a token.",
        ),
    ] = "127.0.0.1",
    port: Annotated[int, option("--port", metavar="N", help="0: any that is free.")] = 8080,
    workers: Annotated[
        int, option("--workers", metavar="N", help="Processes; they share the mapped model.")
    ] = 1,
    token_file: Annotated[
        Path | None,
        option(
            "--token-file", metavar="FILE", help="Holds the bearer token; else TALEREC_TOKEN does."
        ),
    ] = None,
    open: Annotated[bool, flag("--open", "Listen beyond this machine without a token.")] = False,
    cors: Annotated[
        list[str],
        option("--cors", metavar="ORIGIN", help="Pages of this origin may ask; repeat for more."),
    ] = [],  # noqa: B006
    max_body: Annotated[
        int, option("--max-body", metavar="BYTES", help="Of one request.", panel=_LIMITS)
    ] = 1_000_000,
    max_history: Annotated[
        int, option("--max-history", metavar="ROWS", help="Of one history.", panel=_LIMITS)
    ] = 2500,
    max_k: Annotated[
        int, option("--max-k", metavar="K", help="Items of one answer.", panel=_LIMITS)
    ] = 1000,
    concurrency: Annotated[
        int,
        option("--concurrency", metavar="N", help="Requests at a time, per worker.", panel=_LIMITS),
    ] = 128,
    timeout: Annotated[
        float,
        option("--timeout", metavar="SECONDS", help="For headers, body and answer.", panel=_LIMITS),
    ] = 10.0,
    drain: Annotated[
        float,
        option(
            "--drain",
            metavar="SECONDS",
            help="After SIGTERM, while ready says no and requests are still taken.",
            panel=_LIMITS,
        ),
    ] = 1.0,
    watch: Annotated[
        float,
        option("--watch", metavar="SECONDS", help="Between looks for a new model.", panel=_LIMITS),
    ] = 1.0,
) -> None:
    """Serve a model over HTTP, with a page at / to try it; a new model at its path is taken up by itself."""
    run_service(
        model,
        token_file,
        host=host,
        port=port,
        workers=workers,
        open=open,
        cors=tuple(cors),
        max_body=max_body,
        max_history=max_history,
        max_k=max_k,
        concurrency=concurrency,
        timeout=timeout,
        drain=drain,
        watch=watch,
    )

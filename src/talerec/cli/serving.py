"""The commands that serve a saved model over HTTP, and put another in its place."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from talerec.cli.app import Panel, command, run_service
from talerec.cli.groups import Limits
from talerec.cli.options import Artifact, Json, Port, argument, flag, option

Host = Annotated[
    str, option("--host", metavar="ADDRESS", help="Beyond this machine only with a token.")
]
Workers = Annotated[
    int, option("--workers", metavar="N", help="Processes; they share the model's memory.")
]
TokenFile = Annotated[
    Path | None,
    option("--token-file", metavar="FILE", help="Holds the bearer token; else TALEREC_TOKEN does."),
]
Open = Annotated[bool, flag("--open", "Listen beyond this machine without a token.")]
Cors = Annotated[
    list[str],
    option("--cors", metavar="ORIGIN", help="Pages of this origin may ask; repeat for more."),
]


@command(
    Panel.ASK,
    "talerec serve shop.tale",
    "TALEREC_TOKEN=... talerec serve shop.tale --host 0.0.0.0 --workers 4",
)
def serve(
    model: Artifact,
    limits: Limits,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    workers: Workers = 1,
    token_file: TokenFile = None,
    open: Open = False,
    cors: Cors = [],  # noqa: B006 (Typer reads the default, nobody changes it)
) -> None:
    """Serve a model over HTTP, with a page at / to try it; a new model at its path replaces it."""
    run_service(
        model, token_file, host=host, port=port, workers=workers, open=open, cors=tuple(cors),
        **asdict(limits),
    )  # fmt: skip


New = Annotated[str, argument("NEW", "The new model: NAME.tale, a tar archive of it, or -.")]
Place = Annotated[Path, argument("MODEL", "The model that is replaced, which may be in use.")]


@command(
    Panel.MODELS,
    "talerec install new.tale shop.tale",
    "tar c new.tale | ssh shop talerec install - shop.tale",
)
def install(new: New, model: Place, json: Json = False) -> None:
    """Put a checked model in the place of another in one step, also while that one is served."""
    from functools import partial

    from talerec import installing
    from talerec.cli import tables, terminal
    from talerec.models import load

    version = installing.install(new, model, partial(load, verify=True))
    if json:
        terminal.as_json({"path": str(model), "version": version})
    else:
        tables.line(f"{model} is now version {version}")

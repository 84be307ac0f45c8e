"""The commands that serve a saved model over HTTP, and put another in its place."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

from talerec.cli.app import Panel, command, run_service
from talerec.cli.completion import among
from talerec.cli.groups import Limits
from talerec.cli.options import Artifact, Json, Port, argument, flag, option
from talerec.store.events import STORE_VARIABLE

_ACCESS, _RUNNING, _LIVING = "Access", "Running", "Events"


@dataclass(frozen=True)
class Access:
    """Who reaches the service, and by which name."""

    host: Annotated[
        str,
        option(
            "--host",
            metavar="ADDRESS",
            help="Beyond this machine only with a token.",
            panel=_ACCESS,
        ),
    ] = "127.0.0.1"
    port: Port = 8080
    unix: Annotated[
        Path | None,
        option("--unix", metavar="PATH", help="Listen on this Unix socket instead.", panel=_ACCESS),
    ] = None
    tls_cert: Annotated[
        Path | None,
        option("--tls-cert", metavar="FILE", help="Certificate (PEM): speak HTTPS.", panel=_ACCESS),
    ] = None
    tls_key: Annotated[
        Path | None,
        option("--tls-key", metavar="FILE", help="Key of the certificate.", panel=_ACCESS),
    ] = None
    open: Annotated[
        bool, flag("--open", "Listen beyond this machine without a token.", _ACCESS)
    ] = False
    host_name: Annotated[
        list[str],
        option(
            "--host-name",
            metavar="NAME",
            help="A name that requests may use; repeat for more.",
            panel=_ACCESS,
        ),
    ] = field(default_factory=list)
    cors: Annotated[
        list[str],
        option(
            "--cors",
            metavar="ORIGIN",
            help="Pages of this origin may ask; repeat for more.",
            panel=_ACCESS,
        ),
    ] = field(default_factory=list)
    per_client: Annotated[
        int,
        option(
            "--per-client",
            metavar="N",
            help="Requests at a time of one address; 0: any.",
            panel=_ACCESS,
        ),
    ] = 0


@dataclass(frozen=True)
class Running:
    """How the service runs, and what it shows."""

    workers: Annotated[
        int,
        option(
            "--workers",
            metavar="N",
            help="Processes; they share the model's memory.",
            panel=_RUNNING,
        ),
    ] = 1
    beside: Annotated[
        list[Path],
        option(
            "--beside",
            metavar="NAME.tale",
            help="Another model to compare with; repeat for more.",
            panel=_RUNNING,
        ),
    ] = field(default_factory=list)
    image_host: Annotated[
        list[str],
        option(
            "--image-host",
            metavar="ORIGIN",
            help="The page may show pictures from there.",
            panel=_RUNNING,
        ),
    ] = field(default_factory=list)
    log_level: Annotated[
        str,
        option(
            "--log-level",
            metavar="LEVEL",
            help="debug (every request), info, warning or error.",
            panel=_RUNNING,
            complete=among("debug", "info", "warning", "error"),
        ),
    ] = "info"
    log_format: Annotated[
        str,
        option(
            "--log-format",
            metavar="text|json",
            help="Lines for people, or JSON lines.",
            panel=_RUNNING,
            complete=among("text", "json"),
        ),
    ] = "text"


@dataclass(frozen=True)
class Living:
    """What the service remembers, and what it learns from that."""

    store: Annotated[
        str | None,
        option(
            "--store",
            metavar="ADDRESS",
            help="Keep events: sqlite:///shop.db or postgresql://HOST/NAME; else TALEREC_STORE says where.",
            panel=_LIVING,
        ),
    ] = None
    learn: Annotated[
        str | None,
        option(
            "--learn",
            metavar="every=10m",
            help="Fit the model again so often, with the events; 30s, 10m, 2h, 1d.",
            panel=_LIVING,
        ),
    ] = None


@dataclass(frozen=True)
class Measuring:
    """How the service measures its models, and a second one that answers some users."""

    measure: Annotated[
        float,
        option(
            "--measure",
            metavar="SHARE",
            help="Measure on the events of this share of users; needs --store.",
            panel=_LIVING,
        ),
    ] = 0.0
    live_days: Annotated[
        float,
        option(
            "--live-days",
            metavar="DAYS",
            help="Older events are not measured.",
            panel=_LIVING,
        ),
    ] = 1.0
    candidate: Annotated[
        Path | None,
        option(
            "--candidate",
            metavar="NAME.tale",
            help="A model that answers some users, measured beside the first.",
            panel=_LIVING,
        ),
    ] = None
    share: Annotated[
        float | None,
        option(
            "--share",
            metavar="SHARE",
            help="The users whom the candidate answers; 0.1 unless given.",
            panel=_LIVING,
        ),
    ] = None


TokenFile = Annotated[
    Path | None,
    option("--token-file", metavar="FILE", help="Holds the bearer token; else TALEREC_TOKEN does."),
]


@command(
    Panel.ASK,
    "talerec serve shop.tale",
    "TALEREC_TOKEN=... talerec serve shop.tale --host 0.0.0.0 --workers 4",
    "talerec serve shop.tale --store sqlite:///shop.db --learn every=10m",
)
def serve(
    model: Artifact,
    access: Access,
    running: Running,
    living: Living,
    measuring: Measuring,
    limits: Limits,
    token_file: TokenFile = None,
) -> None:
    """Serve a model over HTTP, with a page at / to try it; a new model at its path replaces it."""
    from talerec.serve.settings import read_interval

    settings = asdict(access) | asdict(running) | asdict(measuring) | asdict(limits)
    settings["store"] = living.store or os.environ.get(STORE_VARIABLE) or None
    settings["learn"] = None if living.learn is None else read_interval(living.learn)
    renamed = {"host_name": "host_names", "image_host": "images"}
    given = {renamed.get(name, name): value for name, value in settings.items()}
    lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    run_service(model, token_file, **given | lists)


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

    from talerec.artifact import install as installing
    from talerec.cli import tables, terminal
    from talerec.models import load

    version = installing.install(new, model, partial(load, verify=True))
    if json:
        terminal.as_json({"path": str(model), "version": version})
    else:
        tables.line(f"{model} is now version {version}")

"""Commands that serve a saved model over HTTP, and replace a model that may be in use."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from talerec.cli.app import Panel, command
from talerec.cli.completion import complete_values
from talerec.cli.options import (
    NEGATIVE_NAMES,
    Artifact,
    Attribution,
    Json,
    NegativeEvents,
    Port,
    argument,
    flag,
    option,
    split_events,
)
from talerec.cli.terminal import print_json, print_line
from talerec.errors import TalerecError
from talerec.store import HIDE_DAYS, ID_KINDS, STORE_VARIABLE

_ACCESS, _PROCESS, _EVENTS, _LIMITS = "Access", "Running", "Events", "Limits"  # of the help page


@dataclass(frozen=True)
class AccessOptions:
    """Options of `talerec serve`: where the service listens, and who may use it.

    Each field is an option of the command line; its help text says what it means.
    """

    host: Annotated[
        str, option("--host", "ADDRESS", "Beyond this machine only with a token.", _ACCESS)
    ] = "127.0.0.1"
    port: Port = 8080
    unix: Annotated[
        Path | None, option("--unix", "PATH", "Listen on this Unix socket instead.", _ACCESS)
    ] = None
    tls_cert: Annotated[
        Path | None, option("--tls-cert", "FILE", "Certificate (PEM) for HTTPS.", _ACCESS)
    ] = None
    tls_key: Annotated[
        Path | None, option("--tls-key", "FILE", "Key of the certificate.", _ACCESS)
    ] = None
    open: Annotated[
        bool, flag("--open", "Listen beyond this machine without a token.", _ACCESS)
    ] = False
    host_name: Annotated[
        list[str], option("--host-name", "NAME", "Host name in requests; repeatable.", _ACCESS)
    ] = field(default_factory=list)
    cors: Annotated[
        list[str],
        option("--cors", "ORIGIN", "Origin whose pages may use the API; repeatable.", _ACCESS),
    ] = field(default_factory=list)
    per_client: Annotated[
        int,
        option("--per-client", "N", "Concurrent requests per address; 0 for no limit.", _ACCESS),
    ] = 0


@dataclass(frozen=True)
class ProcessOptions:
    """Options of `talerec serve`: processes, further models, images and the service's log.

    Each field is an option of the command line; its help text says what it means.
    """

    workers: Annotated[
        int, option("--workers", "N", "Processes; they share the model's memory.", _PROCESS)
    ] = 1
    other_models: Annotated[
        list[Path],
        option("--beside", "NAME.tale", "Another model to compare with; repeatable.", _PROCESS),
    ] = field(default_factory=list)
    lists: Annotated[
        Path | None,
        option(
            "--lists",
            "FILE",
            "Named lists, in a file of TOML or JSON; GET /v1/lists/NAME shows them.",
            _PROCESS,
        ),
    ] = None
    image_host: Annotated[
        list[str],
        option("--image-host", "ORIGIN", "The page may show images from this origin.", _PROCESS),
    ] = field(default_factory=list)
    log_level: Annotated[
        str,
        option(
            "--log-level",
            "LEVEL",
            "debug (every request), info, warning or error.",
            _PROCESS,
            complete=complete_values("debug", "info", "warning", "error"),
        ),
    ] = "info"
    log_format: Annotated[
        str,
        option(
            "--log-format",
            "text|json",
            "Plain lines or JSON lines.",
            _PROCESS,
            complete=complete_values("text", "json"),
        ),
    ] = "text"


@dataclass(frozen=True)
class EventOptions:
    """Options of `talerec serve`: the event store, what it keeps, the interval of refits."""

    store: Annotated[
        str | None,
        option(
            "--store",
            "ADDRESS",
            "Event store: sqlite:///shop.db or postgresql://HOST/NAME (default: TALEREC_STORE).",
            _EVENTS,
        ),
    ] = None
    learn: Annotated[
        str | None, option("--learn", "every=10m", "Refit interval: 30s, 10m, 2h, 1d.", _EVENTS)
    ] = None
    refit_every: Annotated[
        int | None,
        option(
            "--refit-every",
            "N",
            "Every Nth round of --learn refits an updatable model, the others update it; 0: none "
            "(default: 10 for a ranker, whose trees updates keep; 0 for other models).",
            _EVENTS,
        ),
    ] = None
    keep_events: Annotated[
        str | None,
        option("--keep-events", "400d", "Remove events from the store after this time.", _EVENTS),
    ] = None
    impressions: Annotated[
        float,
        option(
            "--impressions",
            "SHARE",
            "Share of users whose responses are kept in the store.",
            _EVENTS,
        ),
    ] = 0.0
    attribution: Attribution = "30m"
    explore: Annotated[
        float,
        option(
            "--explore",
            "SHARE",
            "Share of places below the first for items with few impressions.",
            _EVENTS,
        ),
    ] = 0.0
    negative_events: NegativeEvents = NEGATIVE_NAMES
    hide_for: Annotated[
        str, option("--hide-for", "90d", "How long such an event hides its item.", _EVENTS)
    ] = f"{HIDE_DAYS:g}d"
    ids: Annotated[
        str | None,
        option(
            "--ids",
            "integer|text",
            "Ids that events may have (default: those of the model's users and items).",
            _EVENTS,
            complete=complete_values(*ID_KINDS),
        ),
    ] = None


@dataclass(frozen=True)
class OnlineEvaluationOptions:
    """Options of `talerec serve`: evaluation of models on new events, and a candidate model.

    The candidate serves a share of users in place of the main model.
    """

    measure: Annotated[
        float,
        option("--measure", "SHARE", "Share of users to evaluate on; needs --store.", _EVENTS),
    ] = 0.0
    live_days: Annotated[
        float, option("--live-days", "DAYS", "Older events are not evaluated.", _EVENTS)
    ] = 1.0
    candidate: Annotated[
        Path | None,
        option("--candidate", "NAME.tale", "A model that serves a share of users.", _EVENTS),
    ] = None
    share: Annotated[
        float | None,
        option(
            "--share", "SHARE", "Share of users served by the candidate (default 0.1).", _EVENTS
        ),
    ] = None


@dataclass(frozen=True)
class LimitOptions:
    """Options of `talerec serve`: limits of sizes and times, and the folder of model copies.

    Each field is an option of the command line; its help text says what it means.
    """

    max_body: Annotated[int, option("--max-body", "BYTES", "Largest request.", _LIMITS)] = 1_000_000
    max_history: Annotated[int, option("--max-history", "ROWS", "Longest history.", _LIMITS)] = 2500
    max_k: Annotated[int, option("--max-k", "K", "Longest list.", _LIMITS)] = 1000
    max_items: Annotated[int, option("--max-items", "N", "Most items in one batch.", _LIMITS)] = (
        50_000
    )
    concurrency: Annotated[
        int, option("--concurrency", "N", "Concurrent requests per worker.", _LIMITS)
    ] = 128
    timeout: Annotated[
        float,
        option("--timeout", "SECONDS", "For headers, for body and for the response.", _LIMITS),
    ] = 10.0
    drain: Annotated[
        float, option("--drain", "SECONDS", "Time to accept requests after SIGTERM.", _LIMITS)
    ] = 1.0
    watch: Annotated[
        float, option("--watch", "SECONDS", "Interval of checks for a new model.", _LIMITS)
    ] = 1.0
    hang_timeout: Annotated[
        float,
        option("--hang-timeout", "SECONDS", "Replace a worker that is silent so long.", _LIMITS),
    ] = 20.0
    start_timeout: Annotated[
        float, option("--start-timeout", "SECONDS", "For the start of a worker.", _LIMITS)
    ] = 900.0
    copies: Annotated[
        Path | None, option("--copies", "DIR", "Folder for private copies of models.", _LIMITS)
    ] = None


@command(
    Panel.ASK,
    "talerec serve shop.tale",
    "TALEREC_TOKEN=... talerec serve shop.tale --host 0.0.0.0 --workers 4",
    "talerec serve shop.tale --store sqlite:///shop.db --learn every=10m",
)
def serve(
    model: Artifact,
    access: AccessOptions,
    process: ProcessOptions,
    events: EventOptions,
    evaluation: OnlineEvaluationOptions,
    limits: LimitOptions,
    token_file: Annotated[
        Path | None,
        option(
            "--token-file",
            "FILE",
            "Bearer tokens, re-read when the file changes (default: TALEREC_TOKEN).",
        ),
    ] = None,
) -> None:
    """Serve a model over HTTP, with a page at / to try it.

    A new model at the same path replaces the served one without a restart.
    """
    from talerec.serve import parse_interval

    settings = asdict(access) | asdict(process) | asdict(evaluation) | asdict(limits)
    settings = {n: tuple(v) if isinstance(v, list) else v for n, v in settings.items()}
    settings["beside"] = settings.pop("other_models")
    settings["host_names"] = settings.pop("host_name")
    settings["images"] = settings.pop("image_host")
    settings["store"] = events.store or os.environ.get(STORE_VARIABLE) or None
    settings["ids"], keep = events.ids, events.keep_events
    settings["keep_events"] = None if keep is None else parse_interval(keep, "keep_events")
    settings["impressions"], settings["explore"] = events.impressions, events.explore
    settings["attribution"] = parse_interval(events.attribution, "attribution")
    settings["learn"] = None if events.learn is None else parse_interval(events.learn)
    settings["refit_every"] = events.refit_every
    settings["negative_events"] = split_events(events.negative_events)
    settings["hide_for"] = parse_interval(events.hide_for, "hide_for")
    run_service(model, token_file, **settings)


def run_service(model: Path, token_file: Path | None, **settings: Any) -> None:
    """Serve the model saved at `model` over HTTP until a signal stops the process.

    `token_file` has the bearer tokens of requests; if None, they are read from the variables
    TALEREC_TOKEN and TALEREC_READ_TOKEN.
    `settings` are fields of `serve.Settings`.
    """
    try:
        import fcntl  # noqa: F401 (workers share files that they lock)
    except ImportError:
        raise TalerecError(
            "serve runs on Linux and macOS only; recommend --users all writes lists to a file"
        ) from None
    os.environ.setdefault("TALEREC_THREADS", "1")  # more workers, not threads, use more cores
    from talerec.serve import Settings, read_environment
    from talerec.serve.process import supervisor

    tokens = {"token_file": token_file} if token_file is not None else read_environment()
    supervisor.run(Settings(path=model, **tokens, **settings), print_line)


@command(
    Panel.MODELS,
    "talerec install new.tale shop.tale",
    "tar c new.tale | ssh shop talerec install - shop.tale",
)
def install(
    new: Annotated[
        str, argument("NEW", "The new model: NAME.tale, a tar archive of it, or - for one.")
    ],
    model: Annotated[Path, argument("MODEL", "The model to replace, which may be in use.")],
    json: Json = False,
) -> None:
    """Check a model and put it in the place of another in one step, even while that is served."""
    from functools import partial

    from talerec.artifact import install_artifact
    from talerec.models import load

    version = install_artifact(new, model, partial(load, verify=True))
    if json:
        print_json({"path": str(model), "version": version})
    else:
        print_line(f"{model} is now version {version}")

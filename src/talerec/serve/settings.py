"""The settings of a service: where it listens, who may use it, and its limits."""

from __future__ import annotations

import ipaddress
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from talerec.errors import TalerecError

TOKEN_VARIABLE = "TALEREC_TOKEN"
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_INTERVAL = re.compile(r"(?:every=)?(\d+(?:\.\d+)?)([smhd])")
_MIN_TOKEN = 16  # characters
CANDIDATE_SHARE = 0.1  # of users whom a candidate answers unless another share is given
_ORIGIN = re.compile(r"https?://[\w.:\[\]-]+")
_MINIMA = {
    "workers": 1,
    "max_body": 1,
    "max_history": 1,
    "max_k": 1,
    "max_batch": 1,
    "max_items": 1,
    "max_unread": 1,
    "max_events": 1,
    "concurrency": 1,
    "connections": 1,
    "timeout": 0.01,
    "watch": 0.01,
    "drain": 0,
    "per_client": 0,
}
_CHOICES = {"log_level": ("debug", "info", "warning", "error"), "log_format": ("text", "json")}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Limits are per request unless the comment says otherwise."""

    path: Path
    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    token: str | None = field(default=None, repr=False)
    open: bool = False  # listen beyond this machine without a token
    cors: tuple[str, ...] = ()  # origins whose pages may use the API
    unix: Path | None = None  # listen on this Unix socket instead of host and port
    tls_cert: Path | None = None  # PEM files: with them, the service speaks HTTPS
    tls_key: Path | None = None
    host_names: tuple[str, ...] = ()  # names that requests may call the service by
    images: tuple[str, ...] = ()  # origins from which the page may show pictures of items
    beside: tuple[Path, ...] = ()  # other models, to compare with
    measure: float = 0.0  # the share of users on whose events models are measured as they arrive
    live_days: float = 1.0  # older events are no live ones, and are not measured
    candidate: Path | None = None  # a model that answers some users in place of the first,
    share: float | None = None  # this share of them
    per_client: int = 0  # requests at a time of one client address, per worker; 0: any number
    log_level: str = "info"  # debug: every request
    log_format: str = "text"  # or json: one object a line
    max_body: int = 1_000_000  # bytes; this bounds allow and deny lists too
    max_history: int = 2500  # rows
    max_k: int = 1000
    max_batch: int = 100  # requests in one batch
    max_items: int = 50_000  # items in all answers to one batch
    max_unread: int = 64_000_000  # bytes of large answers that wait for their clients, per worker
    concurrency: int = 128  # requests at a time, per worker
    connections: int = 2048  # open connections, per worker
    timeout: float = (
        10.0  # seconds for the headers, for the body, for the answer, and for reading it
    )
    drain: float = 1.0  # seconds after SIGTERM during which new requests are still accepted
    store: str | None = field(default=None, repr=False)  # the address of the events' database
    learn: float | None = None  # seconds between two fits in the background; None: none
    max_events: int = 10_000  # events in one request
    watch: float = 1.0  # seconds between looks for a new artifact
    copies: Path | None = (
        None  # folder for the service's own copies of models; None: for temporary files
    )

    def __post_init__(self) -> None:
        for name, least in _MINIMA.items():
            if not getattr(self, name) >= least:
                raise TalerecError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        if not 0 <= self.port <= 65_535:
            raise TalerecError(f"port is {self.port}; it must be from 0 to 65535")
        if self.token is not None and len(self.token) < _MIN_TOKEN:
            raise TalerecError(f"the token is shorter than {_MIN_TOKEN} characters")
        if not (is_local(self) or self.token or self.open):
            raise TalerecError(
                f"{self.host} can be reached from other machines: set {TOKEN_VARIABLE} or --token-file, "
                "or use --open to serve everybody without a token"
            )
        if self.learn is not None and self.store is None:
            raise TalerecError("--learn learns from events: give --store too")
        self._check_origins()
        self._check_choices()
        self._check_shares()

    def _check_shares(self) -> None:
        for name in ("measure", "share"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise TalerecError(f"--{name} is {value:g}; it takes a share of users, from 0 to 1")
        if not self.live_days > 0:
            raise TalerecError(f"--live-days is {self.live_days:g}; it must be above 0")
        if self.measure and self.store is None:
            raise TalerecError("--measure looks at events as they arrive: it needs --store")
        if self.share is not None and self.candidate is None:
            raise TalerecError("--share is that of a --candidate")

    @property
    def candidate_share(self) -> float:
        """The share of users whom a candidate answers."""
        default = 0.0 if self.candidate is None else CANDIDATE_SHARE
        return default if self.share is None else self.share

    def _check_origins(self) -> None:
        for origin in (*self.cors, *self.images):
            if origin == "*" and origin in self.cors and self.token is None:
                raise TalerecError(
                    "--cors '*' lets every page ask, also those of strangers: set a token"
                )
            if not _ORIGIN.fullmatch(origin) and not (origin == "*" and origin in self.cors):
                raise TalerecError(
                    f"{origin!r} is not an origin, such as https://shop.example, without a path"
                )

    def _check_choices(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                found = f"{name.replace('_', '-')} is {getattr(self, name)!r}"
                raise TalerecError(f"--{found}; it takes {' or '.join(choices)}")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise TalerecError("--tls-cert and --tls-key go together")
        names = [path.stem for path in self.beside]
        if len(names) != len(set(names)):
            raise TalerecError("two models of --beside have the same name")


def read_interval(text: str) -> float:
    """The seconds of --learn: every=10m."""
    found = _INTERVAL.fullmatch(text.strip())
    if found is None or not float(found[1]):
        raise TalerecError(
            f"--learn is {text!r}; it takes every=30s, every=10m, every=2h or every=1d"
        )
    return float(found[1]) * _SECONDS[found[2]]


def is_local(settings: Settings) -> bool:
    """Does the service listen for programs of this machine alone?"""
    return settings.unix is not None or is_loopback(settings.host)


def is_loopback(host: str) -> bool:
    """Does this address reach no further than this machine?"""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(file: Path | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """The token from a file, or else from the environment; None if neither is set."""
    if file is None:
        text = environment.get(TOKEN_VARIABLE)
        if text is not None and not text.strip():
            raise TalerecError(f"{TOKEN_VARIABLE} is empty: set it to the token or unset it")
        return text.strip() if text else None
    try:
        if file.stat().st_mode & stat.S_IROTH:
            raise TalerecError(f"{file} can be read by everybody: run chmod 600 on it")
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise TalerecError(f"{file} cannot be read: {error}") from None
    if not token:
        raise TalerecError(f"{file} is empty: it must contain the token")
    return token

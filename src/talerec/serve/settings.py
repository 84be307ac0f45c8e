"""The settings of a service: where it listens, who may use it, and its limits."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from talerec.data import duration_seconds
from talerec.errors import TalerecError
from talerec.serve.tokens import TOKEN_VARIABLE, Tokens, check_token, parse_tokens, read_token_file
from talerec.store import HIDE_DAYS, ID_KINDS, MAX_NAME, NEGATIVE_EVENTS, NegativeFeedback

if TYPE_CHECKING:
    from talerec.serve.named_lists import NamedList

CANDIDATE_SHARE = 0.1  # default share of users that a candidate answers
_MAX_EXPLORE = 0.5  # at most every other place
_MAX_ATTRIBUTION = 7 * 86_400.0  # seconds: figures are those of four weeks
_ORIGIN = re.compile(r"https?://[\w.:\[\]-]+")
_MINIMA = {
    **dict.fromkeys(("workers", "max_body", "max_history", "max_k", "max_batch", "max_items"), 1),
    **dict.fromkeys(("max_unread", "max_events", "concurrency", "connections"), 1),
    **dict.fromkeys(("timeout", "watch"), 0.01),
    **dict.fromkeys(("hang_timeout", "start_timeout"), 1),
    **dict.fromkeys(("drain", "per_client"), 0),
}
_CHOICES = {"log_level": ("debug", "info", "warning", "error"), "log_format": ("text", "json")}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of a recommendation service; the constructor checks them.

    Limits are per request unless the comment says otherwise. A worker is a process that answers
    requests. An invalid value raises TalerecError.
    """

    path: Path  # the folder of the saved model to serve
    host: str = "127.0.0.1"  # the address to listen on
    port: int = 8080
    workers: int = 1  # processes
    token: str | None = field(default=None, repr=False)  # clients send it as a bearer token
    read_token: str | None = field(default=None, repr=False)  # may ask; not write or delete
    token_file: Path | None = None  # has the tokens instead; read again when it changes
    open: bool = False  # listen beyond this machine without a token
    cors: tuple[str, ...] = ()  # origins whose pages may use the API
    unix: Path | None = None  # listen on this Unix socket instead of host and port
    tls_cert: Path | None = None  # PEM file: with certificate and key, the service uses HTTPS
    tls_key: Path | None = None  # PEM file of the certificate's key
    host_names: tuple[str, ...] = ()  # accepted names in the Host header
    images: tuple[str, ...] = ()  # origins from which the page may load item pictures
    beside: tuple[Path, ...] = ()  # further models, to compare with
    measure: float = 0.0  # share of users on whose arriving events the models are evaluated
    live_days: float = 1.0  # older events are not evaluated
    candidate: Path | None = None  # a model that answers some users instead of the main model
    share: float | None = None  # share of users that the candidate answers
    per_client: int = 0  # concurrent requests of one client address, per worker; 0: no limit
    log_level: str = "info"  # debug: every request
    log_format: str = "text"  # or json: one object per line
    max_body: int = 1_000_000  # bytes; this limits allow and deny lists too
    max_history: int = 2500  # rows of a history
    max_k: int = 1000  # items of a recommendation list
    max_batch: int = 100  # requests in one batch
    max_items: int = 50_000  # items in all responses to one batch
    max_unread: int = 64_000_000  # bytes of large responses that clients have not read, per worker
    concurrency: int = 128  # concurrent requests, per worker
    connections: int = 2048  # open connections, per worker
    timeout: float = 10.0  # seconds for headers, for body, for the response, and for reading it
    drain: float = 1.0  # seconds after SIGTERM during which new requests are still accepted
    store: str | None = field(default=None, repr=False)  # address of the event database
    ids: str | None = None  # kind of ids in events: integer or text; None: that of the model
    keep_events: float | None = None  # seconds after which events leave the store; None: never
    impressions: float = 0.0  # share of users whose responses are kept in the store
    attribution: float = 1800.0  # seconds after a response in which an event counts as its click
    explore: float = 0.0  # share of places below the first for items with few impressions
    negative_events: tuple[str, ...] = NEGATIVE_EVENTS  # names of events that hide their item
    hide_for: float = HIDE_DAYS * 86_400  # seconds for which such an event hides its item
    learn: float | None = None  # seconds between two fits in the background; None: no fits
    refit_every: int | None = None  # rounds of learning, the last one a refit; None: the model's
    max_events: int = 10_000  # events in one request
    lists: Path | None = None  # file of named lists, TOML or JSON
    watch: float = 1.0  # seconds between checks for a new artifact
    hang_timeout: float = 20.0  # seconds without a sign of life until a worker is replaced
    start_timeout: float = 900.0  # seconds for loading models and compiling kernels at the start
    copies: Path | None = None  # folder of the service's model copies; None: a temporary folder

    def __post_init__(self) -> None:
        for name, least in _MINIMA.items():
            if not getattr(self, name) >= least:
                self._refuse(name, f"it must be at least {least}")
        if not 0 <= self.port <= 65_535:
            self._refuse("port", "it must be from 0 to 65535")
        self._check_tokens()
        if not (is_local(self) or self.needs_token or self.open):
            raise TalerecError(
                f"{self.host} can be reached from other machines: set {TOKEN_VARIABLE} or"
                " `token_file`, or use `open` to serve everybody without a token",
                "token_file", "open",
            )  # fmt: skip
        if self.learn is not None and self.store is None:
            raise TalerecError("`learn` learns from events: give `store` too", "learn", "store")
        if self.refit_every is not None and (self.learn is None or self.refit_every < 0):
            problem = "it must be at least 0" if self.refit_every < 0 else "give `learn` too"
            self._refuse("refit_every", problem)
        if self.keep_events is not None and self.store is None:
            message = "`keep_events` removes events from a store: give `store` too"
            raise TalerecError(message, "keep_events", "store")
        for name in self.negative_events:
            if not name.strip() or len(name) > MAX_NAME:
                self._refuse("negative_events", f"names of events have 1 to {MAX_NAME} characters")
        if not self.hide_for > 0:
            self._refuse("hide_for", "it must be above 0")
        self.load_lists()
        self._check_origins()
        self._check_choices()
        self._check_shares()

    def load_lists(self) -> dict[str, NamedList]:
        """Return the lists of the file `lists` by name; TalerecError if it cannot be used."""
        if self.lists is None:
            return {}
        from talerec.serve.named_lists import read_named_lists  # needs msgspec

        return read_named_lists(self.lists)

    @property
    def needs_token(self) -> bool:
        """Return whether requests need a token."""
        return not (self.token is None and self.read_token is None and self.token_file is None)

    @property
    def feedback(self) -> NegativeFeedback:
        """Return which events are negative feedback, and for how long they hide their items."""
        return NegativeFeedback(frozenset(self.negative_events), self.hide_for)

    def load_tokens(self) -> Tokens | None:
        """Return the tokens that the service accepts; None if requests need none.

        They come from the file `token_file` or from the settings `token` (may write) and
        `read_token` (may only read). TalerecError if the file cannot be used.
        """
        if self.token_file is not None:
            return parse_tokens(read_token_file(self.token_file), self.token_file)
        if not self.needs_token:
            return None
        writers, readers = (
            () if token is None else (token.encode(),) for token in (self.token, self.read_token)
        )
        return Tokens(writers, readers)

    def _check_tokens(self) -> None:
        """Raise TalerecError for short or equal tokens, or a file of tokens that cannot be used."""
        for token in (self.token, self.read_token):
            if token is not None:
                check_token(token)
        if self.token is not None and self.token == self.read_token:
            message = "`token` and `read_token` are the same: one of them may write"
            raise TalerecError(message, "token", "read_token")
        if self.token_file is not None and (self.token or self.read_token):
            message = "`token_file` has the tokens: give neither `token` nor `read_token`"
            raise TalerecError(message, "token_file")
        self.load_tokens()

    def _refuse(self, name: str, rule: str) -> None:
        """Raise TalerecError with the setting `name`, its value, and the rule that it breaks.

        `rule` is a clause such as "it must be at least 1".
        """
        value = getattr(self, name)
        shown = f"{value:g}" if isinstance(value, float) else repr(value)
        raise TalerecError(f"`{name}` is {shown}; {rule}", name)

    def _check_shares(self) -> None:
        """Raise TalerecError for shares outside 0 to 1, `live_days` <= 0, or a missing setting.

        `measure` is the share of users on whose events models are evaluated, and needs a `store`
        (the event database), as `impressions` does; `explore` is a share of places and needs
        impressions; `share` is the share of users that a candidate model answers, and
        needs `candidate`. Events older than `live_days` are not evaluated. `_refuse` raises the
        error.
        """
        for name in ("measure", "share", "impressions"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                self._refuse(name, "it must be a share of users, from 0 to 1")
        if not 0 <= self.explore <= _MAX_EXPLORE:
            self._refuse("explore", f"it must be a share of places, from 0 to {_MAX_EXPLORE}")
        if not 0 < self.attribution <= _MAX_ATTRIBUTION:
            self._refuse("attribution", "it must be above 0, and at most seven days")
        if self.impressions and self.store is None:
            message = "`impressions` are kept in a store: give `store` too"
            raise TalerecError(message, "impressions", "store")
        if self.explore and not self.impressions:
            message = "`explore` shows items with few impressions: give `impressions` too"
            raise TalerecError(message, "explore", "impressions")
        if not self.live_days > 0:
            self._refuse("live_days", "it must be above 0")
        if self.measure and self.store is None:
            message = "`measure` evaluates models on arriving events: give `store` too"
            raise TalerecError(message, "measure", "store")
        if self.share is not None and self.candidate is None:
            message = "`share` is the candidate's share of users: give `candidate` too"
            raise TalerecError(message, "share", "candidate")

    @property
    def candidate_share(self) -> float:
        """Return the share of users, 0 to 1, that the candidate model answers; 0 without one.

        The candidate is a second model on trial. Its share is the setting `share`, by default 0.1.
        """
        default = 0.0 if self.candidate is None else CANDIDATE_SHARE
        return default if self.share is None else self.share

    def _check_origins(self) -> None:
        """Raise TalerecError for a malformed web origin, or `cors` "*" without a token.

        `cors` has the origins whose pages may use the API, `images` those of item pictures.
        """
        if "*" in self.cors and not self.needs_token:
            message = "`cors` '*' lets the pages of every site use the API: set a token"
            raise TalerecError(message, "cors")
        for origin in (*self.cors, *self.images):
            if not _ORIGIN.fullmatch(origin) and not (origin == "*" and origin in self.cors):
                example = "such as https://shop.example, without a path"
                raise TalerecError(f"{origin!r} is not an origin, {example}")

    def _check_choices(self) -> None:
        """Raise TalerecError for a value that is not a choice, half a TLS pair, or equal names.

        `_refuse` raises it for a value that `_CHOICES` does not list. The names are those of the
        comparison models in `beside`: their paths without suffix, which must differ.
        """
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                self._refuse(name, f"it takes {' or '.join(choices)}")
        if self.ids not in (None, *ID_KINDS):
            self._refuse("ids", f"it takes {' or '.join(ID_KINDS)}")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise TalerecError("`tls_cert` and `tls_key` go together", "tls_cert", "tls_key")
        names = [path.stem for path in self.beside]
        if len(names) != len(set(names)):
            raise TalerecError("two models of `beside` have the same name", "beside")


def parse_interval(text: str, name: str = "learn") -> float:
    """Return the seconds of an interval such as "every=10m" or "30s" (s, m, h or d).

    Anything else, and zero, raises TalerecError; `name` is the parameter in the message.
    """
    seconds = duration_seconds(text.strip().removeprefix("every="))
    if seconds is None:
        message = f"`{name}` is {text!r}; it takes every=30s, every=10m, every=2h or every=1d"
        if name != "learn":
            message = message.replace("every=", "")
        raise TalerecError(message, name)
    return seconds


def is_local(settings: Settings) -> bool:
    """Return whether the service listens only on a Unix socket or on a loopback address."""
    return settings.unix is not None or is_loopback(settings.host)


@lru_cache(4)
def is_loopback(host: str) -> bool:
    """Return whether a host (an IP address or a name) can be reached only from this machine.

    False for names other than "localhost".
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

"""Who may ask: the token, the names that the service is called by, other origins, and how much one client may have at a time."""

from __future__ import annotations

import hmac
import ipaddress
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from talerec.serve.errors import ApiError, busy, too_many
from talerec.serve.http.parsing import HttpRequest
from talerec.serve.settings import Settings, is_loopback

_LOOPBACK = ("localhost", "ip6-localhost")
_KNOWN_HOSTS = 1000  # Host headers that are remembered as good


class Access:
    """Decides about requests. A worker has one."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._token = settings.token.encode() if settings.token else None
        self._origins = {origin.encode() for origin in settings.cors}
        self._names = _names(settings)
        self.good_hosts: set[bytes | None] = {None}  # Host headers that were found to be good
        self._clients: Counter[str] = Counter()
        self.counts_clients = settings.per_client > 0
        self.has_origins = bool(self._origins)

    # -- the name --

    def check_host(self, host: bytes | None) -> None:
        """Refuse a name that this service does not have: a page that made its own name lead here would send that."""
        if self._names is None:
            return
        name = _name(host or b"")
        if name not in self._names and not _is_address(name):
            message = f"this service is not called {name[:100]!r}: see --host-name"
            raise ApiError(421, "wrong_host", message)
        if len(self.good_hosts) < _KNOWN_HOSTS:
            self.good_hosts.add(host)

    # -- the token, and how many at a time --

    def admit(self, http: HttpRequest, in_flight: int) -> None:
        """Refuse who has no token, and everybody while there are too many."""
        if self._token is not None:
            scheme, _, token = http.headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(token.strip(), self._token):
                wanted = ((b"www-authenticate", b"Bearer"),)
                message = "the token is missing or wrong: send Authorization: Bearer TOKEN"
                raise ApiError(401, "unauthorized", message, wanted)
        if in_flight > self._settings.concurrency:
            raise busy(f"there are more than {self._settings.concurrency} requests at a time")
        if self.counts_clients and self._clients[http.client] > self._settings.per_client:
            raise too_many(f"you have more than {self._settings.per_client} requests at a time")

    @contextmanager
    def counted(self, client: str) -> Iterator[None]:
        """Count a request of this client until its answer is taken."""
        self._clients[client] += 1
        try:
            yield
        finally:
            self._clients[client] -= 1
            if not self._clients[client]:
                del self._clients[client]

    # -- other origins --

    def may_ask(self, origin: bytes) -> bool:
        """May pages of this origin use the API?"""
        return bool(origin) and (origin in self._origins or b"*" in self._origins)


def _names(settings: Settings) -> set[str] | None:
    """The names that a Host header may have; None: any, on an address that others reach, unless names were given."""
    given = {name.lower() for name in settings.host_names}
    if settings.unix is not None or (not is_loopback(settings.host) and not given):
        return None
    return {*given, *(_LOOPBACK if is_loopback(settings.host) else ())}


def _name(host: bytes) -> str:
    """The name in a Host header, without the port."""
    text = host.decode("latin-1").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] if text.rpartition(":")[2].isdecimal() and ":" in text else text


def _is_address(name: str) -> bool:
    """An address is nobody's name: no page can make it lead elsewhere."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True

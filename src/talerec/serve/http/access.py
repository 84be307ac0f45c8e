"""Access control: host names, the token, origins, and concurrent requests per client."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from talerec.serve import WRITE, ApiError, Settings, TokenWatch, busy, is_loopback, too_many
from talerec.serve.http.messages import HttpRequest

_LOOPBACK = ("localhost", "ip6-localhost")
_MAX_HOSTS = 1000  # Host headers that are cached as accepted


class Access:
    """Accepts or refuses the requests of one worker process; refusals are ApiErrors.

    Checked are the Host header, the bearer token, the Origin header, and the number of concurrent
    requests, in total and per client address. tokens: the tokens that the process accepts.
    """

    def __init__(self, settings: Settings, tokens: TokenWatch) -> None:
        self._settings, self._tokens = settings, tokens
        self._origins = {origin.encode() for origin in settings.cors}
        self._host_names = _host_names(settings)  # None: every name is accepted
        self.accepted_hosts: set[bytes | None] = {None}  # a cache of Host headers
        self._clients: Counter[str] = Counter()  # requests in progress by client address
        self.counts_clients = settings.per_client > 0
        self.has_origins = bool(self._origins)

    def check_host(self, host: bytes | None) -> None:
        """Raise ApiError 421 if a Host header does not name this service, against DNS rebinding.

        Accepted are the names of `_host_names` (all if it is None) and IP addresses. An accepted
        header is remembered in `accepted_hosts`, up to 1,000 headers.
        """
        if self._host_names is None:
            return
        name = _parse_host(host or b"")
        if name not in self._host_names and not _is_address(name):
            text = f"this service does not answer to the host name {name[:100]!r}: see host_names"
            raise ApiError(421, "wrong_host", text)
        if len(self.accepted_hosts) < _MAX_HOSTS:
            self.accepted_hosts.add(host)

    def find_right(self, http: HttpRequest) -> str | None:
        """Return what the token of a request allows, "write" or "read"; None without a valid one.

        Without tokens, a service allows everything to everybody.
        """
        tokens = self._tokens.current
        if tokens is None:
            return WRITE
        scheme, _, token = http.headers.get(b"authorization", b"").partition(b" ")
        return tokens.find_right(token.strip()) if scheme.lower() == b"bearer" else None

    def admit(self, http: HttpRequest, in_flight: int, *, writes: bool) -> None:
        """Raise ApiError 401 or 403 without the right token, 503 or 429 with too many requests.

        `writes` is whether the request changes something; a token that may only read gives 403.
        `in_flight` is the number of requests in progress in this worker process, this one included:
        more than the setting `concurrency` give 503. `_clients` counts them by client address: more
        than the setting `per_client` give 429.
        """
        if self._tokens.current is not None:
            right = self.find_right(http)
            if right is None:
                headers = ((b"www-authenticate", b"Bearer"),)
                message = "the token is missing or wrong: send Authorization: Bearer TOKEN"
                raise ApiError(401, "unauthorized", message, headers)
            if writes and right != WRITE:
                raise ApiError(403, "read_only", "this token may only read")
        if in_flight > self._settings.concurrency:
            raise busy(f"more than {self._settings.concurrency} requests are in progress")
        if self.counts_clients and self._clients[http.client] > self._settings.per_client:
            limit = self._settings.per_client
            raise too_many(f"more than {limit} requests of this client are in progress")

    @contextmanager
    def count_client(self, client: str) -> Iterator[None]:
        """Count a request of this client address as in progress while the context is open.

        `client` is an IP address; `admit` compares the counts with the limit per client.
        """
        self._clients[client] += 1
        try:
            yield
        finally:
            self._clients[client] -= 1
            if not self._clients[client]:
                del self._clients[client]

    def allows_origin(self, origin: bytes) -> bool:
        """Return whether web pages of this origin, as in an Origin header, may use the API.

        The setting `cors` lists the origins, or * for all.
        """
        return bool(origin) and (origin in self._origins or b"*" in self._origins)


def _host_names(settings: Settings) -> set[str] | None:
    """Return the accepted names of a Host header, in lower case; None if all are accepted.

    Every name is accepted on a Unix socket, and on a public address without the setting
    `host_names`. On a loopback address, the names of this machine ("localhost") are added.
    """
    names = {name.lower() for name in settings.host_names}
    if settings.unix is not None or (not is_loopback(settings.host) and not names):
        return None  # a Unix socket or a public address
    return {*names, *(_LOOPBACK if is_loopback(settings.host) else ())}


def _parse_host(host: bytes) -> str:
    """Return the host name or address in a Host header, in lower case, without the port.

    Brackets around an IPv6 address are removed.
    """
    text = host.decode("latin-1").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] if text.rpartition(":")[2].isdecimal() and ":" in text else text


def _is_address(name: str) -> bool:
    """Is this text an IP address? An address is safe from DNS rebinding, unlike a name."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True

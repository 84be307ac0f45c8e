"""The sockets on which workers listen, their number, and their TLS certificate."""

from __future__ import annotations

import os
import resource
import socket
import ssl
from contextlib import suppress
from pathlib import Path

from talerec.errors import TalerecError
from talerec.serve import Settings

_OTHER_FILES = 128  # open files of a worker that are not connections
_MIN_CONNECTIONS = 16  # with fewer, a service does not start


def reserve_address(settings: Settings) -> socket.socket:
    """Bind the address of the service and return the socket, which does not listen.

    Workers listen, once they have loaded the model. The address is a Unix socket path or host and
    port. TalerecError if it is in use or cannot be bound.
    """
    try:
        if settings.unix is not None:
            return _bind_path(settings.unix)
        with _bind_port(settings.host, settings.port, is_shared=False):
            pass  # fails if another program shares this port: it would get some of the requests
        return _bind_port(settings.host, settings.port, is_shared=True)
    except OSError as error:
        address = settings.unix or f"{settings.host}:{settings.port}"
        raise TalerecError(f"cannot listen on {address}: {error.strerror or error}") from None


def describe_address(settings: Settings, reserved: socket.socket) -> str:
    """Return the URL of the service, or `unix:` and the path of its socket.

    `reserved` is the bound socket; it tells the port if the settings have 0 (any free port).
    """
    if settings.unix is not None:
        return f"unix:{settings.unix}"
    host, port = reserved.getsockname()[:2]
    name = f"[{host}]" if ":" in host else host
    return f"http{'s' if settings.tls_cert else ''}://{name}:{port}/"


def bind_worker(settings: Settings, address: socket.socket | int) -> socket.socket:
    """Return the socket of one worker; the system spreads connections over all workers.

    `address` is the Unix socket that worker processes share and which is returned, or the TCP port,
    to which each worker binds a socket of its own.
    """
    if isinstance(address, socket.socket):
        return address
    return _bind_port(settings.host, address, is_shared=True)


def allow_connections(settings: Settings) -> int:
    """Return how many connections a worker process may hold open at the same time.

    That is the setting `connections`, or less if the system allows fewer open files; the limit of
    this process and of those that it starts is raised as far as possible. TalerecError if fewer
    than 16 are left.
    """
    n_files = _raise_file_limit()
    limit = min(settings.connections, n_files - _OTHER_FILES)
    if limit < min(settings.connections, _MIN_CONNECTIONS):
        least = _OTHER_FILES + _MIN_CONNECTIONS
        raise TalerecError(
            f"the system allows only {n_files} open files: set its limit (`ulimit -n`) to at least"
            f" {least}, better {_OTHER_FILES + settings.connections}"
        )
    return limit


def load_tls(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context with the certificate of the settings; None without TLS settings.

    Raises TalerecError if the certificate or its key cannot be read or do not match.
    """
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    for path in (settings.tls_cert, settings.tls_key):
        if not os.access(path, os.R_OK):
            raise TalerecError(f"{path} cannot be read")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (ssl.SSLError, OSError) as error:
        raise TalerecError(
            f"{settings.tls_cert} and {settings.tls_key} are not a certificate and its key: {error}"
        ) from None
    return context


def _bind_port(host: str, port: int, *, is_shared: bool) -> socket.socket:
    """Return a TCP socket bound to a port; if shared, other sockets may bind the port too.

    OSError if the port is in use. The socket does not listen yet.
    """
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


def _bind_path(path: Path) -> socket.socket:
    """Return a Unix socket bound to a path, accessible to owner and group.

    The file of a socket on which no program listens is replaced.
    """
    bound = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket():
            _remove_unused(path)
        bound.bind(str(path))
        path.chmod(0o660)
    except OSError:
        bound.close()
        raise
    return bound


def _remove_unused(path: Path) -> None:
    """Remove the file of a Unix socket unless a program listens on it."""
    with (
        socket.socket(socket.AF_UNIX) as probe,
        suppress(ConnectionRefusedError, FileNotFoundError),
    ):
        probe.connect(str(path))
        return
    path.unlink(missing_ok=True)


def _raise_file_limit() -> int:
    """Raise this process's limit of open files as far as the system allows; return the limit.

    An unlimited number is returned as 2^20.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft if soft != resource.RLIM_INFINITY else 2**20

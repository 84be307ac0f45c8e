"""Where the service listens: the sockets of its workers, and TLS."""

from __future__ import annotations

import os
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

from talerec.errors import TalerecError
from talerec.serve.settings import Settings


def reserve(settings: Settings) -> socket.socket:
    """Hold the address. This socket does not listen: workers do, once they have loaded the model."""
    try:
        if settings.unix is not None:
            return _bound_to_path(settings.unix)
        with _bound(settings.host, settings.port, shared=False):
            pass  # fails if another program already shares this port: it would get some of the requests
        return _bound(settings.host, settings.port, shared=True)
    except OSError as error:
        where = settings.unix or f"{settings.host}:{settings.port}"
        raise TalerecError(f"cannot listen on {where}: {error.strerror or error}") from None


def release(settings: Settings) -> None:
    """Remove the name of a Unix socket."""
    if settings.unix is not None:
        settings.unix.unlink(missing_ok=True)


def address_of(settings: Settings, reserved: socket.socket) -> str:
    """What people type to reach the service."""
    if settings.unix is not None:
        return f"unix:{settings.unix}"
    host, port = reserved.getsockname()[:2]
    name = f"[{host}]" if ":" in host else host
    return f"http{'s' if settings.tls_cert else ''}://{name}:{port}/"


def for_workers(settings: Settings, reserved: socket.socket) -> Any:
    """What a worker needs to listen: the port, or the socket that all of them share."""
    return reserved if settings.unix is not None else reserved.getsockname()[1]


def bind(settings: Settings, address: Any) -> socket.socket:
    """The socket of one worker; the system spreads connections over all that listen."""
    if isinstance(address, socket.socket):
        return address
    return _bound(settings.host, address, shared=True)


def check_tls(settings: Settings) -> None:
    """Refuse a certificate or a key that cannot be used, before anything is started."""
    if settings.tls_cert is None or settings.tls_key is None:
        return
    for path in (settings.tls_cert, settings.tls_key):
        if not os.access(path, os.R_OK):
            raise TalerecError(f"{path} cannot be read")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_cert, settings.tls_key)
    except (ssl.SSLError, OSError) as error:
        raise TalerecError(
            f"{settings.tls_cert} and {settings.tls_key} are not a certificate and its key: {error}"
        ) from None


def _bound(host: str, port: int, *, shared: bool) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind((host, port))
    except OSError:
        made.close()
        raise
    return made


def _bound_to_path(path: Path) -> socket.socket:
    """A Unix socket that the owner and the group may use; a name that nobody listens at is taken over."""
    made = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket():
            _remove_unused(path)
        made.bind(str(path))
        path.chmod(0o660)
    except OSError:
        made.close()
        raise
    return made


def _remove_unused(path: Path) -> None:
    with (
        socket.socket(socket.AF_UNIX) as probe,
        suppress(ConnectionRefusedError, FileNotFoundError),
    ):
        probe.connect(str(path))
        return
    path.unlink(missing_ok=True)

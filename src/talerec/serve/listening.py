"""Where the service listens: the sockets of its workers."""

from __future__ import annotations

import socket

from talerec.errors import TalerecError
from talerec.serve.settings import Settings


def reserve(settings: Settings) -> socket.socket:
    """Hold the address. This socket does not listen: each worker has its own, once it has loaded the model."""
    try:
        with _bound(settings.host, settings.port, shared=False):
            pass  # fails if another program already shares this port: it would get some of the requests
        return _bound(settings.host, settings.port, shared=True)
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        raise TalerecError(f"cannot listen on {where}: {error.strerror or error}") from None


def address_of(settings: Settings, reserved: socket.socket) -> str:
    """What people type to reach the service."""
    host, port = reserved.getsockname()[:2]
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/"


def bind(settings: Settings, port: int) -> socket.socket:
    """The socket of one worker; the system spreads connections over all that listen."""
    return _bound(settings.host, port, shared=True)


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

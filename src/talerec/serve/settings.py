"""How a service runs: where it listens, who may ask, and what it refuses."""

from __future__ import annotations

import ipaddress
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from talerec.errors import TalerecError

TOKEN = "TALEREC_TOKEN"
_SHORTEST = 16  # characters of a token


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Limits are per request, unless they say otherwise."""

    path: Path
    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    token: str | None = field(default=None, repr=False)
    open: bool = False  # listen beyond this machine without a token
    cors: tuple[str, ...] = ()  # origins whose pages may ask
    max_body: int = 1_000_000  # bytes
    max_history: int = 2500  # rows
    max_k: int = 1000
    max_list: int = 10_000  # ids in an allow or deny list
    max_batch: int = 100  # questions in one request
    concurrency: int = 128  # requests at a time, per worker
    connections: int = 2048  # open connections, per worker
    timeout: float = 10.0  # seconds for the headers, for the body, and for the answer
    drain: float = 1.0  # seconds from SIGTERM in which new requests are still taken
    watch: float = 1.0  # seconds between looks at the artifact

    def __post_init__(self) -> None:
        for name in ("workers", "max_body", "max_history", "max_k", "max_list", "max_batch"):
            self._at_least(name, 1)
        for name in ("concurrency", "connections"):
            self._at_least(name, 1)
        for name in ("timeout", "watch"):
            self._at_least(name, 0.01)
        self._at_least("drain", 0)
        if not 0 <= self.port <= 65_535:
            raise TalerecError(f"port is {self.port}; it takes 0 to 65535")
        if self.token is not None and len(self.token) < _SHORTEST:
            raise TalerecError(f"the token is shorter than {_SHORTEST} characters")
        if not (is_loopback(self.host) or self.token or self.open):
            raise TalerecError(
                f"{self.host} can be reached from other machines: set {TOKEN} or --token-file, "
                "or say --open to let anybody ask"
            )

    def _at_least(self, name: str, least: float) -> None:
        if not getattr(self, name) >= least:
            raise TalerecError(f"{name} is {getattr(self, name)}; it must be at least {least}")


def is_loopback(host: str) -> bool:
    """Does this address reach no further than this machine?"""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(file: Path | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """The token from a file, else from the environment; there is no default."""
    if file is None:
        text = environment.get(TOKEN)
        if text is not None and not text.strip():
            raise TalerecError(f"{TOKEN} is empty")
        return text.strip() if text else None
    try:
        if file.stat().st_mode & stat.S_IROTH:
            raise TalerecError(f"{file} can be read by everybody: chmod 600 it")
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise TalerecError(f"{file} cannot be read: {error}") from None
    if not token:
        raise TalerecError(f"{file} is empty; it holds the token")
    return token

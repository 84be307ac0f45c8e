"""A PostgreSQL server of our own for tests: run by an unprivileged user, on the loopback address alone."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from processes import children_of, is_running
from waiting import LONG_S, until

PASSWORD = "topsecret"


def binary(name: str) -> str | None:
    """A program of PostgreSQL: on the path, or where Debian has it."""
    found = shutil.which(name)
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return found or (str(places[-1]) if places else None)


class Postgres:
    """A server in a folder of its own, apart from others that only root may enter; it can be killed and started again."""

    def __init__(self) -> None:
        initdb, self._program = binary("initdb"), binary("postgres")
        if initdb is None or self._program is None:
            pytest.skip("needs PostgreSQL's initdb and postgres")
        as_root = hasattr(os, "geteuid") and os.geteuid() == 0
        self._user: dict[str, Any] = {"user": "nobody", "extra_groups": []} if as_root else {}
        self._home = Path(tempfile.mkdtemp(prefix="talerec-pg-"))
        if as_root:
            os.chown(self._home, pwd.getpwnam("nobody").pw_uid, -1)
        secret = self._home / "pw"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        data = ["-D", str(self._home / "data")]
        made = [initdb, *data, "-U", "shop", "--auth=scram-sha-256", "--no-sync", "--encoding=UTF8", "--no-locale"]  # fmt: skip
        given = {"check": True, "capture_output": True, "cwd": self._home, **self._user}
        subprocess.run([*made, f"--pwfile={secret}"], **given)
        self._port = 0
        self.start()

    def start(self) -> None:
        """Start it, again while processes of a server that was killed have not ended yet."""
        assert self._program is not None
        end = time.monotonic() + LONG_S
        port = self._port  # another may have taken a new one before we do: then the next
        while time.monotonic() < end:
            self._port = port or _free_port()
            place = ["-p", str(self._port), "-k", str(self._home)]
            options = [*place, "-c", "listen_addresses=127.0.0.1"]
            self.process = subprocess.Popen(
                [self._program, "-D", str(self._home / "data"), *options],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=self._home,
                **self._user,
            )
            if self._is_up(end):
                return
            time.sleep(0.2)
        raise TimeoutError("PostgreSQL does not start")

    @property
    def address(self) -> str:
        return f"postgresql://shop:{PASSWORD}@127.0.0.1:{self._port}/postgres"

    def _is_up(self, end: float) -> bool:
        """Wait until it takes connections; False if it ends before that."""
        import psycopg

        while self.process.poll() is None and time.monotonic() < end:
            try:
                self.connect().close()
                return True
            except psycopg.OperationalError:
                time.sleep(0.1)
        return False

    def connect(self) -> Any:
        """A connection of our own."""
        import psycopg

        return psycopg.connect(self.address, autocommit=True, connect_timeout=60)

    def kill(self) -> None:
        """End the server as a failure of power would, and return when nobody of it is left: its own processes notice, and end too.

        One that had not noticed yet would keep another row and say so.
        """
        children = children_of(self.process.pid)
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(LONG_S)
        until(lambda: not any(map(is_running, children)), "processes of PostgreSQL do not end")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)  # a fast shutdown
            self.process.wait(LONG_S)
        shutil.rmtree(self._home, ignore_errors=True)


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A server until the block ends; skipped by name where PostgreSQL or its driver is not installed."""
    pytest.importorskip("psycopg", reason="needs psycopg: EXTRAS=all make test")
    server = Postgres()
    try:
        yield server
    finally:
        server.stop()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])

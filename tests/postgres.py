"""A PostgreSQL server for tests, run by an unprivileged user on the loopback address."""

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
    """Return the path of a PostgreSQL program: on PATH, or where Debian installs it."""
    on_path = shutil.which(name)
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return on_path or (str(places[-1]) if places else None)


class Postgres:
    """A server in a temporary folder of its own; it can be killed and started again."""

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
        command = [initdb, *data, "-U", "shop", "--auth=scram-sha-256", "--no-sync"]
        command += ["--encoding=UTF8", "--no-locale"]
        options = {"check": True, "capture_output": True, "cwd": self._home, **self._user}
        subprocess.run([*command, f"--pwfile={secret}"], **options)
        self._port = 0
        self.start()

    def start(self) -> None:
        """Start the server; retry while processes of a killed server have not ended yet."""
        assert self._program is not None
        end = time.monotonic() + LONG_S
        port = self._port  # another program may take a new port first: then try the next
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
        raise TimeoutError("PostgreSQL did not start")

    @property
    def address(self) -> str:
        return f"postgresql://shop:{PASSWORD}@127.0.0.1:{self._port}/postgres"

    def _is_up(self, end: float) -> bool:
        """Wait until the server accepts connections; return False if it ends before."""
        import psycopg

        while self.process.poll() is None and time.monotonic() < end:
            try:
                self.connect().close()
                return True
            except psycopg.OperationalError:
                time.sleep(0.1)
        return False

    def connect(self) -> Any:
        """Open a connection to the server."""
        import psycopg

        return psycopg.connect(self.address, autocommit=True, connect_timeout=60)

    def kill(self) -> None:
        """Kill the server as a power failure would, and wait until all its processes have ended.

        A process that still runs could store and acknowledge another row.
        """
        children = children_of(self.process.pid)
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(LONG_S)
        until(lambda: not any(map(is_running, children)), "processes of PostgreSQL did not end")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)  # a fast shutdown
            self.process.wait(LONG_S)
        shutil.rmtree(self._home, ignore_errors=True)


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Run a server; skip the test if PostgreSQL or its driver is not installed."""
    pytest.importorskip("psycopg", reason="needs psycopg: EXTRAS=all make test")
    server = Postgres()
    try:
        yield server
    finally:
        server.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

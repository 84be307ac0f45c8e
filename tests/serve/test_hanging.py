"""Workers that hang are replaced; the log cannot be forged; open files are counted first."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path

import pytest

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from processes import is_running, workers_of
from service import START, Local, Remote
from talerec.serve import Settings
from talerec.serve.process import heartbeats
from talerec.serve.process.logs import TextLines
from waiting import LONG_S, until

ASK = {"history": [{"item_id": 3}], "k": 5}
proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")


# -- workers that hang -----------------------------------------------------------------------------


def is_answered(service: Remote) -> bool:
    with suppress(OSError):
        return service.ask("POST", "/v1/recommend", ASK).status == 200
    return False


@proc
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_stopped_worker_is_replaced(saved, tmp_path, workers):
    log = tmp_path / "log"
    service = Remote(saved, "--hang-timeout", "3", "--workers", workers, log=log)
    try:
        stopped, *others = workers_of(service.process.pid)
        os.kill(stopped, signal.SIGSTOP)
        until(lambda: not is_running(stopped))
        until(lambda: len(workers_of(service.process.pid)) == int(workers))
        assert set(others) <= set(workers_of(service.process.pid))
        service.until("talerec_workers_ready", int(workers))
        assert all(is_answered(service) for _ in range(10))
        assert service.metric("talerec_workers_hung_total") == 1
        assert service.metric("talerec_workers_replaced_total") == 1
    finally:
        assert service.stop() == 0
    assert "gives no sign of life for 3 s: killed" in log.read_text()


@proc
def test_a_worker_that_holds_the_interpreter_is_replaced(saved, tmp_path):
    """A search blocks it for an hour, in code that lets no other thread of Python run."""
    (tmp_path / "sitecustomize.py").write_text(
        "import ctypes\n"
        "from talerec.serve.model import ServedModel\n"
        "search = ServedModel.search\n"
        "def hang(model, text, limit):\n"
        "    hangs = text == 'hang'\n"
        "    return ctypes.PyDLL(None).sleep(3600) if hangs else search(model, text, limit)\n"
        "ServedModel.search = hang\n"
    )
    source = os.environ.get("PYTHONPATH", "")
    service = Remote(saved, "--hang-timeout", "3", PYTHONPATH=f"{tmp_path}{os.pathsep}{source}")
    try:
        (hung,) = workers_of(service.process.pid)
        with service.connect() as connection:
            connection.sendall(b"GET /v1/items?q=hang HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            until(lambda: not is_running(hung))
        until(lambda: is_answered(service))
        assert service.metric("talerec_workers_hung_total") == 1
    finally:
        assert service.stop() == 0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(heartbeats, "time", clock)
    return clock


def test_a_start_has_a_limit_of_its_own_and_every_sign_of_life_counts(saved, clock):
    monitor = heartbeats.HeartMonitor(Settings(path=saved, hang_timeout=5, start_timeout=60))
    receiver, sender = Pipe(duplex=False)
    monitor.follow(0, receiver)
    silent: dict[int, float] = {}
    for _ in range(30):  # it loads its models
        clock.now += 2
        silent = monitor.find_silent()
        assert not silent
    clock.now += 2
    assert monitor.find_silent() == {0: 62.0}
    for _ in range(10):  # it serves
        os.write(sender.fileno(), b".")
        for _ in range(2):
            clock.now += 2
            assert not monitor.find_silent()
    clock.now += 2
    assert not monitor.find_silent()
    clock.now += 2
    assert monitor.find_silent() == {0: 6.0}
    again, other = Pipe(duplex=False)
    monitor.follow(0, again)  # its replacement starts
    clock.now += 2
    assert not monitor.find_silent()
    for end in (sender, again, other):
        end.close()


def test_a_supervisor_that_was_paused_blames_no_worker(saved, clock):
    monitor = heartbeats.HeartMonitor(Settings(path=saved, hang_timeout=5))
    receiver, sender = Pipe(duplex=False)
    monitor.follow(0, receiver)
    os.write(sender.fileno(), b".")
    assert not monitor.find_silent()
    clock.now += 86_400
    assert not monitor.find_silent()
    os.write(sender.fileno(), b".")
    clock.now += 1
    assert not monitor.find_silent()
    sender.close()
    receiver.close()


# -- the log ---------------------------------------------------------------------------------------


def test_a_path_cannot_forge_a_line_of_the_log(saved, tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "talerec")
    forged = "2026-01-01 00:00:00,000 ERROR the model is gone"
    local = Local(saved, tmp_path)
    for separator in ("\r\n", "\n", "\x85", "\u2028", "\x0b", "\x1b[2K", "\u202e"):
        local.get(f"/nowhere{separator}{forged}")
        line = TextLines().format(caplog.records[-1])
        assert forged in line
        assert line.splitlines() == [line]
        assert separator not in line
        assert line.isprintable()


def test_an_exception_cannot_forge_a_line_of_the_log():
    forged = "2026-01-01 00:00:00,000 ERROR the model is gone"
    try:
        raise ValueError(f"no such thing\n{forged}")
    except ValueError:
        record = logging.LogRecord("talerec", 40, "", 0, "failed", (), sys.exc_info())
    first, *lines = TextLines().format(record).splitlines()
    assert first.endswith("ERROR failed")
    assert any(forged in line for line in lines)
    assert all(line.startswith("    ") for line in lines)


# -- open files ------------------------------------------------------------------------------------


def limit_files(saved: Path, n_files: int, *options: str) -> subprocess.Popen[str]:
    """Start a service that may open so many files."""
    program = f'ulimit -n {n_files}; exec "$@"'
    command = [sys.executable, "-c", START, "serve", str(saved), "--port", "0", *options]
    return subprocess.Popen(
        ["sh", "-c", program, "sh", *command],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_too_few_open_files_prevent_the_start(saved):
    with limit_files(saved, 64) as started:
        said, error = started.communicate(timeout=LONG_S)
    assert (started.returncode, said) == (2, "")
    assert len(error.splitlines()) == 1
    assert "allows only 64 open files" in error
    assert "at least 144" in error


def test_few_open_files_leave_few_connections(saved):
    with limit_files(saved, 150) as started:
        try:
            port = int(started.stdout.readline().split("://127.0.0.1:")[1].split("/")[0])
            service = Remote.__new__(Remote)
            service.process, service.port, service.token = started, port, None
            assert is_answered(service)
        finally:
            started.terminate()
            _, error = started.communicate(timeout=LONG_S)
    assert started.returncode == 0
    assert "only 22 connections" in error

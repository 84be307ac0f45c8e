"""The supervisor: it starts workers and background processes, replaces and stops them.

The supervisor loads no model and answers no request, so no client and no model can crash it.
"""

from __future__ import annotations

import fcntl
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from talerec.errors import TalerecError, require_extra
from talerec.runtime import open_regular
from talerec.serve import RestartCounters, Settings, Tokens, TokenWatch, is_local
from talerec.serve.model import learnable
from talerec.serve.process import sockets
from talerec.serve.process.heartbeats import HeartMonitor
from talerec.serve.process.logs import configure_logging

logger = logging.getLogger("talerec")

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_REQUIRED = ("httptools", "msgspec", "uvicorn", "uvloop")
_RUN_PREFIX = "talerec-"
_RESTART_DELAY_S = 0.5  # seconds: a worker that cannot run is not restarted in a tight loop
_EVALUATOR_DELAY_S = 5.0  # seconds until online evaluation is restarted
_BACKGROUND_NICENESS = 10  # of background processes: requests come first
_SPAWN = multiprocessing.get_context("spawn")


def check_installed() -> None:
    """Raise TalerecError if a package of the extra `serve` (such as uvicorn) is not installed."""
    require_extra("serve", "serving", _REQUIRED)


def run(settings: Settings, say: Callable[[str], None]) -> None:
    """Run the service until SIGTERM or SIGINT.

    Parameters
    ----------
    settings : Settings
        The settings of the service.
    say : function
        Called with the lines that tell users where the service listens, once it does.

    Raises
    ------
    TalerecError
        If a setting cannot be used, the address is in use, or the model cannot be loaded or
        cannot answer.
    """
    check_installed()
    sockets.load_tls(settings)  # checks the certificate
    max_connections = sockets.allow_connections(settings)
    if settings.learn is not None:
        learnable.check_learnable(settings.path)
    configure_logging(settings)
    if max_connections < settings.connections:
        text = "a worker accepts only %d connections: the system allows no more open files"
        logger.warning(text, max_connections)
    with _run_folder(settings) as folder, sockets.reserve_address(settings) as reserved:
        url = sockets.describe_address(settings, reserved)
        address = reserved if settings.unix is not None else reserved.getsockname()[1]

        def announce(version: str) -> None:
            """Tell users the version, URL and number of workers, and warn if there is no token."""
            workers = "1 worker" if settings.workers == 1 else f"{settings.workers} workers"
            say(f"model {version} at {url} ({workers})")
            if not is_local(settings) and not settings.needs_token:
                say("no token is set: everybody who can reach this machine can use the service")

        try:
            Supervisor(settings, folder, address).run(announce)
        finally:
            if settings.unix is not None:
                settings.unix.unlink(missing_ok=True)


class Supervisor:
    """Keeps all processes of a service running until a stop signal, then stops them.

    The processes: workers answer requests, the learner refits the model, the evaluator measures the
    served models on new events.

    Parameters
    ----------
    settings : Settings
        The settings of the service.
    folder : Path
        The folder of the run, for files that the processes share.
    address : socket or int
        The Unix socket or the TCP port of the workers.
    """

    def __init__(self, settings: Settings, folder: Path, address: socket.socket | int) -> None:
        self._settings, self._folder, self._address = settings, folder, address
        self._workers: list[BaseProcess] = []
        self._learner: BaseProcess | None = None
        self._evaluator: BaseProcess | None = None
        self._evaluator_start_at = 0.0  # by `time.monotonic`; 0 while the evaluator runs
        self._stop_signals: list[int] = []  # received so far
        self._is_ready = False  # whether all workers have begun to serve
        self._hearts = HeartMonitor(settings)
        self._tokens = TokenWatch(settings.load_tokens(), settings.token_file, reports=True)
        self._tokens.start(settings.watch, threading.Event())
        self._restarts = RestartCounters(folder)

    def run(self, on_ready: Callable[[str], None]) -> None:
        """Start the workers and run until a stop signal, replacing processes that end.

        `on_ready` is called with the version of the model once every worker serves it; then the
        learner (refits) and the evaluator (online evaluation) are started too. TalerecError if a
        worker cannot start. At the end all processes are stopped.
        """
        for number in _STOP_SIGNALS:
            signal.signal(number, self._on_signal)
        try:
            self._workers += [self._start_worker(n) for n in range(self._settings.workers)]
            while not self._stop_signals:
                wait([worker.sentinel for worker in self._workers], 1.0 if self._is_ready else 0.05)
                self._report_ready(on_ready)
                self._kill_silent_workers()
                self._replace_ended_worker()
                if self._is_ready and not self._stop_signals:
                    self._keep_learner_running()
                    self._keep_evaluator_running()
        finally:
            self._stop()

    def _on_signal(self, number: int, _: Any) -> None:
        """Note a stop signal and pass it on to all processes of the service, as SIGTERM.

        A handler of `signal.signal`: `number` is the signal's number.
        """
        self._stop_signals.append(number)
        self._terminate()

    def _terminate(self) -> None:
        """Send SIGTERM to all processes of the service: workers, learner and evaluator.

        The learner refits the model, the evaluator measures it on new events.
        """
        for process in self._processes():
            process.terminate()

    def _processes(self) -> list[BaseProcess]:
        """Return the workers and the background processes that were started.

        Background processes: the learner refits the model, the evaluator measures it on new events.
        """
        background = (self._learner, self._evaluator)
        return [*self._workers, *(process for process in background if process is not None)]

    def _start_process(self, target: Callable[..., None], *arguments: Any) -> BaseProcess:
        """Start a process that calls `target(settings, folder, *arguments)`, and return it.

        `folder` is the folder of the run. The process is a fresh interpreter ("spawn").
        """
        arguments = (self._settings, self._folder, *arguments)
        process = _SPAWN.Process(target=target, args=arguments, daemon=True)
        process.start()
        return process

    def _start_worker(self, worker: int) -> BaseProcess:
        """Start the process that answers requests as the worker with this index, from 0."""
        receiver, sender = _SPAWN.Pipe(duplex=False)
        with sender:  # the worker has a copy of its own
            tokens = self._tokens.current
            process = self._start_process(_run_worker, self._address, worker, sender, tokens)
        self._hearts.follow(worker, receiver)
        return process

    def _report_ready(self, on_ready: Callable[[str], None]) -> None:
        """Call `on_ready`, once, when every worker has written its version to its ready file.

        Worker n writes the version of its model to the file `ready-n` of the run's folder;
        `on_ready` gets that of worker process 0. Sets `_is_ready`.
        """
        if self._is_ready:
            return
        files = [self._folder / f"ready-{n}" for n in range(self._settings.workers)]
        if all(file.exists() for file in files):
            self._is_ready = True
            on_ready(files[0].read_text())

    def _kill_silent_workers(self) -> None:
        """Kill the workers that gave no sign of life for too long; they are replaced like others.

        Each kill is logged and counted. Nothing happens after a stop signal.
        """
        for worker, seconds in self._hearts.find_silent().items():
            process = self._workers[worker]
            if process.is_alive() and not self._stop_signals:
                logger.error("worker %d gives no sign of life for %.0f s: killed", worker, seconds)
                self._restarts.increment("workers_hung")
                process.kill()
                process.join()

    def _replace_ended_worker(self) -> None:
        """Replace the first worker that ended; during the start, raise the error that ended it.

        A worker is a process that answers requests; it writes such an error to the file `error` of
        the run's folder. Nothing happens after a stop signal.
        """
        ended = [n for n, worker in enumerate(self._workers) if not worker.is_alive()]
        if not ended or self._stop_signals:
            return
        error = self._folder / "error"
        if error.exists() and not self._is_ready:
            raise TalerecError(error.read_text())
        n, code = ended[0], self._workers[ended[0]].exitcode
        logger.warning("worker %d ended with exit code %s and is replaced", n, code)
        self._restarts.increment("workers_replaced")
        time.sleep(_RESTART_DELAY_S)
        if not self._stop_signals:
            self._workers[n] = self._start_worker(n)

    def _keep_learner_running(self) -> None:
        """Start the process that refits the model, or replace it if it has ended.

        Nothing is started without the setting `learn`. An end, such as for lack of memory, adds 1
        to "failures", and sets "error" and "failed" (Unix seconds), in the JSON file of the
        learning state, which workers report.
        """
        learner = self._learner
        if self._settings.learn is None or (learner is not None and learner.is_alive()):
            return
        if learner is not None:
            message = f"the learner ended with exit code {learner.exitcode}"
            logger.warning("%s and is replaced", message)
            state = learnable.read_learning_state(self._folder) or {}
            state |= {"failures": state.get("failures", 0) + 1, "error": message}
            learnable.write_learning_state(self._folder, {**state, "failed": time.time()})
        self._learner = self._start_process(_run_learner)

    def _keep_evaluator_running(self) -> None:
        """Start the process of online evaluation, or replace it five seconds after it ended.

        It measures the served models on new events. There is none without the setting `measure`.
        `_evaluator_start_at` is when to replace it, 0 while it runs.
        """
        evaluator = self._evaluator
        if not self._settings.measure or (evaluator is not None and evaluator.is_alive()):
            return
        if evaluator is not None and not self._evaluator_start_at:
            logger.warning("online evaluation ended with exit code %s", evaluator.exitcode)
            self._evaluator_start_at = time.monotonic() + _EVALUATOR_DELAY_S
        if time.monotonic() >= self._evaluator_start_at:
            self._evaluator_start_at = 0.0
            self._evaluator = self._start_process(_run_evaluator)

    def _stop(self) -> None:
        """Stop all processes, and kill those that still run after the time limit.

        The limit is that of open requests, or a second before the service was ready. What a stopped
        learner (the process that refits the model) left unfinished is removed.
        """
        self._terminate()
        seconds = self._settings.timeout + 2 * self._settings.drain + 5 if self._is_ready else 1.0
        end = time.monotonic() + seconds
        for process in self._processes():
            process.join(max(0.1, end - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        if self._learner is not None:
            learnable.remove_unfinished(self._settings.path)


# -- what the processes run ------------------------------------------------------------------------


def _run_worker(
    settings: Settings, folder: Path, address: socket.socket | int, index: int,
    sender: Connection, tokens: Tokens | None,
) -> None:  # fmt: skip
    """Run the worker with this index, from 0, in this process; it answers requests.

    Heavy modules are imported only here. `folder` is the folder of the run, `address` the Unix
    socket or the TCP port; `sender` takes signs of life to the supervisor; `tokens` are accepted
    until their file changes.
    """
    from talerec.serve.process.worker import run_worker

    configure_logging(settings)
    run_worker(settings, folder, address, index, sender, tokens)


def _run_learner(settings: Settings, folder: Path) -> None:
    """Run the process that refits the model with new events; heavy modules load only here.

    `folder` is the folder of the run, which all processes of the service share.
    """
    _set_up_background(settings)
    from talerec.serve.process.learner import run_learner

    run_learner(settings, folder)


def _run_evaluator(settings: Settings, folder: Path) -> None:
    """Run the process that evaluates the served models on new events, until a stop signal.

    `folder` is the folder of the run, which all processes of the service share. If evaluation
    cannot go on, a warning is logged and the process exits with 1.
    """
    _set_up_background(settings)
    from talerec.serve.online import EvaluationProcess

    try:
        process = EvaluationProcess(settings, folder)
        for number in _STOP_SIGNALS:
            signal.signal(number, lambda *_: process.stopping.set())
        process.run()
    except TalerecError as error:
        logger.warning("online evaluation ends: %s", error)
        raise SystemExit(1) from None


def _set_up_background(settings: Settings) -> None:
    """Give this process a low priority and the log's settings, and end it with its parent.

    Stop signals end the process at once. A thread waits for the end of the parent process.
    """
    configure_logging(settings)
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    os.nice(_BACKGROUND_NICENESS)

    def end_with_parent() -> None:
        """Wait for the end of the parent process, then exit."""
        parent = multiprocessing.parent_process()
        if parent is not None:
            wait([parent.sentinel])
            os._exit(0)

    threading.Thread(target=end_with_parent, daemon=True).start()


# -- the folder of a run ---------------------------------------------------------------------------


@contextmanager
def _run_folder(settings: Settings) -> Iterator[Path]:
    """Create the folder of this run of the service, and remove it at the end.

    A context manager. The folder holds metrics and copies of models; the lock on its file `owner`
    shows that the run continues. Folders that killed runs left behind are removed too. TalerecError
    if it cannot be created.
    """
    parent = Path(settings.copies or tempfile.gettempdir())
    try:
        _remove_abandoned(parent)
        folder = Path(tempfile.mkdtemp(prefix=_RUN_PREFIX, dir=parent))
    except OSError as error:
        raise TalerecError(f"{parent} cannot be written: {error.strerror or error}") from None
    try:
        with (folder / "owner").open("wb") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX)
            os.set_inheritable(owner.fileno(), False)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(parent: Path) -> None:
    """Remove the folders of killed runs of the service in the folder `parent`.

    The supervisor process of a run that continues holds a lock on the file `owner` in the run's
    folder, so that the folder cannot be locked here.
    """
    for folder in parent.glob(f"{_RUN_PREFIX}*"):
        with suppress(OSError), open_regular(folder / "owner") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its run continues
            shutil.rmtree(folder, ignore_errors=True)

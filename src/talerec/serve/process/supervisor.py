"""Running the service: a supervisor that starts workers, replaces those that end, and stops them.

The supervisor loads no model and answers no request, so nothing that a client or a model does can end it.
"""

from __future__ import annotations

import fcntl
import logging
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from talerec.errors import TalerecError
from talerec.serve.model import learnable
from talerec.serve.process import logs
from talerec.serve.process import sockets as listening
from talerec.serve.settings import Settings, is_local

logger = logging.getLogger("talerec")

_NEEDED = ("httptools", "msgspec", "uvicorn", "uvloop")
_PREFIX = "talerec-"
_RESTART_DELAY_S = 0.5  # seconds: a worker that cannot run is not restarted in a tight loop
_MEASURE_AGAIN_S = 5.0  # seconds until the process that measures takes the place of one that ended
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SPAWN = multiprocessing.get_context("spawn")

Say = Callable[[str], None]


def check_installed() -> None:
    """Refuse to serve where the extra `serve` is not installed."""
    for name in _NEEDED:
        if find_spec(name) is None:
            raise TalerecError(
                f"serving needs the extra `serve` ({name} is missing): pip install 'talerec[serve]'"
            )


def run(settings: Settings, say: Say) -> None:
    """Serve until SIGTERM or SIGINT. `say` is called with the lines that tell where the service listens, once it does.

    Raises
    ------
    TalerecError
        Where it cannot: the address is taken, or the model cannot be loaded or cannot answer.
    """
    check_installed()
    listening.check_tls(settings)
    if settings.learn is not None:
        learnable.check_learnable(settings.path)
    logs.set_up(settings)
    with _folder_of_run(settings) as folder, listening.reserve(settings) as reserved:
        address = listening.address_of(settings, reserved)
        supervisor = Supervisor(settings, folder, listening.for_workers(settings, reserved))
        try:
            supervisor.run(lambda version: _tell(settings, version, address, say))
        finally:
            listening.release(settings)


def _tell(settings: Settings, version: str, address: str, say: Say) -> None:
    workers = "1 worker" if settings.workers == 1 else f"{settings.workers} workers"
    say(f"model {version} at {address} ({workers})")
    if not is_local(settings) and settings.token is None:
        say("there is no token: everybody who can reach this machine can use the service")


class Supervisor:
    """Keeps all workers of a service alive until a signal to stop, then stops them."""

    def __init__(self, settings: Settings, folder: Path, address: Any) -> None:
        self._settings, self._folder, self._address = settings, folder, address
        self._workers: list[BaseProcess] = []
        self._learner: BaseProcess | None = None
        self._measurer: BaseProcess | None = None
        self._measure_from = 0.0  # when it is started (again)
        self._signals: list[int] = []
        self._is_ready = False

    def run(self, on_ready: Callable[[str], None]) -> None:
        """Run until told to stop; `on_ready` gets the version of the model once every worker serves it."""
        for number in _STOP_SIGNALS:
            signal.signal(number, self._on_signal)
        try:
            self._workers += [self._start(n) for n in range(self._settings.workers)]
            while not self._signals:
                wait([worker.sentinel for worker in self._workers], 1.0 if self._is_ready else 0.05)
                self._announce(on_ready)
                self._replace_ended()
                self._keep_learning()
                self._keep_measuring()
        finally:
            self._stop()

    def _on_signal(self, number: int, _: Any) -> None:
        self._signals.append(number)
        self._terminate()

    def _terminate(self) -> None:
        for worker in self._processes():
            if worker.pid is not None and worker.is_alive():
                with suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGTERM)

    def _processes(self) -> list[BaseProcess]:
        others = [one for one in (self._learner, self._measurer) if one is not None]
        return [*self._workers, *others]

    def _keep_measuring(self) -> None:
        """Start the process that measures once the workers serve, and again (not at once) if it ends."""
        ended = self._measurer is None or not self._measurer.is_alive()
        if not (self._settings.measure and self._is_ready and ended) or self._signals:
            return
        if self._measurer is not None and not self._measure_from:
            code = self._measurer.exitcode
            logger.warning("the process that measures ended with exit code %s", code)
            self._measure_from = time.monotonic() + _MEASURE_AGAIN_S
        if time.monotonic() >= self._measure_from:
            self._measure_from = 0.0
            self._measurer = _SPAWN.Process(
                target=_measure, args=(self._settings, self._folder), daemon=True
            )
            self._measurer.start()

    def _start(self, n: int) -> BaseProcess:
        arguments = (self._settings, self._folder, self._address, n)
        started = _SPAWN.Process(target=_work, args=arguments, daemon=True)
        started.start()
        return started

    def _announce(self, on_ready: Callable[[str], None]) -> None:
        if self._is_ready:
            return
        ready = [self._folder / f"ready-{n}" for n in range(self._settings.workers)]
        if all(path.exists() for path in ready):
            self._is_ready = True
            on_ready(ready[0].read_text())

    def _replace_ended(self) -> None:
        ended = [n for n, worker in enumerate(self._workers) if not worker.is_alive()]
        if not ended or self._signals:
            return
        error = self._folder / "error"
        if error.exists() and not self._is_ready:
            raise TalerecError(error.read_text())
        n, code = ended[0], self._workers[ended[0]].exitcode
        logger.warning("worker %d ended with exit code %s: another takes its place", n, code)
        time.sleep(_RESTART_DELAY_S)
        if not self._signals:
            self._workers[n] = self._start(n)

    def _keep_learning(self) -> None:
        """Have one process that learns, once the service is ready; if it ends (for lack of memory, say), another takes its place."""
        if self._settings.learn is None or not self._is_ready or self._signals:
            return
        if self._learner is not None and self._learner.is_alive():
            return
        if self._learner is not None:
            self._tell_of_end(self._learner.exitcode)
        arguments = (self._settings, self._folder)
        self._learner = _SPAWN.Process(target=_learn, args=arguments, daemon=True)
        self._learner.start()

    def _tell_of_end(self, code: int | None) -> None:
        message = f"the process that learns ended with exit code {code}"
        logger.warning("%s: another takes its place", message)
        state = learnable.read_state(self._folder) or {}
        failures = state.get("failures", 0) + 1
        learnable.write_state(
            self._folder,
            {**state, "failures": failures, "error": message, "failed": time.time()},
        )

    def _stop(self) -> None:
        """Tell all workers to stop, and end those that still run after the time that they have for it."""
        self._terminate()
        seconds = self._settings.timeout + 2 * self._settings.drain + 5 if self._is_ready else 1.0
        end = time.monotonic() + seconds
        for worker in self._processes():
            worker.join(max(0.1, end - time.monotonic()))
            if worker.is_alive():
                worker.kill()
                worker.join()
        if self._learner is not None:
            learnable.remove_unfinished(self._settings.path)


def _work(settings: Settings, folder: Path, address: Any, n: int) -> None:
    from talerec.serve.process.worker import run_worker

    run_worker(settings, folder, address, n)


def _learn(settings: Settings, folder: Path) -> None:
    from talerec.serve.process.learner import run_learner

    run_learner(settings, folder)


def _measure(settings: Settings, folder: Path) -> None:
    from talerec.serve.process.online_evaluator import run_measurer

    run_measurer(settings, folder)


# -- the folder of a run ---------------------------------------------------------------------------


@contextmanager
def _folder_of_run(settings: Settings) -> Iterator[Path]:
    """A folder for what the workers share: numbers, and copies of models. A run that was killed left its own: it goes."""
    parent = Path(settings.copies or tempfile.gettempdir())
    try:
        _remove_abandoned(parent)
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
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
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError), (folder / "owner").open("rb") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its run goes on
            shutil.rmtree(folder, ignore_errors=True)

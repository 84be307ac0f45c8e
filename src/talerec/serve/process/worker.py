"""One worker: it loads the model, serves HTTP, and stops without dropping a request."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path

from talerec.errors import TalerecError
from talerec.serve import Settings, Tokens
from talerec.serve.http import App
from talerec.serve.process.draining_server import DrainingServer
from talerec.serve.process.heartbeats import send_heartbeats
from talerec.serve.process.http_protocol import ConnectionLimits
from talerec.serve.process.sockets import allow_connections, bind_worker, load_tls


def run_worker(
    settings: Settings, folder: Path, address: socket.socket | int, worker: int,
    sender: Connection, tokens: Tokens | None,
) -> None:  # fmt: skip
    """Run one worker process until a stop signal: load the models and serve HTTP.

    `folder` is that of the run, which all processes of the service share, `address` the Unix socket
    or the TCP port, `worker` its index from 0; `sender` takes signs of life to the supervisor from
    when the worker serves, and `tokens` are accepted until their file changes. An error that
    prevents its start is written to the file `error` in `folder`, and the process exits with 2; the
    version of its model goes to the file `ready-N` once it serves.
    """
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # until uvicorn installs its handlers
        signal.signal(number, lambda *_: stopping.set())
    threading.Thread(target=_end_with_parent, args=(settings, folder), daemon=True).start()
    max_connections = allow_connections(settings)
    try:
        app = App(settings, folder, worker, tokens)
        if not _load_models(app, stopping):
            _remove_if_orphaned(folder)
            sys.stderr.flush()
            os._exit(0)  # without waiting for the compiler, which cannot be interrupted
    except TalerecError as error:
        (folder / "error").write_text(str(error))
        sys.exit(2)
    gc.set_threshold(100_000, 50, 1000)  # requests leave no reference cycles behind
    on_drop = partial(app.shared.increment, "dropped_connections")
    limits = ConnectionLimits(max_connections, settings.timeout, on_drop)

    def on_started() -> bool:
        """Write the served version to the ready file; return whether a stop signal came before.

        Signs of life begin here too.
        """
        send_heartbeats(sender, settings)
        if app.holder.current is not None:
            (folder / f"ready-{worker}").write_text(app.holder.current.version)
        return stopping.is_set()

    context = load_tls(settings)
    server = DrainingServer(app, limits, context, on_started, app.drain, settings.drain)
    server.run([bind_worker(settings, address)])
    _remove_if_orphaned(folder)


def _load_models(app: App, stopping: threading.Event) -> bool:
    """Load the models in a thread, so that signals are handled while kernels are compiled.

    Returns True once they are loaded, False if `stopping`, which a stop signal sets, is set first.
    Errors of the load are raised.
    """
    loading = ThreadPoolExecutor(1, "load").submit(app.load)
    while not loading.done():
        if stopping.wait(0.02):
            return False
    loading.result()
    return True


def _remove_if_orphaned(folder: Path) -> None:
    """Remove the folder of the run if the supervisor process, which would do so, has ended.

    The supervisor is the parent process, which starts all workers of the service.
    """
    parent = multiprocessing.parent_process()
    if parent is None or not parent.is_alive():
        shutil.rmtree(folder, ignore_errors=True)


def _end_with_parent(settings: Settings, folder: Path) -> None:
    """Wait for the end of the supervisor process, then stop this worker and remove `folder`.

    The supervisor is the parent process; the folder has the files that all workers share. If
    SIGTERM does not end the worker in time, it exits at once. Runs in a thread.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(settings.timeout + 2 * settings.drain + 5)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)

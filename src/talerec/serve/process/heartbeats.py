"""Signs of life: workers send them to the supervisor, which notices workers that hang.

A sign is one byte in a pipe, sent by a worker's event loop once the worker serves. A worker that is
stopped, or whose interpreter is blocked, sends none.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

from talerec.serve import Settings

_PERIOD_S = 1.0  # seconds between two signs of life
_MAX_STEP_S = 3.0  # silence that one check counts: a supervisor that was paused blames no worker


def send_heartbeats(sender: Connection, settings: Settings) -> None:
    """Send a sign of life now and every second from the running event loop, until it ends.

    `sender` is the worker's end of a pipe to the supervisor; a full pipe loses a sign and blocks
    nothing. The period is shorter if the setting `hang_timeout` needs it.
    """
    os.set_blocking(sender.fileno(), False)
    loop, period = asyncio.get_running_loop(), min(_PERIOD_S, settings.hang_timeout / 4)

    def beat() -> None:
        """Send one sign of life, and schedule the next."""
        with suppress(OSError):
            os.write(sender.fileno(), b".")
        loop.call_later(period, beat)

    beat()


@dataclass
class _Pulse:
    """One worker's signs of life, as the supervisor has received them."""

    receiver: Connection  # the supervisor's end of the worker's pipe
    silent_s: float = 0.0  # seconds since the last sign of life, or since the start
    serves: bool = False  # whether a sign has come: the worker has started


class HeartMonitor:
    """Finds the workers that gave no sign of life for too long.

    A worker that serves has the setting `hang_timeout` (seconds); one that starts, loads its models
    and compiles kernels has `start_timeout`.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pulses: dict[int, _Pulse] = {}
        self._checked_at = time.monotonic()

    def follow(self, worker: int, receiver: Connection) -> None:
        """Follow a new process of the worker with this index; `receiver` gets its signs of life."""
        old = self._pulses.pop(worker, None)
        if old is not None:
            old.receiver.close()
        os.set_blocking(receiver.fileno(), False)
        self._pulses[worker] = _Pulse(receiver)

    def find_silent(self) -> dict[int, float]:
        """Return the workers that were silent beyond their limit, and for how many seconds.

        To be called every second or so: one call counts at most three seconds of silence, so that
        no worker is blamed if this process or the whole machine was paused.
        """
        now = time.monotonic()
        step, self._checked_at = min(now - self._checked_at, _MAX_STEP_S), now
        silent = {}
        for worker, pulse in self._pulses.items():
            if _has_beaten(pulse.receiver):
                pulse.silent_s, pulse.serves = 0.0, True
                continue
            pulse.silent_s += step
            settings = self._settings
            limit = settings.hang_timeout if pulse.serves else settings.start_timeout
            if pulse.silent_s > limit:
                silent[worker] = pulse.silent_s
        return silent


def _has_beaten(receiver: Connection) -> bool:
    """Return whether signs of life wait in a pipe, which does not block; they are read."""
    try:
        return bool(os.read(receiver.fileno(), 2**16))  # nothing: the worker has ended
    except OSError:  # nothing waits
        return False

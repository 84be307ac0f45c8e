"""A training: rows and settings in, a network's arrays out. It needs NumPy and torch, and nothing else of a log."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from talerec.neural import checkpoints
from talerec.neural.devices import device_of, exactly, needed_bytes, require_room
from talerec.neural.losses import Criterion, criterion
from talerec.neural.nets.base import Net
from talerec.neural.registry import KINDS, build
from talerec.neural.samples import WHOLE, Feed, cut, widths
from talerec.neural.settings import VERSION, Rows, Settings
from talerec.neural.trainer import Deadline, Trainer
from talerec.neural.validation import Judges, drawn, held_back
from talerec.runtime.arrays import Array

_SEARCH, _FINAL = 0, 1  # courses of a training: how many epochs, and then on all rows
_EVERY = 20.0  # seconds between checkpoints


@dataclass(frozen=True, eq=False)
class Training:
    """A network's arrays by name, and how they came about."""

    facts: dict[str, Any]
    arrays: dict[str, Array]

    def save(self, path: str | Path) -> Path:
        """Write it to one .npz file, whole or not at all."""
        checkpoints.write(Path(path), self.facts, self.arrays)
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> Training:
        """Read what `save` wrote."""
        return cls(*checkpoints.read(Path(path)))


def scheme_of(settings: Settings) -> str:
    """How a log is cut into samples for a network with these settings."""
    return WHOLE if KINDS[settings.kind].hides_rows else settings.samples


class _Work:
    """What both courses of a training share."""

    def __init__(self, rows: Rows, settings: Settings) -> None:
        self.rows, self.settings = rows, settings
        self.device = device_of(settings.device)
        with torch.device("meta"):
            plan = build(rows.items, settings)
        self.longest, self.longest_asked = settings.max_history, plan.longest_asked
        self.allowed = [self.longest] if plan.fixed_width else widths(self.longest)
        self.scheme = scheme_of(settings)
        self.criterion = self._criterion()

    def _criterion(self) -> Criterion:
        own, odds = self.settings.own, None
        if own.get("popularity", 0.0) > 0:
            counts = np.bincount(self.rows.item, minlength=self.rows.items) ** own["popularity"]
            odds = torch.tensor(counts / counts.sum(), dtype=torch.float32, device=self.device)
        return criterion(
            self.settings.loss,
            self.settings.negatives,
            half=self.settings.precision == "bfloat16",
            calibration=own.get("calibration", 0.0),
            odds=odds,
        )

    def net(self) -> Net:
        """A network with its first parameters, drawn on the host so that devices agree."""
        torch.manual_seed(self.settings.seed)
        made = build(self.rows.items, self.settings)
        made.reset()
        made.prepare(self.rows)
        return made.to(self.device)

    def trainer(self, end: Array, epochs: int, judges: Judges | None, keep_best: bool) -> Trainer:
        """A new network and its trainer, on each user's rows up to `end`."""
        made = cut(self.scheme, np.asarray(self.rows.ptr[:-1], np.int64), end, self.longest)
        feed = Feed(self.rows, made, self.device)
        asked = None
        if judges is not None:
            asked = Feed(self.rows, judges.samples(self.longest_asked), self.device)
        return Trainer(self.net(), feed, self.allowed, self.criterion, epochs, asked, keep_best)

    def require_room(self) -> None:
        """Refuse the training where it does not fit."""
        each = 1 if self.scheme == "prefixes" else self.longest
        cells = max(1, self.settings.batch // each) * self.longest
        require_room(needed_bytes(self.settings, self.rows.items, cells, self.longest), self.device)


def train(
    rows: Rows,
    settings: Settings,
    *,
    held: Array | None = None,
    checkpoint: Path | None = None,
    seconds: float = math.inf,
    every: float = _EVERY,
) -> Training | None:
    """Train a network on a log.

    The last rows of some users are held back to find how many epochs are best; then the network is trained again on
    all rows for so many. With `held` (users, by position) their last rows are held back for good: nothing is
    learned from them, and the network is the one after the best epoch.

    checkpoint: a file to go on from, and to write to every so many seconds
    seconds: after so many the training is kept in the checkpoint, and None is returned
    """
    work = _Work(rows, settings)
    work.require_room()
    courses = _Courses(work, held, checkpoint)
    with exactly(work.device, settings.precision, settings.seed):
        trainer = courses.run(Deadline(seconds, every, courses.save if checkpoint else None))
    if trainer is None:
        return None
    learned = rows if held is None else rows.without_last(held)
    facts = {
        "kind": settings.kind,
        "params": settings.params(),
        "rows": learned.fingerprint(),
        "version": VERSION,
        "seconds": courses.spent(),
        "device": str(work.device),
        **courses.found,
    }
    return Training(facts, checkpoints.state_of(trainer.net))


class _Courses:
    """The search for the number of epochs, and the training on all rows after it."""

    def __init__(self, work: _Work, held: Array | None, path: Path | None) -> None:
        self.work, self.held, self.path = work, held, path
        self.key = work.settings.key(work.rows) + ("" if held is None else "-held")
        self.number = _SEARCH
        self.found: dict[str, Any] = {}
        self.trainer: Trainer | None = None
        self._start, self._before = time.perf_counter(), 0.0

    def spent(self) -> float:
        """Seconds of work so far, those before a checkpoint too."""
        return self._before + time.perf_counter() - self._start

    def run(self, stop: Deadline) -> Trainer | None:
        """Both courses; None where the time was over before."""
        kept, settings, rows = self._kept(), self.work.settings, self.work.rows
        for_good = self.held is not None
        users = drawn(rows, settings.judges, settings.seed) if self.held is None else self.held
        if self.number == _SEARCH and len(users):
            judges, end = held_back(rows, users)
            trainer = self.work.trainer(end, settings.epochs, judges, keep_best=for_good)
            if not self._course(trainer, kept, stop):
                return None
            course, kept = trainer.course, None
            epochs = course.best or course.epoch
            self.found = {"epochs": epochs, "ndcg": course.value, "values": course.values}
            if for_good:
                trainer.finish()
                return trainer
        self.number = _FINAL
        epochs = self.found.get("epochs", settings.epochs)
        end = np.array(rows.ptr[1:], np.int64)
        trainer = self.work.trainer(end, epochs, None, keep_best=False)
        if not self._course(trainer, kept, stop):
            return None
        self.found = {"epochs": epochs, **self.found, "losses": trainer.course.losses}
        return trainer

    def _course(self, trainer: Trainer, kept: Any, stop: Deadline) -> bool:
        self.trainer = trainer
        if kept is not None:
            trainer.resume(*kept)
        return trainer.run("train", self.number, stop)

    # -- keeping --

    def save(self) -> None:
        """Write a checkpoint."""
        if self.trainer is None or self.path is None:
            return
        course, arrays = self.trainer.kept()
        facts = {"key": self.key, "number": self.number, "found": self.found, "course": course}
        checkpoints.write(self.path, {**facts, "spent": self.spent()}, arrays)

    def _kept(self) -> Any:
        """The state of the trainer in the checkpoint, where there is one of these settings and rows."""
        if self.path is None or not self.path.exists():
            return None
        facts, arrays = checkpoints.read(self.path)
        if facts.get("key") != self.key:
            return None
        self.number, self.found, self._before = facts["number"], facts["found"], facts["spent"]
        return facts["course"], arrays

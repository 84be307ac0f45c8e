"""One trainer for all networks: epochs of Adam, judged by held-back rows, resumed where it was stopped."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from talerec.errors import TalerecError
from talerec.neural import checkpoints
from talerec.neural.losses import Criterion
from talerec.neural.nets.base import Net, Step
from talerec.neural.samples import Feed, batches
from talerec.neural.settings import Settings
from talerec.neural.validation import ndcg
from talerec.runtime.arrays import Array
from talerec.runtime.progress import stage

_CLIP = 5.0  # the largest norm of a gradient


@dataclass
class Course:
    """How far a training has come."""

    epoch: int = 0  # epochs that are done
    best: int = 0  # the epoch after which the judges found most
    value: float = -1.0  # their NDCG@10 then
    losses: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def note(self, loss: float, value: float | None) -> bool:
        """One more epoch is done; is it the best so far?"""
        self.epoch += 1
        self.losses.append(loss)
        if value is None:
            return False
        self.values.append(value)
        if value <= self.value:
            return False
        self.best, self.value = self.epoch, value
        return True


class Trainer:
    """A network, its optimiser, and how far they have come in one course of epochs.

    judges : held-back rows; without them, every epoch is run
    keep_best : remember the parameters after the best epoch, which `finish` puts back
    """

    def __init__(
        self,
        net: Net,
        feed: Feed,
        allowed: list[int],
        criterion: Criterion,
        epochs: int,
        judges: Feed | None = None,
        keep_best: bool = False,
    ) -> None:
        self.net, self.feed, self.allowed, self.criterion = net, feed, allowed, criterion
        self.epochs, self.judges, self.keep_best = epochs, judges, keep_best
        self.course = Course()
        self.best: dict[str, Array] = {}
        self.optimiser = _adam(net, net.settings)
        self._told = 0  # epochs that progress was told of

    @property
    def over(self) -> bool:
        """Is there nothing more to do?"""
        return self.course.epoch >= self._certain

    @property
    def _certain(self) -> int:
        """Epochs that will be run whatever comes."""
        if self.judges is None:
            return self.epochs
        last = max(self.course.best, self.net.warmup) + self.net.settings.patience
        return min(self.epochs, last)

    def run(self, name: str, number: int, stop: Callable[[], bool]) -> bool:
        """Train until the course is over (True), or until `stop` says so after an epoch (False).

        number: which course of the training this is, for its draws
        """
        tick, self._told = stage(name, float(self._certain)), self._certain
        tick(float(self.course.epoch))
        while not self.over:
            loss = self._epoch(number)
            value = self._judged()
            if self.course.note(loss, value) and self.keep_best:
                self.best = checkpoints.state_of(self.net)
            if self._certain > self._told:
                stage(name, float(self._certain - self._told))
                self._told = self._certain
            tick(1.0, _words(self.course))
            if not self.over and stop():
                return False
        return True

    def _judged(self) -> float | None:
        if self.judges is None or self.course.epoch < self.net.warmup:
            return None
        return ndcg(self.net, self.judges, self.allowed)

    def _epoch(self, number: int) -> float:
        """One pass over the samples, in an order and with draws that depend on the seed and the epoch alone."""
        settings, epoch = self.net.settings, self.course.epoch
        rng = np.random.default_rng([settings.seed, number, epoch])
        torch.manual_seed(int(rng.integers(2**62)))
        step = Step(self.feed, self.criterion, rng, epoch)
        total, work = torch.zeros((), device=self.feed.device), 0
        self.net.train()
        for sample, width in batches(self.feed.made, self.allowed, settings.batch, rng):
            batch = self.feed.batch(sample, width)
            size = int(self.feed.made.work[sample].sum())
            total += self._step(self.net.loss(batch, step)) * size
            work += size
        loss = float(total) / max(1, work)
        if not math.isfinite(loss):
            raise TalerecError(
                f"training diverged in epoch {epoch + 1}: lower rate (now {settings.rate:g})"
            )
        return loss

    def _step(self, loss: torch.Tensor) -> torch.Tensor:
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), _CLIP)
        self.optimiser.step()
        return loss.detach()

    # -- keeping --

    def kept(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Where the training stands, as facts and arrays."""
        net, adam = self.net, checkpoints.optimiser_state(self.net, self.optimiser)
        arrays = {f"net|{name}": array for name, array in checkpoints.state_of(net).items()}
        arrays |= {f"adam|{name}": array for name, array in adam.items()}
        arrays |= {f"best|{name}": array for name, array in self.best.items()}
        return asdict(self.course), arrays

    def resume(self, facts: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Go on where `kept` was called."""
        self.course = Course(**facts)
        parts: dict[str, dict[str, Array]] = {"net": {}, "adam": {}, "best": {}}
        for key, array in arrays.items():
            part, _, name = key.partition("|")
            parts[part][name] = array
        checkpoints.put_state(self.net, parts["net"])
        checkpoints.put_optimiser_state(self.net, self.optimiser, parts["adam"])
        self.best = parts["best"]

    def finish(self) -> None:
        """Put the best parameters back, where they were kept."""
        if self.best:
            checkpoints.put_state(self.net, self.best)


def _adam(net: Net, settings: Settings) -> torch.optim.Optimizer:
    """Adam; matrices and tables shrink by rate * reg a step, biases and norms do not."""
    wide = [value for value in net.parameters() if value.dim() > 1]
    thin = [value for value in net.parameters() if value.dim() <= 1]
    groups = [
        {"params": wide, "weight_decay": settings.reg},
        {"params": thin, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.rate, fused=True)


def _words(course: Course) -> str:
    found = f"epoch {course.epoch}, loss {course.losses[-1]:.3f}"
    if course.values:
        found += f", NDCG@10 {course.values[-1]:.4f}, best {course.value:.4f}"
    return found


class Deadline:
    """Says when the time that a training may take is over, and when to write a checkpoint."""

    def __init__(self, seconds: float, every: float, save: Callable[[], None] | None) -> None:
        self._end, self._every, self._save = time.monotonic() + seconds, every, save
        self._next = time.monotonic() + every

    def __call__(self) -> bool:
        now = time.monotonic()
        late = now >= self._end
        if self._save is not None and (late or now >= self._next):
            self._save()
            self._next = time.monotonic() + self._every
        return late

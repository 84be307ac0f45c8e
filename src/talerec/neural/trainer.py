"""One trainer for all networks: epochs of AdamW with validation, resumable."""

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
from talerec.neural.samples import Feed, shuffle_batches
from talerec.neural.settings import NetSettings
from talerec.neural.validation import mean_ndcg
from talerec.runtime import Array, stage

_CLIP = 5.0  # the largest norm of a gradient


@dataclass
class TrainingHistory:
    """Losses and validation metrics of the epochs so far.

    losses : mean training loss of each epoch; values : NDCG@10 of each validated epoch
    """

    epoch: int = 0  # completed epochs
    best: int = 0  # the epoch with the best validation NDCG@10
    value: float = -1.0  # NDCG@10 of that epoch
    losses: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add_epoch(self, loss: float, value: float | None) -> bool:
        """Record a completed epoch; return whether it is the best so far.

        loss : mean training loss; value : validation NDCG@10, None if the epoch was not validated
        """
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
    """Trains one network for a number of epochs, with early stopping.

    feed : training samples; allowed : widths that batches are padded to; criterion : the loss
    epochs : the most epochs that are run
    validation : samples of held-out rows, for early stopping; without them, every epoch is run
    keep_best : store the parameters of the best epoch, which `finish` restores
    """

    def __init__(
        self,
        net: Net,
        feed: Feed,
        allowed: list[int],
        criterion: Criterion,
        epochs: int,
        validation: Feed | None = None,
        keep_best: bool = False,
    ) -> None:
        """Keep network, samples and options, with a new optimiser (AdamW) and an empty history.

        feed : training samples; allowed : widths that batches are padded to; criterion : the loss;
        validation : held-out samples or None; keep_best : store the best epoch's parameters
        """
        self.net, self.feed, self.allowed, self.criterion = net, feed, allowed, criterion
        self.epochs, self.validation, self.keep_best = epochs, validation, keep_best
        self.history = TrainingHistory()
        self.best: dict[str, Array] = {}
        self.optimiser = _adam(net, net.settings)
        self._reported = 0  # epochs that the progress bar was created for

    @property
    def is_finished(self) -> bool:
        """Return whether no epoch is left to run."""
        return self.history.epoch >= self._min_epochs

    @property
    def _min_epochs(self) -> int:
        """Return the number of epochs that will be run even without any further improvement.

        That is the best epoch so far by validation (or the end of warm-up) plus `patience`, at most
        `epochs`; without validation rows it is `epochs`.
        """
        if self.validation is None:
            return self.epochs
        last = max(self.history.best, self.net.warmup) + self.net.settings.patience
        return min(self.epochs, last)

    def run(self, name: str, number: int, stop: Callable[[], bool]) -> bool:
        """Train until finished (True), or until `stop` returns true after an epoch (False).

        Each epoch is followed by a validation; the parameters of the best one are stored if
        `keep_best`.
        name : label of the progress bar
        number : stage of the training (0: with validation, 1: final), part of the random seeds
        """
        tick, self._reported = stage(name, float(self._min_epochs)), self._min_epochs
        tick(float(self.history.epoch))
        while not self.is_finished:
            loss = self._epoch(number)
            value = self._validate()
            if self.history.add_epoch(loss, value) and self.keep_best:
                self.best = checkpoints.copy_parameters(self.net)
            if self._min_epochs > self._reported:
                stage(name, float(self._min_epochs - self._reported))
                self._reported = self._min_epochs
            tick(1.0, _describe(self.history))
            if not self.is_finished and stop():
                return False
        return True

    def _validate(self) -> float | None:
        """Return the validation NDCG@10; None without validation rows or during warm-up.

        NDCG is the mean over held-out last rows of users, each ranked after its history.
        """
        if self.validation is None or self.history.epoch < self.net.warmup:
            return None
        return mean_ndcg(self.net, self.validation, self.allowed)

    def _epoch(self, number: int) -> float:
        """Train one epoch and return its mean loss per target; update the network in place.

        number : stage of the training (0 or 1); draws depend on the seed, the stage and the epoch
        alone. Raises TalerecError if the loss is not finite.
        """
        settings, epoch = self.net.settings, self.history.epoch
        rng = np.random.default_rng([settings.seed, number, epoch])
        torch.manual_seed(int(rng.integers(2**62)))
        step = Step(self.feed, self.criterion, rng, epoch)
        total, work = torch.zeros((), device=self.feed.device), 0
        self.net.train()
        for sample, width in shuffle_batches(self.feed.samples, self.allowed, settings.batch, rng):
            batch = self.feed.batch(sample, width)
            size = int(self.feed.samples.work[sample].sum())
            total += self._step(self.net.loss(batch, step)) * size
            work += size
        loss = float(total) / max(1, work)
        if not math.isfinite(loss):
            raise TalerecError(
                f"training diverged in epoch {epoch + 1}: lower rate (now {settings.rate:g})"
            )
        return loss

    def _step(self, loss: torch.Tensor) -> torch.Tensor:
        """Take an optimiser step on a batch's loss, gradient norm at most 5; return the loss."""
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), _CLIP)
        self.optimiser.step()
        return loss.detach()

    # -- checkpoints --

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return (facts, arrays), from which `resume` continues the training.

        facts : the fields of TrainingHistory
        arrays : "net|NAME" parameters, "adam|NAME" optimiser tensors, "best|NAME" of the best epoch
        """
        net, adam = self.net, checkpoints.optimiser_state(self.net, self.optimiser)
        arrays = {f"net|{name}": array for name, array in checkpoints.copy_parameters(net).items()}
        arrays |= {f"adam|{name}": array for name, array in adam.items()}
        arrays |= {f"best|{name}": array for name, array in self.best.items()}
        return asdict(self.history), arrays

    def resume(self, facts: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Restore network, optimiser, best parameters and history as `state` returned them.

        facts : losses and metrics of the epochs so far; arrays : by "net|NAME", "adam|NAME",
        "best|NAME"
        """
        self.history = TrainingHistory(**facts)
        parts: dict[str, dict[str, Array]] = {"net": {}, "adam": {}, "best": {}}
        for key, array in arrays.items():
            part, _, name = key.partition("|")
            parts[part][name] = array
        checkpoints.load_parameters(self.net, parts["net"])
        checkpoints.load_optimiser_state(self.net, self.optimiser, parts["adam"])
        self.best = parts["best"]

    def finish(self) -> None:
        """Restore the network's parameters of the best epoch, if they were stored."""
        if self.best:
            checkpoints.load_parameters(self.net, self.best)


def _adam(net: Net, settings: NetSettings) -> torch.optim.Optimizer:
    """Return AdamW for a network: weight decay `reg` for matrices, none for biases and norms.

    The learning rate is `settings.rate`.
    """
    matrices = [value for value in net.parameters() if value.dim() > 1]
    vectors = [value for value in net.parameters() if value.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": settings.reg},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.rate, fused=True)


def _describe(history: TrainingHistory) -> str:
    """Return the latest epoch's loss and validation NDCG@10 as text for the progress bar."""
    text = f"epoch {history.epoch}, loss {history.losses[-1]:.3f}"
    if history.values:
        text += f", NDCG@10 {history.values[-1]:.4f}, best {history.value:.4f}"
    return text


class Deadline:
    """A callable that saves checkpoints regularly and returns whether the time is over.

    seconds : time limit from now; every : seconds between checkpoints
    save : writes a checkpoint, also when the limit has passed; None: nothing is saved
    """

    def __init__(self, seconds: float, every: float, save: Callable[[], None] | None) -> None:
        """Start the clock of the time limit and that of the next checkpoint."""
        self._end, self._every, self._save = time.monotonic() + seconds, every, save
        self._next = time.monotonic() + every

    def __call__(self) -> bool:
        """Save a checkpoint if one is due or the time is over; return whether the time is over."""
        now = time.monotonic()
        is_over = now >= self._end
        if self._save is not None and (is_over or now >= self._next):
            self._save()
            self._next = time.monotonic() + self._every
        return is_over

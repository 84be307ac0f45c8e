"""Train a network: rows and settings in, parameters out; needs only NumPy and torch."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from talerec.neural import checkpoints
from talerec.neural.devices import deterministic, device_of, needed_bytes, require_memory
from talerec.neural.losses import Criterion, criterion
from talerec.neural.nets.base import Net
from talerec.neural.registry import NETWORKS, build_net
from talerec.neural.samples import WHOLE, Feed, cut_samples, widths
from talerec.neural.settings import VERSION, NetSettings, Rows
from talerec.neural.trainer import Deadline, Trainer
from talerec.neural.validation import ValidationRows, draw_users, hold_out
from talerec.runtime import Array

_SEARCH, _FINAL = 0, 1  # stages: find the number of epochs, then train on all rows
_EVERY = 20.0  # seconds between checkpoints


@dataclass(frozen=True, eq=False)
class Training:
    """The result of training: the network's parameters by name, and facts about it.

    facts : kind and parameters of the model, hash of the rows, epochs, losses, validation NDCG@10
    (`ndcg`), seconds, device; values that JSON can hold
    """

    facts: dict[str, Any]
    arrays: dict[str, Array]

    def save(self, path: str | Path) -> Path:
        """Write parameters and facts to one .npz file, which appears only once it is complete."""
        checkpoints.write(Path(path), self.facts, self.arrays)
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> Training:
        """Read parameters and facts from a file that `save` wrote."""
        return cls(*checkpoints.read(Path(path)))


def sampling_scheme(settings: NetSettings) -> str:
    """Return how a log is cut into samples: "windows", "prefixes" or "whole".

    Networks that predict masked rows (BERT4Rec) need "whole"; others follow `settings.samples`.
    """
    return WHOLE if NETWORKS[settings.kind].hides_rows else settings.samples


class _TrainingSetup:
    """Inputs of both training stages (epoch search, final fit): rows, settings, device, loss.

    The first stage holds out rows to find the best number of epochs, the second trains on all rows.

    rows             the training rows of all users, as arrays
    settings         of the network; `batch` counts the targets (rows to predict) of a step
    device           the torch device to train on
    longest          most rows of a training sample: the setting `max_history`
    longest_history  most rows of a history at validation and inference; networks that append a
                     mask row read one less
    allowed          widths (rows) to which the samples of a batch may be padded
    scheme           how a user's rows are cut into samples: "windows", "prefixes" or "whole"
    criterion        the loss function
    """

    def __init__(self, rows: Rows, settings: NetSettings) -> None:
        """Choose device, widths of batches, way of cutting samples and loss for the settings.

        A `batch` of 0 in the settings is replaced by the number of targets per step that suits the
        log.
        """
        settings = settings.with_batch(rows)
        self.rows, self.settings = rows, settings
        self.device = device_of(settings.device)
        with torch.device("meta"):
            plan = build_net(rows.items, settings)
        self.longest, self.longest_history = settings.max_history, plan.longest_history
        self.allowed = [self.longest] if plan.fixed_width else widths(self.longest)
        self.scheme = sampling_scheme(settings)
        self.criterion = self._criterion()

    def _criterion(self) -> Criterion:
        """Return the loss function of the settings.

        If the setting `popularity`, p, is above 0, the negatives of the loss "sampled" are drawn in
        proportion to count ** p, where count is an item's rows in the log; else uniformly. The
        setting `calibration` is the t of gSASRec's loss, 0 (plain binary cross-entropy) to 1; 0 for
        networks without it.
        """
        specific, odds = self.settings.specific, None
        if (power := specific.get("popularity", 0.0)) > 0:
            counts = np.bincount(self.rows.item, minlength=self.rows.items) ** power
            odds = torch.tensor(counts / counts.sum(), dtype=torch.float32, device=self.device)
        return criterion(
            self.settings.loss,
            self.settings.negatives,
            is_bfloat16=self.settings.precision == "bfloat16",
            calibration=specific.get("calibration", 0.0),
            odds=odds,
        )

    def new_net(self) -> Net:
        """Return a network with initial parameters, on the device.

        They are drawn on the CPU, so that all devices start from the same parameters.
        """
        torch.manual_seed(self.settings.seed)
        net = build_net(self.rows.items, self.settings)
        net.reset()
        net.prepare(self.rows)
        return net.to(self.device)

    def new_trainer(
        self, end: Array, epochs: int, held_out: ValidationRows | None, keep_best: bool
    ) -> Trainer:
        """Return the trainer of a new network on each user's rows before row `end[user]`.

        epochs : the most; held_out : rows to validate on, each with its history, or None
        keep_best : the trainer stores the parameters of the best epoch
        """
        begin = np.asarray(self.rows.ptr[:-1], np.int64)
        feed = Feed(self.rows, cut_samples(self.scheme, begin, end, self.longest), self.device)
        validation = None
        if held_out is not None:
            validation = Feed(self.rows, held_out.samples(self.longest_history), self.device)
        net = self.new_net()
        return Trainer(net, feed, self.allowed, self.criterion, epochs, validation, keep_best)

    def require_memory(self) -> None:
        """Raise TalerecError if parameters, optimiser and a batch do not fit into memory.

        It is the free memory of the device, compared with an estimate.
        """
        each = 1 if self.scheme == "prefixes" else self.longest
        cells = max(1, self.settings.batch // each) * self.longest
        require_memory(
            needed_bytes(self.settings, self.rows.items, cells, self.longest), self.device
        )


def train(
    rows: Rows,
    settings: NetSettings,
    *,
    held: Array | None = None,
    checkpoint: Path | None = None,
    seconds: float = math.inf,
    every: float = _EVERY,
) -> Training | None:
    """Train a network on a log; return None if the time limit ended the training early.

    The last rows of some users are held out to find the best number of epochs; then the network is
    trained again on all rows for that many. With `held` (positions of users) the last rows of these
    users are validation rows only: the result is the network of the best epoch. The result has the
    network's parameters and facts about the training.

    checkpoint : file to resume from, written every `every` seconds
    seconds : time limit; the training is then saved in the checkpoint
    """
    setup = _TrainingSetup(rows, settings)
    setup.require_memory()
    run = _TrainingRun(setup, held, checkpoint)
    with deterministic(setup.device, settings.precision, settings.seed):
        trainer = run.run(Deadline(seconds, every, run.save if checkpoint else None))
    if trainer is None:
        return None
    training_rows = rows if held is None else rows.without_last(held)
    facts = {
        "kind": settings.kind,
        "params": settings.params(),
        "rows": training_rows.fingerprint(),
        "version": VERSION,
        "seconds": run.spent_seconds(),
        "device": str(setup.device),
        **run.facts,
    }
    return Training(facts, checkpoints.copy_parameters(trainer.net))


class _TrainingRun:
    """A resumable training in two stages: find the number of epochs, then train on all rows.

    held : positions of users whose last row is for validation only; then the first stage is the
    only one, and its best epoch the result. path : of the checkpoint file, None: none is written
    facts : results so far (epochs, ndcg, values, losses)
    """

    def __init__(self, setup: _TrainingSetup, held: Array | None, path: Path | None) -> None:
        """Begin at the first stage; `key`, a hash of settings and rows, marks checkpoints."""
        self.setup, self.held, self.path = setup, held, path
        self.key = setup.settings.key(setup.rows) + ("" if held is None else "-held")
        self.stage = _SEARCH
        self.facts: dict[str, Any] = {}
        self.trainer: Trainer | None = None
        self._start, self._before = time.perf_counter(), 0.0

    def spent_seconds(self) -> float:
        """Return the seconds of work so far, including those before a checkpoint."""
        return self._before + time.perf_counter() - self._start

    def run(self, stop: Deadline) -> Trainer | None:
        """Run both stages, from a checkpoint if there is one; return the last stage's trainer.

        The first stage holds out users' last rows to find the best number of epochs; the second
        trains a new network on all rows. With `held` users the first stage is the only one. Returns
        None if `stop` reported that the time limit passed before the end.
        """
        state, settings, rows = self._load_checkpoint(), self.setup.settings, self.setup.rows
        is_held = self.held is not None
        users = self.held
        if users is None:
            users = draw_users(rows, settings.judges, settings.seed)
        if self.stage == _SEARCH and len(users):
            held_out, end = hold_out(rows, users)
            trainer = self.setup.new_trainer(end, settings.epochs, held_out, keep_best=is_held)
            if not self._run_stage(trainer, state, stop):
                return None
            history, state = trainer.history, None
            epochs = history.best or history.epoch
            self.facts = {"epochs": epochs, "ndcg": history.value, "values": history.values}
            if is_held:
                trainer.finish()
                return trainer
        self.stage = _FINAL
        epochs = self.facts.get("epochs", settings.epochs)
        end = np.array(rows.ptr[1:], np.int64)
        trainer = self.setup.new_trainer(end, epochs, None, keep_best=False)
        if not self._run_stage(trainer, state, stop):
            return None
        self.facts = {"epochs": epochs, **self.facts, "losses": trainer.history.losses}
        return trainer

    def _run_stage(self, trainer: Trainer, state: Any, stop: Deadline) -> bool:
        """Run a trainer to its end (True), or until `stop` ends it early (False).

        state : (facts, arrays) of `Trainer.state` to resume from; None: start from the beginning
        """
        self.trainer = trainer
        if state is not None:
            trainer.resume(*state)
        return trainer.run("train", self.stage, stop)

    # -- checkpoints --

    def save(self) -> None:
        """Write a checkpoint to `path`; do nothing without a path or before the first stage.

        It has the trainer's state, the stage, the results so far (`facts`), and the seconds spent.
        """
        if self.trainer is None or self.path is None:
            return
        history, arrays = self.trainer.state()
        facts = {"key": self.key, "number": self.stage, "found": self.facts, "course": history}
        checkpoints.write(self.path, {**facts, "spent": self.spent_seconds()}, arrays)

    def _load_checkpoint(self) -> Any:
        """Return (facts, arrays) for `Trainer.resume` from the checkpoint; None if none fits.

        It fits if it has the same settings and rows. Also restores stage, facts and seconds.
        """
        if self.path is None or not self.path.exists():
            return None
        facts, arrays = checkpoints.read(self.path)
        if facts.get("key") != self.key:
            return None
        self.stage, self.facts, self._before = facts["number"], facts["found"], facts["spent"]
        return facts["course"], arrays

"""A search of parameters with Optuna: it proposes, the objective scores, a study keeps every trial.

Most of what a trial costs is the Gram and the solve. So trials come in blocks that share them: a block
has one Gram, some of its trials share one solve, and the others only weigh histories anew.
"""

from __future__ import annotations

import json
import logging
import math
import multiprocessing
import os
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from talerec.data.log import Log
from talerec.errors import TalerecError
from talerec.evaluation.trials import Objective, Task, Trial, Tuning, in_words
from talerec.models.core import params
from talerec.runtime import threads
from talerec.runtime.progress import listening, silent, stage

logger = logging.getLogger(__name__)

_REACHES = 10  # for a trial that another process may have taken
_PATIENCE_S = 60  # seconds that a process waits for another that writes to the same study
_BLOCK = {params.LEARN: 12, params.SOLVE: 4}  # trials that share a Gram, and a solve


def search(
    task: Task, log: Log, *, trials: int, study: str | Path | None, workers: int, seed: int
) -> Tuning:
    """The best of a study's trials once there are as many as asked for, those of earlier calls included."""
    if trials < 1:
        raise TalerecError(f"trials is {trials}; it takes a whole number from 1")
    if workers > 1 and study is None:
        raise TalerecError("several workers need a study file that they share: name one")
    searched = list(task.space())
    made = _Search(task, _storage(study), _study_name(task, log), trials, seed)
    if workers == 1:
        made.run(Objective(task, log))
    else:
        _run_in_processes(made, log, study, workers)
    return task.result(made.finished(), searched)


class _Search:
    """One process's part in a study."""

    def __init__(self, task: Task, storage: Any, name: str, trials: int, seed: int) -> None:
        optuna = _optuna()
        self.task, self.space, self.trials = task, task.space(), trials
        self._sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True)
        self._study = optuna.create_study(
            storage=storage, study_name=name, direction="maximize", load_if_exists=True
        )
        self._step, self._last = 0, {}  # type: tuple[int, dict[str, Any]]
        if not self._study.get_trials(deepcopy=False):
            self._study.enqueue_trial(self._defaults())  # the first trial is the model's defaults

    def _defaults(self) -> dict[str, Any]:
        defaults = self.task.build({}).params
        return {n: min(max(defaults[n], low), high) for n, (low, high) in self.space.items()}

    def finished(self) -> list[Trial]:
        """Every setting that was scored, by this process or another."""
        found = [t for t in self._study.get_trials(deepcopy=False) if t.state.name == "COMPLETE"]
        return [
            Trial(t.number, dict(t.params), float(t.value), dict(t.user_attrs.get("seconds", {})))
            for t in found
        ]

    def run(self, objective: Objective) -> None:
        """Try settings until there are as many as were asked for."""
        before = self.finished()
        tick = stage("trials", float(self.trials))
        tick(min(len(before), self.trials))
        if before:
            logger.info("going on after %d trials that are in the study", len(before))
        best = max((trial.value for trial in before), default=-math.inf)
        while len(self.finished()) < self.trials:
            try:
                value, values = self._one(objective)
            except _optuna().exceptions.UpdateFinishedTrialError:
                continue  # two processes had reached for the same trial, and the other was first
            tick(1)
            if value > best:
                best = value
                logger.info("%s %.4f with %s", self.task.metric, value, in_words(values))

    def _one(self, objective: Objective) -> tuple[float, dict[str, Any]]:
        self._study.sampler = self._sampler_with(self._shared())
        trial = self._asked()
        values = {name: self._suggest(trial, name) for name in self.space}
        with listening(silent):
            value, seconds = objective(values)
        trial.set_user_attr("seconds", seconds)
        self._study.tell(trial, value)
        self._step, self._last = self._step + 1, values
        return value, values

    def _asked(self) -> Any:
        """The next trial. Two processes may reach for the one that waits: whoever comes second asks again."""
        finished = _optuna().exceptions.UpdateFinishedTrialError
        for _ in range(_REACHES):
            with suppress(finished):
                return self._study.ask()
        return self._study.ask()

    def _sampler_with(self, shared: dict[str, Any]) -> Any:
        if not shared:
            return self._sampler
        optuna = _optuna()
        with warnings.catch_warnings():  # Optuna has called it experimental for years
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.samplers.PartialFixedSampler(shared, self._sampler)

    def _shared(self) -> dict[str, Any]:
        """The values that this trial takes from the one before, so that a Gram or a solve serves both."""
        if not self._last:
            return {}
        stages = {f.name: f.metadata["stage"] for f in params.fields(self.task.kind)}
        free = {s for s, size in _BLOCK.items() if self._step % size == 0} | {params.SCORE}
        searched = {stages[name] for name in self.space}
        if not free & searched:  # nothing would be new
            return {}
        return {name: value for name, value in self._last.items() if stages[name] not in free}

    def _suggest(self, trial: Any, name: str) -> Any:
        low, high = self.space[name]
        default = next(f.default for f in params.fields(self.task.kind) if f.name == name)
        if isinstance(default, int):
            return trial.suggest_int(name, int(low), int(high), log=low > 0)
        return trial.suggest_float(name, low, high, log=low > 0)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise TalerecError("tuning needs Optuna: pip install 'talerec[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _storage(study: str | Path | None) -> Any:
    if study is None:
        return None
    path = Path(study)
    if path.exists() and path.stat().st_size and path.read_bytes()[:15] != b"SQLite format 3":
        raise TalerecError(f"{path} is not a study file (SQLite); name a new file")
    return f"sqlite:///{path}?timeout={_PATIENCE_S}"


def _study_name(task: Task, log: Log) -> str:
    """The same task on the same rows has the same name, so that a later call finds its trials."""
    rows = f"{log.rows}/{int(log.time.sum()) % 10**9}/{int(log.item.astype(np.int64).sum())}"
    return json.dumps([asdict(task), rows], sort_keys=True, default=str)


def _run_in_processes(made: _Search, log: Log, study: str | Path | None, workers: int) -> None:
    """Several processes, each with its share of the cores, on one study."""
    share = max(1, threads.thread_count() // workers)
    tick, seen = stage("trials", float(made.trials)), 0
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        running = [
            pool.submit(_work, made.task, log, str(study), made.trials, share, seed)
            for seed in range(workers)
        ]
        while not all(work.done() for work in running):
            now = min(len(made.finished()), made.trials)
            tick(now - seen)
            seen = now
            time.sleep(0.2)
        for work in as_completed(running):
            work.result()


def _work(task: Task, log: Log, study: str, trials: int, share: int, seed: int) -> None:
    """What one process does."""
    os.environ[threads.VARIABLE] = str(share)
    made = _Search(task, _storage(study), _study_name(task, log), trials, seed)
    made.run(Objective(task, log))

"""Tuning on validation rows: a search, or the grid of values of a model's paper."""

from __future__ import annotations

import json
import logging
import math
import multiprocessing
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from talerec.data import Log, as_log, name_tie_order
from talerec.data.split import VALIDATION, SplitPlan
from talerec.errors import TalerecError, require_extra
from talerec.evaluation.studies import import_optuna, study_name, study_storage, warn_of_other_rows
from talerec.evaluation.trials import Objective, Task, Trial, Tuning, describe_setting
from talerec.models import model_class
from talerec.models.core import (
    LEARN,
    SCORE,
    SOLVE,
    Model,
    build_model,
    param_fields,
    use_current_names,
)
from talerec.runtime import listening, silent, stage, threads

logger = logging.getLogger(__name__)

PAPER = "paper"
_ATTEMPTS = 10  # to get a trial that another process may take first
_BLOCK = {LEARN: 12, SOLVE: 4}  # trials that share a Gram, and a solve


def tune(
    model: str | type[Model],
    log: Log,
    plan: SplitPlan | str = "leave-one-out",
    *,
    trials: int = 50,
    grid: str | None = None,
    fixed: dict[str, Any] | None = None,
    metric: str = "NDCG@10",
    ties: str = "file",
    hide_seen: bool = False,
    study: str | Path | None = None,
    workers: int = 1,
    seed: int = 0,
) -> Tuning:
    """Find the best parameters of a model on validation rows, within its search ranges.

    Parameters
    ----------
    model, log, plan, ties, hide_seen
        The model's name or class, all rows, and how to split and rank them, as in `evaluate_log`.
    trials, seed
        The number of settings to evaluate, and the seed of the search.
    grid
        "paper": instead of a search, the values of the model's paper, one parameter at a time.
    fixed, metric
        Parameters with fixed values, which are not searched; and the metric to maximise: HR@K,
        NDCG@K or MRR@K.
    study, workers
        A file (SQLite) that stores trials, to continue the search with the same rows and settings
        later; and processes to use.

    Returns
    -------
    Tuning
        The best parameters (`params`), their value of the metric, and every trial.

    Raises
    ------
    TalerecError
        If an option is not valid, or Optuna (the extra `tune`) is not installed.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.tune("markov", tr.synthetic_log(2000, items=50), trials=2).searched
    ['recency']
    """
    plan = SplitPlan(plan) if isinstance(plan, str) else plan
    plan.check(VALIDATION)
    log = as_log(log)
    kind = model_class(model) if isinstance(model, str) else model
    fixed = use_current_names(kind, fixed or {}, warn=True)
    task = Task(kind.name, fixed, plan.text, ties, metric, hide_seen, plan.target)
    task.check()
    check_tuning_ready(build_model(kind, fixed), grid)
    if grid is not None:
        return _tune_by_grid(grid, task, log)
    return _search(task, log, trials=trials, study=study, workers=workers, seed=seed)


# -- the paper's grid ------------------------------------------------------------------------------


def _tune_by_grid(grid: str, task: Task, log: Log) -> Tuning:
    """Return the result of trying a paper's values of each parameter, one after the other.

    The other parameters stay at the best setting so far. task: the model, its fixed parameters, the
    split and the metric. TalerecError if `grid` is not "paper", or the model declares no values.
    """
    if grid != PAPER:
        raise TalerecError(f"`grid` is {grid!r}; it takes {PAPER}", "grid")
    free = [field for field in param_fields(task.kind) if field.name not in task.fixed]
    values = {field.name: field.metadata["grid"] for field in free if field.metadata["grid"]}
    if not values:
        message = f"{task.model} declares no grid of a paper; leave `grid` out to search"
        raise TalerecError(message, "grid")
    objective = Objective(task, log)
    trials: list[Trial] = []
    tick = stage("trials", float(sum(len(v) for v in values.values())))
    for number, setting in enumerate(_vary_best(task, values, trials)):
        with listening(silent):
            value, seconds = objective(setting)
        if not trials or value > max(trial.value for trial in trials):
            logger.info("%s %.4f with %s", task.metric, value, describe_setting(setting))
        trials.append(Trial(number, setting, value, seconds))
        tick(1, _describe_best(task, max(trial.value for trial in trials)))
    return replace(task.result(trials, list(values)), ties=name_tie_order(log, task.ties))


def _vary_best(
    task: Task, values: dict[str, Sequence[float]], trials: list[Trial]
) -> Iterator[dict[str, Any]]:
    """Yield settings that differ in one parameter from the best of the trials so far.

    A setting has values by parameter name. `values` has each parameter's values to try. task:
    builds the model, whose defaults are the first best. The caller appends a trial to `trials`
    after each setting; the best is chosen again when the next parameter begins.
    """
    start = {name: task.build({}).params[name] for name in values}
    for name, grid_values in values.items():
        best = max(trials, key=lambda trial: trial.value).params if trials else start
        for value in grid_values:
            yield {**best, name: float(value)}


def _describe_best(task: Task, value: float) -> str:
    """Return the remark beside the progress of a search: its best value of the metric so far."""
    return f"best {task.metric} {value:.4f}"


# -- search with Optuna ----------------------------------------------------------------------------


def _search(
    task: Task, log: Log, *, trials: int, study: str | Path | None, workers: int, seed: int
) -> Tuning:
    """Return the best of `trials` trials of an Optuna study, including those of earlier calls.

    task: the model, its fixed parameters, the split and the metric. `study` is a file that stores
    the trials (None: memory only), `workers` the number of processes, and `seed` that of the
    sampler. TalerecError for fewer than one trial, or several workers without a file.
    """
    if trials < 1:
        raise TalerecError(f"`trials` is {trials}; it takes a whole number from 1", "trials")
    if workers > 1 and study is None:
        raise TalerecError("several `workers` need a `study` that they share", "workers", "study")
    searched = list(task.space())
    name, storage = study_name(task, log), None
    if study is not None:
        storage = import_optuna().storages.RDBStorage(study_storage(study))
        warn_of_other_rows(study, import_optuna().get_all_study_names(storage), name)
    worker = _SearchWorker(task, storage, name, trials, seed)
    if workers == 1:
        worker.run(Objective(task, log))
    else:
        _run_in_processes(worker, log, study, workers)
    finished = worker.finished()
    if storage is not None:
        storage.engine.dispose()  # Python 3.13 warns of connections that are left open
    return replace(task.result(finished, searched), ties=name_tie_order(log, task.ties))


class _SearchWorker:
    """One process that evaluates trials of an Optuna study.

    task: the model, its fixed parameters, the split and the metric. storage, name: of the study.
    trials: how many it shall have in all. Most of the cost of a trial is the Gram matrix and the
    solve. So trials come in blocks that share them: a block of 12 has one Gram matrix, every 4 of
    its trials share one solve, and the others vary only parameters of scoring.
    """

    def __init__(self, task: Task, storage: Any, name: str, trials: int, seed: int) -> None:
        """Open or create the study; the first trial of a new one has the model's defaults.

        `space` has the range of each searched parameter; `_step` counts this process's trials, and
        `_last` has the parameters of its last one.
        """
        optuna = import_optuna()
        self.task, self.space, self.name, self.trials = task, task.space(), name, trials
        self._sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True)
        self._study = optuna.create_study(
            storage=storage, study_name=name, direction="maximize", load_if_exists=True
        )
        self._step, self._last = 0, {}  # type: tuple[int, dict[str, Any]]
        if not self._study.get_trials(deepcopy=False):
            defaults, ranges = task.build({}).params, self.space.items()  # the first trial
            first = {name: min(max(defaults[name], low), high) for name, (low, high) in ranges}
            self._study.enqueue_trial(first)

    def finished(self) -> list[Trial]:
        """Return every completed trial of the study, of all processes and earlier calls.

        A trial is one evaluated setting with its value of the metric and the seconds of each step.
        """
        trials = self._study.get_trials(deepcopy=False)
        return [
            Trial(t.number, dict(t.params), float(t.value), dict(t.user_attrs.get("seconds", {})))
            for t in trials
            if t.state.name == "COMPLETE"
        ]

    def run(self, objective: Objective) -> None:
        """Evaluate trials until the study has `self.trials` of them, from all processes.

        objective: fits a setting of parameters and returns its value of the metric. Better settings
        are logged.
        """
        before = self.finished()
        tick = stage("trials", float(self.trials))
        tick(min(len(before), self.trials))
        if len(before) >= self.trials:
            logger.info("the study has %d trials already: none is added", len(before))
        elif before:
            logger.info("continuing after %d trials of the study", len(before))
        best = max((trial.value for trial in before), default=-math.inf)
        while len(self.finished()) < self.trials:
            try:
                value, values = self._run_trial(objective)
            except import_optuna().exceptions.UpdateFinishedTrialError:
                continue  # two processes had reached for the same trial, and the other was first
            if value > best:
                best = value
                logger.info("%s %.4f with %s", self.task.metric, value, describe_setting(values))
            tick(1, _describe_best(self.task, best))

    def _run_trial(self, objective: Objective) -> tuple[float, dict[str, Any]]:
        """Evaluate the next setting and store it in the study; return its value and the setting.

        objective: returns a setting's value of the metric and the seconds of each step.
        """
        self._study.sampler = self._sampler_with(self._shared())
        trial = self._next_trial()
        values = {name: self._suggest(trial, name) for name in self.space}
        with listening(silent):
            value, seconds = objective(values)
        trial.set_user_attr("seconds", seconds)
        self._study.tell(trial, value)
        self._step, self._last = self._step + 1, values
        return value, values

    def _next_trial(self) -> Any:
        """Return Optuna's next trial; tries again if another process takes the same one first.

        After ten attempts, Optuna's error is raised.
        """
        finished = import_optuna().exceptions.UpdateFinishedTrialError
        for _ in range(_ATTEMPTS):
            with suppress(finished):
                return self._study.ask()
        return self._study.ask()

    def _sampler_with(self, shared: dict[str, Any]) -> Any:
        """Return Optuna's sampler with the parameters in `shared` fixed to their values there."""
        if not shared:
            return self._sampler
        optuna = import_optuna()
        with warnings.catch_warnings():  # Optuna has called it experimental for years
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.samplers.PartialFixedSampler(shared, self._sampler)

    def _shared(self) -> dict[str, Any]:
        """Return the parameters that this trial shares with the last one, to reuse its fit.

        Name -> value. The Gram matrix depends on parameters of the stage LEARN, and is new every 12
        trials; the solve depends on those of SOLVE, too, and is new every 4. Empty for the first
        trial, or if no searched parameter could change.
        """
        if not self._last:
            return {}
        stages = {f.name: f.metadata["stage"] for f in param_fields(self.task.kind)}
        free = {s for s, size in _BLOCK.items() if self._step % size == 0} | {SCORE}
        searched = {stages[name] for name in self.space}
        if not free & searched:  # nothing would be new
            return {}
        return {name: value for name, value in self._last.items() if stages[name] not in free}

    def _suggest(self, trial: Any, name: str) -> Any:
        """Return Optuna's next value of a parameter in its range: an int if the default is one.

        trial: Optuna's trial. name: the parameter. The scale is logarithmic if the range is above
        0.
        """
        low, high = self.space[name]
        default = next(f.default for f in param_fields(self.task.kind) if f.name == name)
        if isinstance(default, int):
            return trial.suggest_int(name, int(low), int(high), log=low > 0)
        return trial.suggest_float(name, low, high, log=low > 0)


def check_tuning_ready(model: Model, grid: str | None) -> None:
    """Raise TalerecError if a library is missing that a search for parameters needs.

    model: not fitted, with the parameters that are not searched. grid: None for a search with
    Optuna; the values of a paper need no Optuna.
    """
    model.check_ready()
    if grid is None:
        require_extra("tune", "tuning", ("optuna",))


def _run_in_processes(
    worker: _SearchWorker, log: Log, study: str | Path | None, workers: int
) -> None:
    """Run `workers` processes, each with its share of the cores, on the study file `study`.

    A study is Optuna's collection of trials (evaluated settings), here in an SQLite file. Each
    process fits to `log`. `worker` has the task and the number of trials in all; this process only
    shows the progress.
    """
    n_threads = max(1, threads.thread_count() // workers)
    tick, seen = stage("trials", float(worker.trials)), min(len(worker.finished()), worker.trials)
    tick(seen)
    facts = (worker.task, worker.name, log, str(study))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        running = [
            pool.submit(_run_worker, *facts, worker.trials, n_threads, seed)
            for seed in range(workers)
        ]
        while not all(job.done() for job in running):
            finished = worker.finished()
            now = min(len(finished), worker.trials)
            if now > seen:
                tick(now - seen, _describe_best(worker.task, max(t.value for t in finished)))
            seen = now
            time.sleep(0.2)
        for job in as_completed(running):
            job.result()


def _run_worker(
    task: Task, name: str, log: Log, study: str, n_trials: int, n_threads: int, seed: int
) -> None:
    """Evaluate trials in this process until the study has `n_trials`, those of all processes.

    task: what is tuned, on the rows of `log`. study: the file of the study; name: its name there.
    n_threads: that this process uses. seed: of Optuna's sampler.
    """
    os.environ[threads.VARIABLE] = str(n_threads)
    worker = _SearchWorker(task, study_storage(study), name, n_trials, seed)
    worker.run(Objective(task, log))


# -- saved results ---------------------------------------------------------------------------------


def read_params(path: Path, model: str | None) -> tuple[str, dict[str, Any]]:
    """Return the model's name and parameters in a JSON file with the fields model and params.

    Such as a saved tuning result. TalerecError if it lacks them, or the name is not `model` (None:
    any).
    """
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        name, values = str(result["model"]), dict(result["params"])
    except (ValueError, KeyError, TypeError):
        message = f"{path} is not a result of tuning: it has no model and params"
        raise TalerecError(message) from None
    if model is not None and model != name:
        raise TalerecError(f"{path} has the parameters of {name}, not of {model}")
    return name, values

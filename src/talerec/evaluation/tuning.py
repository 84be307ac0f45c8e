"""Choosing hyper-parameters on validation rows: by search, or over the grid of a model's paper."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from talerec.data.log import Log
from talerec.data.split.splits import Plan
from talerec.data.split.windows import VALIDATION
from talerec.errors import TalerecError
from talerec.evaluation.search import search
from talerec.evaluation.trials import Objective, Task, Trial, Tuning, in_words
from talerec.models import model_class
from talerec.models.core import params
from talerec.models.core.base import Model
from talerec.runtime.progress import listening, silent, stage

logger = logging.getLogger(__name__)

PAPER = "paper"


def tune(
    model: str | type[Model],
    log: Log,
    plan: Plan | str = "leave-one-out",
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
    """Find the best parameters of a model on validation rows, within the ranges that it declares.

    Parameters
    ----------
    model, log, plan
        The model's name or class, all rows, and how to split them, as in `evaluate_log`.
    trials, seed
        The number of settings to try, and the seed of the search.
    grid
        "paper": do not search, but try the values of the model's paper, one parameter at a time.
    fixed
        Parameters that are given and not searched.
    metric
        The metric to maximise: HR@K, NDCG@K or MRR@K.
    ties, hide_seen
        As in `evaluate_log`.
    study, workers
        A file (SQLite) that keeps every trial, so that a later call continues it; and the number of
        processes that search it.

    Returns
    -------
    Tuning
        The best parameters (`params`), the value that they reached, and every trial.

    Raises
    ------
    TalerecError
        If an option is not understood, or Optuna (the extra `tune`) is not installed.

    Examples
    --------
    >>> import talerec as tr
    >>> found = tr.tune("markov", tr.synthetic_log(2000, items=50), trials=2)
    >>> found.searched, len(found.trials)
    (['recency'], 2)
    """
    plan = Plan(plan) if isinstance(plan, str) else plan
    plan.check(VALIDATION)
    kind = model_class(model) if isinstance(model, str) else model
    task = Task(kind.name, fixed or {}, plan.text, ties, metric, hide_seen)
    task.check()
    if grid is not None:
        return _by_grid(grid, task, log)
    return search(task, log, trials=trials, study=study, workers=workers, seed=seed)


# -- the paper's grid ------------------------------------------------------------------------------


def _by_grid(grid: str, task: Task, log: Log) -> Tuning:
    """The paper's values, one parameter at a time, the others at the best so far."""
    if grid != PAPER:
        raise TalerecError(f"grid is {grid!r}; it takes {PAPER}")
    values = {
        field.name: field.metadata["grid"]
        for field in params.fields(task.kind)
        if field.metadata["grid"] and field.name not in task.fixed
    }
    if not values:
        raise TalerecError(f"{task.model} declares no grid from a paper; leave grid out to search")
    objective = Objective(task, log)
    trials: list[Trial] = []
    tick = stage("trials", float(sum(len(v) for v in values.values())))
    for number, setting in enumerate(_around_the_best(task, values, trials)):
        with listening(silent):
            value, seconds = objective(setting)
        if not trials or value > max(trial.value for trial in trials):
            logger.info("%s %.4f with %s", task.metric, value, in_words(setting))
        trials.append(Trial(number, setting, value, seconds))
        tick(1)
    return task.result(trials, list(values))


def _around_the_best(
    task: Task, values: dict[str, Sequence[float]], trials: list[Trial]
) -> Iterator[dict[str, Any]]:
    """Settings to try, each differing in one parameter from the best of the trials so far."""
    start = {name: task.build({}).params[name] for name in values}
    for name, tried in values.items():
        best = max(trials, key=lambda trial: trial.value).params if trials else start
        for value in tried:
            yield {**best, name: float(value)}


# -- using what was found --------------------------------------------------------------------------


def read_params(path: Path, model: str | None) -> tuple[str, dict[str, Any]]:
    """The model and the parameters of a tuning result, or of any JSON object {model, params}."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        name, values = str(found["model"]), dict(found["params"])
    except (ValueError, KeyError, TypeError):
        raise TalerecError(
            f"{path} is not a result of talerec tune: it has no model and params"
        ) from None
    if model is not None and model != name:
        raise TalerecError(f"{path} has the parameters of {name}, not of {model}")
    return name, values

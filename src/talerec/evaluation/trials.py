"""The parts of tuning: a task, the objective that scores a setting, and the trials."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from talerec.data import Log, expand_tie_orders, order_ties
from talerec.data.split import VALIDATION, NoCasesError, Split, SplitPlan
from talerec.errors import TalerecError
from talerec.evaluation.metrics import RANK, metric_expressions
from talerec.models import model_class
from talerec.models.core import (
    FitCache,
    Model,
    add_former_names,
    build_model,
    param_fields,
    rank_targets,
)
from talerec.runtime import Array, sum_seconds, write_text

_METRICS = ("HR", "NDCG", "MRR")


@dataclass(frozen=True)
class Trial:
    """One evaluated setting of the searched parameters, and its value of the tuned metric.

    number: counts trials from 0. params: values by name. `seconds` has the time of each step of
    fitting, and of scoring.
    """

    number: int
    params: dict[str, Any]
    value: float
    seconds: dict[str, float]


@dataclass(frozen=True, eq=False)
class Tuning:
    """The result of tuning: the best setting, and all trials.

    `model` is the model's name, `params` are all its parameters in the best trial, `value` the
    value of `metric` (such as NDCG@10) there, on validation cases; `split`, `ties` and `hide_seen`
    say how rows were held out, ordered if times are equal, and ranked; `searched` are the names of
    the parameters that were varied.
    """

    model: str
    params: dict[str, Any]
    metric: str
    value: float
    split: str
    ties: str
    hide_seen: bool
    searched: list[str]
    trials: list[Trial] = field(repr=False)

    @property
    def seconds(self) -> dict[str, float]:
        """The time of all trials, by step."""
        return sum_seconds(trial.seconds for trial in self.trials)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as the JSON object of the command `tune`: all fields by name.

        Parameters that were renamed appear under their former names too.
        """
        return {**asdict(self), "params": add_former_names(model_class(self.model), self.params)}

    def save(self, path: str | Path) -> Path:
        """Write the result of tuning as JSON to `path`, and return the path.

        `read_params` reads the model's name and parameters from it.
        """
        path = Path(path)
        write_text(path, json.dumps(self.to_dict(), indent=2) + "\n")
        return path


@dataclass(frozen=True)
class Task:
    """The subject of tuning: a model's name, its fixed parameters, the split, and the metric.

    `split` is the text of a `SplitPlan`, and `target` its event to predict (None: any), `ties` the
    order of simultaneous rows, `metric` such as NDCG@10, and `hide_seen`: whether items of the
    history are left out of the ranking.
    """

    model: str
    fixed: dict[str, Any]
    split: str
    ties: str
    metric: str
    hide_seen: bool
    target: str | None = None

    @property
    def kind(self) -> type[Model]:
        """The class of the model."""
        return model_class(self.model)

    def check(self) -> None:
        """Raise TalerecError for a parameter, an order of ties or a metric that is not valid.

        The metric is HR, NDCG or MRR at a list length: NDCG@10. Ties are rows with equal times.
        """
        build_model(self.kind, self.fixed)
        expand_tie_orders(self.ties)
        name, at_sign, k = self.metric.partition("@")
        if name not in _METRICS or not at_sign or not k.isdecimal() or int(k) < 1:
            choices = ", ".join(f"{metric}@K" for metric in _METRICS)
            message = f"`metric` is {self.metric!r}; it takes {choices}"
            raise TalerecError(message, "metric")

    def space(self) -> dict[str, tuple[float, float]]:
        """Return the search range (low, high) of each parameter that has one and is not fixed.

        TalerecError if there is none.
        """
        free = [field for field in param_fields(self.kind) if field.name not in self.fixed]
        ranges = {f.name: f.metadata["search"] for f in free if f.metadata["search"] is not None}
        if not ranges:
            raise TalerecError(f"{self.model} has no parameter left to search")
        return ranges

    def build(self, values: dict[str, Any]) -> Model:
        """Return the unfitted model with the parameters `values`, the fixed ones, and defaults.

        values: by parameter name; `fixed` are the parameters that the search does not vary.
        """
        model: Model = build_model(self.kind, {**self.fixed, **values})
        return model

    def result(self, trials: list[Trial], searched: list[str]) -> Tuning:
        """Return the result of tuning from its trials; the first of equally good ones is the best.

        A trial is one evaluated setting of parameters. `searched` are the names of the parameters
        that were varied. All other parameters have their fixed value or their default.
        """
        best = max(trials, key=lambda trial: trial.value)
        params = self.build(best.params).params
        names = ("model", "split", "ties", "metric", "hide_seen")
        task = {name: getattr(self, name) for name in names}
        return Tuning(**task, params=params, value=best.value, searched=searched, trials=trials)


class Objective:
    """Function from a setting of parameters to the metric on the validation cases of a log.

    A case is a history and the held-out item that came next. Every setting is fitted and scored on
    the same splits; a cache per split keeps the steps of fitting that a changed parameter does not
    affect.
    """

    def __init__(self, task: Task, log: Log) -> None:
        """Split the log for every order of ties of the task.

        NoCasesError if no user has a row to validate on.
        """
        plan = SplitPlan(task.split, target=task.target)
        self.task = task
        self._splits: list[tuple[Split, FitCache]] = [
            (split, FitCache())
            for order in expand_tie_orders(task.ties)
            for split in plan.splits(order_ties(log, order), VALIDATION)
        ]
        if not any(len(split.cases(VALIDATION)) for split, _ in self._splits):
            event = "" if task.target is None else f" of the event {task.target!r}"
            raise NoCasesError(f"no user has a row to validate on{event}, and rows before it")
        k = task.metric.partition("@")[2]
        metrics = {e.meta.output_name(): e for e in metric_expressions([int(k)])}
        self._metric = metrics[task.metric]

    def __call__(self, values: dict[str, Any]) -> tuple[float, dict[str, float]]:
        """Return the metric over all validation cases, and the seconds of each step.

        values: the searched parameters by name. The model with these parameters is fitted to the
        training rows of each split, and ranks the held-out item of each case.
        """
        model, start = self.task.build(values), time.perf_counter()
        values_by_split: list[Array] = []
        fits: list[dict[str, float]] = []
        for split, cache in self._splits:
            model.fit(split.train, cache=cache)
            fits.append(model.fitted.seconds)
            cases = split.cases(VALIDATION, catalogue=model.scores_catalogue)
            ranks = rank_targets(model, cases.histories, cases.target).ranks
            frame = pl.DataFrame({RANK: ranks[:, 1 if self.task.hide_seen else 0]})
            values_by_split.append(frame.select(self._metric).to_series().to_numpy())
        seconds = sum_seconds(fits)
        seconds["score"] = time.perf_counter() - start - sum(seconds.values())
        return float(np.concatenate(values_by_split).mean()), seconds


def describe_setting(values: dict[str, Any]) -> str:
    """Return parameters (name -> number) as text: reg 100, decay 0.5."""
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())

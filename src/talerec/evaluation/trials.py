"""What tuning tries: a task, an objective that scores one setting after another, and the trials that were made."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from talerec.data import preprocessing
from talerec.data.log import Log
from talerec.data.split.splits import Plan, Split
from talerec.data.split.windows import VALIDATION
from talerec.errors import TalerecError
from talerec.evaluation import metrics
from talerec.evaluation.metrics import RANK
from talerec.models import model_class
from talerec.models.core import inference as asking
from talerec.models.core import params
from talerec.models.core.base import Model
from talerec.models.core.cache import FitCache
from talerec.runtime.arrays import Array
from talerec.runtime.clock import summed
from talerec.runtime.files import write_text

_METRICS = ("HR", "NDCG", "MRR")


@dataclass(frozen=True)
class Trial:
    """One setting that was tried, and the value of the metric that it reached."""

    number: int
    params: dict[str, Any]
    value: float
    seconds: dict[str, float]


@dataclass(frozen=True, eq=False)
class Tuning:
    """What tuning found. `params` are all parameters of the model in its best trial."""

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
        """The time that all trials took, by step."""
        return summed(trial.seconds for trial in self.trials)

    def to_dict(self) -> dict[str, Any]:
        """The object that `talerec tune --json` prints."""
        return asdict(self)

    def save(self, path: str | Path) -> Path:
        """Write the result as JSON, for `talerec fit --params`."""
        path = Path(path)
        write_text(path, json.dumps(self.to_dict(), indent=2) + "\n")
        return path


@dataclass(frozen=True)
class Task:
    """What is to be found: the best parameters of which model, by which metric on which rows."""

    model: str
    fixed: dict[str, Any]
    split: str
    ties: str
    metric: str
    hide_seen: bool

    @property
    def kind(self) -> type[Model]:
        """The model's class."""
        return model_class(self.model)

    def check(self) -> None:
        """Refuse parameters, orders of ties and metrics that do not exist."""
        params.build(self.kind, self.fixed)
        preprocessing.tie_orders(self.ties)
        name, sign, k = self.metric.partition("@")
        if name not in _METRICS or not sign or not k.isdecimal() or int(k) < 1:
            raise TalerecError(
                f"metric is {self.metric!r}; it takes {', '.join(f'{m}@K' for m in _METRICS)}"
            )

    def space(self) -> dict[str, tuple[float, float]]:
        """What is searched: the range of each parameter that declares one and is not fixed."""
        found = {
            field.name: field.metadata["search"]
            for field in params.fields(self.kind)
            if field.metadata["search"] is not None and field.name not in self.fixed
        }
        if not found:
            raise TalerecError(f"{self.model} has no parameter left to search")
        return found

    def build(self, values: dict[str, Any]) -> Model:
        """The model with these values, the fixed ones, and defaults for the rest."""
        model: Model = params.build(self.kind, {**self.fixed, **values})
        return model

    def result(self, trials: list[Trial], searched: list[str]) -> Tuning:
        """The best of the trials; of equals the first."""
        best = max(trials, key=lambda trial: trial.value)
        return Tuning(
            model=self.model,
            params=self.build(best.params).params,
            metric=self.metric,
            value=best.value,
            split=self.split,
            ties=self.ties,
            hide_seen=self.hide_seen,
            searched=searched,
            trials=trials,
        )


class Objective:
    """Fits and scores one setting after another on the same rows; steps that do not change are not repeated."""

    def __init__(self, task: Task, log: Log) -> None:
        plan = Plan(task.split)
        self.task = task
        self._splits: list[tuple[Split, FitCache]] = [
            (split, FitCache())
            for order in preprocessing.tie_orders(task.ties)
            for split in plan.splits(preprocessing.order_ties(log, order), VALIDATION)
        ]
        k = task.metric.partition("@")[2]
        known = {e.meta.output_name(): e for e in metrics.per_case([int(k)])}
        self._metric = known[task.metric]

    def __call__(self, values: dict[str, Any]) -> tuple[float, dict[str, float]]:
        """The metric over all validation cases, and the seconds that each step took."""
        model, start = self.task.build(values), time.perf_counter()
        found: list[Array] = []
        fits: list[dict[str, float]] = []
        for split, cache in self._splits:
            model.fit(split.train, cache=cache)
            fits.append(model.fitted.seconds)
            cases = split.cases(VALIDATION)
            ranks = asking.places(model, cases.histories, cases.target)
            frame = pl.DataFrame({RANK: ranks[:, 1 if self.task.hide_seen else 0]})
            found.append(frame.select(self._metric).to_series().to_numpy())
        spent = summed(fits)
        spent["score"] = time.perf_counter() - start - sum(spent.values())
        return float(np.concatenate(found).mean()), spent


def in_words(values: dict[str, Any]) -> str:
    """A setting as a line of a report or of the log: reg 100, decay 0.5."""
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())

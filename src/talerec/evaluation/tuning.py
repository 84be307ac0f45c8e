"""Choosing hyper-parameters on validation rows, without making anything twice.

Most of what a trial costs is the Gram and the solve. So trials come in blocks that share them: a block
has one Gram, some of its trials share one solve, and only histories are weighed anew for the rest.
"""

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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from talerec.data import preprocessing
from talerec.data.log import Log
from talerec.data.splits import VALIDATION, Plan, Split
from talerec.errors import TalerecError
from talerec.evaluation import metrics
from talerec.evaluation.metrics import RANK
from talerec.models import asking, model_class, params
from talerec.models.base import Model
from talerec.models.cache import FitCache
from talerec.runtime import threads
from talerec.runtime.arrays import Array
from talerec.runtime.clock import summed
from talerec.runtime.files import write_text
from talerec.runtime.progress import listening, silent, stage

logger = logging.getLogger(__name__)

_BLOCK = {params.LEARN: 12, params.SOLVE: 4}  # trials that share a Gram, and a solve
_METRICS = ("HR", "NDCG", "MRR")
PAPER = "paper"


@dataclass(frozen=True)
class Trial:
    """One setting that was tried."""

    number: int
    params: dict[str, Any]
    value: float
    seconds: dict[str, float]


@dataclass(frozen=True, eq=False)
class Tuning:
    """What was found. `params` are all parameters of the model at its best."""

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
        """What all trials took, by step."""
        return summed(trial.seconds for trial in self.trials)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def save(self, path: str | Path) -> Path:
        """Write the result as JSON; `talerec fit --params` takes it."""
        path = Path(path)
        write_text(path, json.dumps(self.to_dict(), indent=2) + "\n")
        return path


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
    """The best parameters of a model on validation rows, from the ranges that it declares.

    grid     "paper": not a search, but the values of the model's paper, one parameter at a time
    fixed    parameters that are given and not searched
    study    a file (SQLite) that keeps every trial: a later call with the same question goes on from there
    workers  processes that search the same study
    """
    kind = model_class(model) if isinstance(model, str) else model
    plan = Plan(plan) if isinstance(plan, str) else plan
    plan.check(VALIDATION)
    question = Question(kind.name, fixed or {}, plan.text, ties, metric, hide_seen)
    question.check()
    if grid is not None:
        return _by_grid(grid, question, log)
    if trials < 1:
        raise TalerecError(f"trials is {trials}; it takes a whole number from 1")
    if workers > 1 and study is None:
        raise TalerecError("several workers need a study file that they share")
    space = question.space()
    search = _Search(question, space, _storage(study), _named(question, log), trials, seed)
    if workers == 1:
        search.run(Judge(question, log))
    else:
        _by_many(search, log, study, workers)
    return question.answer(search.done(), list(space))


# -- the question ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """What is asked: the best parameters of which model, judged how."""

    model: str
    fixed: dict[str, Any]
    split: str
    ties: str
    metric: str
    hide_seen: bool

    @property
    def kind(self) -> type[Model]:
        return model_class(self.model)

    def check(self) -> None:
        params.build(self.kind, self.fixed)
        preprocessing.tie_orders(self.ties)
        name, sign, k = self.metric.partition("@")
        if name not in _METRICS or not sign or not k.isdecimal() or int(k) < 1:
            raise TalerecError(
                f"metric is {self.metric!r}; it takes {', '.join(f'{m}@K' for m in _METRICS)}"
            )

    def space(self) -> dict[str, tuple[float, float]]:
        """What is searched: parameters with a range that are not fixed."""
        found = {
            field.name: field.metadata["search"]
            for field in params.fields(self.kind)
            if field.metadata["search"] is not None and field.name not in self.fixed
        }
        if not found:
            raise TalerecError(f"{self.model} has no parameter left to search")
        return found

    def build(self, values: dict[str, Any]) -> Model:
        made: Model = params.build(self.kind, {**self.fixed, **values})
        return made

    def answer(self, trials: list[Trial], searched: list[str]) -> Tuning:
        best = max(trials, key=lambda trial: trial.value)  # of equals the first
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


class Judge:
    """Fits and judges one setting after another on the same rows; what does not change is kept."""

    def __init__(self, question: Question, log: Log) -> None:
        plan = Plan(question.split)
        self.question = question
        self._splits: list[tuple[Split, FitCache]] = [
            (split, FitCache())
            for order in preprocessing.tie_orders(question.ties)
            for split in plan.splits(preprocessing.order_ties(log, order), VALIDATION)
        ]
        k = question.metric.partition("@")[2]
        found = {e.meta.output_name(): e for e in metrics.per_case([int(k)])}
        self._gain = found[question.metric]

    def __call__(self, values: dict[str, Any]) -> tuple[float, dict[str, float]]:
        """The metric over all validation cases, and the seconds that it took."""
        model, start = self.question.build(values), time.perf_counter()
        gains: list[Array] = []
        fits: list[dict[str, float]] = []
        for split, cache in self._splits:
            model.fit(split.train, cache=cache)
            fits.append(model.fitted.seconds)
            cases = split.cases(VALIDATION)
            ranks = asking.places(model, cases.histories, cases.target)
            shown = pl.DataFrame({RANK: ranks[:, 1 if self.question.hide_seen else 0]})
            gains.append(shown.select(self._gain).to_series().to_numpy())
        spent = summed(fits)
        spent["score"] = time.perf_counter() - start - sum(spent.values())
        return float(np.concatenate(gains).mean()), spent


# -- searching -------------------------------------------------------------------------------------


class _Search:
    """A study of Optuna's: it proposes, we judge, it keeps."""

    def __init__(
        self,
        question: Question,
        space: dict[str, tuple[float, float]],
        storage: Any,
        name: str,
        trials: int,
        seed: int,
    ) -> None:
        optuna = _optuna()
        self.question, self.space, self.trials = question, space, trials
        self._sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True)
        self._study = optuna.create_study(
            storage=storage, study_name=name, direction="maximize", load_if_exists=True
        )
        self._step, self._last = 0, {}  # type: tuple[int, dict[str, Any]]
        if not self._study.get_trials(deepcopy=False):
            self._study.enqueue_trial(self._defaults())  # the first trial is what people have

    def _defaults(self) -> dict[str, Any]:
        made = self.question.build({}).params
        return {n: min(max(made[n], low), high) for n, (low, high) in self.space.items()}

    def done(self) -> list[Trial]:
        """Every setting that was judged, whoever did it."""
        found = [t for t in self._study.get_trials(deepcopy=False) if t.state.name == "COMPLETE"]
        return [
            Trial(t.number, dict(t.params), float(t.value), dict(t.user_attrs.get("seconds", {})))
            for t in found
        ]

    def run(self, judge: Judge) -> None:
        """Judge settings until there are as many as were asked for."""
        before = self.done()
        tick = stage("trials", float(self.trials))
        tick(min(len(before), self.trials))
        if before:
            logger.info("going on after %d trials that are in the study", len(before))
        best = max((trial.value for trial in before), default=-math.inf)
        while len(self.done()) < self.trials:
            value, values = self._one(judge)
            tick(1)
            if value > best:
                best = value
                logger.info("%s %.4f with %s", self.question.metric, value, _words(values))

    def _one(self, judge: Judge) -> tuple[float, dict[str, Any]]:
        self._study.sampler = self._proposer(self._shared())
        trial = self._study.ask()
        values = {name: self._suggest(trial, name) for name in self.space}
        with listening(silent):
            value, seconds = judge(values)
        trial.set_user_attr("seconds", seconds)
        self._study.tell(trial, value)
        self._step, self._last = self._step + 1, values
        return value, values

    def _proposer(self, shared: dict[str, Any]) -> Any:
        if not shared:
            return self._sampler
        optuna = _optuna()
        with warnings.catch_warnings():  # "experimental" for years
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.samplers.PartialFixedSampler(shared, self._sampler)

    def _shared(self) -> dict[str, Any]:
        """What this trial takes over from the one before, so that a Gram or a solve serves both."""
        if not self._last:
            return {}
        staged = {f.name: f.metadata["stage"] for f in params.fields(self.question.kind)}
        free = {s for s, size in _BLOCK.items() if self._step % size == 0} | {params.SCORE}
        searched = {staged[name] for name in self.space}
        if not free & searched:  # nothing would be new
            return {}
        return {name: value for name, value in self._last.items() if staged[name] not in free}

    def _suggest(self, trial: Any, name: str) -> Any:
        low, high = self.space[name]
        default = next(f.default for f in params.fields(self.question.kind) if f.name == name)
        if isinstance(default, int):
            return trial.suggest_int(name, int(low), int(high), log=low > 0)
        return trial.suggest_float(name, low, high, log=low > 0)


def _words(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())


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
        raise TalerecError(f"{path} is no study file (SQLite)")
    return f"sqlite:///{path}"


def _named(question: Question, log: Log) -> str:
    """The same question about the same rows has the same name, so that it goes on where it stopped."""
    rows = f"{log.rows}/{int(log.time.sum()) % 10**9}/{int(log.item.astype(np.int64).sum())}"
    return json.dumps([asdict(question), rows], sort_keys=True, default=str)


def _by_many(search: _Search, log: Log, study: str | Path | None, workers: int) -> None:
    """Several processes, each with its share of the cores, on one study."""
    share = max(1, threads.thread_count() // workers)
    tasks = (search.question, log, str(study), search.trials)
    tick, seen = stage("trials", float(search.trials)), 0
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        waiting = [pool.submit(_work, *tasks, share, seed) for seed in range(workers)]
        while not all(task.done() for task in waiting):
            now = min(len(search.done()), search.trials)
            tick(now - seen)
            seen = now
            time.sleep(0.2)
        for task in as_completed(waiting):
            task.result()


def _work(question: Question, log: Log, study: str, trials: int, share: int, seed: int) -> None:
    os.environ[threads.VARIABLE] = str(share)
    name = _named(question, log)
    _Search(question, question.space(), _storage(study), name, trials, seed).run(
        Judge(question, log)
    )


# -- the paper's grid ------------------------------------------------------------------------------


def _by_grid(grid: str, question: Question, log: Log) -> Tuning:
    """The paper's values, one parameter at a time, the others at the best so far."""
    if grid != PAPER:
        raise TalerecError(f"grid is {grid!r}; it takes {PAPER}")
    values = {
        field.name: field.metadata["grid"]
        for field in params.fields(question.kind)
        if field.metadata["grid"] and field.name not in question.fixed
    }
    if not values:
        raise TalerecError(f"{question.model} declares no grid from a paper")
    judge = Judge(question, log)
    trials: list[Trial] = []
    tick = stage("trials", float(sum(len(v) for v in values.values())))
    for number, setting in enumerate(_around_the_best(question, values, trials)):
        with listening(silent):
            value, seconds = judge(setting)
        if not trials or value > max(trial.value for trial in trials):
            logger.info("%s %.4f with %s", question.metric, value, _words(setting))
        trials.append(Trial(number, setting, value, seconds))
        tick(1)
    return question.answer(trials, list(values))


def _around_the_best(
    question: Question, values: dict[str, Sequence[float]], trials: list[Trial]
) -> Iterator[dict[str, Any]]:
    """Settings to try, each around the best of the trials so far."""
    start = {name: question.build({}).params[name] for name in values}
    for name, tried in values.items():
        best = max(trials, key=lambda trial: trial.value).params if trials else start
        for value in tried:
            yield {**best, name: float(value)}


def read_params(path: Path, model: str | None) -> tuple[str, dict[str, Any]]:
    """The model and the parameters of a tuning result, or of any JSON object {model, params}."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        name, values = str(found["model"]), dict(found["params"])
    except (ValueError, KeyError, TypeError):
        raise TalerecError(
            f"{path} is no result of talerec tune: no model and params in it"
        ) from None
    if model is not None and model != name:
        raise TalerecError(f"{path} has the parameters of {name}, not of {model}")
    return name, values

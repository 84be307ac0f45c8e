"""The paper's experiments. The result of each is saved when it ends, so that a run continues where it stopped."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from talerec import __version__, columns
from talerec.data.log import Log
from talerec.data.read.readers import read_items
from talerec.data.split.splits import Split, leave_one_out
from talerec.data.summary import describe, many_ties
from talerec.errors import TalerecError
from talerec.evaluation.evaluator import evaluate, evaluate_log
from talerec.evaluation.result import Evaluation
from talerec.models import MODELS
from talerec.models.core.base import Model
from talerec.models.core.cache import FitCache
from talerec.repro import measures, paper, training
from talerec.runtime.files import write_text
from talerec.runtime.progress import listening, silent, stage

logger = logging.getLogger(__name__)

TABLE_ROWS = ("SLIST", "SLIST+Norm.", "TALE")
#: The parameter that each figure of sensitivity varies, and its values.
SWEEPS: dict[str, tuple[float, ...]] = {
    "floor": tuple(tenths / 10 for tenths in range(11)),
    "decay": tuple(2.0**power for power in range(-10, 11, 2)),
    "window": (7, 30, 90, 180, 360, 720),
}
ORDERS = "random:0..4"
_TRAINING_SHARE = 0.8  # of the rows are before the moment of the time split
_EXACT_UP_TO = 4000  # items
_WARM_UP_ROWS = 500
_BASELINES = (
    "rules",
    "markov",
    "popular",
    "trending",
)  # beside the paper's models in the time split
Facts = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Study:
    """The experiments on one data set: its log, its split, and the folder of saved results."""

    dataset: paper.Dataset
    path: Path
    log: Log
    split: Split
    saved: Path
    neural: bool = False  # compute neural rows too

    @classmethod
    def open(
        cls, dataset: paper.Dataset, path: Path, folder: Path, *, neural: bool = False
    ) -> Study:
        """Read the data set and split it; results are saved under `folder`."""
        log = dataset.read(path)
        return cls(dataset, path, log, leave_one_out(log), folder / "kept", neural)

    @property
    def figure_solver(self) -> str:
        """The solver for the figures: local, or exact where there are few items and it is as fast."""
        return "exact" if len(self.log.items) <= _EXACT_UP_TO else "local"

    @property
    def rows(self) -> list[str]:
        """The paper's linear rows for this data set, those of the ablation included."""
        return [*TABLE_ROWS, *(row for row in paper.table(5).figures.get(self.dataset.key, {}))]

    def _cached(self, name: str, asked: Any, make: Callable[[], Any]) -> Any:
        """The result of an experiment: the saved one where it was made for the same `asked`, log and version, else a new one."""
        log = self.log
        rows = [log.rows, len(log.users), len(log.items), int(log.time.sum() % 10**12), log.ties]
        key = hashlib.sha256(json.dumps([asked, rows, __version__], default=str).encode())
        place = self.saved / f"{self.dataset.key}-{name}-{key.hexdigest()[:12]}.json"
        if place.exists():
            return json.loads(place.read_text(encoding="utf-8"))
        logger.info("%s: %s", self.dataset.name, name)
        with listening(silent):
            found = make()
        self.saved.mkdir(parents=True, exist_ok=True)
        write_text(place, json.dumps(found))
        return found

    # -- the paper's tables --

    def statistics(self) -> Facts:
        """Table 1."""
        found: Facts = self._cached("statistics", None, lambda: describe(self.log))
        return found

    def row(self, name: str) -> Facts:
        """A linear row of the tables, with the exact solver: accuracy, groups, seconds, and facts about the weights."""
        chosen = paper.settings(self.dataset.key, name)

        def make() -> Facts:
            self._warm_up(chosen)
            model = chosen.build(solver="exact").fit(self.split.train)
            found = saved_facts(evaluate(model, self.split))
            if name in TABLE_ROWS:
                train = self.split.train
                found["correlation"] = measures.interval_correlation(train, model.weights)
                found["weights"] = measures.weight_by_popularity(train, model.weights)
            return found

        label = "row-" + name.replace("+", "-").strip(".")
        found: Facts = self._cached(label, [chosen.model, chosen.params], make)
        return found

    @property
    def neural_rows(self) -> list[str]:
        """The paper's neural rows that are computed: all, where that was asked for."""
        return paper.neural_rows(self.dataset.key) if self.neural else []

    def neural_row(self, name: str) -> Facts:
        """A neural row of the tables; training stops on the validation rows, as in the paper."""
        chosen = paper.neural_settings(self.dataset.key, name)

        def make() -> Facts:
            folder = self.saved / "trainings"
            model = training.fitted(chosen.build(), self.split, folder)
            return saved_facts(evaluate(model, self.split))

        found: Facts = self._cached(f"neural-{name}", [chosen.model, chosen.params], make)
        return found

    def _warm_up(self, chosen: paper.Settings) -> None:
        """Compile the kernels that a row needs, so that its seconds do not include it."""
        train = self.split.train
        few = leave_one_out(train.keep(np.arange(train.rows) < _WARM_UP_ROWS))
        evaluate(chosen.build(solver="exact").fit(few.train), few)

    # -- the paper's figures, with the local solver --

    def sensitivity(self, name: str) -> list[float]:
        """TALE's NDCG@10 on test rows, as in the paper's figures, over one parameter."""
        chosen = paper.settings(self.dataset.key, "TALE")

        def make() -> list[float]:
            cache, values = FitCache(), []
            for value in SWEEPS[name]:
                model = chosen.build(solver=self.figure_solver, **{name: value})
                found = evaluate(model.fit(self.split.train, cache=cache), self.split, k=[10])
                values.append(float(found.metrics["NDCG@10"] or 0.0))
            return values

        asked = [chosen.params, SWEEPS[name]]
        found: list[float] = self._cached(f"sensitivity-{name}", asked, make)
        return found

    def co_occurrence(self) -> dict[str, float]:
        """The share of consecutive pairs of items, by the mean time between them."""
        found: dict[str, float] = self._cached(
            "co-occurrence", None, lambda: measures.co_occurrence(self.log)
        )
        return found

    def transitions(self) -> dict[str, float | None] | None:
        """How often the first genre (or category) changes; None where there is no item table beside the log."""
        table = _item_table(self.path)
        if table is None:
            return None
        found: dict[str, float | None] = self._cached(
            "transitions", None, lambda: measures.transitions(self.log, table)
        )
        return found

    # -- what the paper does not show --

    def random_ties(self, name: str) -> Facts:
        """A row of the tables in five random orders of simultaneous rows, and in the fixed ones."""
        chosen = paper.settings(self.dataset.key, name)

        def make() -> Facts:
            return saved_facts(
                evaluate_log(
                    chosen.build(solver=self.figure_solver), self._in_file_order(), ties=ORDERS
                )
            )

        found: Facts = self._cached(f"ties-{name}", [chosen.params, ORDERS], make)
        return found

    @property
    def has_ties(self) -> bool:
        """Whether many neighbouring rows have the same time."""
        return many_ties(self.statistics()["ties"])

    @property
    def chosen_for_ties(self) -> Facts:
        """The parameters of TALE that were chosen anew for random ties, on validation rows: the last row says less there."""
        return paper.random_ties(self.dataset.key)

    def random_ties_chosen(self) -> Facts:
        """TALE in five random orders of simultaneous rows, with the settings that were chosen for them."""
        chosen, changes = paper.settings(self.dataset.key, "TALE"), self.chosen_for_ties

        def make() -> Facts:
            model = chosen.build(**{**changes, "solver": self.figure_solver})
            return saved_facts(evaluate_log(model, self._in_file_order(), ties=ORDERS))

        found: Facts = self._cached("ties-chosen", [chosen.params, changes, ORDERS], make)
        return found

    def _in_file_order(self) -> Log:
        """The log as the file has it; one that was put into item order has lost that order."""
        return self.dataset.read(self.path, ties="file")

    def time_split(self, name: str) -> Facts:
        """A model on a split at the moment after which a fifth of the rows come."""
        model = self._time_split_model(name)
        moment = int(np.quantile(self.log.time, _TRAINING_SHARE, method="higher"))

        def make() -> Facts:
            when = str(np.datetime64(moment, "us"))
            return saved_facts(evaluate_log(model, self.log, f"at:{when}", ties=self.log.ties))

        found: Facts = self._cached(f"late-{name}", [model.name, model.params, moment], make)
        return found

    def _time_split_model(self, name: str) -> Model:
        if name in _BASELINES:
            return MODELS[name]()
        return paper.settings(self.dataset.key, name).build(solver=self.figure_solver)

    @property
    def time_split_rows(self) -> list[str]:
        """The models of the time split."""
        return ["SLIST", "TALE", *_BASELINES]

    def tasks(self) -> dict[str, Callable[[], Any]]:
        """Every experiment by name, the quickest first."""
        found: dict[str, Callable[[], Any]] = {
            "statistics": self.statistics,
            "co-occurrence": self.co_occurrence,
            "transitions": self.transitions,
        }
        found |= {row: lambda row=row: self.row(row) for row in self.rows}  # type: ignore[misc]
        found |= {row: lambda row=row: self.neural_row(row) for row in self.neural_rows}  # type: ignore[misc]
        found |= {f"sweep {s}": lambda s=s: self.sensitivity(s) for s in SWEEPS}  # type: ignore[misc]
        if self.has_ties:
            found |= {f"ties {r}": lambda r=r: self.random_ties(r) for r in ("SLIST", "TALE")}  # type: ignore[misc]
            found["ties TALE, chosen for them"] = self.random_ties_chosen
        found |= {f"late {r}": lambda r=r: self.time_split(r) for r in self.time_split_rows}  # type: ignore[misc]
        return found


def run(folder: Path, out: Path, only: list[str], *, neural: bool = False) -> list[Study]:
    """Run all experiments on the data sets that are in the folder, or on those named in `only`."""
    if neural:
        training.require_torch()
    known = paper.find(folder)
    for key in only:
        if key not in paper.datasets():
            names = ", ".join(paper.datasets())
            raise TalerecError(f"there is no data set {key!r} in the paper; there are {names}")
    wanted = [key for key in known if not only or key in only]
    if not wanted:
        raise TalerecError(
            f"{folder} has no file of {', '.join(only or paper.datasets())}"
            " (docs/evaluation.md lists the names that are looked for)"
        )
    studies = []
    for key in wanted:
        dataset = paper.datasets()[key]
        study = Study.open(dataset, known[key], out, neural=neural)
        tasks = study.tasks()
        tick = stage(dataset.name, float(len(tasks)))
        for task in tasks.values():
            task()
            tick(1)
        studies.append(study)
    return studies


def saved_facts(result: Evaluation) -> Facts:
    """The fields of a result that are saved: all but the notes and the windows."""
    found = result.to_dict()
    return {name: value for name, value in found.items() if name not in ("notes", "windows")}


def _item_table(path: Path) -> pl.DataFrame | None:
    """item_id and the first genre or category, from the .item file beside a log or MovieLens' movies.dat."""
    places = [path.with_name(path.name.replace(".inter", ".item")), path.with_name("movies.dat")]
    place = next((p for p in places if p.exists() and p != path), None)
    if place is None:
        return None
    table = read_items(place)
    name = next((c for c in ("genres", "genre", "class", "categories") if c in table.columns), None)
    if name is None:
        return None
    first = pl.col(name).cast(pl.String).str.split("|").list.first().str.split(" ").list.first()
    return table.select(pl.col(columns.ITEM), first.alias(name))

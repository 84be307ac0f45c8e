"""The paper's experiments on one data set, each kept as it ends, so that a run goes on where it stopped."""

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
from talerec.data.readers import read_items
from talerec.data.splits import Split, leave_one_out
from talerec.data.summary import describe, many_ties
from talerec.errors import TalerecError
from talerec.evaluation.evaluation import Evaluation, evaluate, evaluate_log
from talerec.models import MODELS
from talerec.models.base import Model
from talerec.models.cache import FitCache
from talerec.repro import measures, paper
from talerec.runtime.files import write_text
from talerec.runtime.progress import listening, silent, stage

logger = logging.getLogger(__name__)

TABLED = ("SLIST", "SLIST+Norm.", "TALE")
#: What each figure of sensitivity moves, and where to.
SWEEPS: dict[str, tuple[float, ...]] = {
    "floor": tuple(tenths / 10 for tenths in range(11)),
    "decay": tuple(2.0**power for power in range(-10, 11, 2)),
    "window": (7, 30, 90, 180, 360, 720),
}
ORDERS = "random:0..4"
_LATE = 0.8  # of the rows lie before the point of the global time split
_EXACT_UP_TO = 4000  # items
_FEW = 500  # rows of a rehearsal
_EXTRA = ("rules", "markov", "popular", "trending")  # beside the paper's models where time splits
Facts = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Study:
    """One data set: its log, its split, and where results are kept."""

    dataset: paper.Dataset
    path: Path
    log: Log
    split: Split
    kept: Path

    @classmethod
    def open(cls, dataset: paper.Dataset, path: Path, folder: Path) -> Study:
        log = dataset.read(path)
        return cls(dataset, path, log, leave_one_out(log), folder / "kept")

    @property
    def quick(self) -> str:
        """The solver of figures: local, but for few items, where exact is as fast."""
        return "exact" if len(self.log.items) <= _EXACT_UP_TO else "local"

    @property
    def rows(self) -> list[str]:
        """The paper's linear rows for this data set, the ablation's too."""
        return [*TABLED, *(row for row in paper.table(5).figures.get(self.dataset.key, {}))]

    def once(self, name: str, asked: Any, make: Callable[[], Any]) -> Any:
        """What was found for the same question before, or now."""
        log = self.log
        rows = [log.rows, len(log.users), len(log.items), int(log.time.sum() % 10**12), log.ties]
        key = hashlib.sha256(json.dumps([asked, rows, __version__], default=str).encode())
        place = self.kept / f"{self.dataset.key}-{name}-{key.hexdigest()[:12]}.json"
        if place.exists():
            return json.loads(place.read_text(encoding="utf-8"))
        logger.info("%s: %s", self.dataset.name, name)
        with listening(silent):
            found = make()
        self.kept.mkdir(parents=True, exist_ok=True)
        write_text(place, json.dumps(found))
        return found

    # -- the paper's tables --

    def statistics(self) -> Facts:
        """Table 1."""
        found: Facts = self.once("statistics", None, lambda: describe(self.log))
        return found

    def row(self, name: str) -> Facts:
        """A linear row of the tables, with the exact solver: accuracy, groups, seconds, weights in figures."""
        chosen = paper.settings(self.dataset.key, name)

        def make() -> Facts:
            self._rehearse(chosen)
            model = chosen.build(solver="exact").fit(self.split.train)
            found = brief(evaluate(model, self.split))
            if name in TABLED:
                train = self.split.train
                found["correlation"] = measures.interval_correlation(train, model.weights)
                found["weights"] = measures.weight_by_popularity(train, model.weights)
            return found

        label = "row-" + name.replace("+", "-").strip(".")
        found: Facts = self.once(label, [chosen.model, chosen.params], make)
        return found

    def _rehearse(self, chosen: paper.Settings) -> None:
        """Compile what a row needs, so that no clock counts it."""
        train = self.split.train
        few = leave_one_out(train.keep(np.arange(train.rows) < _FEW))
        evaluate(chosen.build(solver="exact").fit(few.train), few)

    # -- the paper's figures, with the local solver --

    def sensitivity(self, name: str) -> list[float]:
        """TALE's NDCG@10 on test rows, as in the paper's figures, over one parameter."""
        chosen = paper.settings(self.dataset.key, "TALE")

        def make() -> list[float]:
            cache, values = FitCache(), []
            for value in SWEEPS[name]:
                model = chosen.build(solver=self.quick, **{name: value})
                found = evaluate(model.fit(self.split.train, cache=cache), self.split, k=[10])
                values.append(float(found.metrics["NDCG@10"] or 0.0))
            return values

        asked = [chosen.params, SWEEPS[name]]
        found: list[float] = self.once(f"sensitivity-{name}", asked, make)
        return found

    def co_occurrence(self) -> dict[str, float]:
        found: dict[str, float] = self.once(
            "co-occurrence", None, lambda: measures.co_occurrence(self.log)
        )
        return found

    def transitions(self) -> dict[str, float | None] | None:
        """How often the first genre (or category) changes, where a table of items lies beside the log."""
        table = _items_beside(self.path)
        if table is None:
            return None
        found: dict[str, float | None] = self.once(
            "transitions", None, lambda: measures.transitions(self.log, table)
        )
        return found

    # -- what the paper does not show --

    def random_ties(self, name: str) -> Facts:
        """Five random orders of simultaneous rows, beside the fixed ones."""
        chosen = paper.settings(self.dataset.key, name)

        def make() -> Facts:
            return brief(
                evaluate_log(chosen.build(solver=self.quick), self._in_file_order(), ties=ORDERS)
            )

        found: Facts = self.once(f"ties-{name}", [chosen.params, ORDERS], make)
        return found

    @property
    def has_ties(self) -> bool:
        return many_ties(self.statistics()["ties"])

    @property
    def chosen_for_ties(self) -> Facts:
        """What TALE changes under random ties, chosen on validation rows: there the last place says less."""
        return paper.random_ties(self.dataset.key)

    def random_ties_chosen(self) -> Facts:
        """The same with the settings that were chosen for random ties."""
        chosen, changes = paper.settings(self.dataset.key, "TALE"), self.chosen_for_ties

        def make() -> Facts:
            model = chosen.build(**{**changes, "solver": self.quick})
            return brief(evaluate_log(model, self._in_file_order(), ties=ORDERS))

        found: Facts = self.once("ties-chosen", [chosen.params, changes, ORDERS], make)
        return found

    def _in_file_order(self) -> Log:
        """The log as it was read: one that was put into item order has lost the file's."""
        return self.dataset.read(self.path, ties="file")

    def late(self, name: str) -> Facts:
        """A split at the moment after which a fifth of the rows lie."""
        model = self._late_model(name)
        moment = int(np.quantile(self.log.time, _LATE, method="higher"))

        def make() -> Facts:
            when = str(np.datetime64(moment, "us"))
            return brief(evaluate_log(model, self.log, f"at:{when}", ties=self.log.ties))

        found: Facts = self.once(f"late-{name}", [model.name, model.params, moment], make)
        return found

    def _late_model(self, name: str) -> Model:
        if name in _EXTRA:
            return MODELS[name]()
        return paper.settings(self.dataset.key, name).build(solver=self.quick)

    @property
    def late_rows(self) -> list[str]:
        return ["SLIST", "TALE", *_EXTRA]

    def tasks(self) -> dict[str, Callable[[], Any]]:
        """Everything, by name, cheapest to wait for first."""
        found: dict[str, Callable[[], Any]] = {
            "statistics": self.statistics,
            "co-occurrence": self.co_occurrence,
            "transitions": self.transitions,
        }
        found |= {row: lambda row=row: self.row(row) for row in self.rows}  # type: ignore[misc]
        found |= {f"sweep {s}": lambda s=s: self.sensitivity(s) for s in SWEEPS}  # type: ignore[misc]
        if self.has_ties:
            found |= {f"ties {r}": lambda r=r: self.random_ties(r) for r in ("SLIST", "TALE")}  # type: ignore[misc]
            found["ties TALE, chosen for them"] = self.random_ties_chosen
        found |= {f"late {r}": lambda r=r: self.late(r) for r in self.late_rows}  # type: ignore[misc]
        return found


def run(folder: Path, out: Path, only: list[str]) -> list[Study]:
    """All experiments of all data sets that the folder has, or of those named."""
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
        study = Study.open(dataset, known[key], out)
        tasks = study.tasks()
        tick = stage(dataset.name, float(len(tasks)))
        for task in tasks.values():
            task()
            tick(1)
        studies.append(study)
    return studies


def brief(result: Evaluation) -> Facts:
    """A result without what its reader can do without."""
    found = result.to_dict()
    return {name: value for name, value in found.items() if name not in ("notes", "windows")}


def _items_beside(path: Path) -> pl.DataFrame | None:
    """item_id and the first genre or category, from the .item file beside a log, or MovieLens' movies.dat."""
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

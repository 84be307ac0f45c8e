"""The paper's experiments; each result is saved, so that an interrupted run resumes."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl

from talerec import __version__, columns
from talerec.data import Log, describe, fingerprint_log, has_many_ties
from talerec.data.read import read_items
from talerec.data.split import VALIDATION, Split, leave_one_out
from talerec.errors import TalerecError
from talerec.evaluation import Evaluation, evaluate, evaluate_log
from talerec.models import MODELS
from talerec.models.core import FitCache, Model
from talerec.models.networks import NeuralModel, import_neural, log_rows
from talerec.repro import measures, paper
from talerec.runtime import listening, silent, stage, write_text

logger = logging.getLogger(__name__)

TABLE_ROWS = ("SLIST", "SLIST+Norm.", "TALE")
#: The parameter that each figure of sensitivity varies, and its values.
SWEEPS: dict[str, tuple[float, ...]] = {
    "floor": tuple(tenths / 10 for tenths in range(11)),
    "decay": tuple(2.0**power for power in range(-10, 11, 2)),
    "window": (7, 30, 90, 180, 360, 720),
}
ORDERS = "random:0..4"
_TRAINING_SHARE = 0.8  # of the rows lie before the cutoff of the time split
_EXACT_UP_TO = 4000  # items
_WARM_UP_ROWS = 500
#: Models that are compared with the paper's in the time split.
_BASELINES = ("rules", "markov", "popular", "trending")
Facts = dict[str, Any]
Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Study:
    """The experiments on one data set of the paper, each run once and then read from its file.

    Results are dictionaries of JSON values (`Facts`), most of them the fields of an Evaluation. A
    row is a model of the paper's tables, by its printed name.
    """

    dataset: paper.Dataset  # its key, name and preprocessing
    path: Path  # of the log's file
    log: Log  # the preprocessed rows
    split: Split  # of the log, leave-one-out
    saved: Path  # the folder of the saved results
    has_neural_rows: bool = False  # compute neural rows too

    @classmethod
    def open(
        cls, dataset: paper.Dataset, path: Path, folder: Path, *, neural: bool = False
    ) -> Study:
        """Read and split a data set; results are saved in the subfolder `kept` of `folder`.

        path : of the log's file; neural : also compute the paper's neural models
        """
        log = dataset.read(path)
        return cls(dataset, path, log, leave_one_out(log), folder / "kept", neural)

    @cached_property
    def _fingerprint(self) -> str:
        """Return a hash of the log's rows, which names the files of its results."""
        return fingerprint_log(self.log)

    @property
    def figure_solver(self) -> str:
        """Return the solver of models behind figures: "exact" up to 4,000 items, else "local"."""
        return "exact" if len(self.log.items) <= _EXACT_UP_TO else "local"

    @property
    def rows(self) -> list[str]:
        """Return the names of the paper's linear models for this data set, with the ablation's.

        An ablation (Table 5) is TALE without some of its parts.
        """
        return [*TABLE_ROWS, *(row for row in paper.table(5).figures.get(self.dataset.key, {}))]

    def _cached(self, name: str, settings: Any, run_experiment: Callable[[], Result]) -> Result:
        """Return the saved result for these settings, log and version, or run the experiment.

        name : of the experiment, part of the file name; settings : what the result depends on,
        hashed into the file name with the log's fingerprint and talerec's version. The result must
        be JSON values; a new one is saved in the folder `self.saved`.
        """
        facts = [settings, self._fingerprint, self.log.ties, __version__]
        key = hashlib.sha256(json.dumps(facts, default=str).encode())
        path = self.saved / f"{self.dataset.key}-{name}-{key.hexdigest()[:12]}.json"
        if path.exists():
            result: Result = json.loads(path.read_text(encoding="utf-8"))
            return result
        logger.info("%s: %s", self.dataset.name, name)
        with listening(silent):
            result = run_experiment()
        self.saved.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(result))
        return result

    # -- the paper's tables --

    def statistics(self) -> Facts:
        """Return the statistics of Table 1."""
        return self._cached("statistics", None, lambda: describe(self.log))

    def row(self, name: str) -> Facts:
        """Return the results of a linear model of the tables, with the exact solver.

        name : its printed name, such as "TALE". The fields of an Evaluation: metrics, groups, ...
        For SLIST, SLIST+Norm. and TALE also `correlation` (weights and intervals, Table 8) and
        `weights` (mean weight by popularity).
        """
        chosen = paper.settings(self.dataset.key, name)

        def make() -> Facts:
            """Fit and evaluate the model; called if no result is saved."""
            self._warm_up(chosen)
            model = chosen.build(solver="exact").fit(self.split.train)
            facts = saved_facts(evaluate(model, self.split))
            if name in TABLE_ROWS:
                train = self.split.train
                facts["correlation"] = measures.interval_correlation(train, model.weights)
                facts["weights"] = measures.weight_by_popularity(train, model.weights)
            return facts

        label = "row-" + name.replace("+", "-").strip(".")
        return self._cached(label, [chosen.model, chosen.params], make)

    @property
    def neural_rows(self) -> list[str]:
        """Return the names of the paper's neural models to compute: all of the tables, or none.

        There are none unless the study was opened with `neural`.
        """
        return paper.neural_rows(self.dataset.key) if self.has_neural_rows else []

    def neural_row(self, name: str) -> Facts:
        """Return the results of a neural model of the tables, as Evaluation fields.

        name : its printed name, such as "SASRec". Training stops early on validation rows.
        """
        chosen = paper.neural_settings(self.dataset.key, name)

        def make() -> Facts:
            """Train and evaluate the model; called if no result is saved."""
            folder = self.saved / "trainings"
            model = fit_neural(chosen.build(), self.split, folder)
            return saved_facts(evaluate(model, self.split))

        return self._cached(f"neural-{name}", [chosen.model, chosen.params], make)

    def _warm_up(self, chosen: paper.RowSettings) -> None:
        """Fit and evaluate a row's model on 500 rows, to compile its kernels.

        Then the seconds that are measured later exclude compilation. `chosen` has the model and its
        parameters, `self.split` the training rows.
        """
        train = self.split.train
        few = leave_one_out(train.keep(np.arange(train.rows) < _WARM_UP_ROWS))
        evaluate(chosen.build(solver="exact").fit(few.train), few)

    # -- the paper's figures, with the local solver --

    def sensitivity(self, name: str) -> list[float]:
        """Return TALE's NDCG@10 on test rows for each value in `SWEEPS[name]` of one parameter.

        name : the parameter ("floor", "decay" or "window"); the others are the paper's.
        `self.split` has the training and test rows.
        """
        chosen = paper.settings(self.dataset.key, "TALE")

        def make() -> list[float]:
            """Fit and evaluate TALE for each value; called if no result is saved."""
            cache, values = FitCache(), []
            for value in SWEEPS[name]:
                model = chosen.build(solver=self.figure_solver, **{name: value})
                result = evaluate(model.fit(self.split.train, cache=cache), self.split, k=[10])
                values.append(float(result.metrics["NDCG@10"] or 0.0))
            return values

        settings = [chosen.params, SWEEPS[name]]
        return self._cached(f"sensitivity-{name}", settings, make)

    def co_occurrence(self) -> dict[str, float]:
        """Return the share of consecutive item pairs, by the mean time between them.

        Keys are classes of intervals such as "1 day"; computed once and saved.
        """
        return self._cached("co-occurrence", None, lambda: measures.co_occurrence(self.log))

    def transitions(self) -> dict[str, float | None] | None:
        """Return how often the first genre differs from the previous item's, by interval.

        Keys are the names in `measures.SPANS`; None without a table of genres or categories.
        """
        table = _item_table(self.path)
        if table is None:
            return None
        return self._cached("transitions", None, lambda: measures.transitions(self.log, table))

    # -- what the paper does not show --

    def random_ties(self, name: str) -> Facts:
        """Return a linear model's results in five random orders of simultaneous rows.

        Evaluation fields; `metrics` are means over the orders, `spread` their standard deviation,
        and `beside` has the metrics in file order and in item order. `name` is the model's printed
        name; the log is read in file order first.
        """
        chosen = paper.settings(self.dataset.key, name)

        def make() -> Facts:
            """Evaluate the model in all orders; called if no result is saved."""
            return saved_facts(
                evaluate_log(
                    chosen.build(solver=self.figure_solver), self._in_file_order(), ties=ORDERS
                )
            )

        return self._cached(f"ties-{name}", [chosen.params, ORDERS], make)

    @property
    def has_ties(self) -> bool:
        """Return whether over 5 % of a user's neighbouring rows in the log have the same time."""
        return has_many_ties(self.statistics()["ties"])

    @property
    def settings_for_ties(self) -> Facts:
        """Return TALE's parameters for random orders of simultaneous rows, by name.

        They were tuned on validation rows; empty if they are those of the paper.
        """
        return paper.random_ties(self.dataset.key)

    def random_ties_tuned(self) -> Facts:
        """Return TALE's results in five random orders of simultaneous rows, with tuned parameters.

        They are tuned for random orders on validation rows; the fields are those of `random_ties`.
        """
        chosen, changes = paper.settings(self.dataset.key, "TALE"), self.settings_for_ties

        def make() -> Facts:
            """Evaluate the tuned model in all orders; called if no result is saved."""
            model = chosen.build(**{**changes, "solver": self.figure_solver})
            return saved_facts(evaluate_log(model, self._in_file_order(), ties=ORDERS))

        return self._cached("ties-chosen", [chosen.params, changes, ORDERS], make)

    def _in_file_order(self) -> Log:
        """Return the log read again, with simultaneous rows in file order."""
        return self.dataset.read(self.path, ties="file")

    def time_split(self, name: str) -> Facts:
        """Return a model's results on a time split that trains on the first 80 % of the rows.

        name : "SLIST", "TALE" or a baseline such as "popular". The result has Evaluation fields.
        """
        model = self._time_split_model(name)
        cutoff = int(np.quantile(self.log.time, _TRAINING_SHARE, method="higher"))

        def make() -> Facts:
            """Evaluate the model after the cutoff; called if no result is saved."""
            when = str(np.datetime64(cutoff, "us"))
            return saved_facts(evaluate_log(model, self.log, f"at:{when}", ties=self.log.ties))

        return self._cached(f"late-{name}", [model.name, model.params, cutoff], make)

    def _time_split_model(self, name: str) -> Model:
        """Return the unfitted model `name`: a baseline, or a linear model as the paper sets it.

        Baselines are rules, markov, popular and trending.
        """
        if name in _BASELINES:
            return MODELS[name]()
        return paper.settings(self.dataset.key, name).build(solver=self.figure_solver)

    @property
    def time_split_rows(self) -> list[str]:
        """Return the names of the models that are evaluated on the time split."""
        return ["SLIST", "TALE", *_BASELINES]

    def tasks(self) -> dict[str, Callable[[], Any]]:
        """Return every experiment as a function without arguments, by name, the quickest first.

        A function runs its experiment and saves the result, unless it is saved already.
        """
        tasks: dict[str, Callable[[], Any]] = {
            "statistics": self.statistics,
            "co-occurrence": self.co_occurrence,
            "transitions": self.transitions,
        }
        tasks |= {row: partial(self.row, row) for row in self.rows}
        tasks |= {row: partial(self.neural_row, row) for row in self.neural_rows}
        tasks |= {f"sweep {name}": partial(self.sensitivity, name) for name in SWEEPS}
        if self.has_ties:
            tasks |= {f"ties {row}": partial(self.random_ties, row) for row in ("SLIST", "TALE")}
            tasks["ties TALE, chosen for them"] = self.random_ties_tuned
        tasks |= {f"late {row}": partial(self.time_split, row) for row in self.time_split_rows}
        return tasks


def run(folder: Path, out: Path, only: list[str], *, neural: bool = False) -> list[Study]:
    """Run all experiments on the data sets of a folder, and return a study of each.

    folder : has the files of the data sets; out : folder of the saved results, from which an
    interrupted run resumes; only : keys of data sets, empty for all; neural : also compute neural
    models. TalerecError for an unknown key, or if the folder has no file of these data sets.
    Progress is a stage per data set.
    """
    if neural:
        require_torch()
    paths = paper.find(folder)
    for key in only:
        if key not in paper.datasets():
            names = ", ".join(paper.datasets())
            raise TalerecError(f"the paper has no data set {key!r}; it has {names}")
    selected = [key for key in paths if not only or key in only]
    if not selected:
        raise TalerecError(
            f"{folder} has no file of {', '.join(only or paper.datasets())}"
            " (docs/evaluation.md lists the file names)"
        )
    studies = []
    for key in selected:
        dataset = paper.datasets()[key]
        study = Study.open(dataset, paths[key], out, neural=neural)
        tasks = study.tasks()
        tick = stage(dataset.name, float(len(tasks)))
        for task in tasks.values():
            task()
            tick(1)
        studies.append(study)
    return studies


def saved_facts(result: Evaluation) -> Facts:
    """Return the fields of an evaluation that are saved: its JSON but notes and windows."""
    fields = result.to_dict()
    return {name: value for name, value in fields.items() if name not in ("notes", "windows")}


def _item_table(path: Path) -> pl.DataFrame | None:
    """Return a frame of item_id and the first genre or category, or None without such a table.

    path : of the log. The table is the .item file next to it, or MovieLens' movies.dat.
    """
    paths = [path.with_name(path.name.replace(".inter", ".item")), path.with_name("movies.dat")]
    table_path = next((p for p in paths if p.exists() and p != path), None)
    if table_path is None:
        return None
    table = read_items(table_path)
    name = next((c for c in ("genres", "genre", "class", "categories") if c in table.columns), None)
    if name is None:
        return None
    first = pl.col(name).cast(pl.String).str.split("|").list.first().str.split(" ").list.first()
    return table.select(pl.col(columns.ITEM), first.alias(name))


# -- neural rows -----------------------------------------------------------------------------------


def require_torch() -> None:
    """Raise TalerecError if torch is not installed."""
    import_neural("training")


def fit_neural(model: Model, split: Split, folder: Path) -> Model:
    """Return a neural model trained on the training rows, stopped on the validation rows.

    So does the paper: each validation row follows its user's training rows, and only decides the
    number of epochs. An interrupted training resumes from its checkpoint in `folder`; `model`
    itself stays unfitted.
    """
    assert isinstance(model, NeuralModel)
    train, cases = import_neural("training").train, split.cases(VALIDATION)
    answerable = np.flatnonzero(cases.target >= 0)
    positions = {user: position for position, user in enumerate(split.train.users.ids.to_list())}
    user_ids = split.users.ids.gather(cases.user[answerable]).to_list()
    users = np.array([positions[user] for user in user_ids])
    rows, settings = log_rows(split.train), model.settings()
    extended = rows.with_last(users, cases.target[answerable], cases.target_time[answerable])
    checkpoint = folder / f"{settings.kind}-{settings.key(extended)}.npz"
    trained = train(extended, settings, held=users, checkpoint=checkpoint)
    checkpoint.unlink(missing_ok=True)
    return type(model).from_training(split.train, trained)

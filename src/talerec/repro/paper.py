"""The paper's printed figures and the settings of its rows, from `paper.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from talerec.data import Log, k_core, order_ties, select_period
from talerec.data.read import read_log
from talerec.errors import TalerecError
from talerec.models import model_class
from talerec.models.core import Model, build_model

_ENDINGS = ("", ".gz", ".zst")


@dataclass(frozen=True)
class Dataset:
    """A data set of the paper: its preprocessing, and the names its file may have."""

    key: str  # its name in paper.toml
    name: str
    core: int  # k of the k-core: users and items with fewer rows are dropped
    ties: str  # the order of rows with equal times: "file" or "item"
    files: list[str]  # glob patterns; "./" restricts one to the top folder
    between: list[str] | None = None  # start and end (excluded) of its period; None: all rows

    def read(self, path: str | Path, ties: str | None = None) -> Log:
        """Return the log at `path` with the paper's period, k-core and order of simultaneous rows.

        `between` is the period (None: all), `core` the least number of rows of a user or item.
        `ties` is another order of simultaneous rows than the paper's ("file", "item",
        "random:SEED").
        """
        log = read_log(path)
        if self.between is not None:
            log = select_period(log, *self.between)
        return order_ties(k_core(log, self.core), ties or self.ties)


@dataclass(frozen=True)
class PrintedTable:
    """A table of figures as the paper prints it."""

    columns: list[str]
    #: by key of the data set and by row (a model or, in Table 5, a variant of TALE), per column
    figures: dict[str, dict[str, list[float]]]

    def figure(self, dataset: str, row: str, column: str) -> float | None:
        """Return the figure of a data set (by key), row and column; None if the paper has none.

        `figures` has, by data set and row (a model), a list in the order of `columns`.
        """
        values = self.figures.get(dataset, {}).get(row)
        if values is None or column not in self.columns:
            return None
        return values[self.columns.index(column)]


@dataclass(frozen=True)
class RowSettings:
    """The model and its parameters behind a row of the paper's tables."""

    model: str  # its name in talerec
    params: dict[str, Any]
    basis: str  # where the parameters come from, in words

    def build(self, **others: Any) -> Model:
        """Return the unfitted model of a row of the paper's tables, with the row's parameters.

        `others` add to these parameters or replace them. `self.model` is the model's name,
        `self.params` its parameters by name.
        """
        model: Model = build_model(model_class(self.model), {**self.params, **others})
        return model


@cache
def _paper() -> dict[str, Any]:
    """Return the content of paper.toml: the paper's data sets, tables and settings.

    The file is read once.
    """
    return tomllib.loads(files("talerec.repro").joinpath("paper.toml").read_text("utf-8"))


def title() -> str:
    """Return the paper's title, conference and year."""
    return str(_paper()["title"])


def datasets() -> dict[str, Dataset]:
    """Return the data sets by key, in the paper's order."""
    return {key: Dataset(key, **facts) for key, facts in _paper()["dataset"].items()}


def tables() -> list[int]:
    """Return the numbers of the tables in `paper.toml`."""
    return [int(number) for number in _paper()["table"]]


def table(number: int) -> PrintedTable:
    """Return a table of the paper by its number; TalerecError if paper.toml lacks it."""
    if number not in tables():
        raise TalerecError(f"there is no table {number}; the tables are {_list(tables())}")
    printed = _paper()["table"][str(number)]
    return PrintedTable(printed["columns"], printed["figures"])


def is_neural(row: str) -> bool:
    """Return whether a row of the paper's tables is a neural model."""
    return row in _paper()["rows"]["neural"]


def settings(dataset: str, row: str) -> RowSettings:
    """Return the settings of a linear row: SLIST, SLIST+Norm., TALE or an ablation of TALE.

    dataset : key of the data set. An ablation is coded by the parts of TALE that it has: 1 single
    target, 2 time weights, 3 trend, such as "12-"; "---" is SLIST. Others raise TalerecError.
    """
    if dataset not in _paper()["settings"]:
        raise TalerecError(
            f"there is no data set {dataset!r}; the data sets are {_list(datasets())}"
        )
    if is_neural(row):
        raise TalerecError(f"{row} is neural: its figures are quoted, not computed")
    rows, ablation = _paper()["settings"][dataset], _paper()["ablation"].get(dataset, {})
    if row in ablation:
        return _ablate(rows["TALE"], ablation[row])
    row = "SLIST" if row == "---" and ablation else row
    if row not in rows:
        names = _list([*rows, *ablation, *(["---"] if ablation else [])])
        raise TalerecError(f"{dataset} has no row {row!r}; its rows are {names}")
    return RowSettings(**rows[row])


def neural_rows(dataset: str) -> list[str]:
    """Return the names of the neural models that Tables 2 and 3 have for a data set.

    dataset : its key
    """
    rows = [row for number in (2, 3) for row in table(number).figures.get(dataset, {})]
    return [row for row in dict.fromkeys(rows) if is_neural(row)]


def neural_settings(dataset: str, row: str) -> RowSettings:
    """Return the settings of a neural model: the printed history length, the rest chosen here.

    dataset : key of the data set; row : the model's name in the tables, such as "SASRec"
    """
    neural = _paper()["neural"]
    params = {**neural["common"], **neural.get(dataset, {})}
    return RowSettings(row.lower(), params, "length as printed; the rest is not printed")


def random_ties(dataset: str) -> dict[str, Any]:
    """Return the parameters of TALE that differ when simultaneous rows are in random order.

    dataset : its key; empty if no parameter differs
    """
    return dict(_paper()["random_ties"].get(dataset, {}))


def _ablate(full: dict[str, Any], changes: dict[str, Any]) -> RowSettings:
    """Return the settings of an ablation: TALE's settings with some parameters changed.

    full : TALE's "model", "params" and "basis"; changes : parameters by name
    """
    words = ", ".join(f"{name} {value}" for name, value in changes.items())
    basis = f"TALE's, with {words}" if words else full["basis"]
    return RowSettings(full["model"], {**full["params"], **changes}, basis)


def find(folder: str | Path) -> dict[str, Path]:
    """Return the paths of the paper's data sets in a folder and its subfolders, by key.

    Data sets without a file are left out; TalerecError if the folder does not exist.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise TalerecError(f"{folder} is not a folder")
    paths = {key: next(_candidates(folder, each), None) for key, each in datasets().items()}
    return {key: path for key, path in paths.items() if path is not None}


def _candidates(folder: Path, dataset: Dataset) -> Iterator[Path]:
    """Yield the files of a folder and its direct subfolders that may be this data set.

    In the order of `dataset.files`; a name may end in .gz or .zst. A pattern that begins with "./"
    is looked up in the folder only.
    """
    for name in dataset.files:
        top_only = name.startswith("./")
        for pattern in (name.removeprefix("./"),) if top_only else (name, f"*/{name}"):
            for ending in _ENDINGS:
                yield from sorted(path for path in folder.glob(pattern + ending) if path.is_file())


def _list(names: Any) -> str:
    """Return names as text, separated by commas."""
    return ", ".join(map(str, names))

"""The paper's printed figures and the settings of its linear rows, from `paper.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from talerec.data import preprocessing
from talerec.data.log import Log
from talerec.data.read.readers import read_log
from talerec.errors import TalerecError
from talerec.models import model_class
from talerec.models.core import params
from talerec.models.core.base import Model

_ENDINGS = ("", ".gz", ".zst")


@dataclass(frozen=True)
class Dataset:
    """A data set of the paper: how it is prepared, and the names under which its file is looked for."""

    key: str
    name: str
    core: int
    ties: str
    files: tuple[str, ...]
    between: tuple[str, str] | None = None

    def read(self, path: str | Path, ties: str | None = None) -> Log:
        """The log as the paper uses it: its span of time, its k-core, its order of ties (unless given)."""
        log = read_log(path)
        if self.between is not None:
            log = preprocessing.between(log, *self.between)
        return preprocessing.order_ties(preprocessing.k_core(log, self.core), ties or self.ties)


@dataclass(frozen=True)
class Table:
    """A table as printed: `figures[data set key][row]`, in the order of `columns`."""

    columns: tuple[str, ...]
    figures: dict[str, dict[str, tuple[float, ...]]]

    def figure(self, dataset: str, row: str, column: str) -> float | None:
        """The figure of a data set, row and column; None where the paper has none."""
        values = self.figures.get(dataset, {}).get(row)
        if values is None or column not in self.columns:
            return None
        return values[self.columns.index(column)]


@dataclass(frozen=True)
class Settings:
    """How a row is computed, and in `basis` why with these parameters."""

    model: str
    params: dict[str, Any]
    basis: str

    def build(self, **others: Any) -> Model:
        """The model; `others` are parameters that the paper does not give, such as the solver."""
        model: Model = params.build(model_class(self.model), {**self.params, **others})
        return model


@cache
def _paper() -> dict[str, Any]:
    return tomllib.loads(files("talerec.repro").joinpath("paper.toml").read_text("utf-8"))


def title() -> str:
    """The paper's title, conference and year."""
    return str(_paper()["title"])


def datasets() -> dict[str, Dataset]:
    """The data sets by key, in the paper's order."""
    return {key: _dataset(key, facts) for key, facts in _paper()["dataset"].items()}


def _dataset(key: str, facts: dict[str, Any]) -> Dataset:
    span = facts.get("between")
    return Dataset(
        key=key,
        name=facts["name"],
        core=facts["core"],
        ties=facts["ties"],
        files=tuple(facts["files"]),
        between=None if span is None else (span[0], span[1]),
    )


def tables() -> list[int]:
    """The numbers of the tables in `paper.toml`."""
    return [int(number) for number in _paper()["table"]]


def table(number: int) -> Table:
    """A table as printed."""
    if number not in tables():
        raise TalerecError(f"there is no table {number}; the tables are {_list(tables())}")
    found = _paper()["table"][str(number)]
    return Table(
        columns=tuple(found["columns"]),
        figures={
            key: {row: tuple(values) for row, values in rows.items()}
            for key, rows in found["figures"].items()
        },
    )


def is_neural(row: str) -> bool:
    """Whether a row is that of a neural model, whose figures are quoted unless its computing is asked for."""
    return row in _paper()["rows"]["neural"]


def settings(dataset: str, row: str) -> Settings:
    """The settings of a linear row: SLIST, SLIST+Norm., TALE, or one of the ablation (`12-`, `---` ...)."""
    if dataset not in _paper()["settings"]:
        raise TalerecError(
            f"there is no data set {dataset!r}; the data sets are {_list(datasets())}"
        )
    if is_neural(row):
        raise TalerecError(f"{row} is neural: its figures are quoted, not computed")
    known, ablation = _paper()["settings"][dataset], _paper()["ablation"].get(dataset, {})
    if row in ablation:
        return _ablated(known["TALE"], ablation[row])
    row = "SLIST" if row == "---" and ablation else row
    if row not in known:
        names = _list([*known, *ablation, *(["---"] if ablation else [])])
        raise TalerecError(f"{dataset} has no row {row!r}; its rows are {names}")
    return Settings(**known[row])


def neural_rows(dataset: str) -> list[str]:
    """The neural rows that the tables of accuracy have for a data set."""
    rows = [row for number in (2, 3) for row in table(number).figures.get(dataset, {})]
    return [row for row in dict.fromkeys(rows) if is_neural(row)]


def neural_settings(dataset: str, row: str) -> Settings:
    """How a neural row is computed: the length that the paper says, and what was chosen here."""
    known = _paper()["neural"]
    found = {**known["common"], **known.get(dataset, {})}
    return Settings(row.lower(), found, "length as printed; the rest is not printed")


def random_ties(dataset: str) -> dict[str, Any]:
    """The parameters of TALE that differ when simultaneous rows are in random order."""
    return dict(_paper()["random_ties"].get(dataset, {}))


def _ablated(full: dict[str, Any], changes: dict[str, Any]) -> Settings:
    words = ", ".join(f"{name} {value}" for name, value in changes.items())
    basis = f"TALE's, with {words}" if words else full["basis"]
    return Settings(full["model"], {**full["params"], **changes}, basis)


def find(folder: str | Path) -> dict[str, Path]:
    """The files of the paper's data sets, by data set, in a folder and in its subfolders."""
    folder = Path(folder)
    if not folder.is_dir():
        raise TalerecError(f"{folder} is not a folder")
    found = {key: next(_candidates(folder, known), None) for key, known in datasets().items()}
    return {key: path for key, path in found.items() if path is not None}


def _candidates(folder: Path, dataset: Dataset) -> Iterator[Path]:
    for name in dataset.files:
        top_only = name.startswith("./")
        for place in (name.removeprefix("./"),) if top_only else (name, f"*/{name}"):
            for ending in _ENDINGS:
                yield from sorted(path for path in folder.glob(place + ending) if path.is_file())


def _list(names: Any) -> str:
    return ", ".join(map(str, names))

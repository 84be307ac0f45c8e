"""What neural models share: parameters, training, and states as queries. torch is imported where it is used."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from talerec.data.histories import UNTIMED, Histories
from talerec.data.log import Log
from talerec.errors import TalerecError
from talerec.models.core import params
from talerec.models.core.base import Model
from talerec.models.core.params import param
from talerec.ranking.blocks import block_of
from talerec.ranking.weights import Query, Weights
from talerec.runtime.arrays import Array
from talerec.runtime.clock import Clock

if TYPE_CHECKING:
    from talerec.neural.nets.base import Net
    from talerec.neural.settings import Rows, Settings

_EXPLAINED = 16  # newest rows of a history that get a share of their own
_CHECKPOINTS = "TALEREC_CHECKPOINTS"  # names a folder for them
_ABOUT = ("kind", "params", "rows", "version")  # facts that a training has to have


def other(kind: type, name: str, default: Any) -> Any:
    """A parameter that a class inherits, with another default."""
    return dataclasses.field(default=default, metadata=kind.__dataclass_fields__[name].metadata)  # type: ignore[attr-defined]


class _Networked(Model):
    """Holds the network that is asked, which is no parameter and is not kept: it is made of arrays that are."""

    _net: Net | None = None
    #: Trainings from elsewhere, of this model with these parameters, while it is fitted by one of them.
    _trainings: Sequence[Any] = ()

    def __getstate__(self) -> dict[str, Any]:
        aside = ("_net", "_trainings")
        return {name: value for name, value in vars(self).items() if name not in aside}

    def _forget_fit(self) -> None:
        super()._forget_fit()
        self._net = None


@dataclass(eq=False, kw_only=True)
class Neural(_Networked):
    """A network that reads a history row by row; the state after its last row, times item vectors, gives the scores."""

    weighs_items: ClassVar[bool] = False
    extra: ClassVar[str | None] = "torch"
    grows: ClassVar[bool] = False

    dim: int = param(64, "numbers in the vector of an item", low=1, high=8192)
    layers: int = param(2, "blocks on top of each other", low=1, high=64, search=(1, 3))
    max_history: int = param(50, "a history's last rows that are read", low=2, high=10_000)
    dropout: float = param(
        0.2, "share of numbers that a training step leaves out", low=0, high=0.95, search=(0.0, 0.5)
    )
    loss: str = param(
        "softmax", "what is made smaller", choices=("softmax", "sampled", "gbce", "bce")
    )
    negatives: int = param(
        256, "items that a target is compared with, unless the loss is softmax", low=1, high=10**6
    )
    samples: str = param(
        "windows",
        "targets of a training sample: at every row, or at the last alone",
        choices=("windows", "prefixes"),
    )
    rate: float = param(1e-3, "learning rate", above=0, high=1, search=(3e-4, 3e-3))
    reg: float = param(0.0, "shrinkage of matrices per step, times rate", low=0, high=1)
    batch: int = param(4096, "targets in a training step", low=1, high=10**7)
    epochs: int = param(200, "passes over the log, at most", low=1, high=100_000)
    patience: int = param(
        10, "passes without a better one after which training stops", low=1, high=100_000
    )
    judges: int = param(
        10_000, "users whose last row is held back to find the best pass; 0: make all passes", low=0
    )
    seed: int = param(0, "seed of the first weights, the order of samples and all draws", low=0)
    device: str = param("auto", "where to train", choices=("auto", "cpu", "cuda"))
    precision: str = param(
        "auto",
        "of large products: auto is TF32 on a GPU",
        choices=("auto", "float32", "bfloat16"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check()

    def _check(self) -> None:
        """Refuse parameters that do not go together."""
        if self.samples == "windows" and self._sees_later():
            raise TalerecError(
                f"{self.name} sees later rows, so samples is 'prefixes': windows would show it the targets"
            )

    def _sees_later(self) -> bool:
        """Does a row's state depend on rows after it?"""
        return False

    def set_params(self, **changes: Any) -> Self:
        params.build(type(self), {**self.params, **changes})  # refused before anything is changed
        return super().set_params(**changes)

    # -- fitting --

    def check_ready(self) -> None:
        """Refuse, before anything is fitted, where torch is not installed."""
        library("training")

    def learn_weights(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        training, rows, settings = library("training"), rows_of(log), self.settings()
        if self._trainings:
            given = of_rows(self._trainings, rows)
            clock.seconds["solve"] = float(given.facts.get("seconds", 0.0))
            return self._weights(given.arrays), None
        checkpoint = _checkpoint(settings, rows)
        with clock("solve"):
            made = training.train(rows, settings, checkpoint=checkpoint)
        weights = self._weights(made.arrays)
        if checkpoint is not None:
            checkpoint.unlink(missing_ok=True)
        return weights, None

    def settings(self) -> Settings:
        """The parameters as a training takes them."""
        found: Settings = library("settings").Settings.of(self.name, self.params)
        return found

    def _weights(self, arrays: Mapping[str, Array]) -> Weights:
        """A network's arrays as weights: scores are states times item vectors."""
        scorer = library("asking").scorer(self.settings(), arrays)
        block = block_of(scorer.table, source_item=np.full(len(scorer.table), -1, np.int32))
        kept = {name.replace(".", "__"): array for name, array in scorer.kept.items()}
        self._net = None
        return Weights(block, query_arrays=kept)

    @classmethod
    def from_training(cls, log: Log, arrays: Any, **changes: Any) -> Self:
        """The fitted model of a training that was made elsewhere, from rows of `log` and nothing else.

        Parameters
        ----------
        log : Log
            The rows that it was trained on.
        arrays : Training, or path
            What `talerec.neural.training.train` gave, or the file that it was saved to.
        **changes
            Parameters that it has to have been trained with; those not given are taken from it.

        Returns
        -------
        Model
            The fitted model.

        Raises
        ------
        TalerecError
            Where it is a training of another model, of other rows, or with other parameters.
        """
        made = read_training(arrays)
        if made.facts["kind"] != cls.name:
            raise TalerecError(f"this is a training of {made.facts['kind']}, not of {cls.name}")
        for name, value in changes.items():
            if made.facts["params"].get(name) != value:
                raise TalerecError(
                    f"the training has {name} {made.facts['params'].get(name)!r}, not {value!r}"
                )
        model: Self = params.build(cls, made.facts["params"])
        model._trainings = [made]
        try:
            return model.fit(log)
        finally:
            model._trainings = ()

    # -- asking --

    def query(self, histories: Histories) -> Query:
        codes, known = self._states(histories)
        dims = self.fitted.weights.blocks[0].sources
        if dims > codes.shape[1]:  # the last source is the bias
            codes = np.hstack([codes, np.ones((len(codes), 1), codes.dtype)])
        ptr = np.concatenate([[0], np.cumsum(known * dims)])
        source = np.tile(np.arange(dims), int(known.sum()))
        return Query(ptr, source, codes[known].ravel().astype(np.float64))

    def _states(self, histories: Histories) -> tuple[Array, Array]:
        asking = library("asking")
        last = histories.last()
        now = last if histories.now is None else np.where(last > UNTIMED, histories.now, last)
        if len(histories.time):
            newest = histories.time[np.maximum(histories.stop - 1, 0)]
            now = np.where(last > UNTIMED, now, newest)
        runs = asking.Runs(histories.start, histories.stop, histories.item, histories.time, now)
        found: tuple[Array, Array] = asking.states(self._network(), runs, self._vectors)
        return found

    def _network(self) -> Net:
        """The network that is asked, made of the arrays that fitting left."""
        if self._net is None:
            arrays = {
                name.replace("__", "."): array
                for name, array in self.fitted.weights.query_arrays.items()
            }
            self._net = library("asking").reader(self.settings(), arrays)
        return self._net

    def _vectors(self, items: Array) -> Array:
        """The vectors of items, as the network reads them."""
        weights = self.fitted.weights
        own = weights.query_arrays.get("items")
        found: Array = weights.matrix[: self.dim, items].T if own is None else own[items]
        return found

    # -- explaining --

    def contributions(self, x: Query, history: Histories, targets: Array) -> Array:
        """Of the newest rows, each gives what the score loses without it."""
        given = np.zeros((len(targets), len(history.item)))
        rows = np.flatnonzero(history.item >= 0)[-self.max_history :][-_EXPLAINED:]
        if rows.size:
            scores = self._scores(self.query(_without(history, rows)), targets)
            given[:, rows] = self._scores(x, targets) - scores
        return given

    def base_score(self, history: Histories, target: int) -> float | None:
        """What is left of the score after every row has got its share."""
        wanted, x = np.array([target]), self.query(history)
        shares = self.contributions(x, history, wanted)
        return float(self._scores(x, wanted)[0, 0] - shares.sum())

    def _scores(self, x: Query, targets: Array) -> Array:
        """The scores of items (rows) for queries (columns); 0 for a query without sources."""
        weights = self.fitted.weights
        found = np.zeros((len(targets), len(x)))
        for q in range(len(x)):
            found[:, q] = weights.contributions(x.one(q), targets).sum(1)
        return found


@dataclass(eq=False, kw_only=True)
class Attentive(Neural):
    """A network whose rows look at each other."""

    heads: int = param(2, "heads of attention; they divide dim", low=1, high=1024)

    def _check(self) -> None:
        super()._check()
        if self.dim % self.heads:
            raise TalerecError(
                f"dim is {self.dim} and heads is {self.heads}; heads must divide dim"
            )


def rows_of(log: Log) -> Rows:
    """A log as the plain arrays that a training takes."""
    found: Rows = library("settings").Rows(log.ptr, log.item, log.time, len(log.items))
    return found


def read_training(given: Any) -> Any:
    """A training that has ended, as it is or from the file that it was saved to."""
    training = library("training")
    made = given if isinstance(given, training.Training) else training.Training.load(given)
    if any(name not in made.facts for name in _ABOUT):
        raise TalerecError("these arrays are not those of a training that has ended")
    return made


def of_rows(trainings: Sequence[Any], rows: Rows) -> Any:
    """The training that was made of exactly these rows."""
    wanted = rows.fingerprint()
    found = [made for made in trainings if made.facts["rows"] == wanted]
    if not found:
        raise TalerecError("this is a training of other rows than the log's")
    return found[0]


def library(name: str) -> Any:
    """A module of the networks; where torch is missing, an error that says how to get it."""
    from importlib import import_module

    try:
        return import_module(f"talerec.neural.{name}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise TalerecError(
            "a neural model needs torch, which is not installed: pip install 'talerec[torch]'"
        ) from None


def _checkpoint(settings: Settings, rows: Rows) -> Path | None:
    """The file that keeps this training while it lasts, where the user wants one."""
    folder = os.environ.get(_CHECKPOINTS)
    return Path(folder) / f"{settings.kind}-{settings.key(rows)}.npz" if folder else None


def _without(history: Histories, rows: Array) -> Histories:
    """One history without its row rows[0], without rows[1], and so on."""
    size = len(history.item)
    keep = np.array([[n for n in range(size) if n != row] for row in rows.tolist()], np.int64)
    bounds = np.arange(len(rows) + 1) * (size - 1)
    flat = keep.reshape(-1)
    now = None if history.now is None else np.repeat(history.now, len(rows))
    return Histories(bounds[:-1], bounds[1:], history.item[flat], history.time[flat], now)

"""Shared code of neural models: parameters, training, and states as queries."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from talerec.data import UNTIMED, Histories, Log
from talerec.errors import TalerecError
from talerec.models.core import Model, build_model, param
from talerec.ranking import Query, Weights, make_block
from talerec.runtime import Array, Clock

if TYPE_CHECKING:
    from talerec.neural import Net, NetSettings, Rows

_LOSSES = ("softmax", "sampled", "gbce", "bce")
_MAX_EXPLAINED = 16  # newest rows of a history that get a contribution of their own
_CHECKPOINT_VARIABLE = "TALEREC_CHECKPOINTS"  # names a folder for checkpoints
_REQUIRED_FACTS = ("kind", "params", "rows", "version")  # of a training


def with_default(kind: type, name: str, default: Any) -> Any:
    """Return a parameter inherited from class `kind` as a field with another default.

    name : of the parameter; its meaning and range stay.
    """
    metadata = kind.__dataclass_fields__[name].metadata  # type: ignore[attr-defined]
    return dataclasses.field(default=default, metadata=metadata)


class _NetworkState(Model):
    """Caches of a neural model, which are neither parameters nor saved.

    They are the network, and trainings: networks trained elsewhere, with facts about their
    training.
    """

    #: The network, built from the stored arrays when it is first needed.
    _net: Net | None = None
    #: Trainings from elsewhere, while the model is fitted with one of them.
    _trainings: Sequence[Any] = ()

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes to pickle: all but the caches."""
        transient = ("_net", "_trainings")
        return {name: value for name, value in vars(self).items() if name not in transient}

    def _forget_fit(self) -> None:
        """Drop the fit and the network built from it."""
        super()._forget_fit()
        self._net = None


@dataclass(eq=False, kw_only=True)
class NeuralModel(_NetworkState):
    """A network that reads a history row by row; scores are its last state times item vectors.

    The state is a vector of size `dim` (and a 1 for a bias): its dimensions are the sources of the
    query, and the item vectors are the weights B (dimension x item).
    """

    sources_are_items = False
    extra = "torch"
    supports_update = False

    dim: int = param(64, "size of an item's vector", low=1, high=8192)
    layers: int = param(2, "blocks of the network", low=1, high=64, search=(1, 3))
    max_history: int = param(50, "a history's last rows that are read", low=2, high=10_000)
    dropout: float = param(
        0.2, "share of values dropped in a training step", low=0, high=0.95, search=(0.0, 0.5)
    )
    loss: str = param("softmax", "training objective", choices=_LOSSES)
    negatives: int = param(
        256, "sampled items per target, unless the loss is softmax", low=1, high=10**6
    )
    samples: str = param(
        "windows", "targets: every row, or only the last", choices=("windows", "prefixes")
    )
    rate: float = param(1e-3, "learning rate", above=0, high=1, search=(3e-4, 3e-3))
    reg: float = param(0.0, "weight decay of matrices", low=0, high=1)
    batch: int = param(
        0, "targets in a training step; 0: 4096, fewer on small logs", low=0, high=10**7
    )
    epochs: int = param(200, "largest number of epochs", low=1, high=100_000)
    patience: int = param(
        10, "epochs without improvement after which training stops", low=1, high=100_000
    )
    judges: int = param(
        10_000, "users whose last row is held out for early stopping; 0: train all epochs", low=0
    )
    seed: int = param(0, "seed of the initial weights, the sample order and all draws", low=0)
    device: str = param("auto", "device to train on", choices=("auto", "cpu", "cuda"))
    precision: str = param(
        "auto", "of matrix products; auto: TF32 on a GPU", choices=("auto", "float32", "bfloat16")
    )

    def __post_init__(self) -> None:
        """Check the parameters; TalerecError if one is not valid or they do not fit together."""
        super().__post_init__()
        self._check()

    def _check(self) -> None:
        """Raise TalerecError if `samples` does not fit a network that sees later rows.

        With samples "windows" every row predicts the next one, which such a network would see.
        """
        if self.samples == "windows" and self._sees_later():
            raise TalerecError(
                f"{self.name} sees later rows, so samples is 'prefixes': "
                "windows would show it the targets"
            )

    def _sees_later(self) -> bool:
        """Return whether a row's state depends on later rows."""
        return False

    def set_params(self, **changes: Any) -> Self:
        """Change parameters by name, all or none; a fit that depends on them is dropped.

        Returns the model; TalerecError if values are not valid or do not fit together.
        """
        self._copy_with(changes)  # refused before anything changes
        return super().set_params(**changes)

    # -- fitting --

    def check_ready(self) -> None:
        """Raise TalerecError, before anything is fitted, if torch is not installed."""
        import_neural("training")

    def use_trainings(self, trainings: Sequence[Any]) -> None:
        """Let `fit` take one of these finished trainings, made elsewhere, instead of training."""
        self._trainings = trainings

    def learn_weights(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        """Return the weights of a network trained on a log; no solver is named (None).

        It is trained here, unless trainings from elsewhere were given (`use_trainings`). A
        checkpoint file, if one is configured, is removed at the end. clock: adds up the seconds of
        each stage. The weights are the item vectors, with the network's other parameters as arrays
        for queries.
        """
        training, rows, settings = import_neural("training"), log_rows(log), self.settings()
        if self._trainings:
            available = _select_training(self._trainings, rows)
            clock.seconds["solve"] = float(available.facts.get("seconds", 0.0))
            return self._build_weights(available.arrays), None
        checkpoint = _checkpoint_path(settings, rows)
        with clock("solve"):
            result = training.train(rows, settings, checkpoint=checkpoint)
        weights = self._build_weights(result.arrays)
        if checkpoint is not None:
            checkpoint.unlink(missing_ok=True)
        return weights, None

    def settings(self) -> NetSettings:
        """Return the model's name and parameters as the `NetSettings` of a training."""
        settings: NetSettings = import_neural("settings").NetSettings.of(self.name, self.params)
        return settings

    def _build_weights(self, arrays: Mapping[str, Array]) -> Weights:
        """Return a network's arrays as weights: item vectors as B, the others as query arrays.

        arrays: all trained parameters by name. B is state dimension x item; queries need the
        encoder.
        """
        scorer = import_neural("inference").output_layer(self.settings(), arrays)
        block = make_block(scorer.table, source_item=np.full(len(scorer.table), -1, np.int32))
        stored = {name.replace(".", "__"): array for name, array in scorer.encoder.items()}
        self._net = None
        return Weights(block, query_arrays=stored)

    @classmethod
    def from_training(cls, log: Log, arrays: Any, **changes: Any) -> Self:
        """Return the fitted model of a training that was made elsewhere on the rows of `log`.

        Parameters
        ----------
        log : Log
            The rows that it was trained on.
        arrays : Training, or path
            The result of `talerec.neural.training.train`, or the file that it was saved to.
        **changes
            Parameters that the training must have; others are taken from it.

        Returns
        -------
        Model
            The fitted model.

        Raises
        ------
        TalerecError
            If the training is of another model, of other rows, or with other parameters.
        """
        training = read_training(arrays)
        if training.facts["kind"] != cls.name:
            raise TalerecError(f"this is a training of {training.facts['kind']}, not of {cls.name}")
        trained_with = training.facts["params"]
        for name, value in changes.items():
            if (trained := trained_with.get(name)) != value:
                raise TalerecError(f"the training has {name} {trained!r}, not {value!r}")
        model: Self = build_model(cls, trained_with)
        model.use_trainings([training])
        try:
            return model.fit(log)
        finally:
            model.use_trainings(())

    # -- queries --

    def query(self, histories: Histories) -> Query:
        """Return x of each history: the network's state after it, and a 1 for a bias.

        Sources are dimensions of the state; a history without a state has none.
        """
        states, has_state = self._states(histories)
        n_sources = self.fitted.weights.blocks[0].sources
        if n_sources > states.shape[1]:  # the last source is the bias
            states = np.hstack([states, np.ones((len(states), 1), states.dtype)])
        indptr = np.concatenate([[0], np.cumsum(has_state * n_sources)])
        source = np.tile(np.arange(n_sources), int(has_state.sum()))
        return Query(indptr, source, states[has_state].ravel().astype(np.float64))

    def _states(self, histories: Histories) -> tuple[Array, Array]:
        """Return the state after each history (history x dim), and a flag whether it has one.

        The state is the network's output vector; a history without known items has none. The
        network also gets the request time; for histories without times, the time of the newest row.
        """
        neural = import_neural("inference")
        last = histories.last()
        now = last if histories.now is None else np.where(last > UNTIMED, histories.now, last)
        if len(histories.time):
            newest = histories.time[np.maximum(histories.stop - 1, 0)]
            now = np.where(last > UNTIMED, now, newest)
        runs = neural.HistoryRows(
            histories.start, histories.stop, histories.item, histories.time, now
        )
        states: tuple[Array, Array] = neural.encode_histories(self._network(), runs, self._vectors)
        return states

    def _network(self) -> Net:
        """Return the encoder network, built from the stored arrays at the first call.

        It maps a history to its state; the arrays are its trained parameters.
        """
        if self._net is None:
            stored = self.fitted.weights.query_arrays
            arrays = {name.replace("__", "."): array for name, array in stored.items()}
            self._net = import_neural("inference").load_encoder(self.settings(), arrays)
        return self._net

    def _vectors(self, items: Array) -> Array:
        """Return the network's input vectors of items (positions): item x dim.

        They are stored apart (array "items") only if they differ from the output vectors, the
        weights.
        """
        weights = self.fitted.weights
        table = weights.query_arrays.get("items")
        vectors: Array = weights.matrix[: self.dim, items].T if table is None else table[items]
        return vectors

    # -- explanations --

    def contributions(self, x: Query, history: Histories, targets: Array) -> Array:
        """Return what each target's score (row) loses without each row of a history (column).

        x: the network's state after the history, as a query. targets: item positions. Only the
        newest 16 known rows are left out in turn; other columns are 0.
        """
        losses = np.zeros((len(targets), len(history.item)))
        rows = np.flatnonzero(history.item >= 0)[-self.max_history :][-_MAX_EXPLAINED:]
        if rows.size:
            scores = self._scores(self.query(_leave_one_out(history, rows)), targets)
            losses[:, rows] = self._scores(x, targets) - scores
        return losses

    def base_scores(self, history: Histories, targets: Array) -> Array | None:
        """Return the targets' scores less the contributions of all rows of the history.

        A row's contribution is what the score loses without it; targets: item positions.
        """
        x = self.query(history)
        rows = self.contributions(x, history, targets).sum(axis=1)
        rest: Array = self._scores(x, targets)[:, 0] - rows
        return rest

    def _scores(self, x: Query, targets: Array) -> Array:
        """Return scores, target x query; 0 for a query without sources.

        x: the state of each history as a query. targets: item positions.
        """
        weights = self.fitted.weights
        scores = np.zeros((len(targets), len(x)))
        for q in range(len(x)):
            scores[:, q] = weights.contributions(x.select(q), targets).sum(1)
        return scores


@dataclass(eq=False, kw_only=True)
class AttentionModel(NeuralModel):
    """A network with attention between the rows of a history; `heads` must divide `dim`.

    The base class of such models; each defines its own network by its name.
    """

    heads: int = param(2, "attention heads; they divide dim", low=1, high=1024)

    def _check(self) -> None:
        """Raise TalerecError if parameters do not fit together: `heads` must divide `dim`, too.

        dim: the size of an item's vector, of which each attention head gets an equal part.
        """
        super()._check()
        if self.dim % self.heads:
            values = f"dim is {self.dim} and heads is {self.heads}"
            raise TalerecError(f"{values}; heads must divide dim")


def log_rows(log: Log) -> Rows:
    """Return a log's rows as plain arrays (`talerec.neural` Rows), the input of a training.

    They are ptr (where each user's rows begin), item, time, and the number of items.
    """
    rows: Rows = import_neural("settings").Rows(log.ptr, log.item, log.time, len(log.items))
    return rows


def read_training(source: Any) -> Any:
    """Return a finished training, given the `Training` itself or the file it was saved to.

    A training is a trained network's parameters, and facts: its model, parameters and rows.
    TalerecError if facts are missing that a finished training has.
    """
    kind = import_neural("training").Training
    training = source if isinstance(source, kind) else kind.load(source)
    if any(name not in training.facts for name in _REQUIRED_FACTS):
        raise TalerecError("these arrays are not those of a training that has ended")
    return training


def _select_training(trainings: Sequence[Any], rows: Rows) -> Any:
    """Return the first training that was made on exactly these rows; TalerecError without one.

    A training is the result of training a network elsewhere; its facts have a hash of its rows.
    """
    fingerprint = rows.fingerprint()
    for training in trainings:
        if training.facts["rows"] == fingerprint:
            return training
    raise TalerecError("this is a training of other rows than the log's")


def import_neural(name: str) -> Any:
    """Import a module of `talerec.neural`; without torch, the error says how to install it."""
    from importlib import import_module

    try:
        return import_module(f"talerec.neural.{name}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise TalerecError(
            "a neural model needs torch, which is not installed: pip install 'talerec[torch]'"
        ) from None


def _checkpoint_path(settings: NetSettings, rows: Rows) -> Path | None:
    """Return the checkpoint file of a training; None if TALEREC_CHECKPOINTS is not set.

    The name has the model's name and a hash of the settings and the training rows.
    """
    folder = os.environ.get(_CHECKPOINT_VARIABLE)
    return Path(folder) / f"{settings.kind}-{settings.key(rows)}.npz" if folder else None


def _leave_one_out(history: Histories, rows: Array) -> Histories:
    """Return copies of one history: without rows[0], without rows[1], and so on.

    rows: row numbers in the history. The request time stays.
    """
    size = len(history.item)
    others = np.array([[n for n in range(size) if n != row] for row in rows.tolist()], np.int64)
    bounds = np.arange(len(rows) + 1) * (size - 1)
    flat = others.reshape(-1)
    now = None if history.now is None else np.repeat(history.now, len(rows))
    return Histories(bounds[:-1], bounds[1:], history.item[flat], history.time[flat], now)

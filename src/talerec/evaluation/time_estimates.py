"""Estimates of a model's time on a log, from the log's size and from earlier models."""

from __future__ import annotations

import numpy as np

from talerec.data import Log
from talerec.models.core import Model

#: Seconds of each model but networks, relative to tempo's, on public logs
#: (`benchmarks/many_models.py`, `benchmarks/sessions.py`).
_RELATIVE = {
    "tempo": 1.0, "tale": 0.4, "slist": 0.5, "slit": 0.4, "slis": 0.4, "ease": 0.8, "edlae": 0.8,
    "rdlae": 0.8, "swalk": 3.0, "rules": 0.2, "markov": 0.2, "association": 0.2, "popular": 0.1,
    "trending": 0.1, "sknn": 0.5, "stan": 0.5, "personal": 0.2, "lastbasket": 0.2,
    "tifuknn": 2.0, "fpmc": 4.0, "content": 3.0, "blend": 4.0, "ranker": 30.0,
}  # fmt: skip
_RELATIVE_NETWORK = 200.0  # without an accelerator
_START = 0.5  # seconds of any model
_SECONDS_PER_PAIR = 6e-8  # of tempo: pairs of rows of a user
_SECONDS_PER_CELL = 2e-9  # of tempo: pairs of a user and an item, which are scored
_MAX_HISTORY = 2500  # rows of a user that models use


class TimeEstimates:
    """Estimates of the seconds that models take on one log.

    An estimate is that of tempo, from the numbers of pairs of rows, users and items, times a factor
    of the model. Measured models correct it: all estimates are multiplied by the ratio of measured
    to estimated seconds so far.
    """

    def __init__(self, log: Log) -> None:
        """Measure the size of the log, which models are fitted to and evaluated on."""
        lengths = np.minimum(np.diff(log.ptr), _MAX_HISTORY).astype(float)
        n_pairs, n_cells = float((lengths**2).sum()), float(len(log.users)) * len(log.items)
        self._tempo = _START + _SECONDS_PER_PAIR * n_pairs + _SECONDS_PER_CELL * n_cells
        self._measured = self._estimated = 0.0

    def estimate(self, model: Model) -> float:
        """Return the estimated seconds of fitting and evaluating a model."""
        ratio = self._measured / self._estimated if self._estimated else 1.0
        return ratio * self._estimate_from_size(model)

    def add_measured(self, model: Model, seconds: float) -> None:
        """Take in the seconds that a model took, shared steps included: later estimates change."""
        self._measured += seconds
        self._estimated += self._estimate_from_size(model)

    def _estimate_from_size(self, model: Model) -> float:
        """Return the estimated seconds of a model by the size of the log, without corrections."""
        return self._tempo * _RELATIVE.get(model.name, _RELATIVE_NETWORK)

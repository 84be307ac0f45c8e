"""Checks that a model was not fitted on the rows that it is evaluated on."""

from __future__ import annotations

import logging

import numpy as np

from talerec.data import Histories, Log, fingerprint_rows
from talerec.data.split import Cases, Split
from talerec.errors import TalerecError
from talerec.models.core import FINGERPRINT, Model, training_facts
from talerec.runtime import Array

logger = logging.getLogger(__name__)

_COMPARED = ("users", "rows", "first_time", "last_time", FINGERPRINT)  # facts of training rows


def check_training_rows(model: Model, split: Split, cases: Cases) -> None:
    """Raise TalerecError if a fitted model has learned from the targets of cases of a split.

    A case is a history and the held-out row that came next, its target. The model's stored training
    rows must not have the user, item and time of a target more often than the history of the case
    has them: equal rows before a target are known. A model without stored rows is compared by
    counts, times and a fingerprint with `split.train`; a difference is logged as a warning, since
    other training rows need not include a target.
    """
    log = model.fitted.log
    if log is None:
        _warn_of_other_rows(model, split.train)
        return
    if log.item is split.train.item and log.time is split.train.time:
        return  # fitted to the training rows of this very split
    leaked = _find_leaked(log, split, cases)
    if leaked.size:
        case = int(leaked[0])
        user, item = split.users.ids[int(cases.user[case])], log.items.ids[int(cases.target[case])]
        time = np.datetime64(int(cases.target_time[case]), "us")
        raise TalerecError(
            f"the model was fitted on {leaked.size:,} of the {len(cases):,} rows that it would be "
            f"evaluated on, such as item {item!r} of user {user!r} at {time}: "
            "call model.fit(split.train)"
        )


def _find_leaked(log: Log, split: Split, cases: Cases) -> Array:
    """Return the numbers of cases whose target a log has more often than their history has.

    A case is a history and the held-out row that came next, its target (user, item, time). log:
    training rows with the item positions of `cases.target` (-1: unknown), and any users. split: has
    the ids of the cases' users.
    """
    user = log.users.codes(log.users.cast_ids(split.users.ids.gather(cases.user)))
    which = np.flatnonzero((user >= 0) & (cases.target >= 0))
    in_log = _count_rows(Histories.of_users(log, user[which]), cases, which)
    which, in_log = which[in_log > 0], in_log[in_log > 0]
    in_history = _count_rows(cases.histories.take(which), cases, which)
    return which[in_log > in_history]


def _count_rows(histories: Histories, cases: Cases, which: Array) -> Array:
    """Return how many rows of each history have the item and time of the target of its case.

    A case is a history and the held-out row that came next, its target. histories: ordered by time.
    which: the number of each history's case.
    """
    item, time = cases.target[which], cases.target_time[which]
    start, stop = histories.first_rows_from(time), histories.first_rows_from(time + 1)
    length = stop - start
    number = np.repeat(np.arange(len(which)), length)
    rows = np.arange(len(number)) + np.repeat(start - (np.cumsum(length) - length), length)
    return np.bincount(number[histories.item[rows] == item[number]], minlength=len(which))


def _warn_of_other_rows(model: Model, train: Log) -> None:
    """Log a warning if a model without stored rows was fitted on other rows than `train`.

    It compares the facts that the model has about its training rows: numbers of users and rows,
    first and last time, and a fingerprint (which models of earlier versions do not have).
    """
    facts, log = model.fitted.training, train.normalize_weights()  # as a fit does
    expected = training_facts(log)
    if FINGERPRINT in facts:
        expected[FINGERPRINT] = fingerprint_rows(log)
    names = [name for name in _COMPARED if facts.get(name) != expected.get(name)]
    if names:
        logger.warning(
            "the model was fitted on other rows than split.train (%s differ): if rows that it is "
            "evaluated on were among them, the figures are too good; fit it on split.train",
            ", ".join(names),
        )

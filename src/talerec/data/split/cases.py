"""Held-out cases: histories and the items that came next, as the training rows know them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from talerec.data import Histories, Log, take_context
from talerec.runtime import Array


@dataclass(frozen=True, eq=False)
class Cases:
    """Held-out cases: after history c, item target[c] came next, at target_time[c].

    A case is a user's history and the next item, which a model has to predict. All arrays but
    `catalogue_items` have one entry per case.
    """

    user: Array  # positions among the users of the log that was split
    histories: Histories  # the rows before each target
    target: Array  # positions in the training vocabulary; -1 for an unknown item
    target_time: Array  # microseconds since 1970
    target_row: Array  # row numbers in the log that was split
    #: item of each row of the split log, in the vocabulary of `Log.with_catalogue`; None: as above
    catalogue_items: Array | None = None
    #: groups of the cases by grouping, such as "user": numbers of the groups in their order
    labels: Mapping[str, Array] = field(default_factory=dict)
    #: for cases whose target is a basket: the row after the last row of the basket
    basket_stop: Array | None = None

    def __len__(self) -> int:
        return len(self.target)

    def slice(self, a: int, b: int) -> Cases:
        """Return cases a..b (b excluded), whose histories are views of the same columns."""
        arrays = (self.target[a:b], self.target_time[a:b], self.target_row[a:b])
        labels = {name: codes[a:b] for name, codes in self.labels.items()}
        histories = self.histories.slice(a, b)
        return Cases(self.user[a:b], histories, *arrays, labels=labels)

    def take(self, which: Array) -> Cases:
        """Return the cases at positions `which` (integers or a mask); rows keep their numbers."""
        arrays = (self.target[which], self.target_time[which], self.target_row[which])
        labels = {name: codes[which] for name, codes in self.labels.items()}
        return Cases(
            self.user[which], self.histories.take(which), *arrays, self.catalogue_items, labels,
            None if self.basket_stop is None else self.basket_stop[which],
        )  # fmt: skip

    def with_catalogue(self) -> Cases:
        """Return the cases with items of the training log's catalogue, as `Log.with_catalogue`.

        These are items that the item table describes, but that have no training row; they have
        positions after all others. Without an item table, the cases are returned as they are.
        """
        items = self.catalogue_items
        if items is None:
            return self
        histories = replace(self.histories, item=items)
        return replace(self, histories=histories, target=items[self.target_row])


def select_training_rows(log: Log, train: Array) -> tuple[Log, RowItems]:
    """Return the training rows as a log with its own vocabulary, and every row's item in it.

    `train` is a boolean mask of the log's rows.
    """
    training = log.keep(train).compact()
    renumber = np.full(len(log.items), -1, np.int32)
    renumber[np.unique(log.item[train])] = np.arange(len(training.items), dtype=np.int32)
    if training.catalogue is None:
        return training, RowItems(renumber[log.item])
    extended = training.with_catalogue().items.codes(log.items.ids)
    return training, RowItems(renumber[log.item], extended[log.item])


class RowItems(NamedTuple):
    """The item of every row of a log, as a position in the vocabulary of the training rows.

    training   positions among the items of the training rows; -1 for others
    catalogue  the same, with items of the training log's catalogue (which the item table describes)
               after all others; None without an item table
    """

    training: Array
    catalogue: Array | None = None


def build_cases(
    log: Log, items: RowItems, users: Array, target: Array, stop: Array | None = None
) -> Cases:
    """Return a case per held-out row `target`: the user's rows before it, and the row's time.

    A case is a history and the item that came next; the row's time is the request time. `users`
    are positions; user u's rows begin at log.ptr[u], and `target` has row numbers. Histories end
    before row `stop`, by default before the target. `items` has each row's item in the training
    vocabulary. The context of a case is that of its row, which is known when the request is made.
    """
    when = log.time[target]
    rows = (log.ptr[users], target if stop is None else stop, items.training, log.time)
    context = take_context(log.context, target)
    histories = Histories(*rows, when, log.weight, context, log.context)
    return Cases(users, histories, items.training[target], when, target, items.catalogue)

"""The rows of a user, in positions of one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from talerec.data.histories import Histories
from talerec.runtime.arrays import Array
from talerec.serve.model.catalogue import Values
from talerec.store.events import Kept


@dataclass(frozen=True, eq=False, slots=True)
class UserRows:
    """The rows of a user in time order: positions (-1: an item that the model does not know) and microseconds.

    `events` are the rows that came from the store, by their place; the others are the artifact's. Arrays cannot be written, as
    mapped ones cannot: kernels know one kind.
    """

    item: Array
    time: Array
    events: dict[int, Kept] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.item)

    def names(self, ids: Values) -> list[int | str]:
        """The external ids of the rows' items; of one that the model does not know, the id that its event came with."""
        items = self.item.tolist()
        known = iter(ids.take([item for item in items if item >= 0]))
        return [
            next(known) if item >= 0 else str(self.events[place].item)
            for place, item in enumerate(items)
        ]

    def copied(self) -> UserRows:
        """The same rows, which hold nothing of the file that they were mapped from."""
        item, time = self.item.copy(), self.time.copy()
        item.flags.writeable = time.flags.writeable = False
        return UserRows(item, time, self.events)


def histories_of(users: Sequence[UserRows]) -> Histories:
    """The histories of several users."""
    ptr = np.array([0, *accumulate(map(len, users))])
    if len(users) == 1:
        return Histories(ptr[:-1], ptr[1:], users[0].item, users[0].time)
    item = np.concatenate([rows.item for rows in users])
    time = np.concatenate([rows.time for rows in users])
    item.flags.writeable = time.flags.writeable = False
    return Histories(ptr[:-1], ptr[1:], item, time)

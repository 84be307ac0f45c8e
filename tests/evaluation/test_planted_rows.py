"""Rows planted where a query must not see them change no answer: all models, all protocols.

Each model is evaluated on a log and on the same log with planted rows: of the query's own time,
later ones, of another session of the user, and of new users. And a copy of each history, in rows of
its own, has the same ranks: what follows a history in memory is not read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pytest

import talerec as tr
from kinds import maker
from logs import DAY, SECOND, START, at, described, rows_of
from talerec.data import Histories, Log
from talerec.data.split import Cases, Split, SplitPlan, basket_splits
from talerec.models import MODELS
from talerec.models.core import Model, rank_targets

MINUTE = 60 * SECOND
USERS, DAYS = range(9), range(5)
CUTOFF = at(START + 3 * DAY)
LAST_DAY = START + 4 * DAY

Event = tuple[int, str, int, int]  # user, visit, item, microseconds


def visits() -> list[Event]:
    """Return daily visits of three clicks, a minute apart; users in threes have equal times."""
    return [
        (u, f"{u}-{d}", (u + 2 * d + n) % 7, START + d * DAY + n * MINUTE + u // 3)
        for u in USERS for d in DAYS for n in range(3)
    ]  # fmt: skip


def add_later(events: list[Event]) -> list[Event]:
    """Add a visit of each user after its last one, and users who begin after all others."""
    later = [(u, f"{u}-late", item, LAST_DAY + DAY // 2 + u) for u in USERS for item in (5, 6)]
    new = [(u, f"{u}-new", n, LAST_DAY + (1 + n) * DAY) for u in (98, 99) for n in (3, 4)]
    return events + later + new


def add_simultaneous(events: list[Event]) -> list[Event]:
    """Add later rows, and a visit of one row at the time of each user's last row."""
    return add_later(events) + [
        (u, f"{u}-same", 5, LAST_DAY + 2 * MINUTE + u // 3) for u in USERS
    ]  # fmt: skip


def add_between(events: list[Event]) -> list[Event]:
    """Add these, and a visit of one row between the last two rows of each user."""
    between = [(u, f"{u}-between", 6, LAST_DAY + MINUTE + 9) for u in USERS]
    return add_simultaneous(events) + between


def change_last(events: list[Event]) -> list[Event]:
    """Change item and time of each user's last row, the test of leave-one-out."""
    is_last = [t >= LAST_DAY + 2 * MINUTE for *_, t in events]
    changed = zip(is_last, events, strict=True)
    return [
        (u, v, (i + 3) % 7, t + DAY) if last else (u, v, i, t) for last, (u, v, i, t) in changed
    ]


def change_last_visit(events: list[Event]) -> list[Event]:
    """Change the items of each user's last visit, the test of leave-one-out with baskets."""
    return [(u, v, (i + 3) % 7 if t >= LAST_DAY else i, t) for u, v, i, t in events]


class Protocol(NamedTuple):
    """A way to ask: the plan of the split, what is planted, how the log is read, the targets."""

    plan: str
    plant: Callable[[list[Event]], list[Event]]
    read: Callable[[Log], Log] | None = None
    on: str = "test"

    def log(self, events: list[Event]) -> Log:
        """Return the log of rows, with an item table, as the protocol reads it."""
        users, visit, items, times = (list(column) for column in zip(*events, strict=True))
        frame = {"user_id": users, "item_id": items, "timestamp": times}
        if self.read is None:
            return described(Log.from_frame(pl.DataFrame(frame), time_unit="us"))
        frame["visit"] = visit
        log = Log.from_frame(pl.DataFrame(frame), time_unit="us", group="visit")
        return self.read(described(log))

    def splits(self, log: Log) -> list[Split]:
        """Return the splits of a log, of baskets if it is a log of baskets."""
        split = basket_splits if log.has_baskets else SplitPlan.splits
        return list(split(SplitPlan(self.plan), log, self.on))


PROTOCOLS = {
    "leave-one-out": Protocol("leave-one-out", change_last, on="validation"),
    "at": Protocol(f"at:{CUTOFF}", add_simultaneous),
    "rolling": Protocol(f"rolling:{CUTOFF},1", add_simultaneous),
    "every": Protocol(f"every:{CUTOFF}", add_simultaneous),
    "every, refitted": Protocol(f"every:{CUTOFF},1d", add_simultaneous),
    "sessions": Protocol(f"every:{CUTOFF}", add_between, tr.split_sessions),
    "sessions of a gap": Protocol(
        f"every:{CUTOFF}", add_later, lambda log: tr.split_sessions(log, "30m")
    ),
    "sessions across": Protocol(
        f"every:{CUTOFF}", add_simultaneous, lambda log: tr.split_sessions(log, across=True)
    ),
    "baskets, leave-one-out": Protocol(
        "leave-one-out", change_last_visit, tr.join_baskets, "validation"
    ),
    "baskets, at": Protocol(f"at:{CUTOFF}", add_later, tr.join_baskets),
    "baskets, every": Protocol(f"every:{CUTOFF}", add_later, tr.join_baskets),
}


class Fits:
    """Fitted models of one kind, one for all logs of equal training rows."""

    def __init__(self, name: str) -> None:
        self.make, self.models = maker(name), {}

    def fit(self, split: Split) -> Model:
        """Return the model that is fitted to the training rows of a split."""
        train = split.train
        key: Any = (tuple(rows_of(train)), train.has_baskets, train.group is None)
        if key not in self.models:
            self.models[key] = self.make().fit(train)
        return self.models[key]


def evaluate(fits: Fits, protocol: Protocol, log: Log) -> pl.DataFrame:
    """Return a row per case of all splits: who, when, and the ranks or metrics."""
    if log.has_baskets:
        return tr.evaluate_baskets(fits.make(), log, protocol.plan, on=protocol.on, k=[3]).frame
    keys = ["user_id", "time", "window", "target_rows", "history_length", "rank", "rank_hidden"]
    return pl.concat(
        tr.evaluate(fits.fit(split), split, on=protocol.on).frame.select(keys)
        for split in protocol.splits(log)
    )


def copied(cases: Cases) -> Histories:
    """Return the histories of cases, each in rows of its own: nothing else is in memory."""
    h = cases.histories
    ranges = [np.arange(a, b) for a, b in zip(h.start, h.stop, strict=True)]
    ends = np.cumsum([len(r) for r in ranges])
    rows = np.concatenate(ranges)
    return Histories(ends - [len(r) for r in ranges], ends, h.item[rows], h.time[rows], h.now)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_planted_rows_change_no_answer(name: str) -> None:
    fits = Fits(name)
    for what, protocol in PROTOCOLS.items():
        log, planted = (protocol.log(e) for e in (visits(), protocol.plant(visits())))
        frame, other = (evaluate(fits, protocol, each) for each in (log, planted))
        assert len(frame) >= len(USERS), what
        changed = frame.join(other, on=frame.columns, how="anti", nulls_equal=True)
        assert changed.is_empty(), (what, changed)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_nothing_that_follows_a_history_in_memory_is_read(name: str) -> None:
    fits = Fits(name)
    for what, protocol in PROTOCOLS.items():
        for split in protocol.splits(protocol.log(visits())):
            cases, model = split.cases(protocol.on), fits.fit(split)
            both = (cases.histories, copied(cases))
            ranks = [rank_targets(model, each, cases.target).ranks for each in both]
            np.testing.assert_array_equal(*ranks, err_msg=what)


@pytest.mark.parametrize("what", sorted(PROTOCOLS))
def test_a_model_that_learned_from_the_planted_rows_would_be_noticed(what: str) -> None:
    protocol = PROTOCOLS[what]
    logs = [protocol.log(events) for events in (visits(), protocol.plant(visits()))]
    cases = protocol.splits(logs[0])[0].cases(protocol.on)
    models = [tr.Popular().fit(log) for log in logs]
    ranks = [rank_targets(model, cases.histories, cases.target).ranks for model in models]
    assert (ranks[0] != ranks[1]).any()

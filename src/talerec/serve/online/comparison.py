"""The comparison of a candidate by clicks: users enter it as their windows close."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

import polars as pl

from talerec.evaluation import (
    OutcomeSums,
    attribute_clicks,
    compute_user_rates,
    describe_comparison,
)
from talerec.serve.online.shown_items import shown_item_frame
from talerec.store import Impression, ImpressionStore, load_possible_clicks

_CHUNK_USERS = 20_000  # users who enter at a time, about: their responses are in memory,
_CHUNK_ITEMS = 1_000_000  # and these have about so many items
_MAX_S = 2.0  # seconds after which no further users are read in one call
_STEPS = 5  # parts of a window, after each of which users enter


class CandidateComparison:
    """Outcomes of the users of a candidate and of the current model, since its first response.

    A user enters once, two attribution windows after the first response. All responses of the store
    count, however many they are: each is read once or twice, and only sums are kept, with a hash
    of each user who has entered.

    Parameters
    ----------
    window : int
        Microseconds after a response in which an event counts as its click.
    negative : collection of str
        Names of events that are negative feedback.
    """

    def __init__(self, window: int, negative: Collection[str]) -> None:
        self._window, self._negative = window, negative
        self._reset("", 0)

    def _reset(self, version: str, start: int) -> None:
        """Begin the comparison of a candidate, with its first response at `start`."""
        self._version, self._until = version, start
        self._entered: set[int] = set()
        self._sums = {role: OutcomeSums(0, 0.0, 0.0) for role in ("current", "candidate")}

    def update(self, store: ImpressionStore, version: str, now: int) -> dict[str, Any]:
        """Add the users whose windows have closed at `now`; return the figures of the comparison.

        A user's window begins with the first response; clicks on the responses within it count, for
        as long again. `now` is in microseconds since 1970. A call stops reading after a short while
        and the next one goes on, as the interval of the users so far is valid, too. Another
        `version` of the candidate begins a new comparison.
        """
        if version != self._version:
            self._reset(version, store.find_candidate_start(version))
        step = max(1, self._window // _STEPS)
        end = (now - 2 * self._window) // step * step
        deadline = time.monotonic() + _MAX_S
        while self._until < end and time.monotonic() < deadline:
            self._add_users(store, end)
        return describe_comparison(version, self._sums, self._until)

    def _add_users(self, store: ImpressionStore, end: int) -> None:
        """Add users whose first response was before `end`, the earliest ones if they are many."""
        users: set[str] = set()
        groups, n_items = list[pl.DataFrame](), 0
        for rows in store.read_impressions(self._until):
            groups.append(shown_item_frame(self._select_responses(rows, users, end)))
            n_items += len(groups[-1])
            if len(users) >= _CHUNK_USERS or n_items >= _CHUNK_ITEMS:
                end = min(end, rows[-1].time + 1)
            if rows[-1].time >= end + 2 * self._window:
                break
        shown = pl.concat([shown_item_frame([]), *groups])
        events = load_possible_clicks(store, self._until, end + 2 * self._window)
        frame, _ = attribute_clicks(shown, events, self._window, self._negative)
        is_compared = (pl.col("role") == "current") | (pl.col("model") == self._version)
        outcomes = compute_user_rates(frame.filter(is_compared), self._window, end)
        for role, rate in outcomes.select("role", "rate").rows():
            total = self._sums[role]
            self._sums[role] = OutcomeSums(
                total.users + 1, total.total + rate, total.squares + rate**2
            )
        self._entered |= {hash(user) for user in users}
        self._until = end

    def _select_responses(
        self, rows: list[Impression], users: set[str], end: int
    ) -> list[Impression]:
        """Return the responses of users who enter now, and add these users to `users`.

        A user enters with a response of one of the two models, not with a named list, and not as an
        anonymous visitor. Named lists of these users are returned too: a click on an item counts
        for the latest list with the item.
        """
        selected = []
        for row in rows:
            is_compared = row.list is None and (row.role == "current" or row.model == self._version)
            if row.user is None:
                continue
            if is_compared and row.time < end and hash(row.user) not in self._entered:
                users.add(row.user)
            if row.user in users and row.time < end + 2 * self._window:
                selected.append(row)
        return selected

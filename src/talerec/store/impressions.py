"""Impressions of a store: the lists that were shown to users, beside the users' events.

A row is one response: who got it, when, from which model, under which rules, and its items in order
with the probability of each. Ids of responses are signed with the store's secret and contain their
time, so that a forged or old id is recognised without a look at the table.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from hmac import compare_digest
from itertools import accumulate
from random import Random
from typing import Any, NamedTuple

from talerec.errors import TalerecError
from talerec.store.ids import earliest_id
from talerec.store.measurements import MeasurementStore
from talerec.store.session import find_deletions, lock_meta

ID_LENGTH = 38  # hexadecimal digits of a recommendation id: 14 of time, 12 random, 12 of signature
RECOMMENDATION_ID = f"[0-9a-f]{{{ID_LENGTH}}}"  # the pattern of an id
_PAGE_ROWS = 1000  # impressions read by one statement: they may have a thousand items each
_PAGE_EVENTS = 50_000  # events read by one statement
_DAY_US = 86_400_000_000  # microseconds
LATEST_TIME = 2**55 - 1  # microseconds, until the year 3111: later than any response
_COLUMNS = "id, user_id, time, model, role, list, rules, items, probabilities, explored"


class Impression(NamedTuple):
    """One response that was shown: its items from rank 1 on, and where they came from."""

    id: str  # the recommendation id
    user: str | None  # None for an anonymous visitor
    time: int  # microseconds since 1970
    model: str  # the version of the model
    role: str  # of the model: "current" or "candidate"
    list: str | None  # the name of the list; None for personal recommendations
    rules: str | None  # JSON of the request's rules for items; None without any
    items: str  # JSON array of item ids as text, by rank
    probabilities: str | None  # JSON array: with which each item was put at its rank; None: all 1
    explored: str | None  # JSON array of the ranks that went to items with few impressions


class PossibleClick(NamedTuple):
    """An event that is a click if its item was shown to its user shortly before."""

    user: str
    item: str
    time: int  # microseconds since 1970
    event: str | None  # its name
    recommendation_id: str | None


class IdSigner:
    """Makes recommendation ids and recognises those that another key made, or nobody.

    Parameters
    ----------
    key : bytes
        The secret of the store, up to 64 bytes.
    """

    def __init__(self, key: bytes) -> None:
        self._keyed_hash = blake2b(digest_size=6, key=key)
        self._random = Random()  # for different ids; what makes them genuine is the signature

    def make_id(self, time: int) -> str:
        """Return a new id of a response given at `time`, in microseconds since 1970."""
        content = (time << 48 | self._random.getrandbits(48)).to_bytes(13, "big")
        return (content + self._sign(content)).hex()

    def is_genuine(self, text: str) -> bool:
        """Was this id made with the same key?

        Examples
        --------
        >>> signer = IdSigner(b"key")
        >>> signer.is_genuine(signer.make_id(10**15)), signer.is_genuine("0" * 38)
        (True, False)
        """
        try:
            content = bytes.fromhex(text)
        except ValueError:
            return False
        if text != content.hex() or len(text) != ID_LENGTH:
            return False
        return compare_digest(content[13:], self._sign(content[:13]))

    def _sign(self, content: bytes) -> bytes:
        """Return the six bytes that sign the time and the random part of an id."""
        signature = self._keyed_hash.copy()
        signature.update(content)
        return signature.digest()


class ImpressionStore(MeasurementStore):
    """An event store with the table of impressions, over one connection."""

    def read_secret(self) -> bytes:
        """Return the random key that signs the store's recommendation ids."""
        secret: str = self._read("select secret from talerec_meta", ())[0][0]
        return secret.encode()

    def write_impressions(self, impressions: Sequence[Impression]) -> int:
        """Store impressions in one commit; return how many, without those of deleted users.

        One whose id is stored already counts, and is not stored again. Impressions of a user from
        before the user's deletion are ignored, however late they arrive.
        """
        with self._transaction() as session:
            _, deleted_until = lock_meta(session)
            users = {row.user for row in impressions if row.user and row.time <= deleted_until}
            deleted = find_deletions(session, users) if users else {}
            rows = [row for row in impressions if row.time > deleted.get(row.user or "", -1)]
            marks = ", ".join("?" * len(Impression._fields))
            insert = f"insert into talerec_impressions ({_COLUMNS}) values ({marks})"
            session.execute_many(f"{insert} on conflict do nothing", rows)
        return len(rows)

    def read_impressions(self, since: int, limit: int = 2**62) -> Iterator[list[Impression]]:
        """Yield the impressions from `since` (microseconds) on, in the order of their ids.

        They come in groups of at most 1,000, and at most `limit` in all.
        """
        after = earliest_id(since)
        while limit > 0:
            query = f"select {_COLUMNS} from talerec_impressions where id > ? order by id limit ?"
            rows = self._read(query, (after, min(limit, _PAGE_ROWS)))
            if not rows:
                return
            yield [Impression._make(row) for row in rows]
            after, limit = rows[-1][0], limit - len(rows)

    def find_start_of_latest(self, since: int, limit: int, max_items: int) -> int:
        """Return since when the latest impressions were shown: `limit`, or those of `max_items`.

        Times are in microseconds since 1970; `since` if no more were shown from then on. At least
        one impression counts. A comma in an item's id counts as an item.
        """
        commas = "length(items) - length(replace(items, ',', ''))"
        query = (
            f"select time, {commas} + 1 from talerec_impressions where id > ?"
            " order by id desc limit ?"
        )
        rows = self._read(query, (earliest_id(since), limit + 1))
        n_items = accumulate(int(row[1]) for row in rows)
        n_within = sum(count <= max_items for count in n_items)
        if n_within == len(rows) <= limit:
            return since
        return max(since, int(rows[max(0, min(n_within, limit) - 1)][0]))

    def find_candidate_start(self, version: str) -> int:
        """Return the time (microseconds) of a candidate's first response; 0 if it has none.

        `version` is that of the candidate model.
        """
        query = "select time from talerec_impressions where role = 'candidate' and model = ?"
        rows = self._read(f"{query} order by id limit 1", (version,))
        return int(rows[0][0]) if rows else 0

    def read_possible_clicks(
        self, since: int, until: int = LATEST_TIME
    ) -> Iterator[list[PossibleClick]]:
        """Yield the events that can be clicks on responses from `since` to before `until`.

        These are the events with the id of such a response, and those of users with such responses
        from the second of `since` to `until` (microseconds), as some clocks only know seconds.
        They come in groups of at most 50,000.
        """
        fields = "e.seq, e.user_id, e.item_id, e.time, e.event, e.recommendation_id"
        queries = (
            f"select {fields} from talerec_events e where e.recommendation_id > ?"
            " and e.recommendation_id < ? and e.seq > ? order by e.seq limit ?",
            f"select {fields} from (select distinct user_id from talerec_impressions"
            " where id > ? and id < ? and user_id is not null) u join talerec_events e"
            " on e.user_id = u.user_id and e.time between ? and ?"
            " where e.recommendation_id is null and e.seq > ? order by e.seq limit ?",
        )
        ids = earliest_id(since), earliest_id(until)
        times = since - since % 1_000_000, until
        for query, parameters in zip(queries, (ids, (*ids, *times)), strict=True):
            seq = -1
            while rows := self._read(query, (*parameters, seq, _PAGE_EVENTS)):
                yield [PossibleClick._make(row[1:]) for row in rows]
                seq = rows[-1][0]

    def read_recommendation_ids(self, user: str) -> dict[int, str]:
        """Return the recommendation ids of a user's events, by the seq of the event."""
        query = (
            "select seq, recommendation_id from talerec_events where user_id = ?"
            " and recommendation_id is not null"
        )
        return dict(self._read(query, (user,)))

    def read_user_impressions(self, user: str) -> list[Impression]:
        """Return a user's impressions, oldest first; also anonymous ones that led to an event."""
        query = (
            f"select {_COLUMNS} from talerec_impressions where user_id = ? or (user_id is null"
            " and id in (select recommendation_id from talerec_events where user_id = ?"
            " and recommendation_id is not null)) order by id"
        )
        return [Impression._make(row) for row in self._read(query, (user, user))]

    def count_shown(self, since: int, until: int) -> dict[int, Counter[str]]:
        """Return how often each item was shown, by day since 1970 and item id.

        It counts responses from `since` to before `until`, in microseconds since 1970.
        """
        counts: dict[int, Counter[str]] = {}
        for rows in self.read_impressions(since):
            for row in rows:
                if row.time >= until:
                    return counts
                counts.setdefault(row.time // _DAY_US, Counter()).update(json.loads(row.items))
        return counts


def encode_list(values: Sequence[Any] | None) -> str | None:
    """Return values as a JSON array for a column of the table; None stays None."""
    return None if values is None else json.dumps(values, ensure_ascii=False)


def validate_recommendation_id(value: object) -> None:
    """Raise TalerecError unless a value has the form of the ids that responses have."""
    if not isinstance(value, str) or not re.fullmatch(RECOMMENDATION_ID, value):
        shown = repr(value)[:50]
        raise TalerecError(f"recommendation_id {shown} is not an id as responses have it")

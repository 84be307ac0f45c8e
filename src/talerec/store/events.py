"""Events: who had to do with which item, and when, as they come and as they are kept."""

from __future__ import annotations

from typing import NamedTuple

from talerec.errors import TalerecError

STORE_VARIABLE = "TALEREC_STORE"  # of the environment: an address that need not stand in a command
MAX_ID = 500  # characters of an id: databases index no more than 2,700 bytes
MAX_NAME = 100  # characters of the name of an event


class StoreError(TalerecError):
    """The database cannot be reached, or refuses; nothing was kept."""


class RefusedError(StoreError):
    """The database refuses these values; others may go on."""


class ConflictError(TalerecError):
    """An `event_id` that is known with other contents. `place` is that of the event among those of its request."""

    def __init__(self, place: int, event_id: str) -> None:
        self.place, self.event_id = place, event_id
        super().__init__(f"events[{place}]: event_id {event_id!r} is known with other contents")


class Event(NamedTuple):
    """An event that is to be kept; ids are text, as vocabularies match them (5 is "5").

    `timed`: the sender gave the time. Without one, a repeat of the same `event_id` has another time, and is a repeat all the same.
    """

    user: str
    item: str
    time: int  # microseconds since 1970
    event: str | None = None
    event_id: str | None = None
    timed: bool = True

    def repeats(self, other: Event) -> bool:
        """Has it the contents of one that is known under the same `event_id`?"""
        same_time = not (self.timed and other.timed) or self.time == other.time
        return same_time and (self.user, self.item, self.event) == (
            other.user, other.item, other.event,
        )  # fmt: skip


class Kept(NamedTuple):
    """A row of the store: an event, or the deletion of a user (`item` is None). `seq` grows in the order of commits."""

    seq: int
    user: str
    item: str | None
    time: int
    event: str | None = None
    event_id: str | None = None


class Added(NamedTuple):
    """What became of the events of one request."""

    accepted: int
    duplicates: int


def checked_id(value: int | str, what: str) -> str:
    """An id as text; TalerecError (named `what`) where it is none that a database can keep."""
    text = value if isinstance(value, str) else str(value)
    if not text.strip():
        raise TalerecError(f"{what} is empty")
    if len(text) > MAX_ID:
        raise TalerecError(f"{what} has {len(text)} characters; the limit is {MAX_ID}")
    if any("\ud800" <= sign <= "\udfff" for sign in text if sign > "\x7f"):
        raise TalerecError(f"{what} is not valid Unicode")
    if "\0" in text:
        raise TalerecError(f"{what} has a zero character, which no database keeps")
    return text

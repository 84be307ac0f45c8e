"""Ids of users, items and recommendations: what can be stored, and which are integers."""

from __future__ import annotations

from typing import NamedTuple

from talerec.data import parse_integer
from talerec.errors import TalerecError
from talerec.store.events import INTEGER, TEXT

MAX_ID = 500  # characters of an id: databases index no more than 2,700 bytes


class IdKinds(NamedTuple):
    """The kinds of a store's user and item ids: "integer" or "text"; None: not settled."""

    user: str | None = None
    item: str | None = None

    def or_else(self, other: IdKinds) -> IdKinds:
        """Return these kinds, with the kinds of `other` where these are not settled."""
        return IdKinds(self.user or other.user, self.item or other.item)


def validate_id(value: int | str, name: str, kind: str | None = TEXT) -> str:
    """Return an id as text; TalerecError if it is not of its kind or cannot be stored.

    Refused: blank ids, more than 500 characters, surrogates, null characters; with the kind
    "integer", also whatever is not a 64-bit integer in its plain spelling. `name` says in the
    message which value it is, such as "user_id".
    """
    text = value if isinstance(value, str) else str(value)
    if kind == INTEGER:
        if parse_integer(text) is None:
            shown = text if len(text) <= 40 else f"{text[:40]}..."
            raise TalerecError(f"{name} {shown!r} is not an integer, as the {name}s here are")
        return text
    if not text.strip():
        raise TalerecError(f"{name} is empty")
    if len(text) > MAX_ID:
        raise TalerecError(f"{name} has {len(text)} characters; the limit is {MAX_ID}")
    if not text.isascii() and any("\ud800" <= sign <= "\udfff" for sign in text):
        raise TalerecError(f"{name} is not valid Unicode")
    if "\0" in text:
        raise TalerecError(f"{name} contains a null character, which databases cannot store")
    return text


def earliest_id(time: int) -> str:
    """Return a text that sorts before all ids of responses from `time` (microseconds) on."""
    return max(time, 0).to_bytes(7, "big").hex()

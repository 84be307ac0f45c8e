"""Events as they arrive, checked: every one is what the store can keep, or the request is refused by the place of the first that is not."""

from __future__ import annotations

import time

from talerec.data.times import DAY, microseconds
from talerec.errors import TalerecError
from talerec.serve import schemas
from talerec.serve.errors import ApiError
from talerec.serve.model.served import MAX_TIMESTAMP
from talerec.store.events import Event, checked_id

_AHEAD = DAY  # by how much the clock of a sender may be ahead of ours


def checked_events(request: schemas.EventsRequest, unit: str, most: int) -> list[Event]:
    """The events of a request. `unit` is what small numbers count as times: the unit of the model's log."""
    if len(request.events) > most:
        message = f"there are {len(request.events)} events; the limit is {most}"
        raise ApiError(422, "too_many_events", message)
    now = time.time_ns() // 1000
    events = []
    for place, given in enumerate(request.events):
        try:
            events.append(_checked(given, unit, now))
        except TalerecError as error:
            raise ApiError(422, "invalid_event", f"events[{place}]: {error}") from None
    return events


def _checked(given: schemas.NewEvent, unit: str, now: int) -> Event:
    if given.event is not None:
        checked_id(given.event, "event")
    return Event(
        checked_id(given.user_id, "user_id"),
        checked_id(given.item_id, "item_id"),
        now if given.timestamp is None else _moment(given.timestamp, unit, now),
        given.event,
        None if given.event_id is None else checked_id(given.event_id, "event_id"),
        given.timestamp is not None,
    )


def _moment(when: schemas.Moment, unit: str, now: int) -> int:
    if isinstance(when, int | float) and abs(when) > MAX_TIMESTAMP:
        raise TalerecError(f"timestamp {when} is beyond any date, in any unit")
    moment = microseconds(when, unit)
    if moment < 0:
        raise TalerecError(f"timestamp {when!r} lies before 1970")
    if moment > now + _AHEAD:
        raise TalerecError(f"timestamp {when!r} lies in the future")
    return moment


def checked_user(value: schemas.Id) -> str:
    """The id of a user as text; an ApiError where no user can have it."""
    try:
        return checked_id(value, "user_id")
    except TalerecError as error:
        raise ApiError(422, "invalid", str(error)) from None

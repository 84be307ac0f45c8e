"""Validation of events and user ids in requests."""

from __future__ import annotations

from talerec.errors import TalerecError
from talerec.serve import ApiError, Settings, schemas
from talerec.serve.model import ServedModel, parse_time
from talerec.store import (
    MAX_CLOCK_SKEW,
    Event,
    IdKinds,
    find_kind,
    now_us,
    validate_id,
    validate_recommendation_id,
)


def find_id_kinds(settings: Settings, model: ServedModel) -> IdKinds:
    """Return whether events have integer or text ids, by the setting `ids` or the model.

    A kind is None where the model has no ids: the users of an artifact without histories.
    """
    if settings.ids is not None:
        return IdKinds(settings.ids, settings.ids)
    log = model.model.fitted.log
    users = None if log is None else find_kind(log.users.ids)
    return IdKinds(users, find_kind(model.items.ids))


def validate_events(
    request: schemas.EventsRequest, unit: str, max_events: int, kinds: IdKinds
) -> list[Event]:
    """Return the events of a request; ApiError (422) names the first one that is invalid.

    `unit` is the unit of small numeric timestamps: that of the model's log; `kinds` says whether
    user and item ids must be integers. More than `max_events` are refused too.
    """
    if len(request.events) > max_events:
        message = f"there are {len(request.events)} events; the limit is {max_events}"
        raise ApiError(422, "too_many_events", message)
    now = now_us()
    events = []
    for index, event in enumerate(request.events):
        try:
            events.append(_validate_event(event, unit, now, kinds))
        except TalerecError as error:
            raise ApiError(422, "invalid_event", f"events[{index}]: {error}") from None
    return events


def _validate_event(event: schemas.NewEvent, unit: str, now: int, kinds: IdKinds) -> Event:
    """Return one event of a request; TalerecError if a field is invalid.

    `now`, in microseconds since 1970, is the time of an event without a timestamp; `unit` is that
    of small numeric timestamps. Times may be from 1970 to a day after `now`. `kinds` says whether
    user and item ids must be integers.
    """
    if event.event is not None:
        validate_id(event.event, "event")
    user = validate_id(event.user_id, "user_id", kinds.user)
    item = validate_id(event.item_id, "item_id", kinds.item)
    event_id = None if event.event_id is None else validate_id(event.event_id, "event_id")
    time_us = now if event.timestamp is None else parse_time(event.timestamp, unit)
    if time_us < 0:
        raise TalerecError(f"timestamp {event.timestamp!r} is before 1970")
    if time_us > now + MAX_CLOCK_SKEW:
        raise TalerecError(f"timestamp {event.timestamp!r} is in the future")
    shown = event.recommendation_id
    if shown is not None:
        validate_recommendation_id(shown)
    return Event(user, item, time_us, event.event, event_id, event.timestamp is not None, shown)


def validate_user_id(value: schemas.Id) -> str:
    """Return the id of a user as text; ApiError (422) if it is blank or cannot be stored.

    `value` is an integer or text from a request.
    """
    try:
        return validate_id(value, "user_id")
    except TalerecError as error:
        raise ApiError(422, "invalid", str(error)) from None

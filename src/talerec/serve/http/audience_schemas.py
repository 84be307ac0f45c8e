"""The JSON of audiences: the users who are most likely to take an item next."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from talerec.serve import schemas


class AudienceRequest(Struct, forbid_unknown_fields=True):
    """A request for the users of the log who are most likely to take an item next.

    `hide_seen` leaves out users who have the item. `as_of` is the request time, as for
    recommendations.
    """

    item_id: schemas.Id
    k: schemas.Positive = 100  # the number of users
    hide_seen: bool = False  # leave out users who have the item
    as_of: schemas.Moment | None = None  # None: the end of the log


class AudienceUser(Struct, gc=False):
    """A user and the place of the item in the user's recommendations.

    `lead` is the item's score less that of the best other item, as a share of the list's score
    range; null beyond the first hundred of a list.
    """

    user_id: schemas.Id
    list_rank: int  # of the item in the user's list, from 1
    lead: float | None
    rank: int  # of the user, from 1


class ItemAudience(Struct):
    """Users in whose recommendations an item stands highest: by `list_rank`, then `lead`."""

    model: str  # the version of the model
    item_id: schemas.Id
    users: list[AudienceUser]
    title: str | UnsetType = UNSET  # of the item; omitted without one

"""The routes of items: put, get and delete an item of the catalogue, and put many at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from talerec import columns
from talerec.data import check_fields
from talerec.errors import TalerecError
from talerec.serve import ApiError, Settings, SharedState, encode, is_local, schemas
from talerec.serve.http.item_schemas import CatalogueItem, ItemDeleted, ItemsStored
from talerec.serve.http.messages import NDJSON, HttpRequest, Response, read_body, read_json
from talerec.serve.model import ServedModel
from talerec.serve.users import UserState
from talerec.store import IdKinds, ItemChange, ItemsWritten, WriteRequest, validate_id

RunInThread = Callable[..., Awaitable[Any]]

_WAIT_S = 5.0  # seconds to wait until all workers have applied a change
_POLL_S = 0.01


class ItemRoutes:
    """The routes of one worker process that read or write items of the catalogue.

    user_state: has the store. shared: which changes all workers have applied. run_in_thread: runs a
    function in a thread, within the service's time limit.
    """

    def __init__(
        self, settings: Settings, shared: SharedState, user_state: UserState,
        run_in_thread: RunInThread,
    ) -> None:  # fmt: skip
        self._settings, self._shared, self._state = settings, shared, user_state
        self._run_in_thread = run_in_thread

    async def get_item(self, http: HttpRequest) -> Response:
        """Handle GET /v1/items/{item_id}: return the item's fields; 404 if it is unknown."""
        model, item = http.model, validate_item_id(http.path_id)
        facts = await self._run_in_thread(model.get_item, item)
        return Response(encode(CatalogueItem(model.version, *facts)))

    async def put_item(self, http: HttpRequest) -> Response:
        """Handle PUT /v1/items/{item_id}: store fields of an item; 200 once they are on disk.

        Fields that the body does not have keep their values, and null empties a field. All workers
        know the item when the response is sent, unless one takes more than five seconds.
        """
        self._check_may_write()
        values = await read_json(http, schemas.ItemFields, self._settings)
        kinds = await self._settle_kinds(http, http.path_id)
        arguments = (http.model, http.path_id, values, kinds.item)
        return await self._store([await self._run_in_thread(_check_item, *arguments)])

    async def put_items(self, http: HttpRequest) -> Response:
        """Handle POST /v1/items: store the items of a body of NDJSON, all of them or none.

        Each line is a JSON object with item_id and fields. 200 once they are on disk, and known to
        all workers, unless one takes more than five seconds.
        """
        self._check_may_write()
        body = await read_body(http, self._settings, NDJSON)
        lines = [(n, line) for n, line in enumerate(bytes(body).split(b"\n"), 1) if line.strip()]
        if not lines:
            raise ApiError(
                422, "invalid_item", "the body has no items: send one JSON object a line"
            )
        if len(lines) > self._settings.max_events:
            message = f"there are {len(lines)} items; the limit is {self._settings.max_events}"
            raise ApiError(422, "too_many_items", message)
        first = _decode_line(*lines[0])
        kinds = await self._settle_kinds(http, first[0])
        changes = await self._run_in_thread(_parse_item_lines, http.model, lines, kinds.item)
        return await self._store(changes)

    async def delete_item(self, http: HttpRequest) -> Response:
        """Handle DELETE /v1/items/{item_id}: respond once the deletion is on disk; 404 if unknown.

        No list has the item from then on, also after a restart or with another model.
        """
        self._check_may_write()
        kinds = await self._settle_kinds(http, http.path_id)
        item = validate_item_id(http.path_id, kinds.item)
        is_known = http.model.catalogue.position(item) >= 0
        request = WriteRequest(deleted_item=item, always_record=is_known)
        seq: int | None = await self._state.write(request)
        if seq is None:
            raise ApiError(404, "unknown_item", f"item {item!r} is unknown")
        await self._wait_for_workers(seq)
        item_id = int(item) if kinds.item == "integer" else item
        return Response(encode(ItemDeleted(item_id, True)))

    async def _store(self, changes: list[ItemChange]) -> Response:
        """Store changes of items, wait for all workers, and return the counts as a response."""
        written: ItemsWritten = await self._state.write(WriteRequest(items=changes))
        await self._wait_for_workers(written.seq)
        return Response(encode(ItemsStored(written.accepted, written.unchanged)))

    async def _wait_for_workers(self, seq: int) -> None:
        """Wait until the models of all workers have the change of items `seq`, for five seconds."""
        end = time.monotonic() + min(_WAIT_S, self._settings.timeout)
        while not self._shared.has_items_everywhere(seq) and time.monotonic() < end:
            await asyncio.sleep(_POLL_S)

    async def _settle_kinds(self, http: HttpRequest, item_id: schemas.Id) -> IdKinds:
        """Return whether ids are integers or text; the first id decides if nothing else does."""
        kinds = self._state.get_id_kinds(http.model)
        if kinds is None:
            first = IdKinds(None, "integer" if isinstance(item_id, int) else "text")
            settle = self._state.settle_id_kinds
            kinds = await self._run_in_thread(settle, http.model, first)
        return kinds

    def _check_may_write(self) -> None:
        """Raise ApiError 409 without a store, 403 if everybody could write: no token is set."""
        if self._state.tail is None:
            message = "this service has no store and stores nothing: start it with a store"
            raise ApiError(409, "no_store", message)
        if not self._settings.needs_token and not is_local(self._settings):
            message = "changing items needs a token, and this service was started without one"
            raise ApiError(403, "no_token", message)


def validate_item_id(value: schemas.Id, kind: str | None = None) -> str:
    """Return the id of an item as text; ApiError (422) if it cannot be stored.

    `kind` is "integer" or "text", what ids of items are.
    """
    try:
        return validate_id(value, "item_id", kind)
    except TalerecError as error:
        raise ApiError(422, "invalid_item", str(error)) from None


def _check_item(
    model: ServedModel, item_id: schemas.Id, values: dict[str, Any], kind: str | None
) -> ItemChange:
    """Return the fields of an item as a change; ApiError (422) names the first invalid one.

    `model` says which columns there are, and `kind` whether ids are "integer" or "text".
    """
    item = validate_item_id(item_id, kind)
    try:
        return ItemChange(item, check_fields(values, model.item_fields))
    except TalerecError as error:
        raise ApiError(422, "invalid_item", f"item {item[:40]!r}: {error}") from None


def _parse_item_lines(
    model: ServedModel, lines: list[tuple[int, bytes]], id_kind: str | None
) -> list[ItemChange]:
    """Return the items of numbered lines of JSON as changes; ApiError 422 names the line.

    `model` says which columns there are, and `id_kind` whether ids are "integer" or "text".
    """
    changes = []
    for number, line in lines:
        item_id, values = _decode_line(number, line)
        try:
            changes.append(_check_item(model, item_id, values, id_kind))
        except ApiError as error:
            raise ApiError(422, error.code, f"line {number}: {error}") from None
    return changes


def _decode_line(number: int, line: bytes) -> tuple[schemas.Id, dict[str, Any]]:
    """Return the id and the fields of an item on a line of JSON; ApiError names the line."""
    try:
        values = schemas.decode(line, schemas.ItemFields)
    except ApiError as error:
        raise ApiError(error.status, error.code, f"line {number}: {error}") from None
    item_id = values.pop(columns.ITEM, None)
    if isinstance(item_id, float) and item_id.is_integer():
        item_id = int(item_id)
    if isinstance(item_id, bool) or not isinstance(item_id, int | str):
        message = f"line {number}: item_id is missing, or neither text nor a whole number"
        raise ApiError(422, "invalid_item", message)
    return item_id, values

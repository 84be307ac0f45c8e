"""The routes of named lists, which a shop shows to everybody under the same rules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from talerec.errors import TalerecError
from talerec.serve import ApiError, NamedList, Settings, encode, schemas
from talerec.serve.http.messages import HttpRequest, Response, check_k, parse_list_query
from talerec.serve.http.shown import ShownLists
from talerec.serve.http.user_routes import UserRoutes
from talerec.serve.model import ModelQuery, RankingCache, ServedModel, hide_items

RunInThread = Callable[..., Awaitable[Any]]


class ListRoutes:
    """The routes of one worker process that show named lists.

    users: knows what a user does not want to see. shown: signs and keeps responses. run_in_thread:
    runs a function in a thread, within the service's time limit.
    """

    def __init__(
        self, settings: Settings, users: UserRoutes,
        shown_lists: ShownLists, run_in_thread: RunInThread,
    ) -> None:  # fmt: skip
        self._settings, self._users, self._shown_lists = settings, users, shown_lists
        self._run_in_thread = run_in_thread
        self._lists = settings.load_lists()
        self._rankings = RankingCache()

    async def get_names(self, http: HttpRequest) -> Response:
        """Handle GET /v1/lists: return the names of the lists, sorted."""
        return Response(encode({"model": http.version, "lists": sorted(self._lists)}))

    async def get_list(self, http: HttpRequest) -> Response:
        """Handle GET /v1/lists/{list_name}: return the items of a list; 404 if it is unknown.

        The query may set `k` and `user_id`: for whom the list is shown. Items that this user does
        not want are left out, and the impression has the user.
        """
        named = self._lists.get(http.path_id)
        if named is None:
            names = ", ".join(sorted(self._lists)) or "none"
            message = f"there is no list {http.path_id[:100]!r}; there are: {names}"
            raise ApiError(404, "unknown_list", message)
        k, user = parse_list_query(http.query)
        size = named.k if k is None else k
        check_k(size, self._settings)
        places = {} if named.slots is None else named.slots
        slots = {place: rule for place, rule in places.items() if int(place) <= size}
        request = schemas.RecommendRequest(
            history=[], user_id=user, k=size, allow=named.allow, deny=named.deny,
            where=named.where, per=named.per, slots=slots or None,
        )  # fmt: skip
        query = await self._users.build_query(http.model, request)
        try:
            response = await self._run_in_thread(self._show, http.model, http.path_id, named, query)
        except TalerecError as error:
            raise ApiError(409, "list_refused", f"list {http.path_id!r}: {error}") from None
        return Response(self._shown_lists.encode_and_keep(http, request, response, http.path_id))

    def _show(
        self, model: ServedModel, name: str, named: NamedList, query: ModelQuery
    ) -> schemas.Recommendations:
        """Return the first items of a list that the rules allow."""
        item_filter = model.filters.build_filter(query.options)
        item_filter = hide_items(item_filter, query.hidden, len(model.items))
        ranking, scores = self._rankings.rank(model, name, named)
        response = model.list_ranking(ranking, scores, query.options.k, item_filter)
        response.list_name = name
        return response

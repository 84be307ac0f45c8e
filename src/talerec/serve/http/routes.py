"""The routes of the API. Short work runs in the event loop, long work in threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

from talerec.errors import TalerecError
from talerec.serve import ApiError, RestartCounters, Settings, SharedState, busy, encode, schemas
from talerec.serve import page as static
from talerec.serve.http import messages
from talerec.serve.http.access import Access
from talerec.serve.http.audience_routes import AudienceRoutes
from talerec.serve.http.item_routes import ItemRoutes
from talerec.serve.http.list_routes import ListRoutes
from talerec.serve.http.messages import HttpRequest, Response, read_json, tag_response
from talerec.serve.http.openapi import build_document
from talerec.serve.http.page_routes import build_page_handler
from talerec.serve.http.recommend_queue import RecommendQueue
from talerec.serve.http.shown import ShownLists
from talerec.serve.http.user_routes import UserRoutes
from talerec.serve.model import ModelHolder, build_card, model_times
from talerec.serve.online import CANDIDATE, impression_lines, is_in_share, prometheus_lines
from talerec.serve.users import UserState

T = TypeVar("T")
Request = TypeVar("Request", bound=schemas.HistoryRequest)
Handler = Callable[[HttpRequest], Awaitable[Response]]

USER = "/v1/users/{user_id}"
LIST = "/v1/lists/{list_name}"
ITEM = "/v1/items/{item_id}"
#: Every path that is counted by its own name in the metrics; all other paths are `OTHER`.
OTHER = "other"
COUNTED_PATHS = (
    *("/v1/recommend", "/v1/recommend:batch", "/v1/similar", "/v1/explain", "/v1/audience"),
    *("/v1/items", "/v1/lists"),
    ITEM,
    LIST,
    *("/v1/users", USER, "/v1/events", "/v1/stats", "/v1/model", "/v1/reload"),
    *("/health/live", "/health/ready", "/metrics", "/openapi.json", *static.FILES, OTHER),
)
_THREADS = 2  # for long work
_LIMITS = ("max_body", "max_history", "max_k", "max_batch", "max_items", "timeout")
_LARGE_BODY = 65_536  # bytes: decoding more delays other requests and takes much more memory
_POLL_S = 0.01  # seconds between checks whether all workers have reloaded


class Route(NamedTuple):
    """The handlers of a URL path, asynchronous functions of a request that return a response."""

    method: str  # the accepted HTTP method, GET or POST, answered by `handler`
    handler: Handler
    is_guarded: bool = True  # needs the token, and counts towards the limit of concurrent requests
    uses_model: bool = True  # answers from a model, which the query may choose (`beside=NAME`)
    writes: bool = False  # `handler` changes something: it needs a token that may write
    writers: Mapping[str, Handler] = {}  # of other methods, all of which change something

    @property
    def methods(self) -> str:
        """Return the accepted HTTP methods as an Allow header lists them: "GET, DELETE"."""
        return ", ".join([self.method, *self.writers])

    def find_handler(self, method: str) -> Handler | None:
        """Return the handler of an HTTP method, HEAD like GET; None if it is not accepted."""
        if method == self.method or (method == "HEAD" and self.method == "GET"):
            return self.handler
        return self.writers.get(method)


class Api:
    """The routes of one worker process, by URL path in `routes`.

    `holder` has the main model; `candidate` has the model that answers a share of the users, None
    if there is none. Both reload their model when its saved files change. `shared` has the metrics
    of all workers, `user_state` the users' histories and events, `access` the accepted tokens.
    """

    def __init__(
        self, settings: Settings, shared: SharedState, user_state: UserState,
        holder: ModelHolder, candidate: ModelHolder | None, access: Access,
    ) -> None:  # fmt: skip
        """Build the groups of routes and the pools of threads that compute responses."""
        self._settings, self._shared = settings, shared
        self._restarts = RestartCounters(shared.folder)
        self._holder, self.candidate, self._access = holder, candidate, access
        self.is_draining = False  # whether to report that the service is about to stop
        self.unread_bytes = 0  # of large responses that their clients have not read yet
        store_id = "" if user_state.tail is None else user_state.tail.store
        self.shown_lists = ShownLists(settings, shared, store_id)
        self.users = UserRoutes(
            settings, shared, user_state, candidate, self.run_in_thread, self.shown_lists
        )
        self.items = ItemRoutes(settings, shared, user_state, self.run_in_thread)
        self.audiences = AudienceRoutes(settings, self.users, self.run_in_thread)
        self.lists = ListRoutes(settings, self.users, self.shown_lists, self.run_in_thread)
        self.routes = self._build_routes()
        self._queue = RecommendQueue()
        self._pool = ThreadPoolExecutor(_THREADS, "answer")
        self._large_slots = asyncio.Semaphore(_THREADS)  # for batches and large bodies
        self._reload_pool = ThreadPoolExecutor(1, "reload")  # a reload blocks no responses

    def _build_routes(self) -> dict[str, Route]:
        """Return the routes of the API and the static files of the web page, by URL path.

        A Route has an HTTP method, its handler, and whether it needs the token and a model.
        """
        pages = static.load_pages(self._settings.images).items()
        return {
            "/v1/recommend": Route("POST", self._recommend),
            "/v1/recommend:batch": Route("POST", self._recommend_batch),
            "/v1/similar": Route("POST", self._similar),
            "/v1/explain": Route("POST", self._explain),
            "/v1/audience": Route("POST", self.audiences.find_audience),
            "/v1/items": Route("GET", self._search_items, writers={"POST": self.items.put_items}),
            ITEM: Route(
                "GET",
                self.items.get_item,
                writers={"PUT": self.items.put_item, "DELETE": self.items.delete_item},
            ),
            "/v1/lists": Route("GET", self.lists.get_names),
            LIST: Route("GET", self.lists.get_list),
            "/v1/users": Route("GET", self._search_users),
            USER: Route("GET", self.users.get_user, writers={"DELETE": self.users.delete_user}),
            "/v1/events": Route("POST", self.users.add_events, uses_model=False, writes=True),
            "/v1/stats": Route("GET", self.users.get_stats, uses_model=False),
            "/v1/model": Route("GET", self._model_card),
            "/v1/reload": Route("POST", self._reload, uses_model=False, writes=True),
            "/health/live": Route("GET", self._report_live, False, False),
            "/health/ready": Route("GET", self._report_ready, False, False),
            "/metrics": Route("GET", self._metrics, uses_model=False),
            "/openapi.json": Route("GET", self._openapi, False, False),
            **{path: Route("GET", build_page_handler(page), False, False) for path, page in pages},
        }

    def stop(self) -> None:
        """Cancel waiting work and end the threads of responses, reloads and store queries."""
        for pool in (self._pool, self._reload_pool):
            pool.shutdown(wait=False, cancel_futures=True)
        self.users.stop()
        self.shown_lists.stop()

    def count_unread(self, size: int) -> None:
        """Add `size` to the bytes of large responses that clients have not read; < 0: subtract.

        The sum is a gauge of the metrics; above a limit, no further large requests are handled.
        """
        self.unread_bytes += size
        self._shared.set_gauge("unread_bytes", self.unread_bytes)

    async def run_in_thread(
        self, work: Callable[..., T], *arguments: Any, pool: ThreadPoolExecutor | None = None
    ) -> T:
        """Return `work(*arguments)`, run in a thread; ApiError 503 if it takes too long.

        The limit is the setting `timeout`, in seconds; the thread is not interrupted. `pool` is the
        pool of the thread, by default that of responses. Exceptions of `work` are raised here,
        except for a TimeoutError of its own, which becomes the ApiError 503 too.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._settings.timeout):
                return await loop.run_in_executor(pool or self._pool, work, *arguments)
        except TimeoutError:
            message = f"the response takes more than {self._settings.timeout:g} s"
            raise ApiError(503, "timeout", message) from None

    # -- responses of a model --

    async def _recommend(self, http: HttpRequest) -> Response:
        """Handle POST /v1/recommend: return the next items after a history, or for a user."""
        return await self._decode_and_handle(http, schemas.RecommendRequest, self._rank_items)

    async def _explain(self, http: HttpRequest) -> Response:
        """Handle POST /v1/explain: return what each history row contributes to an item's score."""
        return await self._decode_and_handle(http, schemas.ExplainRequest, self._explain_item)

    async def _decode_and_handle(
        self,
        http: HttpRequest,
        kind: type[Request],
        handler: Callable[[HttpRequest, Request], Awaitable[Response]],
    ) -> Response:
        """Read and decode the body of a request, and return the response of `handler`.

        `kind` is the class of the decoded request, the second argument of the handler. A body over
        64 KiB is decoded in a thread; only two such requests are handled at a time. ApiError if the
        body is invalid.
        """
        body = await messages.read_body(http, self._settings)
        if len(body) <= _LARGE_BODY:
            return await handler(http, self._decode_request(body, kind))
        async with self._hold_large_slot():
            return await handler(http, await self.run_in_thread(self._decode_request, body, kind))

    def _decode_request(self, body: bytearray, kind: type[Request]) -> Request:
        """Return the JSON body as a request of class `kind`; ApiError 400 or 422 if it is invalid.

        The limits of the settings are checked too, such as the rows of a history.
        """
        request = schemas.decode(body, kind)
        messages.check_request(request, self._settings)
        return request

    async def _rank_items(self, http: HttpRequest, request: schemas.RecommendRequest) -> Response:
        """Return the recommendations for a decoded request, as JSON.

        They come from the main model, or from the candidate if the user belongs to its share. They
        are computed in the event loop, together with other requests (`_queue`), or in a thread if
        slow. Responses that fall back to trending items are counted in the metrics.
        """
        self._assign_candidate(http, request.user_id)
        model = http.model
        query = await self.users.build_query(model, request)
        if model.is_slow(query):
            response = await self.run_in_thread(model.recommend, query)
        else:
            response = await self._queue.enqueue(model, query)
        if self.shown_lists.explores(http, request):
            await self.run_in_thread(self.shown_lists.explore, model, query, response)
        if response.fallback:
            self._shared.increment("fallbacks")
        return Response(self.shown_lists.encode_and_keep(http, request, response))

    async def _explain_item(self, http: HttpRequest, request: schemas.ExplainRequest) -> Response:
        """Return, as JSON, what each history row contributes to an item's score.

        Computed in a thread, by the main model or, if the user belongs to its share, the candidate.
        """
        self._assign_candidate(http, request.user_id)
        query = await self.users.build_query(http.model, request)
        explanation = await self.run_in_thread(http.model.explain, request.item_id, query)
        return Response(encode(explanation))

    def _assign_candidate(self, http: HttpRequest, user: schemas.Id | None) -> None:
        """Let the candidate answer the request, as `http.current`, if its share includes the user.

        The candidate is a model under test that answers the share `candidate_share` (0 to 1) of the
        users, chosen by a hash of the user id. Nothing changes without a user or a candidate, or if
        the query string chose a model.
        """
        if self.candidate is None or user is None or http.role != "current":
            return
        if is_in_share(str(user), self._settings.candidate_share, CANDIDATE):
            http.current, http.role = self.candidate.current, "candidate"

    async def _recommend_batch(self, http: HttpRequest) -> Response:
        """Handle POST /v1/recommend:batch: recommend for many histories or users, in a thread.

        At most two batches are handled at a time. Responses that fell back to trending items are
        counted in the metrics.
        """
        batch = await read_json(http, schemas.BatchRequest, self._settings)
        messages.check_batch(batch, self._settings)
        async with self._hold_large_slot():
            queries = [await self.users.build_query(http.model, each) for each in batch.requests]
            body, fallbacks = await self.run_in_thread(http.model.batch, queries)
        self._shared.increment("fallbacks", fallbacks)
        return Response(body)

    @asynccontextmanager
    async def _hold_large_slot(self) -> AsyncIterator[None]:
        """Wait for one of two slots for batches and large bodies, and hold it while open.

        An asynchronous context manager. ApiError 503 if no slot becomes free within the setting
        `timeout` (seconds), or if responses that clients have not read yet take more memory than
        the setting `max_unread` (bytes).
        """
        try:
            async with asyncio.timeout(self._settings.timeout):
                await self._large_slots.acquire()
        except TimeoutError:
            raise busy("too many batches and long lists are waiting") from None
        try:
            if self.unread_bytes > self._settings.max_unread:
                raise busy("responses that clients have not read yet take too much memory")
            yield
        finally:
            self._large_slots.release()

    async def _similar(self, http: HttpRequest) -> Response:
        """Handle POST /v1/similar: return the k items expected right after one item, as JSON.

        Computed in a thread; ApiError if the item is unknown or k too large.
        """
        request = await read_json(http, schemas.SimilarRequest, self._settings)
        messages.check_k(request.k, self._settings)
        return Response(encode(await self.run_in_thread(http.model.similar, request)))

    async def _search_items(self, http: HttpRequest) -> Response:
        """Handle GET /v1/items: search items by text, or return the items with certain ids.

        The response has an entity tag, and is 304 if the client has it.
        """
        search = messages.parse_search(http.query, has_ids=True)
        if search.ids:
            return tag_response(http, encode(http.model.get_items(search.ids)))
        items = await self.run_in_thread(http.model.search, search.text, search.limit)
        return tag_response(http, encode(items))

    async def _search_users(self, http: HttpRequest) -> Response:
        """Handle GET /v1/users: search users of the training log by the beginning of their id.

        Users deleted since the model's training are left out. ApiError 403 if other machines can
        reach the service and it has no token.
        """
        self.users.check_privacy()
        text, limit, _ = messages.parse_search(http.query)
        deleted = self.users.deleted_since(http.model)
        users = await self.run_in_thread(http.model.search_users, text, limit, deleted)
        return Response(encode(users))

    # -- the service --

    async def _model_card(self, http: HttpRequest) -> Response:
        """Handle GET /v1/model: return the model card with the limits of the service.

        The card describes the model and its training data, and names the comparison models
        (`beside`).
        """
        limits = {name: getattr(self._settings, name) for name in _LIMITS}
        others = [path.stem for path in self._settings.beside]
        return tag_response(http, encode(build_card(http.model, limits, others)))

    async def _reload(self, http: HttpRequest) -> Response:
        """Handle POST /v1/reload: load a newly saved model in all workers, and wait for them.

        The response says whether the model is new and how many worker processes serve it. ApiError
        403 without a token, 409 if the saved model is refused, 503 if it takes longer than the
        setting `timeout`.
        """
        if not self._settings.needs_token:
            message = "a reload needs a token, and this service was started without one"
            raise ApiError(403, "no_token", message)
        try:
            model, is_new = await self.run_in_thread(self._holder.refresh, pool=self._reload_pool)
        except TalerecError as error:
            self._holder.report_refusal()
            raise ApiError(409, "artifact_refused", str(error)) from None
        http.current = model
        self._shared.request_reload()
        end = time.monotonic() + self._settings.timeout
        while not self._holder.is_served_everywhere(model.version):
            if time.monotonic() > end:
                raise ApiError(503, "timeout", "not every worker serves the new model yet")
            await asyncio.sleep(_POLL_S)
        workers = len(self._shared.versions())
        return Response(encode(schemas.ReloadResult(model.version, is_new, workers)))

    async def _report_live(self, http: HttpRequest) -> Response:
        """Handle GET /health/live: always "ok", as long as this worker answers at all."""
        return Response(encode(schemas.Health("ok")))

    async def _report_ready(self, http: HttpRequest) -> Response:
        """Handle GET /health/ready: the model's version; 503 without a model or before a stop.

        Before a stop the worker drains (`is_draining`): it answers requests but reports that it is
        not ready, so that a load balancer sends no new ones. 503 too while the file of the event
        store is missing, replaced or damaged.
        """
        if self.is_draining:
            raise ApiError(503, "stopping", "the service is about to stop")
        self.users.check_store()
        return Response(encode(schemas.Health("ok", http.model.version)))

    async def _metrics(self, http: HttpRequest) -> Response:
        """Handle GET /metrics: return the metrics of all workers in Prometheus' text format.

        Included are the times of this worker process's model, the state of background fits, the
        number of replaced workers, and the metrics of online evaluation (the served models on new
        events).
        """
        times = None if http.current is None else model_times(http.current)
        online_lines = prometheus_lines(await self.users.online_summary())
        online_lines += impression_lines(await self.users.impression_summary())
        values = {**self.users.store_metrics(), **self._restarts.metrics()}
        text = self._shared.prometheus_text(times, values, online_lines)
        return Response(text, (messages.TEXT, messages.NO_STORE))

    async def _openapi(self, http: HttpRequest) -> Response:
        """Handle GET /openapi.json: return the OpenAPI document of this service.

        Without a valid token, it has nothing of the model: no ids, columns or number of items.
        """
        model = None if self._access.find_right(http) is None else http.current
        return tag_response(http, encode(build_document(self._settings, model)))

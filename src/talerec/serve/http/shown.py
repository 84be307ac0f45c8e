"""Steps before a response is sent: exploration, the response's id, and its impression."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from operator import attrgetter
from typing import Any

from talerec.serve import Settings, SharedState, encode, schemas
from talerec.serve.http.messages import HttpRequest
from talerec.serve.model import Explorer, ModelQuery, ServedModel
from talerec.serve.online import ImpressionCounts, is_in_share
from talerec.serve.users import ImpressionQueue, ShownResponse, StoreSigner
from talerec.store import Event, ImpressionStore, StoreError, now_us

logger = logging.getLogger("talerec")

_SAMPLE = b"impressions"  # of the users whose responses are kept, independent of other samples
_COUNT_S = 10.0  # seconds between two readings of new impressions, for exploration
_DELAY_US = 5_000_000  # microseconds after which all impressions of a time are in the store
_DAY_US = 86_400_000_000  # microseconds
_PERIOD_DAYS = 28  # days whose impressions count for exploration
_MAX_RULES = 10_000  # characters of the rules of a response; of longer ones, the names are kept
_read_rules = attrgetter(
    "where", "per", "boost", "recency", "allow", "deny", "hide_seen", "slots"
)  # of a request


class ShownLists:
    """Signs the responses of one worker, explores in them, and queues a share for the store.

    The signature in a response's id, with a key from the store, proves later that the service made
    the id. The settings `impressions` and `explore` are shares of users and of places; 0 is off.

    Parameters
    ----------
    settings : Settings
        The settings of the service.
    shared : SharedState
        The counters of the workers.
    store_id : str
        The id of the store; connections to another one fail. Empty if it is not known yet.
    """

    def __init__(self, settings: Settings, shared: SharedState, store_id: str) -> None:
        self._settings, self._shared, self._store_id = settings, shared, store_id
        self._signer = StoreSigner(self._connect())  # as responses may come before `start`
        self.counts = ImpressionCounts(settings, shared.folder)
        self._queue: ImpressionQueue | None = None
        store = self._connect() if settings.impressions else None
        if store is not None:
            self._queue = ImpressionQueue(store, shared)
        self._explorer = None
        if settings.explore:
            self._explorer = Explorer(settings.explore, settings.impressions)
        self._stop = threading.Event()

    def _connect(self) -> ImpressionStore | None:
        """Return a new connection to the store, None without one."""
        if self._settings.store is None:
            return None
        store = ImpressionStore(self._settings.store)
        if self._store_id:
            store.expect(self._store_id)
        return store

    def start(self) -> None:
        """Start the threads that write impressions and count them for exploration."""
        self._signer.read_key_later(self._stop)
        if self._queue is not None:
            self._queue.start()
        if self._explorer is not None:
            threading.Thread(target=self._update_counts, name="exposure", daemon=True).start()

    def stop(self) -> None:
        """Write the impressions that wait, for at most the setting `timeout`, and end."""
        self._stop.set()
        if self._queue is not None:
            self._queue.stop(self._settings.timeout)

    # -- responses --

    def explores(self, http: HttpRequest, request: schemas.RecommendRequest) -> bool:
        """Is this a response in which exploration may replace items?"""
        return self._explorer is not None and _is_shown(http, request)

    def explore(
        self, model: ServedModel, query: ModelQuery, response: schemas.Recommendations
    ) -> None:
        """Give places of a response to items with few impressions, with known probabilities."""
        if self._explorer is not None:
            self._explorer.explore(model, query, response)

    def encode_and_keep(
        self, http: HttpRequest, request: schemas.RecommendRequest,
        response: schemas.Recommendations,
        list_name: str | None = None,
    ) -> bytes:  # fmt: skip
        """Return a response with its id as JSON; queue it if the user belongs to the kept share.

        Responses that nobody sees (`impression` is false), responses for another time (`as_of`),
        and those of a model that the query string chose are not kept. Of anonymous visitors, a
        random share of the responses is kept. `list_name` is the name of a named list.
        """
        time = now_us()
        response.recommendation_id = shown_id = self._signer.make_id(time)
        body = encode(response)
        if self._queue is None or not _is_shown(http, request):
            return body
        user = None if request.user_id is None else str(request.user_id)
        if is_in_share(user or shown_id, self._settings.impressions, _SAMPLE):
            items, rules = [item.item_id for item in response.items], _describe_rules(request)
            chances = () if self._explorer is None else _list_probabilities(response.items)
            source = response.model, http.role, list_name
            self._queue.add(ShownResponse(shown_id, user, time, *source, rules, items, *chances))
        return body

    def check_ids(self, events: list[Event]) -> tuple[list[Event], int]:
        """Return events, with forged recommendation ids removed from them, and how many were.

        An id is forged unless a service of this store signed it. The events themselves stay.
        """
        n_refused = 0
        for n, event in enumerate(events):
            shown_id = event.recommendation_id
            if shown_id is not None and not self._signer.is_genuine(shown_id):
                events[n] = event._replace(recommendation_id=None)
                n_refused += 1
        if n_refused:
            self._shared.increment("recommendation_ids_refused", n_refused)
        return events, n_refused

    # -- figures --

    def describe_impressions(self, summary: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return what /v1/stats shows as `impressions`; None if no impressions are kept.

        That is `summary`, the figures that were counted (None: not yet), with the settings and how
        many responses were queued, written and lost.
        """
        if self._queue is None:
            return None
        names = ("queued", "written", "lost")
        counters = {name: int(self._shared.total(f"impressions_{name}")) for name in names}
        facts = {"share": self._settings.impressions, "attribution": self._settings.attribution}
        return {**facts, "explore": self._settings.explore, "queue": counters, **(summary or {})}

    def _update_counts(self) -> None:
        """Tell the explorer every ten seconds how often each item was shown, until `stop`.

        Impressions of the last four weeks count. Only new ones are read, and summed by day.
        """
        store, explorer = self._connect(), self._explorer
        assert store is not None
        assert explorer is not None
        counts_by_day, totals = dict[int, Counter[str]](), Counter[str]()
        since = now_us() - _PERIOD_DAYS * _DAY_US
        while True:
            until = max(since, now_us() - _DELAY_US)  # the clock may be set back
            try:
                for day, counts in store.count_shown(since, until).items():
                    counts_by_day.setdefault(day, Counter()).update(counts)
                    totals.update(counts)
                since, first_day = until, until // _DAY_US - _PERIOD_DAYS
                for day in [day for day in counts_by_day if day < first_day]:
                    totals.subtract(counts_by_day.pop(day))
                explorer.set_counts(dict(totals))
            except StoreError as error:
                logger.warning("impressions could not be counted: %s", error)
            if self._stop.wait(_COUNT_S):
                store.close()
                return


def _is_shown(http: HttpRequest, request: schemas.RecommendRequest) -> bool:
    """Does a user see the response to this request, as far as the service knows?"""
    return request.impression and request.as_of is None and http.role != "comparison"


def _list_probabilities(
    items: list[schemas.RankedItem],
) -> tuple[list[float] | None, list[int] | None]:
    """Return the probability of each item at its rank, and the ranks of explored items.

    The first is None if all are 1, the second if no item was explored.
    """
    if all(item.probability is schemas.ABSENT for item in items):
        return None, None
    probabilities = [item.probability or 1.0 for item in items]
    return probabilities, [item.rank for item in items if item.explored is True] or None


def _describe_rules(request: schemas.RecommendRequest) -> str | None:
    """Return a request's rules for items as JSON, id lists by their lengths; None without any.

    Of rules that take more than 10,000 characters, only the names are there.
    """
    if not any(_read_rules(request)):  # most requests
        return None
    rules = {name: getattr(request, name) for name in ("where", "per", "boost", "recency")}
    rules |= {name: len(getattr(request, name) or ()) for name in ("allow", "deny")}
    rules |= {"hide_seen": request.hide_seen}
    rules["slots"] = {place: rule.where for place, rule in (request.slots or {}).items()}
    rules = {name: value for name, value in rules.items() if value}
    text = json.dumps(rules) if rules else None
    is_long = text is not None and len(text) > _MAX_RULES
    return json.dumps({"too_long": list(rules)}) if is_long else text

"""One model as it is served: queries in, responses out. Each response names its model."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from copy import copy
from functools import cached_property, lru_cache
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from talerec.artifact import read_artifact
from talerec.data import Histories, ItemField
from talerec.models import restore_bundle
from talerec.models.core import (
    NO_FILTER,
    ItemFilter,
    Model,
    RecommendOptions,
    apply_context,
    filter_ranking,
    rank_top,
    rank_with_reasons,
)
from talerec.runtime import Array
from talerec.serve import ABSENT, ApiError, no_histories, schemas
from talerec.serve.model.catalogue import Catalogue
from talerec.serve.model.explanations import explain_item
from talerec.serve.model.live_items import LiveItems, set_clock
from talerec.serve.model.popular import PopularItems
from talerec.serve.model.queries import (
    FilterCache,
    ModelQuery,
    UserRows,
    hide_items,
    join_users,
    mark_slots,
    read_history,
    weights_per_row,
)
from talerec.store import ItemChanges, now_us

_REASONS = 3  # history rows that a recommendation names
_MAX_FAST_WORK = 1_000_000  # weights to add: up to here, a response takes a few milliseconds
_MAX_RECENCIES = 64  # values of `recency` whose models are cached
_HIDE_SEEN = RecommendOptions(hide_seen=True)

Outcome = schemas.Recommendations | Exception


class ServedModel:
    """A loaded model that answers queries of the service with external ids and titles.

    path: the folder of the saved model. verify: whether to check hashes and every number of its
    files.
    """

    def __init__(self, path: Path, *, verify: bool) -> None:
        bundle = read_artifact(path, verify=verify)
        self.model = restore_bundle(bundle, path, verify=verify)
        self.facts = bundle.facts  # the manifest: version, training data, metrics
        self.version: str = bundle.facts["version"]
        self.saved = self.model  # as it was loaded, without later changes of items
        self.loaded = time.time()  # Unix seconds
        self.popular = PopularItems(self.model.fitted)
        self.live: LiveItems | None = None  # the items with changes of the store, if there are any
        self._prepare(self.model)

    def _prepare(self, model: Model) -> None:
        """Use `model` from now on, with the items `self.live`: build what responses need."""
        self.model = model
        self.items = model.fitted.items  # the vocabulary: external ids by position
        self.catalogue = Catalogue(model.fitted, self.live)  # ids, titles and columns to show
        self._weights_per_row = weights_per_row(model.fitted.weights)
        # the cached function holds no reference to this object: a replaced model is freed at once
        self._model_with_recency = lru_cache(_MAX_RECENCIES)(model.with_params)
        self.filters = FilterCache(model, None if self.live is None else self.live.availability)

    def with_changes(self, changes: ItemChanges, trained_seq: int = 0) -> ServedModel:
        """Return this model with changes of the store's items; the model itself stays as it is.

        The saved model has the changes up to `trained_seq` already. Everything that a response
        needs is built before the return, so that the model can replace this one between two
        requests.
        """
        served = copy(self)
        served.__dict__.pop("_all_items", None)
        live, model = self.live, self.model
        if live is None or live.resets != changes.resets:
            live, model = LiveItems.read(self.saved.fitted), self.saved
        model, served.live = live.apply(model, changes, trained_seq)
        served._prepare(model)
        is_reset = served.item_changes[0] != self.item_changes[0]
        if is_reset or len(served.items) != len(self.items):
            served.popular = PopularItems(model.fitted, self.popular.events)
            served.popular.ranked()
        served.items.positions(served.catalogue.ids.take([0]), "item", "skip")
        return served

    @cached_property
    def _all_items(self) -> LiveItems:
        """All items of the model and of the store."""
        return self.live or LiveItems.read(self.saved.fitted)

    @property
    def item_fields(self) -> dict[str, ItemField]:
        """The fields of items that clients may write, by name: columns, and availability."""
        return self._all_items.fields

    @property
    def item_changes(self) -> tuple[int, int]:
        """The number of full reads of the store's items, and the last change that is included."""
        return (0, 0) if self.live is None else (self.live.resets, self.live.seq)

    @property
    def vocabulary_key(self) -> str:
        """A text that is equal for models whose items have the same positions."""
        if self.live is None:
            return self.version
        return f"{self.version} {self.live.resets} {len(self.items)}"

    @property
    def rule_columns(self) -> list[str]:
        """Return the columns of the item table that `per` and `boost` can name.

        `info` is the item table; empty without one. Columns of lists or structs are left out.
        """
        info = self.model.fitted.info
        return [] if info is None else [c.name for c in info if not c.dtype.is_nested()]

    # -- recommendations --

    def is_slow(self, query: ModelQuery) -> bool:
        """Would computing this response in the event loop delay other requests noticeably?

        The work is estimated as the number of weights that the history rows add up.
        """
        n_rows = query.n_rows
        work = self._weights_per_row * n_rows + 20 * query.options.k * n_rows
        return work > _MAX_FAST_WORK or self.filters.is_slow(query.options)

    def recommend(self, query: ModelQuery) -> schemas.Recommendations:
        """Return the next items with reasons; trending items if no history item is known.

        The query has a history and options of the list. Reasons are the up to three history items
        that contribute most to an item's score.
        """
        histories, _ = read_history(query, self.items, self.model.fitted.unit)
        return self._recommend_histories([query], histories)[0]

    def recommend_all(self, queries: list[ModelQuery]) -> list[Outcome]:
        """Return, in order, the response to each query or the exception that it raised.

        A query has a history and options of its list. Queries that differ only in their histories
        (equal `group_key`) are computed together; a query without a key is computed alone.
        """
        if len(queries) == 1:  # most often: the rest takes time
            return self._recommend_group(queries, is_plain=queries[0].group_key is not None)
        groups: dict[tuple[int, bool, bool] | int, list[int]] = defaultdict(list)
        for n, query in enumerate(queries):
            groups[query.group_key or n].append(n)
        outcomes: dict[int, Outcome] = {}
        for key, members in groups.items():
            group = [queries[n] for n in members]
            responses = self._recommend_group(group, is_plain=not isinstance(key, int))
            outcomes.update(zip(members, responses, strict=True))
        return [outcomes[n] for n in range(len(queries))]

    def batch(self, queries: list[ModelQuery]) -> tuple[bytes, int]:
        """Return the responses to queries as one JSON body, and how many are trending items.

        A query has a history and options of its list; it gets trending items if the model knows no
        item of the history. The first exception of a query is raised.
        """
        responses: list[schemas.Recommendations] = []
        for outcome in self.recommend_all(queries):
            if isinstance(outcome, Exception):
                raise outcome
            responses.append(outcome)
        fallbacks = sum(bool(response.fallback) for response in responses)
        return schemas.encode(schemas.BatchRecommendations(self.version, responses)), fallbacks

    def _recommend_group(self, queries: list[ModelQuery], *, is_plain: bool) -> list[Outcome]:
        """Return the responses to queries with the same group key; an exception applies to all.

        is_plain: whether only their histories differ; if not, there is one query. Plain queries all
        have the rows of a stored user, or all an untimed history of item ids; unknown ids are
        skipped.
        """
        try:
            if not is_plain:
                return [self.recommend(queries[0])]
            users = [query.rows for query in queries if query.rows is not None]
            if users:
                return [*self._recommend_histories(queries, join_users(users))]
            ids = [[row.item_id for row in query.history] for query in queries]
            return [*self._recommend_histories(queries, Histories.untimed(ids, self.items, "skip"))]
        except Exception as error:
            return [error] * len(queries)

    def _recommend_histories(
        self, queries: list[ModelQuery], histories: Histories
    ) -> list[schemas.Recommendations]:
        """Return the responses to queries that differ only in their histories.

        `histories` has one history per query, in the same order. `lists` has the ranked items of
        all queries one after the other, `counts` how many each has. A query without a list of its
        own gets trending items.
        """
        options = queries[0].options
        item_filter = self.filters.build_filter(options)
        if queries[0].hidden:
            item_filter = hide_items(item_filter, queries[0].hidden, len(self.items))
        model = self._model_for(queries[0])
        histories = set_clock(model, apply_context(model, histories, options.context))
        lists, boosts = rank_with_reasons(model, histories, options.k, item_filter, _REASONS)
        ranks = chain.from_iterable(range(1, n_items + 1) for n_items in lists.counts)
        reasons = self.catalogue.list_reasons(lists)
        items = self.catalogue.rank_items(
            lists.items, lists.scores, ranks, reasons, boosts, lists.families
        )
        responses, begin = [], 0
        for q, n_items in enumerate(lists.counts):
            if self._uses_model_list(histories, q, n_items, queries[q].is_unknown_user):
                listed = slice(begin, begin + n_items)
                response = schemas.Recommendations(self.version, items[listed])
                if item_filter.slots:
                    mark_slots(response, np.array(lists.items[listed], int), item_filter.slots)
            else:
                ranking = self.popular.ranked()
                response = self.list_ranking(*ranking, options.k, item_filter)
                response.fallback = "trending"
            responses.append(response)
            begin += n_items
        return responses

    def top_items(
        self, rows: UserRows, now: int, k: int, hidden: frozenset[int] = frozenset()
    ) -> list[int] | None:
        """Return the positions of the top k items for a user with these rows at the time `now`.

        `now` is in microseconds since 1970, `hidden` has positions of items that are left out. None
        without a usable history: the service then lists the most popular items.
        """
        histories = join_users([rows]).as_of(now)
        item_filter = hide_items(NO_FILTER, hidden, len(self.items))
        items, _, counts = rank_top(self.model, histories, min(k, len(self.items)), item_filter)
        if not self._uses_model_list(histories, 0, int(counts[0]), not len(rows)):
            return None
        top: list[int] = items[0, : counts[0]].tolist()
        return top

    def _uses_model_list(
        self, histories: Histories, q: int, n_items: int, is_unknown: bool
    ) -> bool:
        """Is the model's list for history number `q` returned? If not, trending items are.

        n_items: the length of the list. is_unknown: whether the request's user has no row. `base`
        is the score of each item without a history, which some models have.
        """
        has_scores = n_items or self.model.fitted.weights.base is not None
        return bool(has_scores and not is_unknown) or histories.has_known_item(q)

    def list_ranking(
        self, ranking: Array, scores: Array, k: int, item_filter: ItemFilter
    ) -> schemas.Recommendations:
        """Return the first k items of a ranking of all items that a filter allows.

        ranking: item positions, best first; scores: in the same order.
        """
        items, scores, boosts = filter_ranking(ranking, scores, k, item_filter)
        reasons: list[list[schemas.Reason]] = [[] for _ in items]
        ranked = self.catalogue.rank_items(
            items.tolist(), scores.tolist(), count(1), reasons, boosts.tolist()
        )
        response = schemas.Recommendations(self.version, ranked)
        return mark_slots(response, items, item_filter.slots)

    # -- items and users --

    def similar(self, request: schemas.SimilarRequest) -> schemas.SimilarItems:
        """Return the k items that the model expects right after one item, but not that item.

        ApiError 404 if the item is unknown. Of an item of the store that a model of ids does not
        know, there are none.
        """
        item = self.find_item(request.item_id)
        item_id, title = self.catalogue.ids[item], self.catalogue.title(item)
        if item >= len(self.items):
            return schemas.SimilarItems(self.version, item_id, [], title)
        history = Histories.from_ids([[item_id]], self.items, "error")
        item_filter = self.filters.build_filter(_HIDE_SEEN)
        items, scores, counts = rank_top(self.model, history, request.k, item_filter)
        top = items[0, : counts[0]].tolist()
        ranked = self.catalogue.rank_items(top, scores[0].tolist(), count(1), repeat(ABSENT))
        return schemas.SimilarItems(self.version, item_id, ranked, title)

    def search(self, text: str, limit: int) -> schemas.ItemList:
        """Return up to `limit` items whose title has every word of `text`, popular ones first.

        An item whose id is `text` comes before all others.
        """
        return self._list_items(self.catalogue.search(text, limit))

    def get_items(self, ids: Sequence[str]) -> schemas.ItemList:
        """Return the items with these external ids, in this order; unknown ids are left out."""
        positions = map(self.catalogue.position, ids)
        return self._list_items([item for item in positions if item >= 0])

    def get_item(self, item_id: schemas.Id) -> tuple[schemas.Id, dict[str, Any], bool]:
        """Return an item's id, its values by field, and whether it may be recommended now.

        ApiError 404 if neither the model nor the store knows it.
        """
        item = self.find_item(item_id)
        return self.catalogue.ids[item], *self._all_items.describe_item(item, now_us())

    def _list_items(self, items: list[int]) -> schemas.ItemList:
        """Return the items at these vocabulary positions with ids, titles and columns."""
        ids = self.catalogue.ids.take(items)
        titles, infos = map(self.catalogue.title, items), self.catalogue.info(items)
        return schemas.ItemList(self.version, list(map(schemas.Item, ids, titles, infos)))

    def search_users(self, prefix: str, limit: int, deleted: Collection[str]) -> schemas.UserList:
        """Return up to `limit` users of the training log whose id begins with `prefix`.

        The users in `deleted` (ids as text) are left out. ApiError 404 if the model was saved
        without histories.
        """
        log = self.model.fitted.log
        if log is None:
            raise no_histories()
        ids = log.users.ids
        texts = ids.cast(pl.String)
        if prefix.strip():
            matches = texts.str.starts_with(prefix.strip())
            ids, texts = ids.filter(matches), texts.filter(matches)
        if deleted:
            ids = ids.filter(~texts.is_in(list(deleted)))
        return schemas.UserList(self.version, ids.head(limit).to_list())

    def find_item(self, item_id: schemas.Id) -> int:
        """Return the position of an external item id; ApiError 404 if it is unknown or deleted."""
        item = self.catalogue.position(item_id)
        if item < 0:
            raise ApiError(404, "unknown_item", f"the model does not know item {item_id!r}")
        return item

    # -- the model --

    def _model_for(self, query: ModelQuery) -> Model:
        """Return the model, or a copy with the `recency` that the query sets.

        `recency` is the parameter by which weights of history rows decay. Copies are cached.
        """
        recency = query.recency
        return self.model if recency is None else self._model_with_recency(recency=recency)

    # -- explanations --

    def explain(self, item_id: schemas.Id, query: ModelQuery) -> schemas.Explanation:
        """Return what each history row, the base score and each boost add to an item's score.

        The base score is the part that no history row contributes; None for models without one.
        ApiError 404 if the item is unknown. `query.rows` is set for the history of a stored user.
        """
        model, catalogue = self._model_for(query), self.catalogue
        target = self.find_item(item_id)
        history, ids = read_history(query, self.items, self.model.fitted.unit)
        history = set_clock(model, apply_context(model, history, query.options.context))
        if query.rows is not None:
            ids = query.rows.names(catalogue.ids)
        item_filter = self.filters.build_filter(query.options) if query.options.boost else None
        explained = explain_item(model, history, target, query.options.boost, item_filter)
        rows = [
            schemas.Contribution(
                item_id if item < 0 else catalogue.ids[item], len(ids) - 1 - row, *figures,
                catalogue.title(item),
            )
            for row, (item_id, item, figures) in enumerate(
                zip(ids, history.item.tolist(), explained.rows, strict=True)
            )
        ]  # fmt: skip
        return schemas.Explanation(
            self.version, catalogue.ids[target], explained.score, rows, catalogue.title(target),
            explained.base, explained.boosts, explained.families,
        )  # fmt: skip

"""One model as it is served: queries in, answers out. Each answer names its model."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from talerec.artifact import read_artifact
from talerec.data import Histories
from talerec.errors import TalerecError
from talerec.models import restore_bundle
from talerec.models.core import (
    ItemFilter,
    Model,
    RecommendOptions,
    add_former_names,
    explain_boosts,
    filter_ranking,
    rank_top,
    rank_with_reasons,
)
from talerec.ranking import ExplainedLists, SequenceBlock, SparseBlock, Weights
from talerec.serve import ABSENT, ApiError, no_histories, schemas
from talerec.serve.model.catalogue import Catalogue, PopularItems
from talerec.serve.model.queries import FilterCache, ModelQuery, UserRows, join_users, parse_time

_REASONS = 3  # history rows that a recommendation names
_MAX_FAST_WORK = 1_000_000  # weights to add: up to here, an answer takes a few milliseconds
_MAX_RECENCIES = 64  # values of `recency` whose models are cached
_WARM_ROWS = 3  # rows of the histories that compile the kernels

Outcome = schemas.Recommendations | Exception


class ServedModel:
    """A loaded model, with the ids and titles that its answers show.

    path: the artifact. verify: whether to check hashes and every number of its files.
    facts: the artifact's manifest, such as version, training data and metrics.
    """

    def __init__(self, path: Path, *, verify: bool) -> None:
        bundle = read_artifact(path, verify=verify)
        self.model = restore_bundle(bundle, path, verify=verify)
        self.facts = bundle.facts
        self.version: str = bundle.facts["version"]
        self.items = self.model.fitted.items
        self.catalogue = Catalogue(self.model.fitted)
        self.popular = PopularItems(self.model.fitted)
        self._weights_per_row = _weights_per_row(self.model.fitted.weights)
        # the cached function holds no reference to this object: a replaced model is freed at once
        self._with_recency = lru_cache(_MAX_RECENCIES)(self.model.with_params)
        self._filters = FilterCache(self.model)
        self._loaded = time.time()

    def warm(self) -> None:
        """Answer one small query of each kind, so that all kernels are compiled beforehand."""
        ids = self.catalogue.ids.take(list(range(min(_WARM_ROWS, len(self.items)))))
        rows = [schemas.HistoryRow(item_id) for item_id in ids]
        plain = RecommendOptions(1)
        for hide_seen in (False, True):
            self.recommend(ModelQuery(RecommendOptions(1, hide_seen, deny=ids[:1]), rows))
        timed = [schemas.HistoryRow(item_id, second) for second, item_id in enumerate(ids)]
        self.recommend(ModelQuery(plain, timed))
        self.recommend(ModelQuery(plain, []))
        for name in self.rule_columns[:1]:
            options = RecommendOptions(1, per={name: 1}, boost={name: {}})
            self.recommend(ModelQuery(options, rows))
        if (log := self.model.fitted.log) is not None:
            user_rows = UserRows(log.item[: log.ptr[1]], log.time[: log.ptr[1]])
            self.recommend(ModelQuery(plain, [], rows=user_rows))
        self.similar(schemas.SimilarRequest(ids[0], 1))
        self.explain(ids[0], ModelQuery(plain, rows))
        self.search(str(ids[0]), 1)
        self.card({}, [])

    @property
    def rule_columns(self) -> list[str]:
        """Return the columns of the item table that `where`, `per` and `boost` can name."""
        info = self.model.fitted.info
        return [] if info is None else [c.name for c in info if not c.dtype.is_nested()]

    # -- recommendations --

    def is_slow(self, query: ModelQuery) -> bool:
        """Would computing this answer in the event loop delay other requests noticeably?"""
        n_rows = query.n_rows
        work = self._weights_per_row * n_rows + 20 * query.options.k * n_rows
        return work > _MAX_FAST_WORK or query.has_slow_filter

    def recommend(self, query: ModelQuery) -> schemas.Recommendations:
        """Return the next items with reasons; trending items if no history item is known.

        Reasons are the up to three history items that contribute most to an item's score.
        """
        return self._recommend([query], self._read_history(query)[0])[0]

    def recommend_all(self, queries: list[ModelQuery]) -> list[Outcome]:
        """Return, in order, the answer to each query or the exception that it raised.

        Queries that differ only in their histories (equal `group_key`) are computed together.
        """
        groups: dict[tuple[int, bool, bool] | int, list[int]] = defaultdict(list)
        for n, query in enumerate(queries):
            groups[query.group_key or n].append(n)
        outcomes: dict[int, Outcome] = {}
        for key, members in groups.items():
            group = [queries[n] for n in members]
            answers = self._recommend_group(group, is_plain=not isinstance(key, int))
            outcomes.update(zip(members, answers, strict=True))
        return [outcomes[n] for n in range(len(queries))]

    def batch(self, queries: list[ModelQuery]) -> tuple[bytes, int]:
        """Return the answers as JSON, and how many fell back to trending items; raise any error."""
        answers: list[schemas.Recommendations] = []
        for outcome in self.recommend_all(queries):
            if isinstance(outcome, Exception):
                raise outcome
            answers.append(outcome)
        fallbacks = sum(bool(answer.fallback) for answer in answers)
        return schemas.encode(schemas.BatchRecommendations(self.version, answers)), fallbacks

    def _recommend_group(self, queries: list[ModelQuery], *, is_plain: bool) -> list[Outcome]:
        """Return the answers to queries with the same group key; an exception applies to all.

        is_plain: whether only their histories differ; if not, there is one query.
        """
        try:
            if not is_plain:
                return [self.recommend(queries[0])]
            users = [query.rows for query in queries if query.rows is not None]
            if users:
                return [*self._recommend(queries, join_users(users))]
            ids = [[row.item_id for row in query.history] for query in queries]
            return [*self._recommend(queries, Histories.untimed(ids, self.items, "skip"))]
        except Exception as error:
            return [error] * len(queries)

    def _recommend(
        self, queries: list[ModelQuery], histories: Histories
    ) -> list[schemas.Recommendations]:
        """Return the answers to queries that differ only in their histories.

        `histories` has one history per query, in the same order.
        """
        options = queries[0].options
        item_filter = self._filters.build_filter(options)
        model = self._model_for(queries[0])
        lists, boosts = rank_with_reasons(model, histories, options.k, item_filter, _REASONS)
        ranks = chain.from_iterable(range(1, n_items + 1) for n_items in lists.counts)
        items = self._build_items(lists.items, lists.scores, ranks, self._reasons(lists), boosts)
        answers, begin = [], 0
        for q, n_items in enumerate(lists.counts):
            if self._has_answer(histories, q, n_items, queries[q].is_unknown_user):
                answer = schemas.Recommendations(self.version, items[begin : begin + n_items])
            else:
                answer = self._recommend_trending(options.k, item_filter)
            answers.append(answer)
            begin += n_items
        return answers

    def top_items(self, rows: UserRows, now: int, k: int) -> list[int] | None:
        """Return the positions of the top k items of a user with these rows at a time.

        `now` is in microseconds since 1970. None without a usable history: the service then lists
        the most popular items.
        """
        histories = join_users([rows]).as_of(now)
        items, _, counts = rank_top(self.model, histories, min(k, len(self.items)))
        if not self._has_answer(histories, 0, int(counts[0]), not len(rows)):
            return None
        top: list[int] = items[0, : counts[0]].tolist()
        return top

    def _has_answer(self, histories: Histories, q: int, n_items: int, is_unknown: bool) -> bool:
        """Is the list of history q the model's answer? If not, trending items are returned.

        n_items: the length of the list. is_unknown: whether the request's user has no row.
        """
        has_scores = n_items or self.model.fitted.weights.base is not None
        return bool(has_scores and not is_unknown) or histories.has_known_item(q)

    def _recommend_trending(self, k: int, item_filter: ItemFilter) -> schemas.Recommendations:
        """Return the fallback: the k most popular items of the last days, under the same filter."""
        items, counts, boosts = filter_ranking(*self.popular.ranked(), k, item_filter)
        reasons: list[list[schemas.Reason]] = [[] for _ in items]
        scores, boost = counts.tolist(), boosts.tolist()
        ranked = self._build_items(items.tolist(), scores, count(1), reasons, boost)
        return schemas.Recommendations(self.version, ranked, "trending")

    def _build_items(
        self, items: list[int], scores: Iterable[float], ranks: Iterable[int],
        reasons: Iterable[list[schemas.Reason] | schemas.Absent],
        boosts: list[float] | None = None,
    ) -> list[schemas.RankedItem]:  # fmt: skip
        """Return the items of answers, one for each item position in `items`.

        `scores`, `ranks`, `reasons`, `boosts` (scores added by boosts) have one entry per item.
        """
        titles = self.catalogue.titles
        fields: list[Iterable[Any]] = [self.catalogue.ids.take(items), scores, ranks]
        fields += [repeat(ABSENT) if titles is None else titles.take(items), reasons]
        if boosts is not None:
            fields.append(boost or ABSENT for boost in boosts)
        return list(map(schemas.RankedItem, *fields))

    def _reasons(self, lists: ExplainedLists) -> Iterator[list[schemas.Reason]]:
        """Yield, for each listed item, the history items that contribute most to its score.

        `lists` has the reasons of all listed items one after the other: `sources` (positions of
        history items), `shares` (of the score), and `ends`, where the reasons of each listed item
        end.
        """
        sources = self.catalogue.ids.take(lists.sources)
        reasons = list(map(schemas.Reason, sources, lists.shares))
        begin = 0
        for end in lists.ends:
            yield reasons[begin:end]
            begin = end

    # -- items and users --

    def similar(self, request: schemas.SimilarRequest) -> schemas.SimilarItems:
        """Return the k items that the model expects right after one item; 404 if it is unknown."""
        item = self._find_item(request.item_id)
        item_id = self.catalogue.ids[item]
        history = Histories.from_ids([[item_id]], self.items, "error")
        items, scores, counts = rank_top(self.model, history, request.k, ItemFilter(hide_seen=True))
        top = items[0, : counts[0]].tolist()
        ranked = self._build_items(top, scores[0].tolist(), count(1), repeat(ABSENT))
        return schemas.SimilarItems(self.version, item_id, ranked, self.catalogue.title(item))

    def search(self, text: str, limit: int) -> schemas.ItemList:
        """Return up to `limit` items whose title has every word of `text`, popular ones first.

        An item whose id is `text` comes before all others.
        """
        return self._list_items(self.catalogue.search(text, limit))

    def get_items(self, ids: Sequence[str]) -> schemas.ItemList:
        """Return the items with these external ids, in this order; unknown ids are left out."""
        positions = self.items.positions(list(ids), "item", "skip")
        return self._list_items([item for item in positions.tolist() if item >= 0])

    def _list_items(self, items: list[int]) -> schemas.ItemList:
        """Return the items at these positions with ids, titles and columns of the item table."""
        ids = self.catalogue.ids.take(items)
        titles, infos = map(self.catalogue.title, items), self.catalogue.info(items)
        return schemas.ItemList(self.version, list(map(schemas.Item, ids, titles, infos)))

    def search_users(self, prefix: str, limit: int, deleted: Collection[str]) -> schemas.UserList:
        """Return up to `limit` users of the training log whose id begins with `prefix`.

        The users in `deleted` are left out. Raises 404 if the model was saved without histories.
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

    def _find_item(self, item_id: schemas.Id) -> int:
        """Return the position of an external item id; raise 404 if the model does not know it."""
        item = self.catalogue.position(item_id)
        if item < 0:
            raise ApiError(404, "unknown_item", f"the model does not know item {item_id!r}")
        return item

    # -- the model --

    def times(self) -> dict[str, float]:
        """Return when the model was "saved" and "loaded" here, in Unix seconds; 0 if unknown."""
        saved = str(self.facts.get("saved") or "")
        try:
            seconds = datetime.fromisoformat(saved).timestamp()
        except ValueError:
            seconds = 0.0
        return {"saved": seconds, "loaded": self._loaded}

    def card(self, limits: dict[str, float], other_models: list[str]) -> schemas.ModelCard:
        """Return the model card: the model, its training data, and the service's limits.

        `other_models` are the names of the comparison models of the service.
        """
        facts = self.facts
        model_params = add_former_names(type(self.model), self.model.params)
        training = dict(facts["training"])
        for name in training.keys() & {"first_time", "last_time"}:
            training[name] = format_time(training[name], "seconds")
        recency = model_params.get("recency")
        return schemas.ModelCard(
            model=self.version, name=self.model.name, paper=self.model.paper,
            params={name: "inf" if v == math.inf else v for name, v in model_params.items()},
            solver=facts.get("solver"), training=training, saved=facts.get("saved"),
            metrics=facts.get("metrics"), limits=limits, columns=self.catalogue.columns,
            recency=recency if isinstance(recency, int | float) else None, beside=other_models,
        )  # fmt: skip

    def _model_for(self, query: ModelQuery) -> Model:
        """Return the model, with the recency that the query sets, if it sets one."""
        return self.model if query.recency is None else self._with_recency(recency=query.recency)

    def _read_history(self, query: ModelQuery) -> tuple[Histories, list[schemas.Id]]:
        """Return the query's history in time order, and its item ids ([] for a stored user's).

        Raises TalerecError if some rows have a timestamp and others have none.
        """
        unit, as_of = self.model.fitted.unit, query.options.as_of
        now = None if as_of is None else parse_time(as_of, unit)
        if query.rows is not None:
            return join_users([query.rows]).as_of(now), []
        ids = [row.item_id for row in query.history]
        times = [row.timestamp for row in query.history]
        if times.count(None) == len(times):
            history = Histories.untimed([ids], self.items, "skip")
        else:
            if None in times:
                raise TalerecError("give a timestamp with every row of a history, or with none")
            moments = [parse_time(when, unit) for when in times if when is not None]
            pairs = sorted(zip(ids, moments, strict=True), key=lambda pair: pair[1])
            ids = [item_id for item_id, _ in pairs]
            history = Histories.timed([pairs], self.items, "skip")
        return (history if now is None else history.as_of(now)), ids

    # -- explanations --

    def explain(self, item_id: schemas.Id, query: ModelQuery) -> schemas.Explanation:
        """Return what each history row, the base score and each boost add to an item's score.

        The base score is the part that no history row contributes. 404 if the item is unknown.
        """
        model, catalogue = self._model_for(query), self.catalogue
        target = self._find_item(item_id)
        history, ids = self._read_history(query)
        if query.rows is not None:
            ids = query.rows.names(catalogue.ids)
        (parts,) = next(model.explain_targets(history, [np.array([target])]))
        base = model.base_score(history, target)
        boosts: list[schemas.AppliedBoost] = []
        if query.options.boost:
            item_filter = self._filters.build_filter(query.options)
            applied = explain_boosts(model, history, target, query.options.boost, item_filter)
            boosts = [schemas.AppliedBoost(*boost) for boost in applied]
        score = float(parts.sum()) + (base or 0.0) + sum(boost.contribution for boost in boosts)
        weights, items = model.row_weights(history), history.item.tolist()
        rows = [
            schemas.Contribution(
                item_id if items[row] < 0 else catalogue.ids[items[row]], len(ids) - 1 - row,
                None if weights is None else float(weights[row]), float(parts[row]),
                float(parts[row]) / score if score else 0.0, catalogue.title(items[row]),
            )
            for row, item_id in enumerate(ids)
        ]  # fmt: skip
        return schemas.Explanation(
            self.version, catalogue.ids[target], score, rows, catalogue.title(target),
            ABSENT if base is None else base, boosts or ABSENT,
        )  # fmt: skip


def _weights_per_row(weights: Weights) -> float:
    """Return about how many weights are added per history row; inf for neighbour models.

    A block holds rows of the weight matrix B in one storage format; a source is a row of B (mostly
    an item of the history), and a sparse row is charged at four times its mean number of entries.
    """
    block = weights.blocks[0]
    if isinstance(block, SequenceBlock):
        return math.inf  # the reasons of neighbour models are computed one history at a time
    if isinstance(block, SparseBlock):
        return 4 * len(block.indices) / max(block.sources, 1)
    return float(weights.items)


def format_time(time_us: int, timespec: str = "auto") -> str:
    """Return a time as ISO 8601 in UTC; as a number with " us" if no calendar has it.

    `time_us` is in microseconds since 1970; `timespec` is that of `datetime.isoformat`.
    """
    try:
        seconds, micro = divmod(time_us, 10**6)
        date = datetime.fromtimestamp(seconds, UTC).replace(microsecond=micro)
        return date.isoformat(timespec=timespec)
    except (ValueError, OverflowError, OSError):
        return f"{time_us} us"

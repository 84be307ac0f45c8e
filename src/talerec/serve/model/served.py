"""One model as it is served: requests in, answers out. Every answer comes from one model and names its version."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

import polars as pl

from talerec import models
from talerec.artifact import format as artifact
from talerec.data.histories import Histories
from talerec.data.log import Log
from talerec.data.times import microseconds
from talerec.errors import TalerecError
from talerec.models.core import filters as choosing
from talerec.models.core import inference as asking
from talerec.models.core.base import Model
from talerec.models.core.filters import Limits
from talerec.ranking import rank
from talerec.ranking.blocks import RunsBlock, SparseBlock
from talerec.ranking.weights import Weights
from talerec.runtime.arrays import Array
from talerec.serve import schemas
from talerec.serve.errors import ApiError
from talerec.serve.model import explanations as explaining
from talerec.serve.model.catalogue import Catalogue
from talerec.serve.model.filters import Rules, take_long
from talerec.serve.model.popular import PopularNow
from talerec.serve.model.user_rows import UserRows, histories_of
from talerec.serve.schemas import ABSENT

MAX_TIMESTAMP = 9e18  # later than any date, in any unit

_REASONS = 3  # history rows that a recommendation names
_MAX_FAST_WORK = 1_000_000  # weights to add: up to here, an answer takes a few milliseconds
_RECENCIES = 64  # values of `recency` whose models are remembered
_WARM_ROWS = 3  # rows of the histories that compile the kernels

_NO_LIMITS = Limits()

Recommended = schemas.Recommendations | Exception


class ServedModel:
    """A loaded model, with the ids and titles that its answers show."""

    def __init__(self, bundle: artifact.Bundle, path: Path, *, verify: bool = False) -> None:
        self.model = models.opened(bundle, path, verify=verify)
        self.facts = bundle.facts
        self.version: str = bundle.facts["version"]
        self.items = self.model.fitted.items
        self.catalogue = Catalogue(self.model.fitted)
        self.popular = PopularNow(self.model.fitted)
        self._weights_per_row = _weights_per_row(self.model.fitted.weights)
        self._with_recency = _recency_cache(self.model)
        self.rules = Rules(self.model)
        self._loaded = time.time()

    @classmethod
    def open(cls, path: Path, *, verify: bool) -> ServedModel:
        """Load the artifact at `path`; `verify` checks the hashes of its files and every number in them."""
        return cls(artifact.read(path, verify=verify), path, verify=verify)

    def warm(self) -> None:
        """Compile every kernel that an answer uses, and compute what the first request would wait for."""
        ids = self.catalogue.ids.take(list(range(min(_WARM_ROWS, len(self.items)))))
        rows = [schemas.HistoryRow(item_id) for item_id in ids]
        for hide in (False, True):
            self.recommend(schemas.RecommendRequest(rows, k=1, hide_seen=hide, deny=ids[:1]))
        timed = [schemas.HistoryRow(item_id, second) for second, item_id in enumerate(ids)]
        self.recommend(schemas.RecommendRequest(timed, k=1))
        self.recommend(schemas.RecommendRequest([], k=1))
        for name in self.rule_columns[:1]:
            self.recommend(schemas.RecommendRequest(rows, k=1, per={name: 1}, boost={name: {}}))
        if (log := self.model.fitted.log) is not None:
            first = UserRows(log.item[: log.ptr[1]], log.time[: log.ptr[1]])
            self.recommend(schemas.UserRequest(history=first, k=1))
        self.similar(schemas.SimilarRequest(ids[0], 1))
        self.explain(schemas.ExplainRequest(ids[0], rows))
        self.search(str(ids[0]), 1)
        self.card({}, [])

    @property
    def rule_columns(self) -> list[str]:
        """The columns of the item table that rules can name."""
        info = self.model.fitted.info
        return [] if info is None else [c.name for c in info if not c.dtype.is_nested()]

    # -- requests --

    def is_slow(self, request: schemas.RecommendRequest) -> bool:
        """Would an answer to this request delay the others noticeably?"""
        rows = len(request.history)
        work = self._weights_per_row * rows + 20 * request.k * rows
        return work > _MAX_FAST_WORK or take_long(request)

    def recommend(self, request: schemas.RecommendRequest) -> schemas.Recommendations:
        """The next items after a history, with reasons; trending items if the model knows nothing of the history."""
        return self._recommend([request], self.history(request)[0])[0]

    def recommend_all(self, requests: list[schemas.RecommendRequest]) -> list[Recommended]:
        """The answer to each request, or the error in its place. Plain requests that are alike are computed together."""
        groups: dict[Any, list[int]] = defaultdict(list)
        for n, request in enumerate(requests):
            groups[_group_key(request) or n].append(n)
        answers: dict[int, Recommended] = {}
        for key, members in groups.items():
            group = [requests[n] for n in members]
            found = self._recommend_group(group, plain=not isinstance(key, int))
            answers.update(zip(members, found, strict=True))
        return [answers[n] for n in range(len(requests))]

    def batch(self, requests: list[schemas.RecommendRequest]) -> tuple[bytes, int]:
        """The JSON of the answers to a batch, and how many of them are fallbacks; the first error, if there is one."""
        answers: list[schemas.Recommendations] = []
        for found in self.recommend_all(requests):
            if isinstance(found, Exception):
                raise found
            answers.append(found)
        fallbacks = sum(bool(answer.fallback) for answer in answers)
        return schemas.encode(schemas.BatchRecommendations(self.version, answers)), fallbacks

    def similar(self, request: schemas.SimilarRequest) -> schemas.SimilarItems:
        """The items that the model expects right after one item."""
        item = self.position(request.item_id)
        item_id = self.catalogue.ids[item]
        history = Histories.from_ids([[item_id]], self.items, "error")
        items, scores, counts = asking.top(self.model, history, request.k, hide_seen=True)
        found = items[0, : counts[0]].tolist()
        ranked = self._ranked(found, scores[0].tolist(), count(1), repeat(ABSENT))
        return schemas.SimilarItems(self.version, item_id, ranked, self.catalogue.title(item))

    def explain(self, request: schemas.ExplainRequest) -> schemas.Explanation:
        """What each row contributes to an item's score, and the weight that its place in the history gives it."""
        return explaining.explain(self, request)

    def search(self, text: str, limit: int) -> schemas.ItemList:
        """Items whose title has every word of `text`; an item with that id comes first."""
        return self._items_at(self.catalogue.search(text, limit))

    def items_of(self, ids: Sequence[str]) -> schemas.ItemList:
        """The items with these ids, in their order; those that the model does not know are left out."""
        found = self.items.positions(list(ids), "item", "skip")
        return self._items_at([item for item in found.tolist() if item >= 0])

    def _items_at(self, found: list[int]) -> schemas.ItemList:
        ids = self.catalogue.ids.take(found)
        titles, infos = map(self.catalogue.title, found), self.catalogue.info(found)
        return schemas.ItemList(self.version, list(map(schemas.Item, ids, titles, infos)))

    def users(self, text: str, limit: int, gone: Collection[str] = ()) -> schemas.UserList:
        """Users of the training log whose id begins with `text`, without those that are gone."""
        ids = self._log.users.ids
        texts = ids.cast(pl.String)
        if text.strip():
            mine = texts.str.starts_with(text.strip())
            ids, texts = ids.filter(mine), texts.filter(mine)
        if gone:
            ids = ids.filter(~texts.is_in(list(gone)))
        return schemas.UserList(self.version, ids.head(limit).to_list())

    @property
    def _log(self) -> Log:
        log = self.model.fitted.log
        if log is None:
            raise ApiError(404, "no_histories", "this model was saved without users' histories")
        return log

    def times(self) -> dict[str, float]:
        """When the model was saved, and when it was loaded here, in Unix seconds."""
        saved = str(self.facts.get("saved") or "")
        try:
            seconds = datetime.fromisoformat(saved).timestamp()
        except ValueError:
            seconds = 0.0
        return {"saved": seconds, "loaded": self._loaded}

    def card(self, limits: dict[str, float], beside: list[str]) -> schemas.ModelCard:
        """What this model is and which data it was fitted on."""
        facts = self.facts
        params = {
            name: "inf" if value == math.inf else value for name, value in self.model.params.items()
        }
        training = dict(facts["training"])
        for name in ("first_time", "last_time"):
            if name in training:
                training[name] = _date(training[name])
        return schemas.ModelCard(
            model=self.version,
            name=self.model.name,
            paper=self.model.paper,
            params=params,
            solver=facts.get("solver"),
            training=training,
            saved=facts.get("saved"),
            metrics=facts.get("metrics"),
            recency=_number(self.model.params.get("recency")),
            limits=limits,
            columns=self.catalogue.columns,
            beside=beside,
        )

    # -- recommending --

    def _recommend_group(
        self, requests: list[schemas.RecommendRequest], *, plain: bool
    ) -> list[Recommended]:
        """The answers to requests with the same group key; if one fails, all of them fail in the same way."""
        try:
            if not plain:
                return [self.recommend(requests[0])]
            users = [r.history for r in requests if isinstance(r, schemas.UserRequest)]
            if users:
                return [*self._recommend(requests, histories_of(users))]
            rows = [[row.item_id for row in request.history] for request in requests]
            return [*self._recommend(requests, Histories.untimed(rows, self.items, "skip"))]
        except Exception as error:
            return [error] * len(requests)

    def _recommend(
        self, requests: list[schemas.RecommendRequest], histories: Histories
    ) -> list[schemas.Recommendations]:
        """The answers to requests that differ only in their histories."""
        first = requests[0]
        model = self.model_with(first.recency)
        limits = self.rules.limits(first) if _has_rules(first) else _NO_LIMITS
        found, added = choosing.answer(
            model, histories, first.k, limits, hide_seen=first.hide_seen, most=_REASONS
        )
        ranks = chain.from_iterable(range(1, number + 1) for number in found.counts)
        ranked = self._ranked(found.items, found.scores, ranks, self._reasons(found))
        if added is not None:
            _note_boosts(ranked, added)
        answers, begin = [], 0
        for q, number in enumerate(found.counts):
            if self._is_asked(histories, q, number, nobody=requests[q].is_of_nobody):
                answer = schemas.Recommendations(self.version, ranked[begin : begin + number])
            else:
                answer = self._fallback(first.k, limits)
            answers.append(answer)
            begin += number
        return answers

    def first_items(self, rows: UserRows, now: int, k: int) -> list[int]:
        """The first k items that a user with these rows is shown at a moment, in positions."""
        histories = histories_of([rows]).asked(now)
        items, _, counts = asking.top(self.model, histories, min(k, len(self.items)))
        if not self._is_asked(histories, 0, int(counts[0]), nobody=not len(rows)):
            return [int(item) for item in self._trending[0][:k]]
        found: list[int] = items[0, : counts[0]].tolist()
        return found

    def _is_asked(self, histories: Histories, q: int, found: int, *, nobody: bool) -> bool:
        """Is an answer what the model says, and not what is popular?"""
        based = found or self.model.fitted.weights.base is not None
        return bool(based and not nobody) or histories.known(q)

    def _fallback(self, k: int, limits: Limits) -> schemas.Recommendations:
        """The items that were popular most recently, under the same rules."""
        items, counts, added = choosing.first_of(*self._trending, k, limits)
        ranked = self._ranked(items.tolist(), counts.tolist(), count(1), ([] for _ in items))
        _note_boosts(ranked, added.tolist())
        return schemas.Recommendations(self.version, ranked, "trending")

    def _ranked(
        self,
        items: list[int],
        scores: Iterable[float],
        ranks: Iterable[int],
        reasons: Iterable[Any],
    ) -> list[schemas.RankedItem]:
        ids, titles = self.catalogue.ids.take(items), self.catalogue.titles
        names = repeat(ABSENT) if titles is None else titles.take(items)
        return list(map(schemas.RankedItem, ids, scores, ranks, names, reasons))

    def _reasons(self, found: rank.Answer) -> Iterator[list[schemas.Reason]]:
        """For each item, the history items that contribute most to its score."""
        sources = self.catalogue.ids.take(found.sources)
        reasons = list(map(schemas.Reason, sources, found.shares))
        begin = 0
        for end in found.ends:
            yield reasons[begin:end]
            begin = end

    # -- what requests name --

    def model_with(self, recency: float | None) -> Model:
        return self.model if recency is None else self._with_recency(recency)

    def position(self, item_id: schemas.Id) -> int:
        item = self.catalogue.position(item_id)
        if item < 0:
            raise ApiError(404, "unknown_item", f"the model does not know item {item_id!r}")
        return item

    def history(
        self, request: schemas.RecommendRequest | schemas.ExplainRequest
    ) -> tuple[Histories, list[schemas.Id]]:
        """The history in time order, and the ids of its rows as the client wrote them."""
        now = self._moment(request.as_of)
        if isinstance(request, schemas.UserRequest):
            return histories_of([request.history]).asked(now), []
        if isinstance(request, schemas.UserExplainRequest):
            rows: UserRows = request.history
            return histories_of([rows]).asked(now), rows.names(self.catalogue.ids)
        names = [row.item_id for row in request.history]
        times = [row.timestamp for row in request.history]
        if times.count(None) == len(times):
            history = Histories.untimed([names], self.items, "skip")
        else:
            if None in times:
                raise TalerecError("give a time with every row of a history, or with none")
            moments = [self._moment(when) or 0 for when in times]
            pairs = sorted(zip(names, moments, strict=True), key=lambda pair: pair[1])
            names = [name for name, _ in pairs]
            history = Histories.timed([pairs], self.items, "skip")
        return (history if now is None else history.asked(now)), names

    def _moment(self, when: schemas.Moment | None) -> int | None:
        """A timestamp of a request in microseconds."""
        if isinstance(when, int | float) and abs(when) > MAX_TIMESTAMP:
            raise TalerecError(f"timestamp {when} is beyond any date, in any unit")
        return None if when is None else microseconds(when, self.model.fitted.unit)

    @property
    def _trending(self) -> tuple[Array, Array]:
        """All items, those that are popular now first, and their counts."""
        return self.popular.ranked()


def _recency_cache(model: Model) -> Callable[[float], Model]:
    """The model with another recency, by value. It holds no reference to its owner: a replaced model is freed at once."""

    @lru_cache(_RECENCIES)
    def with_recency(recency: float) -> Model:
        return model.with_params(recency=recency)

    return with_recency


def _note_boosts(ranked: list[schemas.RankedItem], added: list[float]) -> None:
    """Say of each item that was boosted what that added to its score."""
    for item, boost in zip(ranked, added, strict=True):
        if boost:
            item.boost = boost


def _has_rules(request: schemas.RecommendRequest) -> bool:
    """Does a request say which items may come, or which before others?"""
    return (
        request.allow is not None
        or request.deny is not None
        or request.where is not None
        or request.per is not None
        or request.boost is not None
    )


def _group_key(request: schemas.RecommendRequest) -> tuple[Any, ...] | None:
    """Requests with the same key differ only in their history; None for a request that must be computed alone."""
    if request.recency is not None or request.as_of is not None or _has_rules(request):
        return None
    if isinstance(request, schemas.UserRequest):
        return (request.k, request.hide_seen, "user")
    untimed = [row.timestamp for row in request.history].count(None) == len(request.history)
    return (request.k, request.hide_seen) if untimed else None


def _number(value: Any) -> float | None:
    """A parameter's value, if it is a number and not a word such as "auto"."""
    return value if isinstance(value, int | float) else None


def _weights_per_row(weights: Weights) -> float:
    """About how many weights are added for one history row."""
    block = weights.blocks[0]
    if isinstance(block, RunsBlock):
        return math.inf  # the reasons of neighbour models are computed one history at a time
    if isinstance(block, SparseBlock):
        return 4 * len(block.indices) / max(block.sources, 1)
    return float(weights.items)


def _date(moment: int) -> str:
    try:
        return datetime.fromtimestamp(moment / 1e6, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{moment} us"

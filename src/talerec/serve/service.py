"""One model as it is served: questions in, answers out. An answer comes from one model alone, and names it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from msgspec import UNSET, UnsetType

from talerec import artifact, columns, models
from talerec.data.histories import Histories
from talerec.data.times import parse_moment
from talerec.errors import TalerecError
from talerec.models import asking
from talerec.models.base import Model
from talerec.ranking import rank
from talerec.ranking.blocks import RunsBlock, SparseBlock
from talerec.ranking.weights import Query, Weights, no_weights
from talerec.runtime.arrays import Array
from talerec.serve import schemas
from talerec.serve.errors import Refusal

_REASONS = 3  # history rows that a recommendation names
_SMALL = 200_000  # items: up to here, ids and titles are plain lists
_SHORT_WORK = 1_000_000  # weights to add: up to here, an answer takes a few milliseconds
FARTHEST = 4e12  # seconds: beyond any date
_WARM_ROWS = 3


class Served:
    """A loaded model with what the service needs beside it."""

    def __init__(self, kept: artifact.Bundle, path: Path) -> None:
        self.model = models.opened(kept, path)
        self.facts = kept.facts
        self.version: str = kept.facts["version"]
        fitted = self.model.fitted
        self.items = fitted.items
        self.ids = _Column(fitted.items.ids)
        info = fitted.info
        titled = info is not None and columns.TITLES[0] in info.columns
        self._titles = (
            info[columns.TITLES[0]].cast(pl.String) if titled and info is not None else None
        )
        self.titles = None if self._titles is None else _Column(self._titles)
        self._per_row = _weights_per_row(fitted.weights)
        self._with = lru_cache(64)(lambda recency: self.model.with_params(recency=recency))

    @classmethod
    def open(cls, path: Path, *, verify: bool) -> Served:
        return cls(artifact.read(path, verify=verify), path)

    def warm(self) -> None:
        """Compile every kernel that an answer runs, and build what is built on first use."""
        some = [schemas.Row(self.ids[place]) for place in range(min(_WARM_ROWS, len(self.items)))]
        for hide in (False, True):
            self.recommend(schemas.Recommend(some, k=1, hide_seen=hide, deny=[some[0].item_id]))
        timed = [schemas.Row(row.item_id, place) for place, row in enumerate(some)]
        self.recommend(schemas.Recommend(timed, k=1))
        self.recommend(schemas.Recommend([], k=1))
        self.similar(schemas.Similar(some[0].item_id, 1))
        self.explain(schemas.Explain(some, some[0].item_id))
        self.search(str(some[0].item_id), 1)

    # -- questions --

    def is_long(self, rows: int, k: int) -> bool:
        """Would this take so long that it should not hold up others?"""
        return self._per_row * rows + 20 * k * rows > _SHORT_WORK

    def recommend(self, asked: schemas.Recommend) -> schemas.Recommended:
        """The next items after a history, with reasons; what is trending where nothing of it is known."""
        return self._answered([asked], self._history(asked)[0])[0]

    def recommend_all(
        self, asked: list[schemas.Recommend]
    ) -> list[schemas.Recommended | Exception]:
        """Answers to several questions, or what is wrong with one of them. Plain ones of a kind are answered together."""
        kinds: dict[Any, list[int]] = defaultdict(list)
        for n, wish in enumerate(asked):
            kinds[_kind(wish) or n].append(n)
        answers: dict[int, schemas.Recommended | Exception] = {}
        for kind, members in kinds.items():
            wishes = [asked[n] for n in members]
            try:
                found: Iterable[schemas.Recommended | Exception]
                if isinstance(kind, int):
                    found = [self.recommend(wishes[0])]
                else:
                    rows = [[row.item_id for row in wish.history] for wish in wishes]
                    found = self._answered(wishes, Histories.untimed(rows, self.items, "skip"))
            except Exception as error:
                found = repeat(error)
            answers.update(zip(members, found, strict=False))
        return [answers[n] for n in range(len(asked))]

    def similar(self, asked: schemas.Similar) -> schemas.Alike:
        """What the model expects right after one item."""
        place = self._place(asked.item_id)
        alone = Histories.from_ids([[self.ids[place]]], self.items, "error")
        items, scores, counts = asking.top(self.model, alone, asked.k, hide_seen=True)
        first = items[0, : counts[0]].tolist()
        ranked = self._ranked(first, scores[0].tolist(), count(1), repeat(UNSET))
        return schemas.Alike(self.version, self.ids[place], ranked, self._title(place))

    def explain(self, asked: schemas.Explain) -> schemas.Explained:
        """What each row gives to an item's score, and what its place in the history did to it."""
        model = self._asked_with(asked.recency)
        target = self._place(asked.item_id)
        history, names = self._history(asked)
        given = model.contributions(model.query(history), history, np.array([target]))[0]
        extra = model.base_score(history, target)
        score = float(given.sum()) + (extra or 0.0)
        weights = model.row_weights(history)
        places = history.item.tolist()
        rows = [
            schemas.Given(
                name if places[row] < 0 else self.ids[places[row]],
                len(names) - 1 - row,
                None if weights is None else float(weights[row]),
                float(given[row]),
                _share(float(given[row]), score),
                self._title(places[row]),
            )
            for row, name in enumerate(names)
        ]
        own = (self.ids[target], score, rows, self._title(target))
        return schemas.Explained(self.version, *own, UNSET if extra is None else extra)

    def search(self, text: str, limit: int) -> schemas.Found:
        """Items whose title has every word, popular ones first; an id as it is comes before them."""
        words = text.casefold().split()
        found = np.arange(len(self.items))
        if words:
            has = pl.Series([True]).new_from_index(0, len(self.items))
            for word in words:
                has &= self._searched.str.contains(word, literal=True)
            found = has.arg_true().to_numpy()
        order = np.argsort(-self._popularity[found], kind="stable")[:limit]
        places = found[order].tolist()
        own = int(self.items.positions([text.strip()], "item", "skip")[0]) if text.strip() else -1
        if own >= 0:
            places = [own, *(place for place in places if place != own)][:limit]
        return schemas.Found(
            self.version, [schemas.Item(self.ids[place], self._title(place)) for place in places]
        )

    def card(self, limits: dict[str, float]) -> schemas.Card:
        """What this model is and where it comes from."""
        facts = self.facts
        params = {
            name: "inf" if value == math.inf else value for name, value in self.model.params.items()
        }
        training = dict(facts["training"])
        for name in ("first_time", "last_time"):
            if name in training:
                training[name] = _date(training[name])
        return schemas.Card(
            model=self.version,
            name=self.model.name,
            paper=self.model.paper,
            params=params,
            solver=facts.get("solver"),
            training=training,
            saved=facts.get("saved"),
            metrics=facts.get("metrics"),
            recency=self.model.params.get("recency"),
            limits=limits,
        )

    # -- inside --

    def _asked_with(self, recency: float | None) -> Model:
        return self.model if recency is None else self._with(recency)

    def _place(self, item: schemas.Id) -> int:
        place = int(self.items.positions([item], "item", "skip")[0])
        if place < 0:
            raise Refusal(404, "unknown_item", f"item {item!r} is not known to the model")
        return place

    def _history(
        self, asked: schemas.Recommend | schemas.Explain
    ) -> tuple[Histories, list[schemas.Id]]:
        """Rows in the order of time, and the ids as they were given."""
        rows, now = asked.history, _moment(asked.as_of)
        names = [row.item_id for row in rows]
        times = [row.timestamp for row in rows]
        if times.count(None) == len(times):
            found = Histories.untimed([names], self.items, "skip")
        else:
            pairs = list(zip(names, map(_moment, times), strict=True))
            if None not in times:
                pairs.sort(key=lambda pair: pair[1] or 0)
            names = [name for name, _ in pairs]
            found = Histories.from_ids([pairs], self.items, "skip")
        return (found if now is None else found.asked(now)), names

    def _answered(
        self, asked: list[schemas.Recommend], histories: Histories
    ) -> list[schemas.Recommended]:
        """The answers to questions that differ in their histories alone."""
        like = asked[0]
        model = self._asked_with(like.recency)
        allowed = asking.allowed_items(model, like.allow, like.deny, "skip")
        masks: dict[str, Any] = {"hide_seen": like.hide_seen, "allowed": allowed}
        found = asking.answer(model, histories, like.k, most=_REASONS, **masks)
        places = chain.from_iterable(range(1, number + 1) for number in found.counts)
        ranked = self._ranked(found.items, found.scores, places, self._reasons(found))
        answers, begin = [], 0
        for q, number in enumerate(found.counts):
            if number or model.fitted.weights.base is not None or histories.known(q):
                made = schemas.Recommended(self.version, ranked[begin : begin + number])
            else:
                made = self._fallback(like.k, allowed)
            answers.append(made)
            begin += number
        return answers

    def _fallback(self, k: int, allowed: Array | None) -> schemas.Recommended:
        """What sold most of late."""
        places, counts = self._trending
        if allowed is not None:
            there = allowed[places] != 0
            places, counts = places[there], counts[there]
        ranked = self._ranked(places[:k].tolist(), counts.tolist(), count(1), ([] for _ in places))
        return schemas.Recommended(self.version, ranked, "trending")

    def _ranked(
        self,
        found: list[int],
        scores: list[float],
        places: Iterable[int],
        because: Iterable[list[schemas.Because] | UnsetType],
    ) -> list[schemas.Ranked]:
        """Items in their order, each with its reasons."""
        titles = repeat(UNSET) if self.titles is None else self.titles.take(found)
        return list(map(schemas.Ranked, self.ids.take(found), scores, places, titles, because))

    def _reasons(self, found: rank.Answer) -> Iterator[list[schemas.Because]]:
        """For each item, what gave most to its score."""
        every = list(map(schemas.Because, self.ids.take(found.sources), found.shares))
        begin = 0
        for end in found.ends:
            yield every[begin:end]
            begin = end

    def _title(self, place: int) -> str | UnsetType:
        title: str | UnsetType = UNSET if self.titles is None or place < 0 else self.titles[place]
        return title

    @cached_property
    def _searched(self) -> pl.Series:
        names = self.items.ids.cast(pl.String)
        titles = self._titles
        return (names if titles is None else titles.fill_null(names)).str.to_lowercase()

    @cached_property
    def _popularity(self) -> Array:
        fitted = self.model.fitted
        if fitted.log is not None:
            return fitted.log.counts()
        return np.zeros(len(self.items)) if fitted.recent_counts is None else fitted.recent_counts

    @cached_property
    def _trending(self) -> tuple[Array, Array]:
        """Items by how often they occurred in the log's last days, and how often; others are not trending."""
        lately = self.model.fitted.recent_counts
        counts = np.full(len(self.items), np.nan) if lately is None else lately.copy()
        counts[counts == 0] = np.nan
        there = int((~np.isnan(counts)).sum())
        nobody = Histories.from_ids([[]], self.items, "skip")
        mask = rank.Mask.make(nobody, hide_seen=False, allowed=None)
        made = Weights(no_weights(len(self.items)), counts)
        items, scores, _ = rank.top(made, Query.empty(1), mask, max(there, 1))
        return items[0, :there], scores[0, :there]


class _Column:
    """Ids or titles by position, one or many at a time; a title that is missing is UNSET.

    They become Python's values once and for all, unless there are so many that this would take much memory.
    """

    def __init__(self, values: pl.Series) -> None:
        self._series = values
        self._values = _plain(values) if len(values) <= _SMALL else None

    def take(self, places: list[int]) -> list[Any]:
        values = self._values
        if values is None:
            return _plain(self._series.gather(places))
        return [values[place] for place in places]

    def __getitem__(self, place: int) -> Any:
        return self.take([place])[0]


def _plain(values: pl.Series) -> list[Any]:
    made = values.to_list()
    return [UNSET if value is None else value for value in made] if values.null_count() else made


def _kind(asked: schemas.Recommend) -> tuple[int, bool] | None:
    """What a question with nothing but a history in order asks for; None of any other."""
    if any(one is not None for one in (asked.recency, asked.allow, asked.deny, asked.as_of)):
        return None
    untimed = [row.timestamp for row in asked.history].count(None) == len(asked.history)
    return (asked.k, asked.hide_seen) if untimed else None


def _weights_per_row(weights: Weights) -> float:
    block = weights.blocks[0]
    if isinstance(block, RunsBlock):
        return math.inf  # neighbours are asked for reasons one by one
    if isinstance(block, SparseBlock):
        return 4 * len(block.indices) / max(block.sources, 1)
    return float(weights.items)


def _share(part: float, score: float) -> float:
    return part / score if score else 0.0


def _date(microseconds: int) -> str:
    try:
        return datetime.fromtimestamp(microseconds / 1e6, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{microseconds} us"


def _moment(timestamp: schemas.Moment | None) -> int | None:
    """Unix seconds or ISO text in microseconds."""
    if timestamp is None:
        return None
    if isinstance(timestamp, str):
        try:
            return parse_moment(timestamp)
        except (OverflowError, ValueError):
            raise TalerecError(f"time {timestamp!r} is beyond any date") from None
    if abs(timestamp) > FARTHEST:
        raise TalerecError(f"time {timestamp} is beyond any date")
    return timestamp * 10**6 if isinstance(timestamp, int) else round(timestamp * 10**6)

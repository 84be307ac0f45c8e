"""Places for items that few users have seen, with known probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import numpy as np

from talerec.models.core import ItemFilter, rank_top
from talerec.runtime import Array
from talerec.serve import ABSENT, schemas
from talerec.serve.model.queries import ModelQuery, read_history
from talerec.serve.model.served import ServedModel
from talerec.store import now_us

FEW_IMPRESSIONS = 100  # an item that was shown less often may be explored
_POOL = 20  # items among which a place is drawn, at least as many as there are places


class Explorer:
    """Gives some places of lists to eligible items with few impressions.

    Each place below the first goes with probability `share` to an item of the pool, and otherwise
    stays. The pool has the eligible items with few impressions that the model ranks highest for
    the request (of a content model: the nearest ones), then others, least shown ones first. Every
    item of the pool is equally likely. With k places below the first and a pool of n items, an
    item of the model's list has the probability 1 - share at its place, and an item of the pool
    share / n at each place. Only n places are drawn if n is smaller than k.

    Parameters
    ----------
    share : float
        The probability of a place below the first.
    kept_share : float
        The share of users whose impressions are counted: counts are divided by it.
    random : Random, optional
        The source of chance.
    """

    def __init__(self, share: float, kept_share: float, random: Random | None = None) -> None:
        self._share, self._kept_share = share, kept_share
        self._random = random or Random()
        self._counts: Mapping[str, int] = {}
        self._arrays: dict[str, Array] = {}  # impressions by item position, by vocabulary

    def set_counts(self, counts: Mapping[str, int]) -> None:
        """Set how often each item (its id as text) was shown; other items were never shown."""
        self._counts, self._arrays = counts, {}

    def explore(
        self, model: ServedModel, query: ModelQuery, response: schemas.Recommendations
    ) -> None:
        """Put items with few impressions into a response, in place, and set all probabilities.

        Items that the request's rules, its history (with `hide_seen`) or availability exclude, or
        on which the user gave negative feedback at any time, are never shown. Requests that limit
        items per column value, or have slots, stay as they are.
        """
        n_items = len(response.items)
        if n_items < 2 or query.options.per or query.options.slots:
            return
        counts = self._count_array(model)
        is_eligible = self._find_eligible(model, query, response, counts)
        n_eligible = int(np.count_nonzero(is_eligible))
        n_places = min(n_items - 1, n_eligible)
        if not n_places:
            return
        pool_size = min(n_eligible, max(_POOL, n_places))
        for item in response.items[1 : n_places + 1]:
            item.probability = 1 - self._share
        places = [n for n in range(1, n_places + 1) if self._random.random() < self._share]
        if not places:
            return
        pool = self._build_pool(model, query, is_eligible, counts, pool_size)
        chosen = self._random.sample(pool, len(places))
        entries = model.catalogue.rank_items(
            [item for item, _ in chosen], [score for _, score in chosen],
            [place + 1 for place in places], [ABSENT] * len(places),
        )  # fmt: skip
        for place, entry in zip(places, entries, strict=True):
            entry.explored, entry.probability = True, self._share / pool_size
            response.items[place] = entry

    def _count_array(self, model: ServedModel) -> Array:
        """Return the estimated impressions of each item of the model's catalogue."""
        key = f"{model.vocabulary_key} {_count_items(model)}"
        array = self._arrays.get(key)
        if array is None:
            array = np.zeros(_count_items(model))
            if self._counts:
                ids = list(self._counts)
                positions = np.array(model.catalogue.text_positions(ids))
                shown = np.array([self._counts[item_id] for item_id in ids], float)
                array[positions[positions >= 0]] = shown[positions >= 0] / self._kept_share
            self._arrays = {key: array}
        return array

    def _find_eligible(
        self,
        model: ServedModel,
        query: ModelQuery,
        response: schemas.Recommendations,
        counts: Array,
    ) -> Array:
        """Return a flag per item: few impressions, allowed, and not in the response."""
        flags: Array = counts < FEW_IMPRESSIONS
        n_known = len(model.items)
        item_filter = model.filters.build_filter(query.options)
        if item_filter.allowed is not None:
            flags[:n_known] &= item_filter.allowed.astype(bool)
        flags[n_known:] &= self._allow_new_items(model, query, len(flags) - n_known)
        excluded = [str(item.item_id) for item in response.items]
        if query.rows is not None:
            excluded += [str(event.item) for _, event in query.rows.hidden]
        if query.options.hide_seen:
            history = read_history(query, model.items, model.model.fitted.unit)[0].item
            flags[history[history >= 0]] = False
            excluded += _list_history(query)
        positions = model.catalogue.text_positions(excluded)
        flags[[item for item in positions if item >= 0]] = False
        return flags

    def _allow_new_items(self, model: ServedModel, query: ModelQuery, n_new: int) -> Array:
        """Return a flag for each item of the store that the model does not know.

        Conditions are evaluated on the model's items, so a request with `where` or `allow` gets
        none of the new ones.
        """
        options = query.options
        if options.where is not None or options.allow is not None or model.live is None:
            return np.zeros(n_new, bool)
        available = model.live.availability.flags(now_us())
        flags = np.ones(n_new, bool) if available is None else available[-n_new or None :] > 0
        denied = [str(item_id) for item_id in options.deny or ()]
        positions = np.array(model.catalogue.text_positions(denied), int) - len(model.items)
        flags[positions[positions >= 0]] = False
        return flags[:n_new]

    def _build_pool(
        self, model: ServedModel, query: ModelQuery, is_eligible: Array, counts: Array, size: int
    ) -> list[tuple[int, float]]:
        """Return `size` eligible items with their scores: by the model's score, then least shown.

        Items that the model gives no score have the score 0.
        """
        n_known = len(model.items)
        known_flags = is_eligible[:n_known].astype(np.uint8)
        pool: list[tuple[int, float]] = []
        if known_flags.any():
            histories = read_history(query, model.items, model.model.fitted.unit)[0]
            item_filter = ItemFilter(query.options.hide_seen, known_flags)
            k = min(size, n_known)
            items, scores, lengths = rank_top(model.model, histories, k, item_filter)
            n_top = int(lengths[0])
            pool = list(zip(items[0, :n_top].tolist(), scores[0, :n_top].tolist(), strict=True))
        if len(pool) < size:
            is_left = is_eligible.copy()
            is_left[[item for item, _ in pool]] = False
            rest = np.flatnonzero(is_left)
            rest = rest[np.argsort(counts[rest], kind="stable")][: size - len(pool)]
            pool += [(item, 0.0) for item in rest.tolist()]
        return pool


def _list_history(query: ModelQuery) -> list[str]:
    """Return the ids (text) of the items in the history of a request or a stored user."""
    if query.rows is not None:
        return [str(event.item) for event in query.rows.events.values()]
    return [str(row.item_id) for row in query.history]


def _count_items(model: ServedModel) -> int:
    """Return the number of items of the model and of the store together."""
    return len(model.items) if model.live is None else len(model.live.items)

"""The rules of a request: which items may come, how many of a kind, and what is boosted; remembered for the next one."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from talerec.models.core import filters as choosing
from talerec.models.core.base import Model
from talerec.models.core.boosts import Boost
from talerec.models.core.filters import Kinds, Limits
from talerec.runtime.arrays import Array
from talerec.serve import schemas

_REMEMBERED = 64  # values of `where`, `per` and `boost` whose items are remembered,
_ROOM = 2**26  # as long as they take no more than so many bytes
_LONG_LIST = 1000  # ids that are looked up in a fraction of a millisecond

_Amounts = tuple[tuple[str, tuple[tuple[str, float], ...]], ...]


class Rules:
    """What requests say of items, as flags and numbers of each item of one model."""

    def __init__(self, model: Model) -> None:
        self._model = model
        size = max(len(model.fitted.items), 1)
        self._matching = _condition_cache(model, _fitting(size))
        self._kinds = _kinds_cache(model, _fitting(8 * size))
        self._boost = _boost_cache(model, _fitting(8 * size))

    def limits(self, request: schemas.RecommendRequest | schemas.ExplainRequest) -> Limits:
        """What a request lets come."""
        allowed = choosing.allowed_items(self._model, request.allow, request.deny, "skip")
        if request.where is not None:
            matching = self._matching(request.where)
            allowed = matching if allowed is None else allowed & matching
        boost = self._boost(_hashable(request.boost)) if request.boost else None
        if isinstance(request, schemas.ExplainRequest) or not request.per:
            return Limits(allowed, (), boost)
        return Limits(allowed, tuple(self._kinds(*one) for one in request.per.items()), boost)


def take_long(request: schemas.RecommendRequest) -> bool:
    """Do the rules of a request take so long that other requests would wait for them?"""
    listed = len(request.allow or ()) + len(request.deny or ())
    return bool(request.per or request.boost) or listed > _LONG_LIST


def _fitting(size: int) -> int:
    return max(1, min(_REMEMBERED, _ROOM // size))


def _hashable(boost: dict[str, dict[str, float]]) -> _Amounts:
    return tuple((column, tuple(values.items())) for column, values in boost.items())


# They hold no reference to their owner: a replaced model is freed at once.


def _condition_cache(model: Model, most: int) -> Callable[[str], Array]:
    """The items that meet a condition, by its text."""

    @lru_cache(most)
    def matching(where: str) -> Array:
        return choosing.matches(model, where)

    return matching


def _kinds_cache(model: Model, most: int) -> Callable[[str, int], Kinds]:
    """The kinds of items, by column and number."""

    @lru_cache(most)
    def kinds(column: str, number: int) -> Kinds:
        return choosing.kinds_of(model, column, number)

    return kinds


def _boost_cache(model: Model, most: int) -> Callable[[_Amounts], Boost]:
    """The boosts of items, by what is written."""

    @lru_cache(most)
    def boost(amounts: _Amounts) -> Boost:
        return choosing.boost_of(model, {column: dict(values) for column, values in amounts})

    return boost

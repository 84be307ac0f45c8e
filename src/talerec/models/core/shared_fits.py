"""A cache of the steps that fits of several models to one log have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from itertools import count
from typing import Any, NamedTuple

from talerec.models.core.params import LEARN, SOLVE
from talerec.models.core.persistence import FitCache
from talerec.runtime import is_sparse, memory, time_without_compilation

_MEMORY_SHARE = 0.25  # of the free memory, for results that are kept

#: The step that a fit's clock counts a stage of `FitCache.cached` for; other stages are "learn".
_CLOCK_STEPS = {LEARN: "gram", SOLVE: "solve"}
_result_numbers = count()  # of results


class SharedUse(NamedTuple):
    """One use of a result that several fits may share.

    number: of the result, the same in every use. step: of the fit, as its clock names it. seconds:
    that it took to compute, without the compilation of kernels. is_reused: whether an earlier fit
    had computed it.
    """

    number: int
    step: str
    seconds: float
    is_reused: bool


class _Entry(NamedTuple):
    """A result: its number, its value, the seconds that it took, and its size in bytes.

    The size of a result that does not count against the memory of the cache is 0.
    """

    number: int
    value: Any
    seconds: float
    size: int = 0


class SharedFits(FitCache):
    """Results of steps that fits of several models to one log have in common, such as Grams.

    Shared results are kept until they take more than a quarter of the memory that was free at
    first; then the oldest go.
    """

    is_shared = True

    def __init__(self, outer: SharedFits | None = None, outer_step: str | None = None) -> None:
        """Create an empty cache, or one for fits inside the step `outer_step` of a fit.

        outer: the cache of that fit; shared results are kept there, and seconds count there.
        """
        super().__init__()
        self._outer_step = outer_step
        self._entries: dict[Any, _Entry] = {} if outer is None else outer._entries
        self._uses: list[SharedUse] = [] if outer is None else outer._uses
        self._room: int = (
            int(_MEMORY_SHARE * memory.available_bytes()) if outer is None else outer._room
        )

    def take_uses(self) -> list[SharedUse]:
        """Return the uses of shared results since the last call of this method."""
        uses = list(self._uses)
        self._uses.clear()
        return uses

    def cached(self, step: str, key: Any, make: Callable[[], Any]) -> Any:
        """Return the step's last result if it was computed for an equal key, else `make()`.

        As in `FitCache`; a result that is used again counts as shared.
        """
        is_new = False

        def make_entry() -> _Entry:
            """Return the new result with its seconds, those of shared steps inside included."""
            nonlocal is_new
            is_new, start, n_uses = True, time_without_compilation(), len(self._uses)
            value = make()
            reused = sum(use.seconds for use in self._uses[n_uses:] if use.is_reused)
            seconds = time_without_compilation() - start + reused
            return _Entry(next(_result_numbers), value, seconds)

        entry: _Entry = super().cached(step, key, make_entry)
        if not is_new:
            self._count(entry, _CLOCK_STEPS.get(step, LEARN), is_reused=True)
        return entry.value

    def shared(self, step: str, key: Any, make: Callable[[], Any]) -> Any:
        """Return the result of an earlier call with an equal key, by any model, else `make()`.

        step: the step of the fit that its seconds count for. key: hashable, everything that the
        result depends on. Nobody may change the result.
        """
        is_reused = key in self._entries
        if not is_reused:
            start = time_without_compilation()
            value = make()
            seconds = time_without_compilation() - start
            self._entries[key] = _Entry(next(_result_numbers), value, seconds, count_bytes(value))
        entry = self._entries[key]
        self._count(entry, step, is_reused=is_reused)
        self._drop_oldest()
        return entry.value

    def nested(self, step: str) -> FitCache:
        """Return the cache of fits inside a step: shared results are kept here, as of `step`.

        step: of the outer fit, such as "learn", in which smaller models are fitted.
        """
        return SharedFits(self, self._outer_step or step)

    def _count(self, entry: _Entry, step: str, *, is_reused: bool) -> None:
        """Record a use of a result, in a step or in the outer fit's step if there is one."""
        use = SharedUse(entry.number, self._outer_step or step, entry.seconds, is_reused)
        self._uses.append(use)

    def _drop_oldest(self) -> None:
        """Drop the oldest results while all of them take more memory than they may."""
        total = sum(entry.size for entry in self._entries.values())
        while total > self._room and self._entries:
            total -= self._entries.pop(next(iter(self._entries))).size


def count_bytes(value: Any) -> int:
    """Return the bytes of all arrays in a value: an array, a matrix, or records of them.

    Records are tuples, lists and dataclasses; other values count 0. An array that occurs in two
    places counts twice.
    """
    if is_sparse(value):
        return int(value.data.nbytes + value.indices.nbytes + value.indptr.nbytes)
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    if isinstance(value, tuple | list):
        return sum(map(count_bytes, value))
    if is_dataclass(value) and not isinstance(value, type):
        return sum(count_bytes(getattr(value, part.name)) for part in fields(value))
    return 0

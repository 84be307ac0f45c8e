"""The inputs of features: requests, candidate items, part scores and times of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from talerec.features.context_rows import ContextInputs
from talerec.features.item_content import ContentColumns, ItemContent
from talerec.features.item_times import ItemTimes
from talerec.runtime import Array, template

MINUTE = 60_000_000  # microseconds
HOUR = 60 * MINUTE
DAY = 24 * HOUR


class PartScores(NamedTuple):
    """What the models of the first stage (parts) say of each candidate item.

    All arrays are parts x requests x columns. The unseen items of a request are those outside its
    history.
    """

    scores: Array  # float64: of each candidate (column); NaN if the part does not score it
    ranks: Array  # float32: rank from 0 among unseen items (a seen one: among all); NaN: beyond
    tops: Array  # float64, two columns: the part's highest score of any item, and of an unseen one


class FeatureInputs(NamedTuple):
    """Requests with candidate items, from which features are computed.

    Request q has the history item[start[q]:stop[q]], oldest first (-1: an unknown item), with the
    times `time` in microseconds; times before `UNTIMED` mean none. It is made at now[q] by a model
    that knows rows before known_until[q]; its candidates are the first counts[q] of candidates[q].
    """

    start: Array
    stop: Array
    item: Array
    time: Array
    now: Array
    known_until: Array
    candidates: Array  # int32, request x column
    counts: Array
    parts: PartScores
    log: ItemTimes  # of the rows that may be counted, those before each request
    context: ContextInputs  # of requests and rows; without columns if the model has none
    content: ItemContent  # of all items; empty if the model knows none


class FeatureSources(NamedTuple):
    """What features are named after: the first stage's models (parts), and columns.

    context: the name of each context column, and whether it describes users. content: the columns
    of the item table; None without.
    """

    parts: list[str]
    context: Sequence[tuple[str, bool]] = ()
    content: ContentColumns | None = None


class FeatureGroup(NamedTuple):
    """Features of a family that say the same thing of a candidate, and how to speak of them."""

    subject: str  # what they measure: "the hour of the day"
    reason: str  # why an item is listed because of them: "the user has it at this hour"
    features: list[str]  # names


class FeatureFamily(NamedTuple):
    """Features that one kernel computes, in groups.

    fill(inputs, indptr, a, b, out, column) writes the features of requests a..b to the columns of
    `out` from `column` on; the row of candidate c of request q is indptr[q] + c.
    """

    name: str
    description: str  # one line
    groups: Callable[[FeatureSources], list[FeatureGroup]]  # in column order
    fill: Callable[[FeatureInputs, Array, int, int, Array, int], None]

    def names(self, sources: FeatureSources) -> list[str]:
        """Return the names of the features, in column order."""
        return [name for group in self.groups(sources) for name in group.features]


@template
def cutoff_time(now: int, known_until: int) -> int:
    """Return the time before which rows are counted for a request: the earlier of two.

    now: the time of the request. known_until: where the rows that the models know end. Both in
    microseconds.
    """
    return min(now, known_until)

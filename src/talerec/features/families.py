"""All families of features, and the one function that computes them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from talerec.features.content import CONTENT
from talerec.features.context import CONTEXT
from talerec.features.inputs import FeatureFamily, FeatureGroup, FeatureInputs, FeatureSources
from talerec.features.item_content import ContentColumns
from talerec.features.parts import PARTS
from talerec.features.popularity import POPULARITY
from talerec.features.repeats import REPEATS
from talerec.features.user import USER
from talerec.runtime import Array, run_chunks, sized_chunks

#: Every family of features, in the order of their columns. A new family is a module and an entry.
FAMILIES: tuple[FeatureFamily, ...] = (PARTS, POPULARITY, USER, REPEATS, CONTEXT, CONTENT)

_BATCH = 256  # requests a thread takes at a time


def feature_names(sources: FeatureSources) -> list[str]:
    """Return the name of each feature (column), of what they are named after."""
    return [name for family in FAMILIES for name in family.names(sources)]


class ReasonGroups(NamedTuple):
    """The groups of all features, in column order, and where each group's columns begin.

    family: of each group, the number of its family in FAMILIES.
    """

    groups: list[FeatureGroup]
    family: list[int]
    first_column: list[int]

    def sum_columns(self, contributions: Array) -> Array:
        """Return contributions (row x feature) summed by group: row x group, float64."""
        return np.add.reduceat(contributions, self.first_column, axis=1)


def feature_groups(sources: FeatureSources) -> ReasonGroups:
    """Return the groups of all features, of what they are named after."""
    pairs = [(n, group) for n, family in enumerate(FAMILIES) for group in family.groups(sources)]
    sizes = [len(group.features) for _, group in pairs]
    groups, families = [group for _, group in pairs], [number for number, _ in pairs]
    return ReasonGroups(groups, families, [0, *np.cumsum(sizes)[:-1].tolist()])


@lru_cache
def _first_columns(
    parts: tuple[str, ...], context: tuple[tuple[str, bool], ...], content: ContentColumns | None
) -> tuple[int, ...]:
    """Return the first column of each family, then the number of columns.

    parts, context, content: names that features have, as in `FeatureSources`.
    """
    sources = FeatureSources(list(parts), list(context), content)
    sizes = [len(family.names(sources)) for family in FAMILIES]
    return (0, *np.cumsum(sizes).tolist())


def build_features(inputs: FeatureInputs, sources: FeatureSources) -> tuple[Array, Array]:
    """Return where each request's rows begin (indptr), and a row of features per candidate.

    The rows (float32, candidates x features) of request q are indptr[q]..indptr[q + 1], in the
    order of its candidates. sources: what the features are named after. The result does not depend
    on how requests are grouped. Works on all cores.
    """
    columns = _first_columns(tuple(sources.parts), tuple(sources.context), sources.content)
    indptr = np.concatenate([[0], np.cumsum(inputs.counts)]).astype(np.int64)
    out = np.empty((indptr[-1], columns[-1]), np.float32)

    def work(a: int, b: int) -> None:
        for family, column, end in zip(FAMILIES, columns, columns[1:], strict=False):
            if end > column:
                family.fill(inputs, indptr, a, b, out, column)

    if len(inputs.counts) == 1:  # needs no chunks, threads or progress bars
        work(0, 1)
    else:
        run_chunks("features", work, sized_chunks(len(inputs.counts), _BATCH))
    return indptr, out

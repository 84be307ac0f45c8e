"""Sentences that report what tempo learned from a log."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import TYPE_CHECKING, Any

import numpy as np

from talerec.data import DAY
from talerec.models.core import AUTO, Fitted, is_auto
from talerec.models.tempo.compaction import FEWEST_ITEMS
from talerec.models.tempo.popularity import PopularitySnapshots
from talerec.models.tempo.query_params import (
    DEFAULT_POPULARITY_WEIGHT,
    DEFAULT_RECENCY,
    QueryParams,
)
from talerec.ranking import Block
from talerec.runtime import Array, is_sparse

if TYPE_CHECKING:  # at run time only models with content import it
    from talerec.models.tempo.content import ItemScores

_LAG = 8  # whose weight is compared with the latest row's
_LARGE_FACTOR = 3.0  # of the default weight, from which a factor is reported


def describe_fit(fitted: Fitted, params: dict[str, Any]) -> list[str]:
    """Return sentences on what a fit of tempo learned; none if it learned nothing.

    params: of the model.
    """
    weights, arrays = fitted.weights, fitted.weights.query_arrays
    if params["learn"] != AUTO or "lifetime" not in arrays:  # version 0.1 did not learn
        return []
    names = {name for name in ("recency", "popularity_weight") if is_auto(params[name])}
    names |= {"repeats"} if params["repeats"] == "learned" else set()
    query_params = QueryParams.from_arrays(arrays)
    lifetime = PopularitySnapshots.from_arrays(None, arrays).lifetime
    lines = describe_params(query_params, lifetime, names)
    if params["compact"] == AUTO and query_params is not None and fitted.solver != "local":
        lines += describe_compaction(weights.blocks[0])
    return lines


def describe_compaction(weights: Block) -> list[str]:
    """Return a sentence on which item-item weights of an exact solver were kept.

    There is none for few items, whose weights are all stored in any case.
    """
    if weights.items < FEWEST_ITEMS:
        return []
    if not is_sparse(weights.matrix):
        return ["All item-item weights are stored: held-out queries lose by fewer."]
    share = weights.matrix.nnz / weights.items**2
    return [
        f"{share:.1%} of the item-item weights are stored: held-out queries lose nothing by it."
    ]


def describe_params(params: QueryParams | None, lifetime: Array, auto_names: Set[str]) -> list[str]:
    """Return sentences about learned query parameters; None: the log was too small.

    Query parameters are the weights of lags (rows back), repeats and popularity in tempo's queries,
    with one value per segment (group of requests by inactivity and delay); the first half of the
    segments is for requests soon after the log's end, the second for later ones. Each half may
    begin with a segment for requests at the time of the user's last event, which is described
    apart. lifetime:
    microseconds that each popularity horizon spans (infinite: long term). auto_names: which of
    recency, repeats and popularity_weight were left to validation; the others are not described.
    """
    if params is None:
        return ["The log is too small to learn from: the default weights stay."]
    n, first = len(params.recency) // 2, int(params.has_simultaneous_segment)
    current, delayed = list(range(first, n)), list(range(n + first, 2 * n))
    lines = list(_describe_segments(params, lifetime, current, auto_names))
    if "repeats" in auto_names:
        lines += _describe_repeats(params, current + delayed)
    per_segment = (params.recency, params.min_weight, params.popularity_weight)
    if not all(np.array_equal(values[current], values[delayed]) for values in per_segment):
        for line in _describe_segments(params, lifetime, delayed, auto_names):
            if line not in lines:
                lines.append(f"For requests long after the log's end: {line[0].lower()}{line[1:]}")
    if params.has_simultaneous_segment:
        about_ties = list(_describe_segments(params, lifetime, [0], auto_names))
        if "repeats" in auto_names:
            about_ties += _describe_repeats(params, [0])
        for line in about_ties:
            if line not in lines:
                requests = "For requests at the time of the user's last event"
                lines.append(f"{requests}: {line[0].lower()}{line[1:]}")
    if exponent := params.popularity_exponent[0]:
        direction = "raised" if exponent > 0 else "lowered"
        scale = f"item-item weights are multiplied by popularity to the power {exponent:+.2g}"
        lines.append(f"Popular items are {direction}: {scale}.")
    return lines or ["Validation kept every default weight."]


def _describe_segments(
    params: QueryParams, lifetime: Array, segments: list[int], auto_names: Set[str]
) -> Iterator[str]:
    """Yield sentences on the weights of lags and of popularity in some segments of requests.

    params: query parameters, with one value per segment. segments: which of them to average over; a
    segment groups requests by inactivity and delay. lifetime: microseconds that each popularity
    horizon spans (infinite: long term). auto_names: parameters left to validation; only recency and
    popularity_weight are described here.
    """
    if "recency" in auto_names:
        yield from _describe_lags(params, segments)
    if "popularity_weight" in auto_names:
        yield from _describe_popularity(params.popularity_weight[segments].mean(axis=0), lifetime)


def _describe_lags(params: QueryParams, segments: list[int]) -> Iterator[str]:
    """Yield sentences on the weight of a row at lag 8 and on the least weight, if changed.

    A row's lag is how many rows back it is (0: the latest); its weight is max(exp(-lag / recency),
    min_weight). params: query parameters, with one value per segment (group of requests). segments:
    which segments to average over. Nothing is yielded for defaults.
    """
    latest, earlier = params.lag_weights(np.array([0.0, _LAG]))[segments].mean(axis=0)
    share = f"{100 * earlier / latest:.0f} %"
    default = f"{100 * np.exp(-_LAG / DEFAULT_RECENCY):.0f} %"
    if share == "0 %":
        rank = f"the {_LAG}th most recent"
        yield f"Only the latest rows matter: {rank} has almost no weight (default {default})."
    elif share != default:
        weight = f"{share} of the latest row's weight"
        yield f"The {_LAG}th most recent row has {weight} (default {default})."
    if least := float(params.min_weight[segments].mean()):
        yield f"Old rows keep {100 * least:.0f} % of the latest row's weight (default 0 %)."


def _describe_repeats(params: QueryParams, segments: list[int]) -> Iterator[str]:
    """Yield sentences on weights of repeats and frequencies that differ from the default.

    params: query parameters, of which are used, averaged over some segments of requests:
    repeat_weight (factor of the rates at which items are repeated, default 1), repeat_decay (of
    that factor by lag, default 0) and the largest frequency_weight (weight of an item's share of
    the history, default 0).
    """
    if params.frequency_weight[segments].any():
        largest = f"up to {params.frequency_weight[segments].max():.2g} times"
        yield f"Often repeated items are raised: {largest} an item's share of the history is added."
    if (factor := f"{params.repeat_weight[segments].mean():.2g}") != "1":
        yield f"Repeat purchases are weighted {factor} times."
    if (decay := float(params.repeat_decay[segments].mean())) != 0.0:
        yield f"Repeats of older rows are weighted {'less' if decay > 0 else 'more'}."


def _describe_popularity(weights: Array, lifetime: Array) -> Iterator[str]:
    """Yield sentences on the weight of popularity at each horizon, unless it is the default.

    A horizon is how quickly popularity is forgotten. weights: a factor per horizon of an item's
    share of recent rows, which is added to its score. lifetime: microseconds that each horizon
    spans; infinite for long-term popularity.
    """
    if not weights.any():
        yield "Popularity adds nothing to scores."
        return
    is_short = np.isfinite(lifetime)
    for weight, duration in zip(weights[is_short], lifetime[is_short], strict=True):
        if weight:
            recent = f"Popularity in the last {_format_duration(duration)}"
            yield f"{recent} is added to scores (weight {weight:.2g})."
    long_term, default = float(weights[~is_short].sum()), DEFAULT_POPULARITY_WEIGHT
    if long_term >= _LARGE_FACTOR * default:
        yield f"Long-term popularity has {long_term / default:.2g} times its default weight."
    elif f"{long_term:.2g}" != f"{default:g}":
        yield f"Long-term popularity has weight {long_term:.2g} (default {default:g})."


def _format_duration(microseconds: float) -> str:
    """Format microseconds as text, in the largest unit of which there are at least two.

    Units are days, hours, minutes and seconds, rounded to whole ones; at least "1 seconds".
    """
    days = microseconds / DAY
    for unit, per_day in (("days", 1.0), ("hours", 24.0), ("minutes", 1440.0)):
        if days * per_day >= 2:
            return f"{days * per_day:.0f} {unit}"
    return f"{max(days * 86400, 1):.0f} seconds"


def describe_content(scores: ItemScores | None, verdict: dict[str, float] | None) -> list[str]:
    """Return sentences on whether the item table's content is used, and how it was judged.

    scores: by content; None: it is not used. verdict: users, and gain and standard error on their
    held-out queries; empty if the table had no item without events; None if it is not known.
    """
    reason = ""
    if verdict and verdict["users"]:
        gain, error = f"{verdict['gain']:+.4f}", f"{verdict['error']:.4f}"
        users = f"{verdict['users']:,} users"
        reason = f": NDCG@10 on held-out rows of {users} changes by {gain} (standard error {error})"
    if scores is None:
        if not verdict:
            reason = ": all its items have events"
        elif not verdict["users"]:
            reason = ": too few held-out rows are of items without earlier events"
        return [f"The content of the item table is not used{reason}."]
    by_class, lines = scores.weights.by_class, []
    if n_classes := sum(weight > 0 for weight in by_class):
        has_dates = scores.weights.freshness > 0
        what = "Content and dates" if has_dates else "Content"
        lines.append(f"{what} of the item table {'are' if has_dates else 'is'} used{reason}.")
        targets = ("new items", "items with fewer than 5 events", "all items")[n_classes - 1]
        lines.append(f"Scores by content are added for {targets}.")
        if has_dates:
            days = f"{scores.weights.lifetime:g} days"
            lines.append(f"Items are raised by their date, for about {days}.")
    if scores.categories is not None:
        name = scores.categories.column.name
        lines.append(f"Items that share the user's categories of {name!r} are raised.")
    n_new = int((scores.classes == 0).sum())
    noun = "item" if n_new == 1 else "items"
    return [*lines, f"{n_new:,} {noun} without events can be recommended."]

"""The parts of a blend: their names and options, their weights, and their trainings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from talerec.data import Log
from talerec.errors import TalerecError
from talerec.models.core import (
    FitCache,
    HoldoutQueries,
    ItemFilter,
    Model,
    SharedFits,
    parse_settings,
    rank_top,
    registry,
)
from talerec.models.networks import NeuralModel, log_rows, read_training
from talerec.models.tempo import (
    ComponentWeights,
    CoordinateSearch,
    ScoreComponents,
    merge_candidates,
)
from talerec.runtime import Array, kernel

_LIST = 200  # items of each part's list that are candidates
_SEEN_LIST = 30  # and of its list with seen items, if users repeat items
_K = 20  # ranks that count
_MIN_Z = 2.0  # standard errors by which a part must help
_ROUNDS = 3
_STEPS = (0.0, 0.05, 0.1, 0.2, 0.35, 0.6, 1.0, 1.6, 2.5)  # weights relative to the best part

#: Models of the library that cannot be a part of a blend: their scores are not a stack of blocks.
_NO_PARTS = ("blend", "ranker")

_SETTINGS = r"\s*(?:\(([^()]*)\))?\s*(?:,|$)"
_PART = re.compile(r"\s*([A-Za-z0-9_]+)" + _SETTINGS)
_MODEL = re.compile(r"\s*([A-Za-z0-9_.:]+)" + _SETTINGS)


def parse_parts(text: str) -> list[tuple[str, list[str]]]:
    """Parse `tempo, ease(reg=500; recency=4)` into (model name, list of settings) pairs.

    A setting is text such as reg=500. Text of another form is a TalerecError; names and settings
    are not checked.
    """
    return _parse_names(text, _PART, "parts")


def parse_models(text: str, parameter: str) -> list[tuple[str, list[str]]]:
    """Parse a text as `parse_parts` does, in which a name may also be ``module:Class``.

    parameter: the caller's parameter with this text, which a TalerecError names.
    """
    return _parse_names(text, _MODEL, f"`{parameter}`", parameter)


def _parse_names(
    text: str, pattern: re.Pattern[str], subject: str, *parameters: str
) -> list[tuple[str, list[str]]]:
    """Return the (model name, list of settings) pairs of a text: `tempo, ease(reg=500)`.

    pattern: of one model; its groups are the name and what stands in brackets. subject: what an
    error says has this text; parameters: those that it names.
    """
    parts: list[tuple[str, list[str]]] = []
    at = 0
    while at < len(text) or not parts:
        match = pattern.match(text, at)
        if match is None or match.end() == at:
            message = (
                f"{subject} is {text!r}; it takes names of models such as tempo,ease "
                "or tempo,ease(reg=500)"
            )
            raise TalerecError(message, *parameters)
        settings = [setting.strip() for setting in (match[2] or "").split(";")]
        parts.append((match[1], list(filter(None, settings))))
        at = match.end()
    return parts


def part_class(name: str) -> type[Model]:
    """Return the class of a part by its model name: any linear model, but no blend.

    TalerecError for another name, or a model that is not one of the library.
    """
    if name not in registry.LIBRARY_MODELS or name in _NO_PARTS:
        names = ", ".join(part for part in registry.LIBRARY_MODELS if part not in _NO_PARTS)
        raise TalerecError(f"parts names {name!r}; the models that blend are {names}")
    return registry.LIBRARY_MODELS[name]


def fit_part(model: Model, log: Log, whole: str = "blend", cache: FitCache | None = None) -> Model:
    """Fit a model to a log and return it; a TalerecError names it as a part of the `whole`.

    whole: the name of a model that is made of models, its parts. cache: of steps that fits to this
    log have in common. Parts score the items of the log alone, and not those that only the item
    table has. They do not use context columns.
    """
    try:
        return model.fit(without_catalogue(log), cache=cache)
    except TalerecError as error:
        message = f"{model.name}, a part of the {whole}, cannot be fitted: {error}"
        raise TalerecError(message) from error


def fit_parts(models: Sequence[Model], log: Log, whole: str) -> list[Model]:
    """Fit models to a log as `fit_part` does, and return them.

    Steps that they have in common, such as Grams, are computed once.
    """
    cache, log = SharedFits(), without_catalogue(log)
    return [fit_part(model, log, whole, cache) for model in models]


def without_catalogue(log: Log) -> Log:
    """Return a log without context, and without the items that only its item table has."""
    is_plain = log.catalogue is None and not log.context
    return log if is_plain else replace(log, catalogue=None, context=())


# -- weights ---------------------------------------------------------------------------------------


def learn_part_weights(
    models: Sequence[Model], query_sets: Sequence[HoldoutQueries], n_items: int, *, repeats: bool
) -> Array:
    """Return the weight of each fitted model's scores, learned on queries held out from it.

    A query is a history with the item that came next. Starting from the best model alone, weights
    change one at a time while that improves the NDCG@20. The best model has weight 1; a model that
    does not improve the ranking has weight 0. query_sets: current and delayed queries, searched
    together. repeats: whether users repeat items, so that lists with seen items count too.
    """
    n = len(models)
    components = [_compute_components(models, queries, n_items, repeats) for queries in query_sets]
    scales = _score_scales(components)
    for query_set in components:
        query_set.values[...] /= scales[:, None, None]
    best = _best_alone(components, n, repeats)
    weights = np.zeros(n)
    weights[best] = 1.0
    search = _start_search(components, weights, repeats)
    for _ in range(_ROUNDS):
        before = weights
        for part in range(n):
            if part == best:
                continue
            candidates = [np.where(np.arange(n) == part, step, weights) for step in _STEPS]
            index = search.step(map(_component_weights, candidates), _MIN_Z)
            weights = weights if index is None else candidates[index]
        if np.array_equal(before, weights):
            break
    relative: Array = (weights / scales) / (weights[best] / scales[best])
    return relative


def _component_weights(weights: Array) -> ComponentWeights:
    """Return weights of parts for the coordinate search: one segment, no popularity exponent."""
    return ComponentWeights(weights[None, :], 0.0)


def _start_search(
    components: Sequence[ScoreComponents], weights: Array, repeats: bool
) -> CoordinateSearch:
    """Return a coordinate search over the weights of parts, starting from `weights`.

    A part is a model of the blend, its weight the factor of its scores. components: per set of
    held-out queries, each part's scores of the candidate items. No part's scores are scaled by
    popularity. repeats: whether lists with seen items count.
    """
    unscaled = np.zeros(len(weights), bool)
    return CoordinateSearch(components, _component_weights(weights), unscaled, repeats, _K)


def _best_alone(components: Sequence[ScoreComponents], n_parts: int, repeats: bool) -> int:
    """Return the number of the part whose scores alone rank held-out targets best.

    A part is a model of the blend; a target is the item that came next after a query's history.
    components: per query set, each part's scores of candidate items. A part's mean DCG, relative to
    the best part's, is averaged over query sets and kinds of lists (with seen items, if `repeats`,
    and without).
    """
    rows = []
    for part in range(n_parts):
        search = _start_search(components, (np.arange(n_parts) == part).astype(np.float64), repeats)
        n_lists = 2 if repeats else 1
        dcg = [queries.dcg.mean(axis=0)[:n_lists] for queries in search.query_sets]
        rows.append(np.concatenate(dcg))
    levels = np.array(rows)  # part x kind of list
    return int(np.argmax((levels / np.maximum(levels.max(axis=0), 1e-9)).mean(axis=1)))


def _score_scales(components: Sequence[ScoreComponents]) -> Array:
    """Return, by part, the mean standard deviation of scores among a query's candidates.

    A part is a model of the blend. components: per set of held-out queries, the scores (part x
    query x candidate item). 1 for a part whose scores do not differ.
    """
    deviations = np.concatenate([queries.values.std(axis=2) for queries in components], axis=1)
    scales: Array = deviations.mean(axis=1, dtype=np.float64)
    return np.where(scales > 0, scales, 1.0)


def _compute_components(
    models: Sequence[Model], queries: HoldoutQueries, n_items: int, repeats: bool
) -> ScoreComponents:
    """Return the models' scores of each query's candidates: its target, and all listed items.

    queries: histories with the held-out item that came next, the target. Listed are the top items
    of every model; `repeats`: also with seen items. There is one component per model; the single
    segment and log popularity 0 leave scores unscaled.
    """
    histories = queries.histories
    lists_of, unseen = [], ItemFilter(hide_seen=True)
    for model in models:
        lists_of.append([rank_top(model, histories, min(_LIST, n_items), unseen)])
        if repeats:
            lists_of[-1].append(rank_top(model, histories, min(_SEEN_LIST, n_items)))
    items = [ranked[0] for lists in lists_of for ranked in lists]
    candidates = merge_candidates(queries, items, np.ones(n_items, bool))
    values = np.zeros((len(models), *candidates.items.shape), np.float32)
    for part, lists in enumerate(lists_of):
        for ranked in lists:
            scratch = np.full(n_items, np.nan)
            _look_up(candidates.items, candidates.counts, *ranked, scratch, values[part])
    segment = np.zeros(len(queries), np.int64)
    log_popularity = np.zeros(candidates.items.shape, np.float32)
    counts, seen = candidates.counts, candidates.seen
    return ScoreComponents(values, counts, seen, segment, log_popularity, queries.user)


@kernel
def _look_up(
    candidates: Array, counts: Array, items: Array, scores: Array, lengths: Array, score_of: Array,
    out: Array,
) -> None:  # fmt: skip
    """Write the scores of candidates from a model's lists to `out` (query x candidate).

    candidates, counts: items of each query and their number. items, scores, lengths: the lists. An
    unlisted candidate gets the list's lowest score, or 0 if the list is not full, unless `out` has
    a score for it already. score_of: NaN for every item, left as it was.
    """
    for q in range(len(candidates)):
        lowest = scores[q, lengths[q] - 1] if lengths[q] == items.shape[1] else 0.0
        for c in range(lengths[q]):
            score_of[items[q, c]] = scores[q, c]
        for c in range(counts[q]):
            score = score_of[candidates[q, c]]
            if not np.isnan(score):
                out[q, c] = score
            elif out[q, c] == 0.0:
                out[q, c] = lowest
        for c in range(lengths[q]):
            score_of[items[q, c]] = np.nan


# -- trainings from elsewhere ----------------------------------------------------------------------

_PLACE_PARAMETER = "device"  # where a network was trained, which says nothing about the network


def assign_trainings(
    text: str, trainings: Sequence[Any], rows: Mapping[str, Log], whole: str = "blend"
) -> tuple[str, dict[int, list[Any]]]:
    """Return the parts with the settings of their trainings, and the trainings by part number.

    A part is a model of the `whole` (a blend or ranker), a training a neural network that was
    trained elsewhere. text: the parts as the whole names them, such as tempo,sasrec(dim=32).
    trainings: `Training`s or paths. rows: the rows that each part is fitted to, those of the final
    fit first, by a name for errors. TalerecError unless each neural part has one training on each
    of these rows, with the same parameters, and each training a part.
    """
    available = [read_training(training) for training in trainings]
    fingerprints = {name: log_rows(each).fingerprint() for name, each in rows.items()}
    parts, assigned = [], {}
    for number, (name, settings) in enumerate(parse_parts(text)):
        kind = registry.LIBRARY_MODELS[name]
        if issubclass(kind, NeuralModel):
            options, chosen = parse_settings(kind, settings), []
            for where, fingerprint in fingerprints.items():
                training_rows = (where, fingerprint)
                chosen.append(_find_training(kind, options, available, training_rows, whole))
                trained_with = chosen[-1].facts["params"]
                options = {k: v for k, v in trained_with.items() if k != _PLACE_PARAMETER}
            settings = _changed_settings(kind, chosen[0].facts["params"])
            assigned[number] = chosen
        parts.append(f"{name}({'; '.join(settings)})" if settings else name)
    used = [id(training) for chosen in assigned.values() for training in chosen]
    for number, training in enumerate(available, 1):
        if id(training) not in used:
            raise TalerecError(
                f"training {number}, of {training.facts['kind']}, "
                "does not fit any part and the rows that the part is fitted on"
            )
    return ", ".join(parts), assigned


def _find_training(
    kind: type[NeuralModel], options: Mapping[str, Any], trainings: Sequence[Any],
    rows: tuple[str, str], whole: str,
) -> Any:  # fmt: skip
    """Return the only training of a model class with these parameters on these rows.

    A training is a neural network trained elsewhere; `facts` has its model's name, its parameters
    and the fingerprint of its rows. rows: a name of the rows for errors, and the fingerprint to
    find. whole: what the model is a part of. None or several matches are a TalerecError.
    """
    where, fingerprint = rows
    matches = [
        training
        for training in trainings
        if training.facts["kind"] == kind.name
        and training.facts["rows"] == fingerprint
        and options.items() <= training.facts["params"].items()
    ]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise TalerecError(
            f"{len(matches)} trainings of {kind.name} are of the rows of {where}; "
            f"name the part's settings, such as {kind.name}(seed=1)"
        )
    settings = ", ".join(_changed_settings(kind, {**kind().params, **options})) or "its defaults"
    raise TalerecError(
        f"{kind.name}, a part of the {whole}, has no training on the rows of {where} "
        f"with {settings}"
    )


def _changed_settings(kind: type[NeuralModel], values: Mapping[str, Any]) -> list[str]:
    """Return the values that differ from the defaults of a model class, as texts `name=value`."""
    defaults = kind().params
    return [f"{name}={value}" for name, value in values.items() if defaults[name] != value]

"""The parts of a blend: how they are named, and how much each of them counts."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from talerec.data.log import Log
from talerec.errors import TalerecError
from talerec.models.core import inference as asking
from talerec.models.core.base import Model
from talerec.models.tempo.candidates import candidates
from talerec.models.tempo.holdout import Questions
from talerec.models.tempo.search import Choice, Parts, Scale
from talerec.runtime.arrays import Array
from talerec.runtime.jit import kernel

_LIST = 200  # items that a part brings to each question
_SEEN_LIST = 30  # and where people repeat, of a list with what was seen
_PLACES = 20  # of a list that count
_SURE = 2.0  # standard errors by which a part has to help
_ROUNDS = 3
_STEPS = (0.0, 0.05, 0.1, 0.2, 0.35, 0.6, 1.0, 1.6, 2.5)  # weights of a part against the best one

_PART = re.compile(r"\s*([A-Za-z0-9_]+)\s*(?:\(([^()]*)\))?\s*(?:,|$)")


def named(text: str) -> list[tuple[str, list[str]]]:
    """`tempo, ease(reg=500; recency=4)` as names of models, each with its settings."""
    found: list[tuple[str, list[str]]] = []
    at = 0
    while at < len(text) or not found:
        part = _PART.match(text, at)
        if part is None or part.end() == at:
            raise TalerecError(
                f"parts is {text!r}; it takes names of models such as tempo,ease or tempo,ease(reg=500)"
            )
        settings = [one.strip() for one in (part[2] or "").split(";") if one.strip()]
        found.append((part[1], settings))
        at = part.end()
    return found


def weights_of(
    models: Sequence[Model], questions: Sequence[Questions], items: int, *, repeats: bool
) -> Array:
    """How much each of some models counts, fitted on rows without those that questions are about; 0 for one that does not help.

    The best of them counts 1 by its own scale, and another what it adds to that.
    """
    asked = [_written(models, one, items, repeats=repeats) for one in questions]
    scales = _scales(asked)
    for one in asked:
        one.value[...] /= scales[:, None, None]
    best = _best_alone(asked, len(models), repeats)
    weight = np.zeros(len(models))
    weight[best] = 1.0
    scale = Scale(asked, _choice(weight), np.zeros(len(models), bool), repeats, _PLACES)
    for _ in range(_ROUNDS):
        before = weight
        for part in range(len(models)):
            if part == best:
                continue
            tried = [np.where(np.arange(len(models)) == part, step, weight) for step in _STEPS]
            taken = scale.take_best((_choice(one) for one in tried), _SURE)
            weight = weight if taken is None else tried[taken]
        if np.array_equal(before, weight):
            break
    found: Array = (weight / scales) / (weight[best] / scales[best])
    return found


def _choice(weight: Array) -> Choice:
    return Choice(weight[None, :], 0.0)


def _best_alone(asked: Sequence[Parts], parts: int, repeats: bool) -> int:
    """The part that answers the questions best without the others."""
    levels = []
    for part in range(parts):
        alone = _choice((np.arange(parts) == part).astype(np.float64))
        scale = Scale(asked, alone, np.zeros(parts, bool), repeats, _PLACES)
        lists = 2 if repeats else 1
        levels.append(np.concatenate([kind.values.mean(axis=0)[:lists] for kind in scale.kinds]))
    reached = np.array(levels)
    return int(np.argmax((reached / np.maximum(reached.max(axis=0), 1e-9)).mean(axis=1)))


def _scales(asked: Sequence[Parts]) -> Array:
    """How far the scores of each part differ between candidates, as a rule."""
    spread = np.concatenate([one.value.std(axis=2) for one in asked], axis=1)
    found: Array = spread.mean(axis=1, dtype=np.float64)
    return np.where(found > 0, found, 1.0)


def _written(models: Sequence[Model], questions: Questions, items: int, *, repeats: bool) -> Parts:
    """The questions with each model's scores of what any of them puts first."""
    histories = questions.histories
    lists = []
    for model in models:
        unseen = asking.top(model, histories, min(_LIST, items), hide_seen=True)
        lists.append([unseen])
        if repeats:
            lists[-1].append(asking.top(model, histories, min(_SEEN_LIST, items)))
    every = np.ones(items, bool)
    found = candidates(questions, [one[0] for mine in lists for one in mine], every)
    most = int(found[1].max(initial=1))
    item, seen = np.ascontiguousarray(found[0][:, :most]), np.ascontiguousarray(found[2][:, :most])
    value = np.zeros((len(models), *item.shape), np.float32)
    for number, mine in enumerate(lists):
        for one in mine:
            _look_up(item, found[1], *one, np.full(items, np.nan), value[number])
    none = np.zeros(len(questions), np.int64)
    return Parts(value, found[1], seen, none, np.zeros(item.shape, np.float32))


@kernel
def _look_up(
    candidates: Array,
    counts: Array,
    items: Array,
    scores: Array,
    lengths: Array,
    known: Array,
    out: Array,
) -> None:
    """Write the scores of a model's lists beside the candidates; one that is not listed gets no more than the last that is.

    known: NaN for every item, left as found.
    """
    for q in range(len(candidates)):
        least = scores[q, lengths[q] - 1] if lengths[q] == items.shape[1] else 0.0
        for c in range(lengths[q]):
            known[items[q, c]] = scores[q, c]
        for c in range(counts[q]):
            score = known[candidates[q, c]]
            if not np.isnan(score):
                out[q, c] = score
            elif out[q, c] == 0.0:
                out[q, c] = least
        for c in range(lengths[q]):
            known[items[q, c]] = np.nan


def fitted(model: Model, log: Log) -> Model:
    """A part, fitted; one that cannot be is named."""
    try:
        return model.fit(log)
    except TalerecError as error:
        raise TalerecError(
            f"{model.name}, a part of the blend, cannot be fitted: {error}"
        ) from error

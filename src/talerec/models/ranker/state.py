"""A fitted ranker's parts, trees and verdicts, and the arrays that store them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from talerec.data import ItemColumn, Log
from talerec.errors import TalerecError
from talerec.features import (
    ContextRows,
    ContextState,
    FeatureSources,
    ItemTimes,
    empty_context,
    encoders_from_json,
    encoders_to_json,
    feature_groups,
    feature_names,
)
from talerec.models.blend import stack_parts, unstack_parts
from talerec.models.core import ITEM_COLUMNS, Fitted, Model, check_indptr, require
from talerec.models.ranker.candidates import FirstStage
from talerec.models.ranker.content import ContentStage, ItemTable, encode_items, find_content
from talerec.models.ranker.importance import describe_shares
from talerec.models.ranker.learning import Verdict
from talerec.models.ranker.linear import LinearScore
from talerec.models.ranker.padding import can_pad, pad_parts
from talerec.models.ranker.parts import build_parts, name_parts
from talerec.models.ranker.second_stage import SecondStage
from talerec.models.ranker.trees import parse_trees
from talerec.ranking import Weights
from talerec.runtime import Array, Clock

#: Kinds of queries: soon after the rows that the model knows, or long after their end.
KINDS = CURRENT, DELAYED = ("current", "delayed")
_MODES = ("with seen items", "without seen items")
_PREFIX = "ranker_"
_ARRAYS = ("parts", "repeats", "verdicts", "shares", "item_indptr", "item_times", "all_times")


class LearnedTrees(NamedTuple):
    """The result of learning: trees, linear scores, verdicts, shares of groups of features.

    texts: of trees, by kind of query, empty for none. linear: by kind of query, the score from
    which the trees start. verdicts: kind x (seen allowed, seen hidden). shares:
    kind x group, how much each group decides of the order.
    """

    texts: list[bytes]
    linear: list[LinearScore]
    verdicts: list[list[Verdict | None]]
    shares: Array

    @classmethod
    def empty(cls, sources: FeatureSources) -> LearnedTrees:
        """Return the result of learning nothing. sources: what features are named after."""
        zero = LinearScore.zero(len(feature_names(sources)))
        shares = np.zeros((len(KINDS), len(feature_groups(sources).groups)))
        return cls([b"" for _ in KINDS], [zero] * len(KINDS), [[None, None] for _ in KINDS], shares)


class RankerState(NamedTuple):
    """A fitted ranker: the first stage, and a second stage for each kind of query, or None."""

    parts_text: str
    first: FirstStage
    second: list[SecondStage | None]
    trained: LearnedTrees

    @classmethod
    def restore(cls, fitted: Fitted, size: int) -> RankerState:
        """Return the state that a fit stores; TalerecError if its arrays cannot be used.

        size: the largest number of candidates.
        """
        arrays = fitted.weights.query_arrays
        stored = {name: arrays[_PREFIX + name] for name in _ARRAYS}
        text = _as_text(stored["parts"])
        models = build_parts(text)
        _check_parts(arrays, len(models), len(fitted.weights.blocks))
        parts = [part for _, part in unstack_parts(models, fitted)]
        n_items = len(fitted.items)
        times = ItemTimes(stored["item_indptr"], stored["item_times"], stored["all_times"])
        check_indptr("item_indptr", times.indptr, n_items, len(times.times))
        for name, array in zip(times._fields[1:], times[1:], strict=True):
            require(array.dtype == np.int64 and array.ndim == 1, f"{name} is not a list of times")
        require(len(times.times) == len(times.all_times), "there are other times than rows")
        context = _restore_context(arrays, times)
        content = _restore_content(arrays.get(f"{_PREFIX}content"), fitted, parts, times)
        first = FirstStage(parts, times, bool(stored["repeats"][0]), size, context, content)
        texts = [_tree_text(arrays.get(f"{_PREFIX}trees{number}")) for number in range(len(KINDS))]
        names = feature_names(first.sources)
        linear = [
            _restore_linear(arrays.get(f"{_PREFIX}linear{number}"), len(names))
            for number in range(len(KINDS))
        ]
        second = [
            SecondStage(first, parse_trees(trees, names), start) if trees else None
            for trees, start in zip(texts, linear, strict=True)
        ]
        verdicts = _restore_verdicts(stored["verdicts"], len(parts))
        shares, shape = stored["shares"], (len(KINDS), len(feature_groups(first.sources).groups))
        require(shares.shape == shape and shares.dtype == np.float64, "shares have another shape")
        return cls(text, first, second, LearnedTrees(texts, linear, verdicts, shares))

    def check(self) -> None:
        """Raise TalerecError if arrays of a part, loaded from an artifact, are inconsistent."""
        for part in self.first.parts:
            part._check_loaded()

    def find_second(self, kind: int, *, hide_seen: bool) -> SecondStage | None:
        """Return the trees that rank for a kind of query (0: current, 1: delayed); None: a part."""
        verdict = self.trained.verdicts[kind][int(hide_seen)]
        return self.second[kind] if verdict is not None and verdict.uses_trees else None

    def best_part(self, kind: int, *, hide_seen: bool) -> Model:
        """Return the part that ranks if the trees do not: the best one; unknown: the first."""
        verdict = self.trained.verdicts[kind][int(hide_seen)]
        return self.first.parts[0 if verdict is None else verdict.best]

    def describe(self) -> list[str]:
        """Return sentences on which parts and trees rank, and what decides the order."""
        names = name_parts(self.first.parts)
        lines = [f"Candidates come from {', '.join(names)}."]
        verdicts, shares_of = self.trained.verdicts, self.trained.shares
        for kind, row, shares in zip(KINDS, verdicts, shares_of, strict=True):
            for mode, verdict in zip(_MODES, row, strict=True):
                lines.append(describe_verdict(kind, mode, verdict, names))
            if any(verdict is not None and verdict.uses_trees for verdict in row):
                lines.append(
                    describe_shares(kind, shares, feature_groups(self.first.sources).groups)
                )
        return lines

    def update_parts(self, log: Log, clock: Clock) -> Weights:
        """Return weights of the parts learned from all rows of a log; the trees stay.

        What the parts' first fit fixed for updates, such as tempo's query parameters, stays too. A
        content model of the fit stays as it is, and encodes the item table of the log.
        """
        first, updated = self.first, []
        for number, part in enumerate(first.parts):
            with clock(part.name):
                if first.content is not None and number == first.content.part:
                    updated.append(encode_items(part, log))
                    continue
                before = part.prepare_update()
                assert before.update_state is not None
                weights, solver = part.for_update(before.update_state).learn_from(log, clock)
            other = type(part)(**part.params)
            updated.append(other.set_fitted(Fitted.from_log(log, weights, solver, {})))
        context = ContextState.count_rows(first.context.encoders, log)
        times = ItemTimes.from_log(log)
        stage = replace(first, parts=updated, log=times, context=context)
        return store(stage, self.parts_text, self.trained)

    def add_items(self, n_items: int, content: Model) -> Weights:
        """Return the ranker's weights for a catalogue that has grown to `n_items` items.

        content: the part that scores items by content, extended to all items. Other parts know
        items by their rows alone, and give new ones no score; TalerecError if one cannot take them.
        """
        first = self.first
        assert first.content is not None
        parts = [copy(part) for part in first.parts]
        parts[first.content.part] = content
        for part in parts:
            if part.fitted.weights.items < n_items and not can_pad(part):
                raise TalerecError(
                    f"{part.name}, a part of the ranker, takes no new items: refit it"
                )
        pad_parts(parts, n_items)
        indptr = np.pad(first.log.indptr, (0, n_items + 1 - len(first.log.indptr)), mode="edge")
        stage = replace(first, parts=parts, log=first.log._replace(indptr=indptr))
        return store(stage, self.parts_text, self.trained)


def stores_content(weights: Weights) -> bool:
    """Return whether the weights are those of a ranker that uses item features."""
    return f"{_PREFIX}content" in weights.query_arrays


def describe_verdict(kind: str, mode: str, verdict: Verdict | None, names: list[str]) -> str:
    """Return a sentence on what ranks for requests of a kind and mode, and why.

    names: of the parts.
    """
    who = f"{kind.capitalize()} requests, {mode}"
    if verdict is None:
        return f"{who}: no held-out queries were learned from; {names[0]} answers."
    best = names[verdict.best]
    answers = "the trees answer" if verdict.uses_trees else f"{best} answers"
    figures = f"NDCG@10 {verdict.gain:.4f} against {verdict.part_gain:.4f} of {best}"
    detail = f"{figures}, {verdict.z:+.1f} standard errors, {verdict.n_users:,} users"
    return f"{who}: {answers} ({detail})."


def store(stage: FirstStage, text: str, trained: LearnedTrees) -> Weights:
    """Return the weights of a ranker: the stacked blocks of its fitted parts, and its arrays.

    stage: the parts, with facts about the rows. text: the parts as the parameter `parts` names
    them. trained: trees, and verdicts (whether trees or the best part rank, per kind of query).
    The arrays are saved with the model; nothing is written here.
    """
    stacked = stack_parts(stage.parts, np.ones(len(stage.parts)), True)
    times, context = stage.log, stage.context
    arrays = {
        "parts": np.frombuffer(text.encode(), np.uint8),
        "repeats": np.array([stage.joins_history]),
        "verdicts": _store_verdicts(trained.verdicts),
        "shares": trained.shares,
        "item_indptr": times.indptr,
        "item_times": times.times,
        "all_times": times.all_times,
    }
    for number, (trees, linear) in enumerate(zip(trained.texts, trained.linear, strict=True)):
        if trees:
            arrays[f"trees{number}"] = np.frombuffer(trees, np.uint8)
            arrays[f"linear{number}"] = linear.table
    if context.encoders:
        arrays["context"] = np.frombuffer(encoders_to_json(context.encoders), np.uint8)
        arrays |= {f"context_{name}": array for name, array in context.rows._asdict().items()}
    if stage.content is not None:
        arrays["content"] = np.array([stage.content.part])
    ours = {_PREFIX + name: array for name, array in arrays.items()}
    return Weights(stacked.blocks, stacked.base, {**stacked.query_arrays, **ours})


def _restore_content(
    part_index: Array | None, fitted: Fitted, parts: Sequence[Model], times: ItemTimes
) -> ContentStage | None:
    """Return the content stage of a loaded model; None if its fit used no item features.

    The stage has the item features and the content model among `parts`. part_index: the stored
    position of that model in `parts`, shape (1,). TalerecError if it is another part's, or if the
    model's item table is missing or has other columns.
    """
    if part_index is None:
        return None
    is_index = part_index.shape == (1,) and part_index.dtype.kind in "iu"
    is_content = is_index and find_content(parts) == part_index[0]
    require(is_content, "the model of content is another part")
    if fitted.info is None:
        raise TalerecError("the item table is missing")
    columns = [ItemColumn(**column) for column in fitted.training.get(ITEM_COLUMNS, [])]
    has_columns = all(column.name in fitted.info.columns for column in columns)
    require(has_columns, "the item table has other columns")
    table = ItemTable.read(fitted.info, columns)
    item_counts = np.diff(times.indptr)
    return ContentStage.build(table, parts, item_counts, int(fitted.training["last_time"]))


def _tree_text(codes: Array | None) -> bytes:
    """Return the bytes of a stored text of trees; none if there is no array.

    TalerecError if the array is not text.
    """
    if codes is None:
        return b""
    require(codes.dtype == np.uint8 and codes.ndim == 1, "the trees are no text")
    return codes.tobytes()


def _restore_context(arrays: dict[str, Array], times: ItemTimes) -> ContextState:
    """Return the context columns that a fit stored, none for a model without.

    times: the stored times of rows. TalerecError if an array is missing, or cannot be used.
    """
    text = arrays.get(f"{_PREFIX}context")
    if text is None:
        return empty_context()
    require(text.dtype == np.uint8 and text.ndim == 1, "the context columns are no text")
    encoders = encoders_from_json(text.tobytes())
    names = [f"{_PREFIX}context_{name}" for name in ContextRows._fields]
    require(all(name in arrays for name in names), "rows of context columns are missing")
    rows = ContextRows(*(arrays[name] for name in names))
    rows.check(encoders, times.indptr)
    return ContextState(encoders, rows)


def _restore_linear(table: Array | None, n_features: int) -> LinearScore:
    """Return the linear score of a stored table; models saved earlier have none, which adds 0."""
    return LinearScore.zero(n_features) if table is None else LinearScore.restore(table, n_features)


def _as_text(codes: Array) -> str:
    """Return the text of an array of ASCII codes; TalerecError if it is not text."""
    require(codes.dtype == np.uint8 and codes.ndim == 1 and codes.size < 10_000, "parts is no text")
    try:
        return codes.tobytes().decode("ascii")
    except UnicodeDecodeError:
        raise TalerecError("parts is no text") from None


def _check_parts(arrays: dict[str, Array], n_parts: int, n_blocks: int) -> None:
    """Raise TalerecError unless each part has blocks, and these are all blocks."""
    counts = arrays["part_blocks"]
    require(counts.shape == (n_parts,) and counts.dtype.kind in "iu", "there are other parts")
    require((counts > 0).all() and counts.sum() == n_blocks, "the parts have other blocks")


def _store_verdicts(verdicts: list[list[Verdict | None]]) -> Array:
    """Return verdicts as an array, kind x mode x field; a row of -1 stands for none."""
    none = [-1.0] * len(Verdict._fields)
    rows = [[none if each is None else list(map(float, each)) for each in row] for row in verdicts]
    return np.array(rows)


def _restore_verdicts(array: Array, n_parts: int) -> list[list[Verdict | None]]:
    """Return the verdicts that `_store_verdicts` stored; TalerecError for another array."""
    shape = (len(KINDS), 2, len(Verdict._fields))
    require(array.shape == shape and array.dtype == np.float64, "verdicts have another shape")
    require(bool((array[:, :, 0] < n_parts).all()), "a verdict names an unknown part")
    return [[_restore_verdict(row.tolist()) for row in kind] for kind in array]


def _restore_verdict(row: list[float]) -> Verdict | None:
    """Return the verdict of a stored row of its fields; None if the first one is below 0."""
    best, gain, part_gain, z, n_users = row
    return None if best < 0 else Verdict(int(best), gain, part_gain, z, int(n_users))

"""Fit a ranker: parts on training rows, trees on held-out queries, parts on all rows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from talerec.data import Log
from talerec.features import ContextState, FeatureSources, ItemTimes, feature_names
from talerec.models.blend import fit_part, fit_parts
from talerec.models.content import Content, find_types, warn_counting_columns
from talerec.models.core import Model
from talerec.models.networks import NeuralModel
from talerec.models.ranker.candidates import FirstStage
from talerec.models.ranker.content import ContentStage, ItemTable
from talerec.models.ranker.examples import Examples, build_examples, has_seen_target
from talerec.models.ranker.importance import measure_shares
from talerec.models.ranker.learning import MIN_QUERIES, learn_order
from talerec.models.ranker.padding import can_pad, pad_parts
from talerec.models.ranker.parts import build_parts, name_scorers
from talerec.models.ranker.queries import QueryRound, current_round, delayed_rounds
from talerec.models.ranker.second_stage import SecondStage
from talerec.models.ranker.state import KINDS, LearnedTrees, store
from talerec.models.ranker.trees import parse_trees
from talerec.models.tempo import allows_repeats, measure_repeat_rates
from talerec.ranking import Weights
from talerec.runtime import Clock

logger = logging.getLogger("talerec")

_OTHER_MODE = 4  # one query in four is asked in the mode (seen hidden or not) that is less usual


class AssignedTrainings(NamedTuple):
    """Networks trained elsewhere, by part number, and how many kinds of queries have them all.

    Nothing is learned for the other kinds.
    """

    by_part: dict[int, list[Any]]
    n_kinds: int


class LogFacts(NamedTuple):
    """What a first stage knows besides its parts: rows, whether they repeat, and content.

    times, context: of all rows. table: of all items; None for a ranker without item features.
    """

    times: ItemTimes
    context: ContextState
    repeats: bool
    table: ItemTable | None

    @classmethod
    def read(cls, log: Log, *, takes_content: bool) -> LogFacts:
        """Return the facts of a log, and of its item table if the ranker uses it."""
        table, repeats = None, bool(allows_repeats(measure_repeat_rates(log)))
        if takes_content:
            types, log = find_types(log), log.with_catalogue()
            assert log.info is not None
            table = ItemTable.read(log.info, types)
        return cls(ItemTimes.from_log(log), ContextState.learn(log), repeats, table)

    def build_stage(self, parts: list[Model], train: Log, size: int) -> FirstStage:
        """Return the stage that proposes candidates for each query, before trees order them.

        parts: models that propose items, fitted to the rows `train`. size: the largest number of
        candidates of a query. With item features, the stage proposes new items too, and has
        to know which items have no row in `train`, and how old they are at its last row.
        """
        content = None
        if self.table is not None:
            counts = np.bincount(train.item, minlength=len(self.times.indptr) - 1)
            content = ContentStage.build(self.table, parts, counts, int(train.time.max()))
        return FirstStage(parts, self.times, self.repeats, size, self.context, content)


class FitPlan(NamedTuple):
    """What a ranker is fitted with.

    parts: their names. candidates: items that are ordered. rows_back: queries per user. assigned:
    the trainings that neural parts take; without, they are trained here. takes_content: whether one
    of the parts is a model of content, whose items are those of log and item table.
    """

    parts: str
    candidates: int
    rows_back: int
    seed: int
    assigned: AssignedTrainings = AssignedTrainings({}, len(KINDS))
    takes_content: bool = False

    def fit_parts(self, log: Log) -> list[Model]:
        """Return the parts, fitted to a log or taken from the given trainings on its rows."""
        parts = build_parts(self.parts)
        for number, trainings in self.assigned.by_part.items():
            part = parts[number]
            assert isinstance(part, NeuralModel)
            part.use_trainings(trainings)
        return _fit_catalogue(parts, log) if self.takes_content else fit_parts(parts, log, "ranker")


def _fit_catalogue(parts: list[Model], log: Log) -> list[Model]:
    """Return parts fitted to a log, all with the items of log and item table.

    Models of ids are fitted to the items of the log, and get the other ones without weights; those
    whose arrays have a row per item are fitted to all items.
    """
    whole = replace(log.with_catalogue(), context=())
    by_id = [part for part in parts if not isinstance(part, Content | NeuralModel)]
    fit_parts(by_id, log, "ranker")
    for part in parts:
        if part not in by_id or not can_pad(part):
            fit_part(part, whole, "ranker")
    pad_parts(parts, len(whole.items))
    return parts


def learning_rounds(log: Log, rows_back: int, *, asks_new: bool = False) -> list[list[QueryRound]]:
    """Return the rounds of queries to learn from, by kind: none if they have too few queries.

    asks_new: whether targets may be items without training rows.
    """
    current = current_round(log, rows_back, asks_new=asks_new)
    kinds = [current], delayed_rounds(log, asks_new=asks_new)
    n_queries = [sum(len(each.queries) for each in rounds) for rounds in kinds]
    return [rounds if n >= MIN_QUERIES else [] for rounds, n in zip(kinds, n_queries, strict=True)]


def fit_ranker(plan: FitPlan, log: Log, clock: Clock) -> Weights:
    """Return the weights of a ranker fitted to a log: those of its parts, and its trees.

    clock: adds up the seconds of each stage.
    """
    if plan.takes_content:
        warn_counting_columns(log)
    facts = LogFacts.read(log, takes_content=plan.takes_content)
    columns = None if facts.table is None else facts.table.columns
    sources = FeatureSources(name_scorers(build_parts(plan.parts)), facts.context.names, columns)
    kinds = learning_rounds(log, plan.rows_back, asks_new=plan.takes_content)

    def ask(kind: int) -> AskedQueries | None:
        """Return the examples of a kind of query, None if nothing is learned for it."""
        rounds = kinds[kind] if kind < plan.assigned.n_kinds else []
        return _ask_rounds(plan, rounds, facts, clock) if rounds else None

    learned_trees = learn_kinds(ask, sources, plan.seed, clock)
    with clock("parts"):
        fitted = plan.fit_parts(log)
    stage = facts.build_stage(fitted, log, plan.candidates)
    return store(stage, plan.parts, learned_trees)


def learn_kinds(
    ask: Callable[[int], AskedQueries | None], sources: FeatureSources, seed: int, clock: Clock
) -> LearnedTrees:
    """Return what is learned for current and for delayed queries.

    ask: returns the examples of a kind of query by its number, None if nothing is learned for it.
    sources: what features are named after. seed: of the division of users.
    """
    names, trees = feature_names(sources), LearnedTrees.empty(sources)
    for number in range(len(KINDS)):
        queries, trained = ask(number), None
        if queries is not None:
            with clock("trees"):
                trained = learn_order(queries.examples, names, seed)
            if trained is not None:
                parsed = parse_trees(trained.text, names)
                second = SecondStage(queries.stage, parsed, trained.linear)
                trees.shares[number] = measure_shares(second, queries.examples)
                trees.texts[number], trees.linear[number] = trained.text, trained.linear
                trees.verdicts[number] = trained.verdicts
        del queries  # gigabytes on large logs, not needed by the next fits
    return trees


class AskedQueries(NamedTuple):
    """Examples of one kind of query: with seen items, and without; and a stage that was asked."""

    examples: list[Examples]
    stage: FirstStage


def _ask_rounds(
    plan: FitPlan, rounds: list[QueryRound], facts: LogFacts, clock: Clock
) -> AskedQueries:
    """Return the examples of all rounds, with seen items and without, and the last stage.

    The parts are fitted to the training rows of each round.
    """
    sets = []
    for held_out in rounds:
        with clock("parts of held-out rows"):
            parts = plan.fit_parts(held_out.train)
        stage = facts.build_stage(parts, held_out.train, plan.candidates)
        with clock("features"):
            sets.append(ask_queries(stage, held_out, facts.repeats))
    return AskedQueries([Examples.join(each) for each in zip(*sets, strict=True)], stage)


def ask_queries(
    stage: FirstStage, held_out: QueryRound, repeats: bool, first: int = 0
) -> list[Examples]:
    """Return the examples of a round: with seen items allowed, and with them hidden.

    If users repeat items, all queries are asked with seen items, and those for unseen items without
    them, too. Otherwise all are asked without seen items, and one in four with them, so that the
    trees learn what to make of seen items. first: the number of the first query, if these are some
    of all queries.
    """
    every = np.arange(len(held_out.queries))
    is_unseen = ~has_seen_target(held_out.queries)
    allowed = every if repeats else every[-first % _OTHER_MODE :: _OTHER_MODE]
    hidden = every[is_unseen]
    return [
        build_examples(stage, held_out, allowed, hide_seen=False),
        build_examples(stage, held_out, hidden, hide_seen=True),
    ]

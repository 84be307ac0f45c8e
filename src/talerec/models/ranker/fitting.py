"""Fit a ranker: parts on training rows, trees on held-out queries, parts on all rows."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import numpy as np

from talerec.data import Log
from talerec.features import ContextState, FeatureSources, ItemTimes, feature_groups, feature_names
from talerec.models.blend import fit_parts
from talerec.models.core import Model
from talerec.models.networks import NeuralModel
from talerec.models.ranker.candidates import FirstStage
from talerec.models.ranker.examples import Examples, build_examples, has_seen_target
from talerec.models.ranker.importance import measure_shares
from talerec.models.ranker.learning import MIN_QUERIES, Verdict, learn_order
from talerec.models.ranker.linear import LinearScore
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


class FitPlan(NamedTuple):
    """What a ranker is fitted with.

    parts: their names. candidates: items that are ordered. rows_back: queries per user. assigned:
    the trainings that neural parts take; without, they are trained here.
    """

    parts: str
    candidates: int
    rows_back: int
    seed: int
    assigned: AssignedTrainings = AssignedTrainings({}, len(KINDS))

    def fit_parts(self, log: Log) -> list[Model]:
        """Return the parts, fitted to a log or taken from the given trainings on its rows."""
        parts = build_parts(self.parts)
        for number, trainings in self.assigned.by_part.items():
            part = parts[number]
            assert isinstance(part, NeuralModel)
            part.use_trainings(trainings)
        return fit_parts(parts, log, "ranker")


def learning_rounds(log: Log, rows_back: int) -> list[list[QueryRound]]:
    """Return the rounds of queries to learn from, by kind: none if they have too few queries."""
    kinds = [current_round(log, rows_back)], delayed_rounds(log)
    n_queries = [sum(len(each.queries) for each in rounds) for rounds in kinds]
    return [rounds if n >= MIN_QUERIES else [] for rounds, n in zip(kinds, n_queries, strict=True)]


def fit_ranker(plan: FitPlan, log: Log, clock: Clock) -> Weights:
    """Return the weights of a ranker fitted to a log: those of its parts, and its trees.

    clock: adds up the seconds of each stage.
    """
    repeats = bool(allows_repeats(measure_repeat_rates(log)))
    times = ItemTimes.from_log(log)
    context = ContextState.learn(log)
    sources = FeatureSources(name_scorers(build_parts(plan.parts)), context.names)
    names = feature_names(sources)
    texts: list[bytes] = []
    linear: list[LinearScore] = []
    verdicts: list[list[Verdict | None]] = []
    shares = np.zeros((len(KINDS), len(feature_groups(sources).groups)))
    for number, rounds in enumerate(learning_rounds(log, plan.rows_back)):
        trained = None
        if rounds and number < plan.assigned.n_kinds:
            examples, stage = _ask_rounds(plan, rounds, (times, context), repeats, clock)
            with clock("trees"):
                trained = learn_order(examples, names, plan.seed)
            if trained is not None:
                second = SecondStage(stage, parse_trees(trained.text, names), trained.linear)
                shares[number] = measure_shares(second, examples)
            del examples, stage  # gigabytes on large logs, not needed by the next fits
        texts.append(b"" if trained is None else trained.text)
        linear.append(LinearScore.zero(len(names)) if trained is None else trained.linear)
        verdicts.append([None, None] if trained is None else trained.verdicts)
    with clock("parts"):
        fitted = plan.fit_parts(log)
    trained_kinds = LearnedTrees(texts, linear, verdicts, shares)
    return store(fitted, plan.parts, log, repeats, trained_kinds, context)


def _ask_rounds(
    plan: FitPlan, rounds: list[QueryRound], rows: tuple[ItemTimes, ContextState], repeats: bool,
    clock: Clock,
) -> tuple[list[Examples], FirstStage]:  # fmt: skip
    """Return the examples of all rounds, with seen items and without, and the last stage.

    The parts are fitted to the training rows of each round. rows: times and contexts of all rows.
    repeats: whether users repeat items.
    """
    sets = []
    for held_out in rounds:
        with clock("parts of held-out rows"):
            parts = plan.fit_parts(held_out.train)
        stage = FirstStage(parts, rows[0], repeats, plan.candidates, rows[1])
        with clock("features"):
            sets.append(_ask(stage, held_out, repeats))
    return [Examples.join(each) for each in zip(*sets, strict=True)], stage


def _ask(stage: FirstStage, held_out: QueryRound, repeats: bool) -> list[Examples]:
    """Return the examples of a round: with seen items allowed, and with them hidden.

    If users repeat items, all queries are asked with seen items, and those for unseen items without
    them, too. Otherwise all are asked without seen items, and one in four with them, so that the
    trees learn what to make of seen items.
    """
    every = np.arange(len(held_out.queries))
    is_unseen = ~has_seen_target(held_out.queries)
    allowed = every if repeats else every[::_OTHER_MODE]
    hidden = every[is_unseen]
    return [
        build_examples(stage, held_out, allowed, hide_seen=False),
        build_examples(stage, held_out, hidden, hide_seen=True),
    ]

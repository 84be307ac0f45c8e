"""Candidates, part scores and ranks of one kernel against lists that are ranked one by one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import talerec as tr
from talerec.data import Histories
from talerec.features import ItemTimes
from talerec.models.ranker import FirstStage
from talerec.models.ranker.candidates import CandidateItems
from talerec.models.ranker.parts import build_views
from talerec.ranking import Mask, rank_queries

PARTS = {
    "tempo": tr.Tempo, "ease": tr.EASE, "sknn": tr.SKNN, "rules": tr.Rules, "markov": tr.Markov,
    "popular": tr.Popular, "trending": tr.Trending,
}  # fmt: skip


def fit_stage(log: tr.Log, names: list[str], *, joins_history: bool, size: int) -> FirstStage:
    parts = [PARTS[name]().fit(log) for name in names]
    return FirstStage(parts, ItemTimes.from_log(log), joins_history, size)


@pytest.fixture(scope="module", params=[300, 8000])
def stage(request) -> FirstStage:
    """Parts with dense, sparse and neighbor weights, repeats, base scores; few items or many."""
    log = tr.synthetic_log(4000, items=request.param, users=250, seed=3)
    return fit_stage(log, list(PARTS), joins_history=True, size=70)


def slow_lists(stage: FirstStage, histories: Histories, mask: Mask) -> list[list[dict[int, float]]]:
    """Return, per part and history, the allowed items with scores, best first."""
    lists = []
    for part in [*stage.parts, *build_views(stage.parts)]:
        weights = part.fitted.weights
        ranked = rank_queries(weights, part.query(histories), mask, weights.items)
        rows = zip(ranked.items, ranked.scores, ranked.counts, strict=True)
        lists.append([dict(zip(i[:n].tolist(), s[:n].tolist(), strict=True)) for i, s, n in rows])
    return lists


def slow_join(listed: list[list[int]], size: int) -> list[int]:
    """Return the items with the largest sums of 1 / (rank + 10); equal sums by position."""
    sums: dict[int, float] = {}
    for items in listed:
        for rank, item in enumerate(items):
            sums[item] = sums.get(item, 0.0) + 1.0 / (rank + 10.0)
    return sorted(sums, key=lambda item: (-sums[item], item))[:size]


def same(a: Any, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def check(
    stage: FirstStage, histories: Histories, mask: Mask, candidates: CandidateItems, targets: Any
) -> None:
    every = slow_lists(stage, histories, Mask.make(histories, hide_seen=False))
    allowed = slow_lists(stage, histories, mask)
    for h in range(len(histories)):
        items = candidates.items[h, : candidates.counts[h]].tolist()
        history = histories.item[histories.start[h] : histories.stop[h]].tolist()
        listed = [list(part[h])[:100] for part in allowed[: len(stage.parts)]]
        if stage.joins_history and not mask.hide_seen:
            recent = [i for i in dict.fromkeys(reversed(history)) if i >= 0]
            if len(mask.allowed):
                recent = [i for i in recent if mask.allowed[i]]
            listed.append(recent[:50])
        assert items == slow_join(listed, stage.size)
        for p, lists in enumerate(every):
            ranked = list(lists[h])[:200]
            unseen = [item for item in ranked if item not in history]
            for c, item in enumerate(items):
                assert same(candidates.parts.scores[p, h, c], lists[h].get(item, math.nan))
                among = ranked if item in history else unseen
                rank = among.index(item) if item in among else math.nan
                assert same(candidates.parts.ranks[p, h, c], rank)
            tops = [lists[h][some[0]] if some else math.nan for some in (ranked, unseen)]
            assert all(map(same, candidates.parts.tops[p, h], tops))
            if targets is not None:
                order = list(allowed[p][h])
                rank = order.index(targets[h]) + 1 if targets[h] in order else 0
                assert candidates.target_ranks[h, p] == rank
                assert same(candidates.target_scores[h, p], lists[h].get(targets[h], math.nan))


@pytest.mark.parametrize("hide_seen", [False, True])
@pytest.mark.parametrize("filtered", [False, True])
def test_one_pass_finds_what_separate_lists_have(stage, hide_seen, filtered):
    log = stage.parts[0].fitted.log
    rng = np.random.default_rng(1)
    histories = Histories.of_users(log, np.arange(0, 250, 25))
    n_items = len(log.items)
    flags = (rng.random(n_items) < 0.3).astype(np.uint8) if filtered else None
    mask = Mask.make(histories, hide_seen=hide_seen, allowed=flags)
    targets = rng.integers(-1, n_items, len(histories))
    targets[:5] = histories.item[histories.start[:5]]  # seen ones
    candidates = stage.find_candidates(histories, mask, targets)
    check(stage, histories, mask, candidates, targets)
    again = stage.find_candidates(histories, mask)  # nothing is left in the work space
    assert all(map(np.array_equal, again[:2], candidates[:2]))


def test_given_items_have_the_scores_of_candidates(stage):
    histories = Histories.of_users(stage.parts[0].fitted.log, np.arange(20))
    mask = Mask.make(histories, hide_seen=False)
    candidates = stage.find_candidates(histories, mask)
    given = stage.score_candidates(histories, candidates.items.copy(), candidates.counts.copy())
    for a, b in zip(candidates.parts, given.parts, strict=True):
        np.testing.assert_array_equal(a, b)


def test_unknown_items_empty_histories_and_long_ones(stage):
    """Half of the catalogue seen: the lists of unseen items reach beyond the ranked ones."""
    log = stage.parts[0].fitted.log
    n_items = len(log.items)
    item = np.concatenate([[-1, -1, 3], np.arange(0, n_items, 2)]).astype(np.int32)
    time = log.time.max() - np.arange(len(item))[::-1]
    histories = Histories(np.array([0, 2, 0, 3]), np.array([0, 2, 3, len(item)]), item, time)
    for hide_seen in (False, True):
        mask = Mask.make(histories, hide_seen=hide_seen)
        targets = np.array([5, 6, 3, n_items - 1])
        candidates = stage.find_candidates(histories, mask, targets)
        check(stage, histories, mask, candidates, targets)


def test_catalogues_whose_lists_are_ranked_in_hash_tables(monkeypatch):
    """The lists of such parts come from another kernel, with the same scores to the last bit."""
    monkeypatch.setattr("talerec.ranking.weights._DENSE_UP_TO", 100)
    log = tr.synthetic_log(3000, items=6000, users=150, seed=5)
    stage = fit_stage(log, ["tempo", "sknn", "rules", "markov"], joins_history=False, size=70)
    assert not any(part.fitted.weights.uses_dense_scores for part in stage.parts)
    histories = Histories.of_users(log, np.arange(0, 150, 11))
    for hide_seen in (False, True):
        mask = Mask.make(histories, hide_seen=hide_seen)
        check(stage, histories, mask, stage.find_candidates(histories, mask), None)

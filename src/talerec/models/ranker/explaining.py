"""What rows of a history and families of features contribute to the scores of a ranker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from talerec.data import Histories
from talerec.features import FAMILIES, ReasonGroups, feature_groups
from talerec.models.core import Model, TopItems, join_reasons
from talerec.models.ranker.candidates import Requests
from talerec.models.ranker.second_stage import ScoredItems, SecondStage
from talerec.ranking import ExplainedLists, FamilyShare, Mask
from talerec.runtime import Array

_FAMILY_NAMES = [family.name for family in FAMILIES]
_PARTS, _REPEATS = _FAMILY_NAMES.index("parts"), _FAMILY_NAMES.index("repeats")


class ItemExplanations(NamedTuple):
    """What explains the scores of one request's items.

    rows: item x (history rows, then what no row adds); they add up to the scores. families: what
    families of features add to each item; None for an item that trees do not score. whole: of each
    item, the number of which contributions are shares: the sum of its families' absolute
    contributions; NaN without families: its score.
    """

    rows: Array
    families: list[list[FamilyShare] | None]
    whole: Array


def explain_by_trees(
    second: SecondStage, requests: Requests, items: Array, is_candidate: Array,
    scored: ScoredItems | None = None,
) -> ItemExplanations:  # fmt: skip
    """Return what explains the scores of one request's items.

    scored: the candidates among the items, with their features; None: they are computed.
    What the family of the parts adds is divided among the history's rows by their contributions to
    the score of the part that ranks the item best; what repeats add belongs to the item's last row.
    An item that is not a candidate is explained by the first part.
    """
    rows = np.zeros((len(items), len(requests.histories.item) + 1))
    families: list[list[FamilyShare] | None] = [None] * len(items)
    chosen, others = np.flatnonzero(is_candidate), np.flatnonzero(~is_candidate)
    if others.size:
        rows[others] = _explain_non_candidates(second, requests, items[others])
    whole = np.full(len(items), np.nan)
    if chosen.size:
        scored = scored or second.score_items(requests, items[chosen])
        by_group = second.sum_by_group(scored.rows)
        groups = feature_groups(second.first.sources)
        by_family = _sum_by_family(groups, by_group)
        rows[chosen] = _divide_among_rows(second, requests, scored, by_family)
        rows[chosen, -1] += scored.scores
        whole[chosen] = np.abs(by_family).sum(axis=1)
        listed = _list_families(groups, by_group, by_family)
        for n, shares in zip(chosen.tolist(), listed, strict=True):
            families[n] = shares
    return ItemExplanations(rows, families, whole)


def explain_by_part(rows: Array) -> ItemExplanations:
    """Return the explanation of items that a part ranks: its contributions, item x rows."""
    no_families: list[list[FamilyShare] | None] = [None] * len(rows)
    with_rest = np.column_stack([rows, np.zeros(len(rows))])
    return ItemExplanations(with_rest, no_families, np.full(len(rows), np.nan))


def join_explanations(
    histories: Histories, lists: TopItems, explained: Sequence[ItemExplanations], n_reasons: int
) -> ExplainedLists:
    """Return lists with the reasons of their items: history items, and families of features.

    explained: what explains the listed items of each history. n_reasons: history items per listed
    item. The share of a history item is of the sum of the families' absolute contributions.
    """
    whole = lists.scores.copy()
    for h, each in enumerate(explained):
        has_families = np.flatnonzero(~np.isnan(each.whole))
        whole[h, has_families] = each.whole[has_families]
    rows = (each.rows[:, :-1] for each in explained)
    answer = join_reasons(histories, lists._replace(scores=whole), rows, n_reasons)
    is_listed = np.arange(lists.items.shape[1]) < lists.counts[:, None]
    families = [family for each in explained for family in each.families]
    return answer._replace(scores=lists.scores[is_listed].tolist(), families=families)


def _list_families(
    groups: ReasonGroups, by_group: Array, by_family: Array
) -> list[list[FamilyShare]]:
    """Return what each family of features adds to each item's score, with a reason.

    by_group, by_family: item x group, and item x family of features. The reason of a family is that
    of its group that adds most to what the family adds.
    """
    members: list[list[int]] = [[] for _ in FAMILIES]
    for group, family in enumerate(groups.family):
        members[family].append(group)
    whole = np.maximum(np.abs(by_family).sum(axis=1), 1e-300)
    rows = zip(by_group.tolist(), by_family.tolist(), whole.tolist(), strict=True)
    return [
        [
            FamilyShare(
                _FAMILY_NAMES[number], _reason(groups, which, added, total), total, total / all_
            )
            for number, (which, total) in enumerate(zip(members, totals, strict=True))
            if which  # a log without context has no such features
        ]
        for added, totals, all_ in rows
    ]


def _reason(groups: ReasonGroups, members: list[int], added: list[float], total: float) -> str:
    """Return the reason of the group, among members of a family, that adds most to its total."""
    choose = max if total >= 0 else min
    return groups.groups[choose(members, key=added.__getitem__)].reason


def _sum_by_family(groups: ReasonGroups, contributions: Array) -> Array:
    """Return contributions of groups of features (item x group) by family: item x family."""
    sums = np.zeros((len(contributions), len(FAMILIES)))
    for group, family in enumerate(groups.family):
        sums[:, family] += contributions[:, group]
    return sums


def _divide_among_rows(
    second: SecondStage, requests: Requests, scored: ScoredItems, by_family: Array
) -> Array:
    """Return what history rows contribute to candidates; the last column is minus their sum.

    by_family: item x family of features.
    """
    history, items = requests.histories, scored.items
    n_rows = len(history.item)
    out = np.zeros((len(items), n_rows + 1))
    ranks = scored.ranks[: len(second.first.parts)]  # without those of views
    best = np.where(np.isnan(ranks), np.inf, ranks).argmin(axis=0)
    parts = zip(second.first.parts, scored.queries, strict=False)  # views follow
    for number, (part, query) in enumerate(parts):
        members = np.flatnonzero(best == number)
        if members.size:
            rows = np.abs(part.contributions(query, history, items[members]))
            total = rows.sum(axis=1) + np.abs(_base_scores(part, history, items[members]))
            shares = rows / np.where(total > 0, total, 1.0)[:, None]
            out[members, :n_rows] = shares * by_family[members, _PARTS, None]
    last = {item: row for row, item in enumerate(history.item.tolist())}
    for n, item in enumerate(items.tolist()):
        if item in last:
            out[n, last[item]] += by_family[n, _REPEATS]
    out[:, -1] = -out[:, :-1].sum(axis=1)
    return out


def _explain_non_candidates(second: SecondStage, requests: Requests, items: Array) -> Array:
    """Return what history rows add to the scores of items that trees do not score: item x row.

    The last column is what no row adds. Such items have the first part's scores, shifted below
    those of all candidates.
    """
    history, first = requests.histories, second.first.parts[0]
    rows = next(iter(first.explain_targets(history, [items])))
    everything = Mask.make(history, hide_seen=False)
    top = float(first.rank_masked(history, everything, 1).scores[0, 0])
    base = _base_scores(first, history, items)
    return np.column_stack([rows, base - top + second.floor])


def _base_scores(part: Model, history: Histories, items: Array) -> Array:
    """Return the part of each item's score that no history row contributes; 0 without one."""
    scores = part.base_scores(history, items)
    return np.zeros(len(items)) if scores is None else scores


def are_candidates(second: SecondStage, requests: Requests, items: Array) -> Array:
    """Return a flag per item: whether it is a candidate of one request without filters."""
    histories = requests.histories
    mask = Mask.make(histories, hide_seen=False)
    candidates = second.first.find_candidates(histories, mask)
    flags: Array = np.isin(items, candidates.items[0, : candidates.counts[0]])
    return flags

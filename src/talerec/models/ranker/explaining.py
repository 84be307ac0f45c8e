"""What rows of a history contribute to the scores of a ranker."""

from __future__ import annotations

import numpy as np

from talerec.features import FAMILIES
from talerec.models.ranker.candidates import Requests
from talerec.models.ranker.second_stage import SecondStage
from talerec.ranking import Mask
from talerec.runtime import Array

_REPEATS = [family.name for family in FAMILIES].index("repeats")


def explain_by_trees(
    second: SecondStage, requests: Requests, items: Array, is_candidate: Array
) -> Array:
    """Return contributions to the scores of one request's items: item x (rows, rest).

    What the family of the parts adds is divided among the history's rows by their contributions to
    the score of the part that ranks the item best; what repeats add belongs to the item's last row.
    An item that is no candidate is explained by the first part.
    """
    history = requests.histories
    n_rows = len(history.item)
    out = np.zeros((len(items), n_rows + 1))
    chosen, others = np.flatnonzero(is_candidate), np.flatnonzero(~is_candidate)
    if chosen.size:
        out[chosen] = _explain_candidates(second, requests, items[chosen])
    if others.size:
        out[others] = _explain_others(second, requests, items[others])
    return out


def _explain_candidates(second: SecondStage, requests: Requests, items: Array) -> Array:
    """Return contributions to the scores of candidates: item x (history rows, rest)."""
    history = requests.histories
    n_rows = len(history.item)
    out = np.zeros((len(items), n_rows + 1))
    families, scores, ranks = second.explain(requests, items)
    best = np.where(np.isnan(ranks), np.inf, ranks).argmin(axis=0)
    for number, part in enumerate(second.first.parts):
        members = np.flatnonzero(best == number)
        if members.size:
            rows = np.abs(next(iter(part.explain_targets(history, [items[members]]))))
            base = [abs(part.base_score(history, int(item)) or 0.0) for item in items[members]]
            total = rows.sum(axis=1) + base
            shares = rows / np.where(total > 0, total, 1.0)[:, None]
            out[members, :n_rows] = shares * families[members, :1]
    last = {item: row for row, item in enumerate(history.item.tolist())}
    for n, item in enumerate(items.tolist()):
        if item in last:
            out[n, last[item]] += families[n, _REPEATS]
    out[:, -1] = scores - out[:, :-1].sum(axis=1)
    return out


def _explain_others(second: SecondStage, requests: Requests, items: Array) -> Array:
    """Return contributions to the scores of items that are no candidates."""
    history, first = requests.histories, second.first.parts[0]
    rows = next(iter(first.explain_targets(history, [items])))
    everything = Mask.make(history, hide_seen=False)
    top = float(first.rank_masked(history, everything, 1).scores[0, 0])
    base = [first.base_score(history, int(item)) or 0.0 for item in items]
    return np.column_stack([rows, np.array(base) - top + second.floor])


def are_candidates(second: SecondStage, requests: Requests, items: Array) -> Array:
    """Return a flag per item: whether it is a candidate of one request without filters."""
    histories = requests.histories
    mask = Mask.make(histories, hide_seen=False)
    candidates = second.first.find_candidates(histories, mask)
    flags: Array = np.isin(items, candidates.items[0, : candidates.counts[0]])
    return flags

"""Which order of users finds those who take an item next? On validation rows.

    python benchmarks/audience.py DATA/ml-100k.inter.gz [--model tempo] [--hide-seen] [--items 60]

For items that at least three validation cases take next, the users of all cases are ordered by
several quantities of the model's scores; the table has the share of an item's takers among the
first 1 % and 5 % of the users, and the mean place of a taker (1: first, .5: chance), with standard
errors over items.
"""

from __future__ import annotations

import argparse

import numpy as np

import talerec as tr
from talerec.models import model_class
from talerec.models.core import ItemFilter, rank_targets, rank_top

MAX_CASES = 6000
DEPTH = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("log")
    parser.add_argument("--model", default="tempo")
    parser.add_argument("--hide-seen", action="store_true")
    parser.add_argument("--items", type=int, default=60)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    split = tr.leave_one_out(tr.read_log(args.log))
    model = model_class(args.model)().fit(split.train)
    cases = split.cases("validation")
    if len(cases) > MAX_CASES:
        cases = cases.take(np.sort(rng.choice(len(cases), MAX_CASES, replace=False)))
    cases = cases.take(rng.permutation(len(cases)))
    counts = np.bincount(cases.target[cases.target >= 0], minlength=len(model.fitted.items))
    pool = np.flatnonzero(counts >= 3)
    items = rng.choice(pool, min(args.items, len(pool)), replace=False)
    lists = rank_top(model, cases.histories, DEPTH, ItemFilter(args.hide_seen))
    found: dict[str, list[list[float]]] = {}
    for item in items:
        takers = np.flatnonzero(cases.target == item)
        for name, keys in order_keys(model, cases.histories, lists, item, args.hide_seen).items():
            place = np.empty(len(cases))
            place[np.lexsort(keys[::-1])] = np.arange(len(cases)) / len(cases)
            shares = [np.mean(place[takers] < part) for part in (0.01, 0.05)]
            found.setdefault(name, []).append([*shares, 1 - np.mean(place[takers])])
    print(f"{args.log}, {args.model}: {len(cases):,} users, {len(items)} items")
    for name, rows in found.items():
        mean, error = np.mean(rows, axis=0), np.std(rows, axis=0) / np.sqrt(len(rows))
        cells = (f"{m:.4f} +- {e:.4f}" for m, e in zip(mean, error, strict=True))
        print(f"{name:12} {'   '.join(cells)}")


def order_keys(model, histories, lists, item, hide_seen):
    """Return the sort keys of users by name of an order; the least come first."""
    n_users = len(histories)
    rows = np.arange(n_users)
    flags = np.zeros(len(model.fitted.items), np.uint8)
    flags[item] = 1
    alone = rank_top(model, histories, 1, ItemFilter(hide_seen, flags))
    targets = np.full(n_users, item)
    rank = rank_targets(model, histories, targets, hide_seen=hide_seen).ranks[:, int(hide_seen)]
    is_scored = (alone.counts > 0) & (rank > 0)
    score = np.where(is_scored, alone.scores[:, 0], np.nan)
    first = lists.scores[:, 0]
    last = lists.scores[rows, np.clip(lists.counts, 1, DEPTH) - 1]
    spread = np.where(first > last, first - last, np.inf)
    lead = (score - np.where(rank == 1, lists.scores[:, 1], first)) / spread
    total = np.where(lists.scores > 0, lists.scores, 0).sum(axis=1)
    mean, deviation = np.nanmean(lists.scores, axis=1), np.nanstd(lists.scores, axis=1)
    relative = np.exp(10 * (lists.scores - first[:, None]) / spread[:, None])
    quantities = {
        "score": score,
        "share": score / np.where(total > 0, total, np.inf),
        "softmax": np.exp(10 * (score - first) / spread) / np.nansum(relative, axis=1),
        "z": (score - mean) / np.where(deviation > 0, deviation, np.inf),
        "lead": lead,
    }
    keys = {
        name: (np.nan_to_num(-values, nan=np.inf, posinf=np.inf),)
        for name, values in quantities.items()
    }
    by_rank = np.where(is_scored, rank, np.iinfo(np.int64).max)
    by_length = (histories.start - histories.stop,)
    return {**keys, "rank, lead": (by_rank, *keys["lead"]), "most rows": by_length}


if __name__ == "__main__":
    main()

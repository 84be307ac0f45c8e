"""Models of what the user took before: against counting by hand."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
from hypothesis import given, settings

import talerec as tr
from logs import at, histories_of, logs, rows_of, tiny_log
from talerec.errors import TalerecError


@given(logs(max_users=4, max_items=6, max_rows=30))
@settings(max_examples=20, deadline=None)
def test_scores_equal_counts_by_hand(log):
    models = {"frequency": tr.Personal(), "decay": tr.Personal(decay=0.3), "last": tr.LastBasket()}
    popularity = defaultdict(int)
    for _, item, _ in rows_of(log):
        popularity[item] += 1
    for rule, model in models.items():
        model.fit(log)
        for history in histories_of(rows_of(log)).values():
            times = sorted({time for *_, time in history})
            scores = {item: 1e-6 * count / log.rows for item, count in popularity.items()}
            for _, item, time in history:
                later = len(times) - 1 - times.index(time)
                weight = {"frequency": 1.0, "decay": math.exp(-0.3 * later), "last": later == 0}
                scores[item] += weight[rule]
            top = model.recommend_histories([[(i, at(t)) for _, i, t in history]], k=len(scores))
            shown = dict(zip(top["item_id"], top["score"], strict=True))
            assert shown == pytest.approx(scores)


def test_unknown_items_and_empty_histories_leave_popularity():
    model = tr.Personal().fit(tiny_log([("a", 1, 1), ("b", 1, 2), ("b", 2, 3)]))
    lists = model.recommend_histories([[], [99], [99, 2]], k=2, unknown="skip")
    assert lists["item_id"].to_list() == [1, 2, 1, 2, 2, 1]


def test_the_decay_is_a_number_from_0():
    with pytest.raises(TalerecError, match="decay"):
        tr.Personal(decay=-1)

"""Statistics of lists beyond accuracy, against slow twins by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import talerec as tr
from talerec.evaluation import Evaluation, evaluate_log
from talerec.evaluation.list_metrics import (
    exposure_gini,
    find_new_items,
    list_calibrations,
    list_diversities,
    new_item_shares,
    read_categories,
)
from talerec.runtime import sparse

N_ITEMS, N_CATEGORIES, K = 9, 5, 4


def draw(seed):
    """Return lists, history rows (item, case) and sets of categories; some are empty or unknown."""
    rng = np.random.default_rng(seed)
    n_cases = 12
    lists = np.array([rng.permutation(N_ITEMS)[:K] for _ in range(n_cases)])
    for case, length in enumerate(rng.integers(0, K + 1, n_cases)):
        lists[case, length:] = -1
    case = np.repeat(np.arange(n_cases), rng.integers(0, 5, n_cases))
    items = rng.integers(-1, N_ITEMS, len(case))
    sets = [set(np.flatnonzero(rng.random(N_CATEGORIES) < 0.4).tolist()) for _ in range(N_ITEMS)]
    rows = np.array([[float(c in own) for c in range(N_CATEGORIES)] for own in sets])
    return lists, items, case, sets, sparse.csr_array(rows)


def as_nan(values):
    return [math.nan if value is None else value for value in values]


def slow_new(lists, items, case, k):
    shares = []
    for number, row in enumerate(lists):
        listed = [item for item in row[:k] if item >= 0]
        history = set(items[case == number]) - {-1}
        shares.append(sum(i not in history for i in listed) / len(listed) if listed else None)
    return shares


def slow_diversity(lists, sets):
    values = []
    for row in lists:
        listed = [item for item in row if item >= 0 and sets[item]]
        distances = [
            1 - len(sets[a] & sets[b]) / len(sets[a] | sets[b])
            for number, a in enumerate(listed)
            for b in listed[:number]
        ]
        values.append(sum(distances) / len(distances) if distances else None)
    return values


def slow_shares(chosen, sets):
    weights = dict.fromkeys(range(N_CATEGORIES), 0.0)
    for item in chosen:
        for category in sets[item]:
            weights[category] += 1 / len(sets[item])
    total = sum(weights.values())
    return {c: w / total for c, w in weights.items()} if total else None


def slow_calibration(lists, items, case, sets):
    values = []
    for number, row in enumerate(lists):
        p = slow_shares([i for i in items[case == number] if i >= 0], sets)
        q = slow_shares([i for i in row if i >= 0], sets)
        if p is None or q is None:
            values.append(None)
            continue
        mixed = {c: 0.99 * q[c] + 0.01 * p[c] for c in p}
        values.append(sum(p[c] * math.log(p[c] / mixed[c]) for c in p if p[c] > 0))
    return values


@pytest.mark.parametrize("seed", range(12))
def test_statistics_of_lists_equal_their_slow_twins(seed):
    lists, items, case, sets, categories = draw(seed)
    for k in (1, 3, K):
        new = new_item_shares(lists, find_new_items(lists, items, case), k)
        assert new == pytest.approx(as_nan(slow_new(lists, items, case, k)), nan_ok=True)
    diversity = list_diversities(lists, categories)
    assert diversity == pytest.approx(as_nan(slow_diversity(lists, sets)), nan_ok=True)
    calibration = list_calibrations(lists, items, case, categories)
    expected = as_nan(slow_calibration(lists, items, case, sets))
    assert calibration == pytest.approx(expected, nan_ok=True, abs=1e-12)
    counts = [int((lists == item).sum()) for item in range(N_ITEMS)]
    total = sum(abs(a - b) for a in counts for b in counts)
    gini = total / (2 * N_ITEMS * sum(counts)) if sum(counts) else 0.0
    assert exposure_gini(np.array(counts)) == pytest.approx(gini)


def test_diversity_of_items_beyond_the_square_root_of_int32():
    """Pairs are numbers first * n_items + second, beyond 2^31 from 46,341 items on."""
    categories = sparse.csr_array((np.arange(60_000)[:, None] % 7 == np.arange(7)) * 1.0)
    lists = np.array([[59_999, 59_992], [59_999, 59_998]], np.int32)
    np.testing.assert_array_equal(list_diversities(lists, categories), [0.0, 1.0])


def test_exposure_of_equal_and_of_single_items():
    assert exposure_gini(np.ones(4, int)) == 0
    assert exposure_gini(np.array([5, 0, 0, 0])) == 0.75
    assert exposure_gini(np.zeros(4, int)) == 0


def test_no_list_and_no_history_have_no_values():
    none = np.full((2, 3), -1)
    empty = np.empty(0, np.int64)
    assert np.isnan(new_item_shares(none, find_new_items(none, empty, empty), 3)).all()
    _, _, _, _, categories = draw(0)
    assert np.isnan(list_diversities(none, categories)).all()
    assert np.isnan(list_calibrations(none, empty, empty, categories)).all()


@pytest.fixture(scope="module")
def log():
    return replace(tr.synthetic_log(1500, items=30, seed=3), info=None, catalogue=None)


def test_a_result_has_new_items_and_gini_always_and_the_rest_with_an_item_table(log, tmp_path):
    plain = evaluate_log(tr.Rules(), log)
    assert {"gini@10", "new@10", "coverage@10"} <= set(plain.lists)
    assert not {"diversity@10", "calibration@10"} & set(plain.lists)
    table = pl.DataFrame(
        {"item_id": log.items.ids, "tag": ["a|b" if i % 2 else "b|c" for i in range(30)]}
    )
    with_table = evaluate_log(tr.Rules(), log.with_items(table))
    assert 0 < with_table.lists["diversity@10"] < 1
    assert with_table.lists["calibration@10"] > 0
    assert with_table.lists["diversity@1"] is None  # a list of one item has no pair
    assert with_table.lists["novelty@10"] == plain.lists["novelty@10"]
    assert Evaluation.load(with_table.save(tmp_path / "r.parquet")).lists == with_table.lists
    assert "Diversity" in with_table.report()


def test_hidden_lists_have_new_items_alone(log):
    assert evaluate_log(tr.Rules(), log, hide_seen=True).lists["new@10"] == 1


def test_a_table_without_categories_is_none(log):
    assert read_categories(log) is None
    prices = pl.DataFrame({"item_id": log.items.ids, "price": np.arange(30.0)})
    assert read_categories(log.with_items(prices)) is None
    empty = pl.DataFrame({"item_id": log.items.ids, "tag": pl.Series([None] * 30, dtype=pl.String)})
    assert read_categories(log.with_items(empty)) is None

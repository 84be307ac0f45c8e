"""TALE's Gram: equal to rows built by hand, and to itself under what must not change it."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
from logs import logs, tiny_log
from talerec.errors import TalerecError
from talerec.gram import Gram, accumulate
from talerec.gram import gram as gram_arithmetic
from talerec.gram.builders import tale_gram
from talerec.gram.gram import DirectionStats
from talerec.gram.lag_pairs import slit_sums
from talerec.gram.terms import late_trend_counts, newest_rows, trend_scale
from talerec.models.linear import TALE
from talerec.runtime import arrays
from talerec.solvers import solve_gram

UNTIMED = {"decay": 1.0, "floor": 1.0, "trend": 0.0}
EPS = np.finfo(np.float64).eps


def gram(log, **settings):
    defaults = {
        "decay": 1.0,
        "floor": 0.3,
        "window": 180.0,
        "trend": 0.0,
        "trend_side": "both",
        "same_time": "ordered",
        "max_history": 2500,
    }
    return tale_gram(log, **(defaults | settings))


def dense(result: Gram):
    return arrays.dense(result.G), arrays.dense(result.K)


def assert_rounding(actual, expected, terms):
    """Assert equality up to float64 rounding of sums of `terms` products."""
    np.testing.assert_allclose(actual, expected, rtol=64 * terms * EPS, atol=1e-290)


decays = st.one_of(
    st.sampled_from([1e-10, 1 / 512, 0.5, 1.0, 365.0, 1e6, np.inf]), st.floats(1e-9, 1e5)
)
floors = st.one_of(st.sampled_from([0.0, 1.0, 0.3, 1e-12]), st.floats(0, 1))
choices = st.fixed_dictionaries(
    {
        "decay": decays,
        "floor": floors,
        "trend": st.sampled_from([0.0, 0.1, 0.5, 1.0]),
        "window": st.sampled_from([0.0, 1.0, 180.0, 1e6]),
        "trend_side": st.sampled_from(["both", "past"]),
        "same_time": st.sampled_from(["ordered", "joint"]),
    }
)


@pytest.mark.parametrize("entry", [0, 10**6], ids=["sparse", "dense"])
@given(logs(max_users=4, max_items=6, max_rows=40), choices)
@settings(max_examples=int(os.environ.get("TALEREC_EXAMPLES", "200")), deadline=None)
def test_gram_equals_rows_built_by_hand(entry, log, chosen):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accumulate, "_SMALL", 0)
        patch.setattr(accumulate, "_SPARSE_ENTRY", entry)
        result = gram(log, **chosen)
    assert result.is_sparse == (entry == 0)
    G, K = dense(result)
    expected_G, expected_K = oracle.gram(*oracle.tale_rows(log, **chosen))
    assert_rounding(G, expected_G, log.rows)
    assert_rounding(K, expected_K, log.rows)


@pytest.mark.parametrize("same_time", ["ordered", "joint"])
@pytest.mark.parametrize("floor", [0.0, 0.2, 1.0])
def test_a_long_history_equals_rows_built_by_hand(floor, same_time):
    rng = np.random.default_rng(5)
    gaps = rng.choice([0, 0, 1e-6, 5, 600, 86_400, 3e6], size=300).cumsum()
    log = tiny_log(
        [(1, int(i), 1e9 + t) for i, t in zip(rng.integers(0, 9, 300), gaps, strict=True)]
    )
    chosen = {"decay": 0.5, "floor": floor, "trend": 0.1, "same_time": same_time}
    G, K = dense(gram(log, **chosen))
    expected_G, expected_K = oracle.gram(*oracle.tale_rows(log, **chosen))
    assert_rounding(G, expected_G, log.rows)
    assert_rounding(K, expected_K, log.rows)


@given(logs(max_users=4, max_items=4, max_rows=40), st.sampled_from([0.0, 1.0, 180.0]))
@settings(max_examples=100, deadline=None)
def test_trend_scale_counts_rows_of_the_same_item_in_the_window(log, window):
    for side in ("both", "past"):
        counts = oracle.trend_counts(log.item, log.time, window, side)
        np.testing.assert_allclose(trend_scale(log, window, 0.5, side), counts**-0.5)


@given(logs(max_users=3, max_items=3, max_rows=20), st.integers(0, 99), st.sampled_from([0.0, 180]))
@settings(max_examples=100, deadline=None)
def test_late_trend_counts_are_those_of_the_whole_log_for_new_rows(log, seed, window):
    is_new = np.random.default_rng(seed).random(log.rows) < 0.3
    for side in ("both", "past"):
        whole = oracle.trend_counts(log.item, log.time, window, side)
        counts = late_trend_counts(log, is_new, window, side)
        np.testing.assert_array_equal(counts, np.where(is_new, whole, 1))


def test_sparse_and_dense_accumulation_agree_to_the_last_bit(monkeypatch):
    log = tiny_log([(u, (u * 7 + s * s) % 11, 1e9 + 3600 * s) for u in range(30) for s in range(8)])
    grams = {}
    monkeypatch.setattr(accumulate, "_SMALL", 0)
    for entry in (0, 10**6):  # bytes an entry is thought to take: none, or far too many
        monkeypatch.setattr(accumulate, "_SPARSE_ENTRY", entry)
        grams[entry] = gram(log, trend=0.1)
    assert grams[0].is_sparse
    assert not grams[10**6].is_sparse
    for a, b in zip(dense(grams[0]), dense(grams[10**6]), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("entry", [0, 10**6])
def test_any_number_of_threads_gives_the_same_bits(monkeypatch, entry):
    rng = np.random.default_rng(0)
    rows = [
        (int(u), int(i), 1e9 + float(t)) for u, i, t in rng.integers(0, [50, 40, 10**7], (2000, 3))
    ]
    log = tiny_log(rows)
    monkeypatch.setattr(accumulate, "_SMALL", 0)
    monkeypatch.setattr(accumulate, "_SPARSE_ENTRY", entry)
    results = []
    for threads in ("1", "2", "7"):
        monkeypatch.setenv("TALEREC_THREADS", threads)
        results.append(dense(gram(log, trend=0.1)))
    for other in results[1:]:
        np.testing.assert_array_equal(results[0][0], other[0])
        np.testing.assert_array_equal(results[0][1], other[1])


@given(logs(max_users=6, max_items=6, max_rows=40))
@settings(max_examples=50, deadline=None)
def test_grams_of_two_halves_of_the_users_add_up_to_the_whole(log):
    is_first = np.arange(len(log.users)) < len(log.users) // 2
    rows = np.repeat(is_first, np.diff(log.ptr))
    added = gram(log.keep(rows)) + gram(log.keep(~rows))
    for part, whole in zip(dense(added), dense(gram(log)), strict=True):
        assert_rounding(part, whole, log.rows)


@given(logs(max_users=4, max_items=5, max_rows=30), st.sampled_from([0.0, 0.1, 0.5]))
@settings(max_examples=30, deadline=None)
def test_every_user_twice_with_reg_times_2_to_1_minus_2_trend_gives_the_same_weights(log, trend):
    twice = replace(
        log,
        ptr=np.concatenate([log.ptr, log.ptr[1:] + log.rows]),
        item=np.tile(log.item, 2),
        time=np.tile(log.time, 2),
        users=type(log.users)(log.users.ids.append(log.users.ids)),
    )
    once = TALE(reg=3.0, trend=trend, solver="exact").fit(log)
    doubled = TALE(reg=3.0 * 2 ** (1 - 2 * trend), trend=trend, solver="exact").fit(twice)
    np.testing.assert_allclose(once.weights, doubled.weights, rtol=1e-4, atol=1e-6)


@given(logs(max_users=4, max_items=5, max_rows=30), st.sampled_from(["ordered", "joint"]))
@settings(max_examples=50, deadline=None)
def test_endless_decay_and_floor_one_are_both_the_untimed_model(log, same_time):
    untimed = dense(gram(log, floor=1.0, same_time=same_time))
    endless = dense(gram(log, decay=np.inf, floor=0.2, same_time=same_time))
    for a, b in zip(untimed, endless, strict=True):
        assert_rounding(a, b, log.rows)


def test_only_the_last_rows_of_a_long_history_count():
    rows = [(1, i % 5, 1e9 + i) for i in range(100)]
    cut, whole = gram(tiny_log(rows), max_history=10), gram(tiny_log(rows[-10:]))
    for a, b in zip(dense(cut), dense(whole), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_blend_of_grams_is_their_weighted_sum():
    log = tiny_log([(1, 1, 1e9), (1, 2, 2e9), (1, 1, 3e9)])
    timed, untimed = gram(log), gram(log, floor=1.0)
    blend = 0.25 * timed + untimed * 0.75
    G, K = dense(blend)
    np.testing.assert_allclose(G, 0.25 * dense(timed)[0] + 0.75 * dense(untimed)[0])
    np.testing.assert_allclose(K, 0.25 * dense(timed)[1] + 0.75 * dense(untimed)[1])


def random_log(rows=3000, users=60, items=150):
    rng = np.random.default_rng(2)
    drawn = rng.integers(0, [users, items, 10**7], (rows, 3))
    return tiny_log([(int(u), int(i), 1e9 + float(t)) for u, i, t in drawn])


def test_a_budget_that_float64_would_break_is_kept_with_float32_and_says_so(monkeypatch, caplog):
    monkeypatch.setattr(accumulate, "_SMALL", 0)
    monkeypatch.setattr(accumulate, "_SPARSE_ENTRY", 0)
    log = random_log()
    full = gram(log)
    entries = full.K.nnz
    with caplog.at_level("WARNING", "talerec"):
        lean = gram(log, memory=entries * 30)
    assert lean.G.dtype == lean.K.dtype == np.float32
    assert "float32" in caplog.text
    np.testing.assert_allclose(lean.G.toarray(), full.G.toarray(), rtol=1e-6)
    np.testing.assert_allclose(lean.K.toarray(), full.K.toarray(), rtol=1e-6)
    for solver in ("exact", "local"):
        a, b = (
            solve_gram(result, 10.0, solver=solver, neighbors=40).weights for result in (lean, full)
        )
        a, b = (result if solver == "exact" else result.toarray() for result in (a, b))
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6)


def test_a_dense_gram_that_does_not_fit_is_refused_before_the_work(monkeypatch):
    with pytest.raises(
        TalerecError, match=r"dense Gram of 5 items needs 400 bytes, but 1 bytes is allowed"
    ):
        gram(tiny_log([(1, i, 1e9 + i) for i in range(5)] * 2), memory=1)


def test_a_log_of_more_rows_than_kernels_can_count_is_refused():
    whole = SimpleNamespace(recent=lambda _: np.array([True]), rows=2**31 - 1)
    assert newest_rows(whole, 10) is whole
    with pytest.raises(TalerecError, match="one machine takes up to 2,147,483,647"):
        newest_rows(SimpleNamespace(recent=whole.recent, rows=2**31), 10)


def test_a_budget_that_nothing_fits_is_refused_before_the_work_with_sizes(monkeypatch):
    monkeypatch.setattr(accumulate, "_SMALL", 0)
    monkeypatch.setattr(accumulate, "_SPARSE_ENTRY", 0)
    with pytest.raises(TalerecError, match=r"pairs of items needs .* KB, but 1 KB is allowed"):
        gram(random_log(), memory=1000)


def test_the_gram_is_symmetric_and_its_rows_are_sorted(monkeypatch):
    monkeypatch.setattr(accumulate, "_SMALL", 0)
    monkeypatch.setattr(accumulate, "_SPARSE_ENTRY", 0)
    result = gram(random_log(), trend=0.1)
    # SciPy sometimes widens them
    assert result.G.indices.dtype == result.K.indices.dtype == np.int32
    G = result.G
    assert (G - G.T).nnz == 0 or np.abs((G - G.T).data).max() == 0
    for i in range(G.shape[0]):
        row = G.indices[G.indptr[i] : G.indptr[i + 1]]
        assert (np.diff(row) > 0).all()


def test_a_gram_shows_its_size_and_form(monkeypatch):
    log = tiny_log([(1, i, 1e9 + i) for i in range(5)])
    assert repr(gram(log)) == "Gram(5 items, dense)"
    monkeypatch.setattr(accumulate, "_SMALL", 0)
    monkeypatch.setattr(accumulate, "_SPARSE_ENTRY", 0)
    assert repr(gram(log)) == "Gram(5 items, sparse, 100.00% stored)"


@pytest.mark.parametrize(
    ("old", "new", "args"),
    [
        ("two_way", "symmetrize", (1.0, 0.5)),
        ("with_turned", "add_reverse", (0.5,)),
        ("turned_share", "reverse_share", (1.0, 0.5)),
    ],
)
def test_old_names_of_methods_work_and_warn(old, new, args):
    log_gram = gram(random_log())
    with pytest.warns(DeprecationWarning, match=f"Gram.{old} is now Gram.{new}"):
        result = getattr(log_gram, old)(*args)
    expected = getattr(log_gram, new)(*args)
    if old == "turned_share":
        assert result == expected
    else:
        np.testing.assert_array_equal(dense(result)[1], dense(expected)[1])


@pytest.mark.parametrize("multi", [False, True])
def test_sums_of_slits_rows_and_columns_equal_sums_over_all_pairs(multi):
    rng = np.random.default_rng(3)
    ptr, rate = np.array([0, 4, 4, 5, 11]), 0.7
    scale = rng.uniform(0.5, 2.0, ptr[-1])
    expected = np.zeros((4, ptr[-1]))
    source, target, as_source, as_target = expected
    for first, end in pairwise(ptr.tolist()):
        for r in range(first, end):  # the last row of S; the targets are the rows after it
            for s in range(first, r + 1):
                source[r] += scale[s] * rate ** (r - s)
                as_source[s] += scale[s] * rate ** (r - s) * (r + 1 < end)
            for h in range(r + 1, end if multi else min(r + 2, end)):
                target[r] += scale[h] * rate ** (h - r - 1)
                as_target[h] += scale[h] * rate ** (h - r - 1)
    for sums, by_hand in zip(slit_sums(ptr, scale, rate, multi), expected, strict=True):
        assert_rounding(sums, by_hand, 10)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_dense_gram_larger_than_a_tile_gains_the_reverse_pairs_of_every_entry(order):
    n = 2 * gram_arithmetic._TILE + 7
    K = np.asarray(np.random.default_rng(1).random((n, n)), order=order)
    both = Gram(np.eye(n), K).add_reverse(0.25)
    np.testing.assert_array_equal(both.K, K + 0.25 * K.T)
    asymmetry = ((K - K.T) ** 2).sum()
    stats = DirectionStats(asymmetry, K.sum(), np.trace(K), float(n), simultaneous=0.0)
    share = Gram(np.eye(n), K).reverse_share(1.0)
    assert 0 < share == pytest.approx(stats.reverse_share(1.0), rel=1e-12)

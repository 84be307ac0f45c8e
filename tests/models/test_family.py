"""Linear models: Grams of rows built by hand, weights by least squares, related models."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import oracle
from logs import logs, tiny_log
from talerec import EASE, EDLAE, RDLAE, SLIS, SLIST, SLIT, TALE, Association, Markov, Rules
from talerec.data import Histories
from talerec.errors import TalerecError
from talerec.gram import Gram, accumulate, lag_counts, slis_gram
from talerec.gram.builders import slit_gram, tale_gram
from talerec.runtime import is_sparse
from talerec.solvers import solve_gram

EPS = np.finfo(np.float64).eps
EVERY = 10**6  # neighbors: all of them
SOLVERS = ("exact", "local")
some = settings(max_examples=40, deadline=None)
many = settings(max_examples=int(os.environ.get("TALEREC_EXAMPLES", "100")), deadline=None)
both_forms = pytest.mark.parametrize("entry", [0, 10**6], ids=["sparse", "dense"])


@st.composite
def gappy_logs(draw, max_users=4, max_items=6, max_rows=30):
    """Logs in which at times an item, and then perhaps a user, is known but has no rows."""
    log = draw(logs(max_users, max_items, max_rows))
    is_kept = log.item != draw(st.sampled_from([-1, 0, len(log.items) - 1]))
    return log.keep(is_kept) if is_kept.any() else log


def as_array(matrix):
    return matrix.toarray() if is_sparse(matrix) else np.asarray(matrix)


def dense(result: Gram):
    return as_array(result.G), as_array(result.K)


def fitted(model, log):
    return as_array(model.fit(log).weights)


def made_as(entry, make):
    """The result of `make` with Grams stored sparse (0 bytes per entry) or dense."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accumulate, "_SMALL", 0)
        patch.setattr(accumulate, "_SPARSE_ENTRY", entry)
        result = make()
    assert is_sparse(result.G if isinstance(result, Gram) else result) == (entry == 0)
    return result


def assert_rounding(actual, expected, terms):
    """Equal but for float64 rounding of sums of `terms` products, and of exponents up to 745."""
    rtol = (64 * terms + 745) * EPS
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=1e-290)


def assert_gram(result, rows, terms):
    for actual, expected in zip(dense(result), oracle.gram(*rows), strict=True):
        assert_rounding(actual, expected, terms)


def assert_weights(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


# -- Grams -----------------------------------------------------------------------------------------

decays = st.one_of(
    st.sampled_from([1e-10, 1 / 512, 0.5, 1.0, 365.0, 1e6, np.inf]), st.floats(1e-9, 1e5)
)
floors = st.one_of(st.sampled_from([0.0, 1.0, 0.3, 1e-12]), st.floats(0, 1))
positions = st.one_of(st.sampled_from([1e-10, 0.01, 0.25, 1.0, 16.0, np.inf]), st.floats(1e-3, 1e4))
trends = {
    "trend": st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    "window": st.sampled_from([0.0, 1.0, 180.0, 1e6]),
    "trend_side": st.sampled_from(["both", "past"]),
}
shared = {
    "norm": st.sampled_from(["none", "l1", "symmetric"]),
    "decay_user": st.sampled_from([0.0, 1e-6, 0.5, 30.0, 1e4, np.inf]),
}
targets = st.sampled_from(["single", "multi"])
by_place = st.fixed_dictionaries({"position": positions, "targets": targets} | shared | trends)
by_time = st.fixed_dictionaries({"decay": decays, "floor": floors} | trends)
alike = st.fixed_dictionaries(shared)


@both_forms
@given(gappy_logs(max_rows=40), by_place)
@many
def test_the_slit_gram_equals_rows_built_by_hand(entry, log, chosen):
    result = made_as(entry, lambda: slit_gram(log, max_history=2500, **chosen))
    assert_gram(result, oracle.slit_rows(log, **chosen), log.rows)


@both_forms
@given(gappy_logs(max_rows=40), by_time)
@many
def test_the_tale_gram_with_several_targets_equals_rows_built_by_hand(entry, log, chosen):
    several = {"same_time": "ordered", "max_history": 2500, "targets": "multi"}
    result = made_as(entry, lambda: tale_gram(log, **several, **chosen))
    assert_gram(result, oracle.tale_multi_rows(log, **chosen), log.rows)


@both_forms
@given(gappy_logs(max_rows=40), alike)
@many
def test_the_slis_gram_equals_rows_built_by_hand_and_its_k_is_its_g(entry, log, chosen):
    result = made_as(entry, lambda: slis_gram(log, max_history=2500, **chosen))
    X = oracle.slis_rows(log, **chosen)
    assert_gram(result, (X, X), log.rows)
    np.testing.assert_array_equal(*dense(result))


def long_log():
    rng = np.random.default_rng(5)
    gaps = rng.choice([0, 0, 1e-6, 5, 600, 86_400, 3e6], size=300).cumsum()
    items = rng.integers(0, 9, 300)
    return tiny_log([(1, int(i), 1e9 + t) for i, t in zip(items, gaps, strict=True)])


@pytest.mark.parametrize("position", [0.3, 40.0])
@pytest.mark.parametrize("norm", ["none", "l1", "symmetric"])
def test_a_long_history_by_place_equals_rows_built_by_hand(norm, position):
    chosen = {"position": position, "norm": norm, "trend": 0.1, "window": 3.0}
    result = slit_gram(long_log(), max_history=2500, **chosen)
    assert_gram(result, oracle.slit_rows(long_log(), **chosen), 300)


@pytest.mark.parametrize("floor", [0.0, 0.2, 1.0])
def test_a_long_history_with_several_targets_equals_rows_built_by_hand(floor):
    chosen = {"decay": 0.5, "floor": floor, "trend": 0.1, "window": 3.0, "trend_side": "past"}
    several = {"same_time": "ordered", "max_history": 2500, "targets": "multi"}
    result = tale_gram(long_log(), **several, **chosen)
    assert_gram(result, oracle.tale_multi_rows(long_log(), **chosen), 300)


def test_several_targets_with_joint_instants_are_refused():
    log = tiny_log([(1, 1, 1e9), (1, 2, 1e9)])
    with pytest.raises(TalerecError, match="targets=single"):
        TALE(targets="multi", same_time="joint").fit(log)


@given(gappy_logs(), by_place, st.integers(1, 6))
@some
def test_only_the_last_rows_of_a_history_count(log, chosen, most):
    is_kept = np.zeros(log.rows, bool)
    for rows in oracle.user_rows(log):
        is_kept[rows[-most:]] = True
    cut = log.keep(is_kept)
    result = slit_gram(log, max_history=most, **chosen)
    assert_gram(result, oracle.slit_rows(cut, **chosen), log.rows)
    X = oracle.slis_rows(cut)
    assert_gram(slis_gram(log, max_history=most), (X, X), log.rows)
    counts = lag_counts(log, np.array([0.0, 1.0, 0.5]), max_history=most)
    expected = oracle.later_counts(cut, lambda d: {1: 1.0, 2: 0.5}.get(d, 0.0))
    assert_rounding(as_array(counts), expected, log.rows)


@given(logs(max_users=6, max_items=6, max_rows=40), targets, st.sampled_from(["none", "l1"]))
@some
def test_grams_of_two_halves_of_the_users_add_up_to_the_whole(log, targets, norm):
    is_first_half = np.arange(len(log.users)) < len(log.users) // 2
    in_first_half = np.repeat(is_first_half, np.diff(log.ptr))
    settings = {"norm": norm, "max_history": 2500}
    for make in (
        lambda part: slit_gram(part, position=1.5, targets=targets, **settings),
        lambda part: slis_gram(part, **settings),
    ):
        added = make(log.keep(in_first_half)) + make(log.keep(~in_first_half))
        for part, whole in zip(dense(added), dense(make(log)), strict=True):
            assert_rounding(part, whole, log.rows)


# -- counting --------------------------------------------------------------------------------------


@both_forms
@given(gappy_logs(max_rows=40), st.lists(st.floats(0, 10), min_size=1, max_size=6))
@some
def test_gap_counts_equal_counting_by_hand(entry, log, given_weights):
    weight = np.array([0.0, *given_weights])
    actual = made_as(entry, lambda: lag_counts(log, weight, max_history=2500))
    expected = oracle.later_counts(log, lambda d: weight[d] if d < len(weight) else 0.0)
    assert_rounding(as_array(actual), expected, log.rows)


@both_forms
@given(gappy_logs(max_rows=40), st.integers(1, 12))
@some
def test_counting_models_count_as_one_does_by_hand(entry, log, steps):
    answers = {
        Markov(): oracle.later_counts(log, lambda d: float(d == 1)),
        Rules(steps=steps): oracle.later_counts(log, lambda d: 1 / d if d <= steps else 0.0),
        Association(): oracle.together_counts(log),
    }
    for model, expected in answers.items():
        actual = as_array(made_as(entry, lambda model=model: model.fit(log).weights))
        assert actual.dtype == np.float32
        np.testing.assert_allclose(actual, expected, rtol=1e-6)


# -- a bound on the diagonal -----------------------------------------------------------------------

regs = st.sampled_from([0.5, 10.0, 100.0, 1e6])
bounds = st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0, 3.0])
dropouts = st.sampled_from([0.0, 0.3, 0.9, 0.99])


@pytest.mark.parametrize("solver", SOLVERS)
@given(gappy_logs(), regs, bounds, alike)
@some
def test_slis_equals_least_squares_with_a_bound(solver, log, reg, xi, chosen):
    model = SLIS(reg=reg, xi=xi, solver=solver, neighbors=EVERY, **chosen)
    X = oracle.slis_rows(log, **chosen)
    assert_weights(fitted(model, log), oracle.bounded(X, np.full(X.shape[1], reg), xi))


@pytest.mark.parametrize("solver", SOLVERS)
@given(gappy_logs(), regs, bounds, dropouts)
@some
def test_autoencoders_equal_least_squares_with_a_bound(solver, log, reg, xi, dropout):
    X = oracle.slis_rows(log)
    plain = np.full(X.shape[1], reg)
    dropped = plain + dropout / (1 - dropout) * (X**2).sum(axis=0)
    how = {"reg": reg, "solver": solver, "neighbors": EVERY}
    answers = {
        EASE(**how): (plain, 0.0),
        EDLAE(dropout=dropout, **how): (dropped, 0.0),
        RDLAE(dropout=dropout, xi=xi, **how): (dropped, xi),
    }
    for model, (penalty, most) in answers.items():
        assert_weights(fitted(model, log), oracle.bounded(X, penalty, most))


@pytest.mark.parametrize("xi", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("reg", [0.01, 0.5, 10.0])
def test_local_weights_keep_the_bound_and_are_better_than_none(reg, xi):
    rng = np.random.default_rng(0)
    for neighbors in (1, 2, 3, 4) * 4:
        items = (18 * rng.random(180) ** 2).astype(int)  # a few of them are popular
        log = tiny_log([(int(rng.integers(14)), int(i), 1e9) for i in items])
        actual = fitted(SLIS(reg=reg, xi=xi, solver="local", neighbors=neighbors), log)
        X = oracle.slis_rows(log)
        loss = ((X - X @ actual) ** 2).sum(axis=0) + reg * (actual**2).sum(axis=0)
        assert (loss <= (X**2).sum(axis=0) * (1 + 1e-5)).all()
        assert actual.diagonal().min() >= 0
        assert actual.diagonal().max() <= xi + 1e-6


unseen = tiny_log([(u, i, 1e9 + i) for u in range(3) for i in range(4)])
unseen = unseen.keep(unseen.item != 2)  # as a split leaves them: an item without training rows


@pytest.mark.parametrize(
    ("solver", "neighbors"), [("exact", EVERY), ("local", 1), ("local", 2), ("local", EVERY)]
)
@given(gappy_logs(), st.one_of(regs, st.floats(1e-3, 1e12)), dropouts)
@example(unseen, 100.0, 0.3)
@some
def test_an_item_has_no_weight_at_all_for_itself(solver, neighbors, log, reg, dropout):
    how = {"reg": reg, "solver": solver, "neighbors": neighbors}
    for model in (EASE(**how), EDLAE(dropout=dropout, **how), SLIS(xi=0, **how)):
        assert not fitted(model, log).diagonal().any()


together = tiny_log([(u, i, 1e9 + i) for u in range(300) for i in range(40)])


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("xi", [0.0, 0.01, 1.0])
@pytest.mark.parametrize("reg", [1e-4, 1e-3, 1.0])
def test_items_that_always_come_together_equal_least_squares_with_a_bound(reg, xi, solver):
    actual = fitted(SLIS(reg=reg, xi=xi, solver=solver, neighbors=EVERY), together)
    X = np.sqrt(300) * np.ones((1, 40))  # the Gram of 300 equal rows
    expected = oracle.bounded(X, np.full(40, reg), xi)
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-5)  # all are about 1 / 40
    assert xi > 0 or not actual.diagonal().any()


# -- weights ---------------------------------------------------------------------------------------

shares = st.sampled_from([0.0, 0.2, 0.7, 1.0])
sessions = st.fixed_dictionaries(
    {"position": st.sampled_from([0.25, 1.0, 16.0]), "targets": targets} | shared
)


@pytest.mark.parametrize("solver", SOLVERS)
@given(gappy_logs(), regs, shares, sessions)
@some
def test_slit_and_slist_equal_least_squares(solver, log, reg, alpha, chosen):
    how = {"reg": reg, "solver": solver, "neighbors": EVERY, **chosen}
    S, T = oracle.slit_rows(log, **chosen)
    X = oracle.slis_rows(log, norm=chosen["norm"], decay_user=chosen["decay_user"])
    assert_weights(fitted(SLIT(**how), log), oracle.ridge(S, T, reg))
    expected = oracle.ridge(*oracle.blend(alpha, X, S, T), reg)
    assert_weights(fitted(SLIST(alpha=alpha, **how), log), expected)


@pytest.mark.parametrize("solver", SOLVERS)
@given(gappy_logs(), regs, shares, st.sampled_from(["ordered", "joint"]))
@some
def test_tale_with_a_share_of_slis_equals_least_squares(solver, log, reg, alpha, same_time):
    rows = oracle.tale_rows(log, decay=1.0, floor=0.3, trend=0.1, same_time=same_time)
    expected = oracle.ridge(*oracle.blend(alpha, oracle.slis_rows(log), *rows), reg)
    model = TALE(reg=reg, alpha=alpha, same_time=same_time, solver=solver, neighbors=EVERY)
    assert_weights(fitted(model, log), expected)


@pytest.mark.parametrize("trend", [0.0, 0.1])
@pytest.mark.parametrize("position", [0.0, 1.0])
@pytest.mark.parametrize("targets", ["single", "multi"])
@given(gappy_logs(), regs)
@settings(max_examples=20, deadline=None)
def test_each_ablation_of_tale_equals_least_squares(targets, position, trend, log, reg):
    popularity = {"trend": trend, "window": 30.0}
    if position:
        rows = oracle.slit_rows(log, position=position, targets=targets, **popularity)
    elif targets == "multi":
        rows = oracle.tale_multi_rows(log, decay=0.5, floor=0.2, **popularity)
    else:
        rows = oracle.tale_rows(log, decay=0.5, floor=0.2, **popularity)
    model = TALE(
        reg=reg, decay=0.5, floor=0.2, targets=targets, position=position, solver="exact",
        **popularity,
    )  # fmt: skip
    assert_weights(fitted(model, log), oracle.ridge(*rows, reg))


# -- direction and identities ----------------------------------------------------------------------

one_then_two = tiny_log([(u, i, 1e9 + i) for u in range(8) for i in (1, 2)] + [(9, 3, 1e9)])


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("kind", [SLIT, SLIST, TALE], ids=lambda kind: kind.name)
def test_what_always_follows_is_expected_after_and_not_before(kind, solver):
    model = kind(reg=1.0, solver=solver).fit(one_then_two)
    assert model.similar_items(1, k=1)["item_id"].to_list() == [2]
    B = as_array(model.weights)
    assert B[0, 1] > max(B[1, 0], 0)


@pytest.mark.parametrize("kind", [Markov, Rules], ids=lambda kind: kind.name)
def test_what_always_follows_is_counted_in_one_direction_only(kind):
    model = kind().fit(one_then_two)
    expected = np.zeros((3, 3))
    expected[0, 1] = 8
    np.testing.assert_array_equal(as_array(model.weights), expected)
    assert model.similar_items(1, k=3)["item_id"].to_list() == [2]
    assert model.similar_items(2, k=3).is_empty()


@pytest.mark.parametrize("solver", SOLVERS)
def test_ease_sees_no_direction_but_sources_are_rows(solver):
    B = fitted(EASE(reg=1.0, solver=solver), one_then_two)
    np.testing.assert_allclose(B[:2, :2], [[0, 8 / 9], [8 / 9, 0]], rtol=1e-6)
    rows = [(u, i, 1e9 + i) for u in range(8) for i in (1, 2)] + [(9, 2, 1e9), (10, 2, 1e9)]
    B = fitted(EASE(reg=1.0, solver=solver), tiny_log(rows))
    np.testing.assert_allclose(B, [[0, 8 / 9], [8 / 11, 0]], rtol=1e-6)  # G_ij / (G_ii + reg)


@pytest.mark.parametrize("solver", SOLVERS)
@given(gappy_logs(), regs, dropouts, sessions)
@settings(max_examples=20, deadline=None)
def test_relatives_with_nothing_between_them_are_the_same_model(solver, log, reg, dropout, chosen):
    how = {"reg": reg, "solver": solver, "neighbors": 3}
    place = {"position": chosen["position"], "targets": chosen["targets"]}
    for first, other in (
        (SLIST(alpha=0, **chosen, **how), SLIT(**chosen, **how)),
        (SLIS(xi=0, **how), EASE(**how)),
        (EDLAE(dropout=0, **how), EASE(**how)),
        (RDLAE(dropout=dropout, xi=0, **how), EDLAE(dropout=dropout, **how)),
        (TALE(trend=0, **place, **how), SLIT(**place, **how)),
    ):
        np.testing.assert_array_equal(fitted(first, log), fitted(other, log))


@given(gappy_logs(), alike)
@some
def test_the_gram_of_slist_is_that_of_slis_where_alpha_is_one(log, chosen):
    actual, expected = (
        dense(m(**chosen).gram(log)) for m in (lambda **c: SLIST(alpha=1, **c), SLIS)
    )
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_grams_of_the_family_keep_their_indices_in_four_bytes():
    rng = np.random.default_rng(0)
    log = tiny_log([(int(u), int(i), 1e9) for u, i in rng.integers(0, 60, (100, 2))])
    for make in (
        lambda: slit_gram(log, position=1.0, norm="symmetric", max_history=2500),
        lambda: slis_gram(log, norm="symmetric", max_history=2500),
        lambda: SLIST().gram(log),
    ):
        result = made_as(0, make)
        assert result.G.indices.dtype == result.K.indices.dtype == np.int32
        assert (result.G.format, result.K.format) == ("csr", "csc")
        assert solve_gram(result, 1.0, solver="local", neighbors=5).weights.nnz


@pytest.mark.parametrize("same_time", ["ordered", "joint"])
def test_lags_of_tales_query_are_rows_or_distinct_times(same_time):
    rows = [(1, item, time) for item, time in zip("abcad", [10, 20, 20, 20, 20], strict=True)]
    log = tiny_log([*rows, (2, "a", 5), (2, "b", 6)])
    model = TALE(same_time=same_time, recency=2.0, trend=0.0).fit(log)
    query = model.query(Histories.of_users(log, np.array([0])))
    items, times = log.item[:5].tolist(), log.time[:5].tolist()
    expected = oracle.history_weights(items, times, 2.0, joint=same_time == "joint")
    assert dict(zip(query.source.tolist(), query.weight.tolist(), strict=True)) == pytest.approx(
        expected
    )
    assert len(set(expected.values())) == (1 if same_time == "joint" else 4)

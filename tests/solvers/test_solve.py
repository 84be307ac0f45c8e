"""The solvers: equal to least squares per column, honest about memory and accuracy."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import oracle
from logs import logs
from talerec.errors import TalerecError
from talerec.gram import Gram
from talerec.gram.builders import tale_gram
from talerec.runtime import CSR, csr_columns, csr_rows, memory
from talerec.runtime.progress import listening
from talerec.solvers import exact, local, solve_gram, sources
from talerec.solvers.solver import choose_solver

SETTINGS = {
    "decay": 1.0,
    "floor": 0.3,
    "window": 180.0,
    "trend": 0.1,
    "trend_side": "both",
    "same_time": "ordered",
    "max_history": 2500,
}


def random_gram(n, seed=0, density=0.2):
    rng = np.random.default_rng(seed)
    S = rng.random((3 * n, n)) * (rng.random((3 * n, n)) < density)
    T = rng.random((3 * n, n)) * (rng.random((3 * n, n)) < density)
    return S, T, Gram(sparse.csr_array(S.T @ S), sparse.csc_array(S.T @ T))


@given(logs(max_users=5, max_items=6, max_rows=40), st.sampled_from([0.5, 10.0, 300.0]))
@settings(max_examples=50, deadline=None)
def test_weights_equal_least_squares_column_by_column(log, reg):
    expected = oracle.ridge(*oracle.tale_rows(log, decay=1.0, floor=0.3, trend=0.1), reg)
    result = solve_gram(tale_gram(log, **SETTINGS), reg, solver="exact").weights
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("tile", [1, 7, 16, 50, 64])
@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_tiles_of_any_size_give_the_same_weights(monkeypatch, tile, kind):
    S, T, gram = random_gram(50)
    if kind == "dense":
        gram = Gram(gram.G.toarray(), gram.K.toarray())
    monkeypatch.setattr(exact, "_TILE", tile)
    result = solve_gram(gram, 2.0, solver="exact").weights
    np.testing.assert_allclose(result, oracle.ridge(S, T, 2.0), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("solver", ["exact", "local"])
def test_progress_of_a_solve_adds_up_to_its_total(monkeypatch, solver):
    monkeypatch.setattr(exact, "_TILE", 7)
    totals, done = Counter(), Counter()

    def listen(name, total):
        totals[name] += total
        return lambda amount, words="": done.update({name: amount})

    with listening(listen):
        solve_gram(random_gram(30)[2], 1.0, solver=solver, neighbors=5)
    assert totals["solve"] > 0
    assert done["solve"] == pytest.approx(totals["solve"])


def test_the_normal_equations_are_met():
    _, _, gram = random_gram(120)
    B = solve_gram(gram, 5.0, solver="exact").weights.astype(np.float64)
    missed = gram.G.toarray() @ B + 5.0 * B - gram.K.toarray()
    assert np.abs(missed).max() < 1e-5 * np.abs(gram.K.toarray()).max() * 120


def test_a_penalty_per_item_is_added_to_the_diagonal():
    _, _, gram = random_gram(30)
    penalty = np.linspace(1, 50, 30)
    expected = np.linalg.solve(gram.G.toarray() + np.diag(penalty), gram.K.toarray())
    result = solve_gram(gram, penalty, solver="exact").weights
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6)


def test_a_system_that_float32_cannot_hold_is_solved_in_float64_and_says_so(caplog):
    rng = np.random.default_rng(1)
    S = 100 * np.repeat(rng.random((60, 20)), 2, axis=1)  # every item has a twin
    gram = Gram(sparse.csr_array(S.T @ S), sparse.csc_array(S.T @ rng.random((60, 40))))
    with caplog.at_level(logging.WARNING, "talerec"):
        result = solve_gram(gram, 1e-3, solver="exact").weights
    assert "float64" in caplog.text
    expected = np.linalg.solve(gram.G.toarray() + 1e-3 * np.eye(40), gram.K.toarray())
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


def test_a_system_without_a_solution_is_refused():
    bad = Gram(sparse.csr_array(-np.eye(4)), sparse.csc_array(np.eye(4)))
    with pytest.raises(TalerecError, match="raise reg"):
        solve_gram(bad, 0.5, solver="exact")


def test_too_little_memory_is_said_before_the_work_with_sizes(monkeypatch):
    _, _, gram = random_gram(30)
    monkeypatch.setattr(memory, "available_bytes", lambda: 1000)
    with pytest.raises(TalerecError, match=r"two 30 x 30 float32 arrays.*7\.2 KB") as error:
        solve_gram(gram, 1.0, solver="exact")
    assert "\n" not in str(error.value)


def test_an_unknown_solver_is_refused():
    with pytest.raises(TalerecError, match="magic"):
        solve_gram(random_gram(5)[2], 1.0, solver="magic")


@pytest.mark.parametrize("kind", ["sparse", "dense"])
@pytest.mark.parametrize("neighbors", [40, 41, 10**6])
def test_local_with_all_neighbours_equals_exact(neighbors, kind):
    _, _, gram = random_gram(40, density=0.1)
    if kind == "dense":
        gram = Gram(gram.G.toarray(), gram.K.toarray())
    expected = solve_gram(gram, 2.0, solver="exact").weights
    result = solve_gram(gram, 2.0, solver="local", neighbors=neighbors).weights.toarray()
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6 * np.abs(expected).max())


def solve_column_by_hand(G, K, j, penalty, neighbors, times):
    """Return column j of the local solver: a support solved together, then one descent step."""
    A = G + penalty * np.eye(len(G))
    gain = K[:, j] ** 2 / np.diagonal(A)
    others = [i for i in np.argsort(-gain, kind="stable") if i != j and K[i, j] != 0]
    others = others[: times * neighbors - 1]
    together = (neighbors + 1) // 2 - 1
    N, T = [*others[:together], j], others[together:]
    b = np.zeros(len(G))
    b[N] = np.linalg.solve(A[np.ix_(N, N)], K[N, j])
    d = np.zeros(len(G))
    d[T] = (K[T, j] - A[T] @ b) / np.diagonal(A)[T]
    slope, bend = d @ (K[:, j] - A @ b), d @ A @ d
    return b + d * (slope / bend if bend else 0.0)


@pytest.mark.parametrize("density", [0.03, 0.3, 0.9])
@pytest.mark.parametrize(("few", "times"), [(10**6, 3), (0, 1)])
def test_local_solves_a_support_together_and_steps_with_the_other_sources(
    monkeypatch, few, times, density
):
    monkeypatch.setattr(local, "_FEW", few)
    _, _, gram = random_gram(60, density=density)
    B = solve_gram(gram, 1.0, solver="local", neighbors=10).weights.toarray()
    G, K = gram.G.toarray(), gram.K.toarray()
    for j in range(60):
        expected = solve_column_by_hand(G, K, j, 1.0, 10, times)
        np.testing.assert_allclose(B[:, j], expected, rtol=1e-5, atol=1e-7)
    assert np.count_nonzero(B, axis=0).max() <= 10 * times
    sources = np.count_nonzero(K, axis=0) - (np.diagonal(K) != 0)
    assert density > 0.03 or {0, 4, 5, 6, 9, 10} <= set(sources.tolist())  # 4 are solved with j


def test_local_explains_as_much_as_its_weights_do():
    """|T|^2 less the penalised squared error, with these weights."""
    _, _, gram = random_gram(40, density=0.3)
    ones = np.ones(40)
    for neighbors, zero_diagonal in ((8, False), (8, True), (10**6, True)):
        weights, explained = local.solve_local(gram, ones, neighbors, zero_diagonal=zero_diagonal)
        B, K = weights.toarray().astype(np.float64), gram.K.toarray()
        A = gram.G.toarray() + np.eye(40)
        expected = 2 * (B * K).sum(axis=0) - (B * (A @ B)).sum(axis=0)
        np.testing.assert_allclose(explained, expected, rtol=1e-4, atol=1e-5)


def test_local_with_a_zero_diagonal_never_uses_the_target_itself():
    _, _, gram = random_gram(30, density=0.3)
    ones = np.ones(30)
    everything = local.solve_local(gram, ones, 10**6, zero_diagonal=True)[0].toarray()
    G, K = gram.G.toarray(), gram.K.toarray()
    for j in range(30):
        N = np.delete(np.arange(30), j)
        b = np.linalg.solve(G[np.ix_(N, N)] + np.eye(29), K[N, j])
        np.testing.assert_allclose(everything[N, j], b, rtol=1e-3, atol=1e-5)
        assert everything[j, j] == 0
    assert not local.solve_local(gram, ones, 7, zero_diagonal=True)[0].diagonal().any()


def test_local_gives_the_same_bits_on_any_number_of_threads(monkeypatch):
    _, _, gram = random_gram(200, density=0.05)
    results = []
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("TALEREC_THREADS", threads)
        results.append(solve_gram(gram, 1.0, solver="local", neighbors=20).weights)
    for other in results[1:]:
        np.testing.assert_array_equal(results[0].indices, other.indices)
        np.testing.assert_array_equal(results[0].data, other.data)


@pytest.mark.parametrize(
    ("items", "density", "free", "penalty", "chosen"),
    [
        (3_000, 0.01, 10**12, 10.0, "exact"),
        (50_000, 0.01, 10**12, 10.0, "local"),
        (50_000, 0.9, 10**12, 10.0, "exact"),
        (50_000, 0.9, 10**9, 10.0, "local"),
        (20_000, 0.01, 10**12, 10.0, "local"),
        (20_000, 0.01, 10**12, 1e-3, "exact"),
        (20_000, 0.01, 10**9, 1e-3, "local"),
        (50_000, 0.01, 10**12, 1e-3, "local"),
    ],
)
def test_auto_chooses_by_size_density_memory_and_penalty_and_says_why(
    monkeypatch, caplog, items, density, free, penalty, chosen
):
    monkeypatch.setattr(memory, "available_bytes", lambda: free)
    monkeypatch.setattr(Gram, "items", items)
    monkeypatch.setattr(Gram, "density", density)
    with caplog.at_level(logging.INFO, "talerec"):
        gram = Gram(np.eye(3) * 10, None)
        assert choose_solver(gram, np.array([penalty])) == chosen
    assert f"solver auto: {chosen}" in caplog.text


# -- torch -----------------------------------------------------------------------------------------


@pytest.fixture
def torch_solver():
    if os.environ.get("EXTRAS") != "all":
        pytest.skip("needs torch: EXTRAS=all make test")
    from talerec.solvers import gpu

    return gpu


@pytest.mark.parametrize("kind", ["sparse", "dense"])
@pytest.mark.parametrize("tile", [7, 64])
def test_torch_equals_exact(torch_solver, monkeypatch, kind, tile):
    _, _, gram = random_gram(50)
    if kind == "dense":
        gram = Gram(gram.G.toarray(), gram.K.toarray())
    monkeypatch.setattr(torch_solver, "_TILE", tile)
    result = solve_gram(gram, 2.0, solver="torch")
    assert result.solver == "torch"
    expected = solve_gram(gram, 2.0, solver="exact").weights
    np.testing.assert_allclose(result.weights, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("precision", ["float64", "refined"])
def test_torch_can_be_more_precise_than_float32(torch_solver, monkeypatch, precision):
    monkeypatch.setattr(torch_solver, "_REFINED", 16)
    _, _, gram = random_gram(40, seed=4)
    expected = np.linalg.solve(gram.G.toarray() + 1e-2 * np.eye(40), gram.K.toarray())
    parts = csr_rows(gram.G), csr_columns(gram.K)
    error = {
        kind: np.abs(torch_solver.solve(*parts, np.full(40, 1e-2), precision=kind) - expected).max()
        for kind in ("float32", precision)
    }
    assert error[precision] < error["float32"]
    assert error[precision] < 1e-6 * np.abs(expected).max()


def test_a_device_with_too_little_memory_is_said_and_exact_is_used(
    torch_solver, monkeypatch, caplog
):
    def full(n, kind, place):
        raise TalerecError("30 items need 1.0 GB on the GPU, but 0.5 GB is free")

    monkeypatch.setattr(torch_solver, "_require_memory", full)
    with caplog.at_level(logging.WARNING, "talerec"):
        result = solve_gram(random_gram(30)[2], 1.0, solver="torch")
    assert result.solver == "exact"
    assert "1.0 GB on the GPU" in caplog.text
    assert "using exact" in caplog.text


def test_without_torch_asking_for_it_is_an_error_that_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(TalerecError, match=r"solver=torch needs the extra `torch`: pip install"):
        solve_gram(random_gram(20)[2], 1.0, solver="torch")


def test_the_torch_solver_loads_with_numpy_and_torch_alone(torch_solver):
    code = (
        "import talerec.solvers.gpu, sys; "
        "print(sorted({'scipy', 'numba', 'polars', 'pyarrow'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_sparse_weights_and_grams_keep_their_indices_in_four_bytes():
    gram = random_gram(30)[2]
    weights = solve_gram(gram, 1.0, solver="local", neighbors=5).weights
    assert weights.indices.dtype == weights.indptr.dtype == np.int32


def test_long_rows_leave_fewer_sources_outside_the_support():
    """A user of thousands of rows fills a block of G: only its targets get fewer sources."""
    rng = np.random.default_rng(0)
    n, block = 2400, 1500
    dense = rng.random((block, block))
    K = sparse.block_diag([dense, sparse.random(900, 900, 0.4, random_state=1)]).tocsc()
    G = sparse.block_diag([dense @ dense.T / 100, sparse.eye(900) * 50.0]).tocsr()
    result = local.solve_local(Gram(G, K), np.full(n, 10.0), 100)[0]
    sources = np.diff(result.tocsc().indptr)
    assert sources[:block].max() < 150
    assert sources[:block].min() >= 50
    assert sources[block:].max() > 250


@pytest.mark.parametrize("extra", [0, 1, 65_536])
def test_sources_are_dropped_only_if_their_rows_have_more_than_65_536_entries(extra):
    lengths = np.array([65_000, 500, 30, 6 + extra], np.int64)
    empty = np.empty(0)
    equations = sources.NormalEquations(
        CSR(empty, empty, empty), lengths, CSR(empty, empty, empty), np.ones(4), empty, empty
    )
    candidates = sources.SourceCandidates(
        np.array([1.0, 4.0, 3.0, 2.0]), np.arange(4, dtype=np.int32), empty, np.empty(4)
    )
    count = sources._drop_costly(equations, candidates, 4, 1)
    assert count == 4 * 65_536 // (65_536 + extra)
    assert candidates.sources[:count].tolist() == {4: [0, 1, 2, 3], 3: [1, 2, 3], 2: [1, 2]}[count]

"""An update that solves all targets gives TALE without trends the weights of a fit to all rows.

The local solver drops sources whose rows of G are long, and prefers the first of equal sources.
Both depend on the numbers of items, which an updated model keeps and a new fit assigns anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import sparse

import talerec as tr
from talerec.data import Log
from talerec.solvers import lower_triangle
from talerec.solvers.triangle import ranked_lengths, update_triangle

DAY = 86_400


def split_by_time(log: Log, n_parts: int, share: float) -> list[Log]:
    """Return the old rows of a log, and then `n_parts` logs of its last rows, by time."""
    n_new = int(log.rows * share)
    order = np.argsort(log.time, kind="stable")
    part = np.zeros(log.rows, np.int64)
    part[order[-n_new:]] = 1 + np.arange(n_new) * n_parts // n_new
    return [log.keep(part == number).compact() for number in range(n_parts + 1)]


def columns_by_id(model: tr.Model) -> dict[tuple[object, object], float]:
    """Return the weights that are not zero by (target id, source id)."""
    ids, weights = model.item_ids.to_list(), model.weights.tocoo()
    entries = zip(weights.row, weights.col, weights.data, strict=True)
    return {(ids[target], ids[source]): float(w) for source, target, w in entries if w}


def assert_equals_fit(
    log: Log, parts: list[Log], folder: Path | None = None, **params: Any
) -> None:
    """Fit to the first part and update with the others; compare with a fit to the whole log."""
    model = tr.TALE(trend=0.0, solver="local", **params).fit(parts[0])
    for rows in parts[1:]:
        if folder is not None:
            model = tr.load(model.save(folder / "m.tale", updatable=True))
        done = tr.update(model, rows, tolerance=0)
        assert done.solved == done.targets
    updated = columns_by_id(model)
    expected = columns_by_id(tr.TALE(trend=0.0, solver="local", **params).fit(log))
    other = {target for target, _ in updated.keys() ^ expected.keys()}
    assert not other, f"{len(other)} of {len(log.items)} targets have other sources"
    largest: dict[object, float] = {}
    for (target, _), weight in expected.items():
        largest[target] = max(largest.get(target, 0.0), abs(weight))
    for (target, source), weight in expected.items():
        assert abs(updated[target, source] - weight) <= 1e-6 * largest[target]


def log_of_rows(user: Any, item: Any, day: Any) -> Log:
    """Return a log; times are whole or broken days."""
    time = (np.asarray(day) * DAY).astype(np.int64) + 10**9
    return Log.from_frame(
        pl.DataFrame({"user_id": user, "item_id": item, "timestamp": time}), time_unit="s"
    )


def long_histories(users: int, length: int, items: int, seed: int) -> Log:
    """Return a log of long histories; some of the items that come late have the first ids."""
    rng = np.random.default_rng(seed)
    item = rng.choice(items, (users, length), p=np.geomspace(1, 0.05, items) / _sum(items))
    is_late = rng.random((users, length)) < np.arange(length) / length / 4
    name = np.where(is_late, item % 40, 100 + item).ravel()
    day = np.tile(np.arange(length), users) + rng.random(name.size)
    return log_of_rows(np.repeat(np.arange(users), length), [f"i{n:04}" for n in name], day)


def _sum(items: int) -> float:
    return float(np.geomspace(1, 0.05, items).sum())


@pytest.mark.parametrize("seed", [1, 2])
def test_sources_are_dropped_as_in_a_fit(seed: int, tmp_path: Path) -> None:
    log = long_histories(users=40, length=300, items=900, seed=seed)
    assert_equals_fit(log, split_by_time(log, 2, 0.05), tmp_path)


def test_of_equal_sources_the_first_id_is_chosen_as_in_a_fit() -> None:
    """Every user has the same items at the same times: all sources of a target are equal."""
    old = [(user, f"b{item:02}", 0) for user in range(3) for item in range(30)]
    old += [(user, "c", 1) for user in range(3)]
    new = [(user, f"a{item:02}", 0) for user in range(4) for item in range(30)]
    new += [(3, f"b{item:02}", 0) for item in range(30)] + [(3, "c", 1)]
    first, later, whole = (log_of_rows(*zip(*rows, strict=True)) for rows in (old, new, old + new))
    assert_equals_fit(whole, [first, later], same_time="joint", neighbors=8)


@pytest.mark.parametrize("kind", [tr.TALE, tr.Tempo])
def test_entries_of_a_dense_gram_are_counted_as_in_a_fit(kind: type[tr.Model]) -> None:
    """How many sources a target has depends on how many entries of K are not zero."""
    log = long_histories(users=3, length=60, items=80, seed=3)
    model = kind(solver="local", neighbors=5).fit(log)
    gram = model.gram(log)
    assert not gram.is_sparse
    counted = model.prepare_update().update_state.entries
    assert counted == gram.k_entries == np.count_nonzero(gram.K) < len(log.items) ** 2


@pytest.mark.data
def test_an_update_of_a_real_log_equals_a_fit(data: Path) -> None:
    log = tr.read_log(data / "ml-100k.inter.gz")
    assert_equals_fit(log, split_by_time(log, 1, 0.02))


def test_lengths_are_those_of_a_triangle_that_is_ranked_anew() -> None:
    rng = np.random.default_rng(5)
    S = rng.random((80, 30)) * (rng.random((80, 30)) < 0.1)
    old, new = S[:40].T @ S[:40], S.T @ S

    updated, _ = update_triangle(lower_triangle(sparse.csr_array(old)), sparse.csr_array(new - old))
    anew = lower_triangle(sparse.csr_array(new))
    lengths = np.diff(anew.lower.indptr)[anew.rank]
    assert np.array_equal(ranked_lengths(updated, np.arange(30))[updated.rank], lengths)
    assert not np.array_equal(np.diff(updated.lower.indptr)[updated.rank], lengths)

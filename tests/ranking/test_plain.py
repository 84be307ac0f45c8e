"""The first answers of a process, computed without kernels, have the bits of the kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest

import talerec as tr
from command import PYTHONPATH
from talerec.data import Histories
from talerec.models import MODELS
from talerec.ranking import Block, SequenceBlock, SparseBlock, Weights
from talerec.ranking import lists as ranking_lists
from talerec.ranking.history_queries import _latest_lags, _latest_rows, _recency_query
from talerec.ranking.plain import rank_plainly
from talerec.ranking.ranks import Mask
from talerec.ranking.weights import Query
from talerec.runtime import as_readonly, lazy_kernels

LINEAR = [name for name, kind in MODELS.items() if kind.extra is None and name != "ranker"]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_kernels, "_is_allowed", [False])


def assert_same(result: Any, expected: Any) -> None:
    """The arrays are equal, NaN and the sign of zeros included."""
    for a, b in zip(result, expected, strict=True):
        assert a.dtype == b.dtype
        assert a.tobytes() == b.tobytes()


def hide(items: Any, queries: int) -> Mask:
    """Return a mask that hides equal numbers of items from each query."""
    bounds = np.arange(queries + 1) * (len(items) // queries)
    return Mask(np.empty(0, np.uint8), bounds[:-1], bounds[1:], as_readonly(items), True)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("name", LINEAR)
def test_lists_have_the_bits_of_the_kernels(name: str) -> None:
    log = tr.synthetic_log(3_000, items=120)
    model = MODELS[name]().fit(log)
    histories = Histories.of_users(log, np.arange(8))
    query = model.query(histories)
    allowed = (np.arange(len(log.items)) % 3 > 0).astype(np.uint8)
    weights = model.fitted.weights
    for hide in (False, True):
        for flags in (None, allowed):
            mask = Mask.make(histories, hide_seen=hide, allowed=flags)
            for k in (1, 10, 500):
                expected = ranking_lists.rank_queries(weights, query, mask, k)
                assert_same(rank_plainly(weights, query, mask, k), expected)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("is_sparse", [False, True])
def test_zeros_and_weights_that_underflow_rank_as_in_the_kernels(is_sparse: bool) -> None:
    rng = np.random.default_rng(0)
    values = rng.choice([0.0, 1e-40, -1e-40, 0.5, -0.5], (6, 40)).astype(np.float32)
    block: Any = values
    if is_sparse:
        row, column = np.nonzero(rng.random((6, 40)) < 0.5)
        indptr = np.searchsorted(row, np.arange(7))
        entries = {"indptr": indptr, "indices": column.astype(np.int32)}
        block = SparseBlock(items=40, values=values[row, column], **entries)
    base = np.where(rng.random(40) < 0.5, np.nan, 0.0)
    share = rng.choice([1.0, -1.0, 5e-324, -5e-324, 2.0**-900], 24)
    query = Query(np.arange(0, 25, 6), np.tile(np.arange(6), 4), share)
    mask = hide(np.array([1, 1, 2, -1] * 4, np.int32), 4)
    for scores in (None, base):
        weights = Weights(block, scores)
        expected = ranking_lists.rank_queries(weights, query, mask, 40)
        assert_same(rank_plainly(weights, query, mask, 40), expected)


@pytest.mark.usefixtures("compiled")
def test_a_large_catalogue_and_sequences_rank_as_in_the_hash_kernel() -> None:
    rng = np.random.default_rng(1)
    n_items = 2**17 + 3
    items = rng.integers(0, 50, 200).astype(np.int32)
    decay = np.array([0.0, 1.0, 0.3, 0.1] + [0.0] * 46)
    sequences = SequenceBlock(
        items=n_items, indptr=np.arange(0, 201, 50), indices=items, decay=decay
    )
    blocks: list[Block] = [sequences]
    weights = Weights(blocks)
    assert not weights.uses_dense_scores
    query = Query(np.array([0, 5, 9]), rng.permutation(200)[:9], rng.normal(size=9))
    mask = hide(np.array([3, 4], np.int32), 2)
    expected = ranking_lists.rank_queries(weights, query, mask, 20)
    assert_same(rank_plainly(weights, query, mask, 20), expected)


def test_interpreted_kernels_have_the_bits_of_compiled_ones() -> None:
    log = tr.synthetic_log(2_000, items=50)
    start, stop = log.ptr[:-1][:30], log.ptr[1:][:30]
    marks = np.zeros(50, np.uint8)
    for time in (log.time, np.empty(0, np.int64)):
        rows = (start, stop, log.item)
        for kernel, arguments in [
            (_latest_rows, (*rows, 20, marks)),
            (_latest_lags, (*rows, time, 20, marks)),
            (_recency_query, (*rows, time, 20, marks, 3.7)),
        ]:
            assert_same(kernel.interpret(*arguments), kernel(*arguments))


@pytest.mark.parametrize("name", ["tempo", "tale", "markov"])
def test_a_first_answer_imports_no_compiler_and_equals_a_later_one(
    name: str, tmp_path: Path
) -> None:
    log = tr.synthetic_log(6_000, items=80)
    model = MODELS[name]().fit(log)
    path, ids = model.save(tmp_path / "m.tale"), log.items.ids.to_list()
    code = (
        "import json, sys\n"
        "import talerec as tr\n"
        "path, ids, users = sys.argv[1], *map(json.loads, sys.argv[2:])\n"
        "model = tr.load(path)\n"
        "answers = [model.top_items(ids[:n], 5) for n in range(1, 12)]\n"
        "frame = model.recommend(users, 5, hide_seen=True).to_dict(as_series=False)\n"
        "print(json.dumps([answers, frame, 'numba' in sys.modules]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    users = log.users.ids.head(4).to_list()
    command = [sys.executable, "-c", code, str(path), json.dumps(ids[:20]), json.dumps(users)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    answers, frame, has_compiler = json.loads(done.stdout)
    assert not has_compiler
    assert answers == [[list(pair) for pair in model.top_items(ids[:n], 5)] for n in range(1, 12)]
    assert frame == model.recommend(users, 5, hide_seen=True).to_dict(as_series=False)


def test_a_process_with_many_queries_uses_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_kernels, "_is_allowed", [True])  # a service that ran here changes it
    compiles: list[int] = []
    kernel = lazy_kernels.LazyKernel(lambda x: x + 1, lambda f: compiles.append(1) or f)
    results = [lazy_kernels.interpret_small(kernel, 1)(x) for x in range(40)]
    assert results == list(range(1, 41))
    assert compiles == [1]
    assert kernel.interpreted_queries == lazy_kernels._INTERPRETED_QUERIES + 1


def test_threads_that_call_a_kernel_first_share_one_object() -> None:
    made: list[int] = []

    def make(function: Any) -> Any:
        made.append(1)
        sleep(0.05)
        return function

    kernel = lazy_kernels.LazyKernel(lambda x: x + 1, make)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(kernel, range(8))) == list(range(1, 9))
    assert made == [1]

"""Tempo with compact weights: those that matter most, by hand; chosen, reported, saved, updated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import talerec as tr
from talerec.models.tempo import compaction, descriptions
from talerec.models.tempo.query_params import QueryParams
from talerec.ranking import DenseBlock, SparseBlock, make_block
from talerec.runtime import is_sparse


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of few items are compacted, to 12 sources per target."""
    monkeypatch.setattr(compaction, "SOURCES", 12)
    monkeypatch.setattr(compaction, "FEWEST_ITEMS", 20)
    monkeypatch.setattr(descriptions, "FEWEST_ITEMS", 20)


@pytest.fixture(scope="module")
def log() -> tr.Log:
    return tr.synthetic_log(20_000, users=800, items=60, seed=3)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("exponent", [0.0, 0.25])
def test_the_weights_that_change_scores_most_are_kept(exponent: float) -> None:
    draw = np.random.default_rng(1)
    values = draw.normal(size=(50, 50)).astype(np.float32)
    counts = draw.integers(1, 1000, 50).astype(np.float64)
    params = QueryParams.default(np.empty(0), 1, 0)._replace(
        popularity_exponent=np.array([exponent])
    )
    kept = compaction.compact_weights(make_block(values), counts, params)
    assert isinstance(kept, SparseBlock)
    matrix = kept.matrix.toarray()
    np.testing.assert_array_equal(matrix[matrix != 0], values[matrix != 0])
    popularity = counts / np.exp(np.log(counts).mean())
    effect = values**2 * counts[:, None] * popularity ** (2 * exponent)
    assert effect[matrix != 0].min() > effect[matrix == 0].max()
    assert np.count_nonzero(matrix) == pytest.approx(12 * 50, abs=2)


def test_weights_of_few_items_and_sparse_ones_stay() -> None:
    few = make_block(np.ones((50, 50), np.float32))
    assert compaction.compact_weights(few, np.ones(50), None) is few
    sparse = tr.TALE(solver="local").fit(tr.synthetic_log(500)).fitted.weights.blocks[0]
    assert compaction.compact_weights(sparse, np.ones(sparse.items), None) is sparse


@pytest.mark.usefixtures("small")
def test_compact_weights_are_chosen_where_queries_lose_nothing(
    log: tr.Log, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = tr.Tempo().fit(log)
    monkeypatch.setattr(compaction, "SOURCES", 30)
    model = tr.Tempo(compact="auto").fit(log)
    assert is_sparse(model.weights)
    assert model.fitted.solver == "exact"
    assert "of the item-item weights are stored" in model.describe_learned()[-1]
    is_kept = model.weights.toarray() != 0
    np.testing.assert_array_equal(model.weights.toarray()[is_kept], plain.weights[is_kept])
    again = tr.load(model.save(tmp_path / "model.tale"))
    assert again.recommend_histories([[1, 2]]).equals(model.recommend_histories([[1, 2]]))
    monkeypatch.setattr(compaction, "SOURCES", 1)
    model = tr.Tempo(compact="auto").fit(log)
    assert not is_sparse(model.weights)
    np.testing.assert_array_equal(model.weights, plain.weights)
    assert "All item-item weights are stored" in model.describe_learned()[-1]


@pytest.mark.usefixtures("small")
def test_an_update_keeps_what_the_fit_chose(log: tr.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "is_compact_as_good", lambda *_: True)
    monkeypatch.setattr("talerec.models.tempo.model.is_compact_as_good", lambda *_: True)
    end = int(np.quantile(log.time, 0.98))
    model = tr.Tempo(compact="auto").fit(log.keep(log.time < end))
    assert is_sparse(model.weights)
    tr.update(model, log)
    assert is_sparse(model.weights)
    full = tr.Tempo(compact="off").fit(log.keep(log.time < end))
    tr.update(full, log)
    assert isinstance(full.fitted.weights.blocks[0], DenseBlock)
    is_kept = model.weights.toarray() != 0
    np.testing.assert_array_equal(model.weights.toarray()[is_kept], full.weights[is_kept])


def test_without_held_out_queries_nothing_is_compacted() -> None:
    log = tr.synthetic_log(3000, items=1200, seed=2)
    model = tr.Tempo(compact="auto", learn="off", solver="exact").fit(log)
    assert not is_sparse(model.weights)

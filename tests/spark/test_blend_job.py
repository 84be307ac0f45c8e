"""A blend that is fitted on a cluster is the blend of one machine."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import talerec as tr
from cluster import fit, skewed, write
from talerec.errors import TalerecError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning"),
]


def test_a_blend_has_the_weights_and_lists_of_one_machine(session, tmp_path):
    """Weights of parts are learned from fits to training rows, in which some items have none."""
    rows = tr.synthetic_log(6000, seed=3, titles=False).to_frame()
    log = tr.Log.from_frame(rows)
    train = tr.Blend.first_rows(log)
    assert (np.bincount(train.item, minlength=len(log.items)) == 0).any()
    parts = "tale({0}), slist({0})"
    expected = tr.Blend(parts=parts.format("solver=local")).fit(log)
    assert expected.part_weights[0] not in (0, 1)
    assert expected.part_weights[1] == 1
    source, out = write(rows, tmp_path / "log"), tmp_path / "b.tale"
    blend = tr.Blend(parts=parts.format("solver=auto"))
    fit(blend, source, out, session, histories=True, task_rows=6_000, task_pairs=10**6)
    model = tr.load(out, verify=True)
    np.testing.assert_allclose(model.part_weights, expected.part_weights, rtol=1e-5)
    users = log.users.ids[::9]
    ours, theirs = (
        blend.recommend(users, 10).sort("user_id", "rank") for blend in (model, expected)
    )
    assert ours.drop("score").equals(theirs.drop("score"))
    np.testing.assert_allclose(ours["score"], theirs["score"], rtol=1e-4)
    assert model.describe_learned() == expected.describe_learned()
    table = tmp_path / "b.weights.parquet"
    assert sorted(path.name for path in table.iterdir()) == ["0-tale", "1-slist"]
    weight = pl.read_parquet(table / "1-slist" / "*.parquet")["weight"].sum()
    local = expected._fitted_parts[1][1].weights
    assert weight == pytest.approx(float(local.sum()), rel=1e-4)
    left = ["b.tale", "b.weights.parquet", "log"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left


def test_a_part_that_spark_does_not_fit_is_named(session, tmp_path):
    source = write(skewed(100), tmp_path / "log")
    message = "ease, a part of the blend, cannot be fitted: Spark does not fit ease"
    with pytest.raises(TalerecError, match=message):
        fit(tr.Blend(), source, tmp_path / "b.tale", session)
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_the_weights_of_a_blend_replace_those_of_a_model_and_of_a_blend(session, tmp_path):
    source, out = write(skewed(300), tmp_path / "log"), tmp_path / "b.tale"
    fit(tr.SLIST(), source, out, session)
    for parts, left in (("tale, slist", ["0-tale", "1-slist"]), ("slit", ["0-slit"])):
        weights = ",".join("1" for _ in parts.split(","))
        fit(tr.Blend(parts=parts, weights_of_parts=weights), source, out, session)
        assert sorted(path.name for path in (tmp_path / "b.weights.parquet").iterdir()) == left

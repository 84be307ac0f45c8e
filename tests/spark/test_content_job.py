"""Content fitted on a real cluster answers as the content of one machine."""

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

pytest.importorskip("sklearn")


def item_table() -> pl.DataFrame:
    """Texts, categories and numbers of the 900 items of `skewed`, and of 40 without rows."""
    rng = np.random.default_rng(3)
    words = np.array([f"word{x}" for x in range(60)])
    ids = rng.permutation(940)  # in another order than the log's
    return pl.DataFrame(
        {
            "item_id": ids,
            "title": [" ".join(rng.choice(words, 4)) for _ in ids],
            "kind": [f"kind {x % 9}" for x in ids],
            "price": np.where(ids % 11 == 0, np.nan, rng.random(len(ids)) * 100),
        }
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_content_has_the_scores_and_lists_of_one_machine(session, tmp_path, weighted):
    from talerec import spark

    rows, table = skewed(), item_table()
    if weighted:
        rows = rows.with_columns(weight=1.0 + pl.col("item_id") % 3)
    log = tr.Log.from_frame(rows, weight="weight" if weighted else None).with_items(table)
    settings = {"dims": 24, "max_history": 400, "window": 90.0}
    expected = tr.Content(**settings).fit(log)
    source, out = write(rows, tmp_path / "log"), tmp_path / "content.tale"
    names = {"names": spark.Columns(weight="weight")} if weighted else {}
    options = {"items": table, "histories": True, **names}
    model = fit(tr.Content(**settings), source, out, session, **options)

    assert model.item_ids.to_list() == expected.item_ids.to_list()
    assert len(model.item_ids) > len(log.items)  # items without rows, too
    np.testing.assert_array_equal(model.weights, expected.weights)
    ours, theirs = (m.fitted.weights.query_arrays for m in (model, expected))
    assert ours.keys() == theirs.keys()
    for name, values in theirs.items():
        if name != "bilinear":
            np.testing.assert_array_equal(ours[name], values, err_msg=name)
    # sums of partitions are added in another order
    scale = np.abs(theirs["bilinear"]).max()
    np.testing.assert_allclose(ours["bilinear"], theirs["bilinear"], rtol=0, atol=1e-9 * scale)
    assert model.fitted.training == expected.fitted.training
    assert model.fitted.info.equals(expected.fitted.info)
    assert model.describe_learned() == expected.describe_learned()
    assert set(model.fitted.seconds) >= {"read", "rows", "trend", "gram", "solve"}

    users = log.users.ids
    local = expected.recommend(users, 10, hide_seen=True)
    assert_same_lists(model.recommend(users, 10, hide_seen=True), local)
    args = {"session": session, "hide_seen": True, "task_rows": 4_000, **names}
    spark.recommend(out, source, tmp_path / "next", **args)
    assert_same_lists(pl.read_parquet(tmp_path / "next" / "*.parquet"), local)


def assert_same_lists(lists: pl.DataFrame, expected: pl.DataFrame) -> None:
    lists, expected = (x.sort("user_id", "rank") for x in (lists, expected))
    assert lists.drop("score").equals(expected.drop("score"))
    np.testing.assert_allclose(lists["score"], expected["score"], rtol=1e-6)


def test_content_needs_an_item_table_that_says_something(session, tmp_path):
    source, out = write(skewed(300), tmp_path / "log"), tmp_path / "m.tale"
    with pytest.raises(TalerecError, match="content needs an item table"):
        fit(tr.Content(), source, out, session)
    nothing = pl.DataFrame({"item_id": np.arange(5_000, 5_010), "kind": ["a", "b"] * 5})
    with pytest.raises(TalerecError, match="the item table says nothing"):
        fit(tr.Content(), source, out, session, items=nothing)
    assert not out.exists()
    from talerec import spark

    with pytest.raises(TalerecError, match="Spark does not evaluate content"):
        spark.evaluate(tr.Content(), source, "last:10%", session=session)

"""New items of an update's item table: added to models of content, reported for models of ids."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import talerec as tr
from command import talerec
from talerec.errors import TalerecError

pytest.importorskip("sklearn", reason="the extra content is not installed")

from talerec.models.tempo.content import ContentWeights, classify_items
from talerec.models.tempo.content_learning import LearnedContent

WEIGHTS = ContentWeights((0.03, 0.02, 0.01), 4.0, 90.0)
END = 1_600_000_000  # seconds
N_ITEMS, N_OLD, N_TABLE = 24, 30, 36  # with rows; of the fit's table; of the later table
COLORS = ["red", "green", "blue", "black"]


def item_table(first: int = 0, last: int = N_TABLE) -> pl.DataFrame:
    items = range(first, last)
    return pl.DataFrame(
        {
            "item_id": items,
            "title": [f"{COLORS[i % 4]} thing {i % 5}" for i in items],
            "tags": [[f"tag {i % 4}", f"kind {i % 5}"] for i in items],
            "since": [f"20{18 + i // 16}-0{1 + i % 9}-01" for i in items],
        }
    )


def rows(n_users: int = 60) -> tr.Log:
    """Users stay with a color."""
    draw = np.random.default_rng(0)
    events = []
    for user in range(n_users):
        color = user % 4
        items = 4 * (N_ITEMS // 4 * draw.random(7) ** 3).astype(int) + color
        times = END - np.sort(draw.integers(0, 500 * 86_400, 7))[::-1]
        events += [(user, int(i), int(t)) for i, t in zip(items, times, strict=True)]
    frame = pl.DataFrame(events, ["user_id", "item_id", "timestamp"], orient="row")
    return tr.Log.from_frame(frame, time_unit="s")


def later_rows(items: list[int]) -> tr.Log:
    """Every fourth user takes these items after the end."""
    events = [(user, item, END + 60 + user + n) for user in range(0, 60, 4)
              for n, item in enumerate(items)]  # fmt: skip
    frame = pl.DataFrame(events, ["user_id", "item_id", "timestamp"], orient="row")
    return tr.Log.from_frame(frame, time_unit="s")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> tr.Log:
    """The rows with their table; tempo takes content in with fixed weights."""
    name = "talerec.models.tempo.content_learning.learn_content_weights"
    monkeypatch.setattr(
        name, lambda fit, rows, tempo: LearnedContent(WEIGHTS, None, 0.01, 0.002, 99)
    )
    return rows().with_items(item_table(0, N_OLD))


def fit_tempo(log: tr.Log, solver: str) -> tr.Tempo:
    return tr.Tempo(learn="off", same_time="joint", solver=solver).fit(log)


@pytest.fixture
def model(log: tr.Log) -> tr.Tempo:
    fitted = fit_tempo(log, "local")
    assert fitted.scores_catalogue
    return fitted


def last_message(caplog: pytest.LogCaptureFixture) -> str:
    return next(r.getMessage() for r in reversed(caplog.records) if "item table" in r.getMessage())


@pytest.mark.parametrize("new", [None, later_rows([3, 7]), rows()], ids=["none", "some", "known"])
def test_new_items_of_the_table_are_recommended(
    model: tr.Tempo, new: tr.Log | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    more = model.add_items(item_table(N_OLD, N_TABLE))
    result = tr.update(model, new, items=item_table(N_OLD, N_TABLE))
    assert result.added == N_TABLE - N_OLD
    assert "6 of 6 items of the item table have no events, such as 30, 31, 32" in last_message(
        caplog
    )
    assert "item_key" not in last_message(caplog)
    assert model.item_ids.to_list() == more.item_ids.to_list()
    added = list(range(N_OLD, N_TABLE))
    users, late = list(range(40)), END + 10**6
    frame = model.recommend(users, k=6, allow=added, as_of=late)
    assert sorted(set(frame["item_id"])) == added
    if result.rows == 0:
        expected = more.recommend(users, k=N_TABLE, as_of=late)
        frame = model.recommend(users, k=N_TABLE, as_of=late)
        keys = ["user_id", "item_id"]
        both = frame.join(expected, on=keys)
        assert len(both) == len(frame) == len(expected)
        assert (both["score"] - both["score_right"]).abs().max() < 1e-5
    assert len(model.similar_items(N_TABLE - 1, k=5)) == 5
    assert model.fitted.training["items"] == N_TABLE
    n_unseen = N_TABLE - len(np.unique(model.fitted.log.item))
    assert model.fitted.training["unseen_items"] == n_unseen
    loaded = tr.load(model.save(tmp_path / "t.tale", updatable=True), verify=True)
    assert loaded.recommend(users, k=9).equals(model.recommend(users, k=9))
    # the next update continues from it
    assert tr.update(loaded, later_rows([N_OLD, 99])).rows == 30
    assert tr.update(loaded, None, items=item_table()).added == 0
    counts = loaded.fitted.log.counts()
    np.testing.assert_array_equal(loaded._content.classes, classify_items(counts))
    assert counts[N_OLD] == 15


def test_an_update_with_new_items_equals_an_update_of_a_model_that_had_them(log: tr.Log) -> None:
    """The slow way: fit with the whole table, so that the items need not be added."""
    new = later_rows([1, N_OLD + 1, 5])
    for solver in ("exact", "local"):
        model = fit_tempo(log, solver)
        tr.update(model, new, items=item_table(N_OLD, N_TABLE), tolerance=0)
        whole = fit_tempo(replace(log, info=None, catalogue=None).with_items(item_table()), solver)
        tr.update(whole, new, tolerance=0)
        assert sorted(model.item_ids) == sorted(whole.item_ids)
        keys = ["user_id", "item_id"]
        both = [m.recommend(list(range(60)), k=N_TABLE, as_of=END + 10**6) for m in (model, whole)]
        joined = both[0].join(both[1], on=keys)
        assert len(joined) == len(both[0]) == len(both[1])
        # z and freshness of the whole table differ by the encoder's words alone, which are those
        # of items with rows
        assert (joined["score"] - joined["score_right"]).abs().max() < 2e-5


def test_changed_rows_of_the_table_alone_change_scores(model: tr.Tempo) -> None:
    users, late = list(range(8)), END + 10**6
    before = model.recommend(users, k=N_OLD, as_of=late)
    dyed = item_table(25, 26).with_columns(title=pl.lit("red thing"), tags=pl.lit(["tag 0"]))
    assert tr.update(model, None, items=dyed).added == 0
    after = model.recommend(users, k=N_OLD, as_of=late)
    joined = before.join(after, on=["user_id", "item_id"])
    moved = joined.filter(pl.col("item_id") == 25)
    assert ((moved["score"] - moved["score_right"]).abs() > 1e-3).any()


def test_a_refused_table_changes_nothing(model: tr.Tempo) -> None:
    priced = item_table(0, N_OLD).with_columns(price=pl.Series(np.arange(float(N_OLD))))
    model = model.fit(rows().with_items(priced))
    fitted = model.fitted
    wrong = item_table(N_OLD, N_TABLE).with_columns(price=pl.lit("cheap"))
    with pytest.raises(TalerecError, match=r"'price' .* 'cheap' in place of a number"):
        tr.update(model, None, items=wrong)
    assert model.item_ids.equals(fitted.items.ids)
    assert model.fitted.log.rows == fitted.log.rows


def test_a_model_of_ids_reports_items_that_it_does_not_take(
    log: tr.Log, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    model = tr.Markov().fit(log)
    known = model.item_ids
    assert tr.update(model, None, items=item_table()).added == 0
    assert last_message(caplog).startswith("12 of 36 items of the item table have no events, such")
    assert "are not in the model: markov scores items by their events" in last_message(caplog)
    assert model.item_ids.equals(known)
    tr.update(model, later_rows([N_TABLE - 1]), items=item_table())
    assert last_message(caplog).startswith("11 of 36 items")
    assert model.fitted.info.filter(item_id=N_TABLE - 1)["title"].to_list() == ["black thing 0"]
    tr.update(model, None, items=item_table(0, 5))
    assert last_message(caplog) == "the item table describes 5 items of the model"
    tr.update(model, None, items=item_table(N_OLD, N_OLD + 4))
    assert "0 of its 4 ids match (`item_key` names" in last_message(caplog)


def test_a_table_whose_ids_cannot_be_those_of_the_model_gets_the_hint(
    model: tr.Tempo, caplog: pytest.LogCaptureFixture
) -> None:
    table = item_table().with_columns(item_id=pl.col("title"))
    assert tr.update(model, None, items=table).added == 0
    assert "0 of its 36 ids match (`item_key` names" in caplog.text


def test_the_popular_items_of_an_updated_model_are_those_with_rows(model: tr.Tempo) -> None:
    pytest.importorskip("msgspec", reason="needs the extra serve")
    from talerec.serve.model.popular import PopularItems

    tr.update(model, later_rows([99]), items=item_table(N_OLD, N_TABLE))
    counts = model.fitted.log.counts()
    order = PopularItems(model.fitted)._log_order
    assert set(order.tolist()) == set(np.flatnonzero(counts).tolist())


def test_the_command_adds_new_items(model: tr.Tempo, tmp_path: Path) -> None:
    path = model.save(tmp_path / "t.tale", updatable=True)
    item_table(N_OLD, N_TABLE).write_parquet(tmp_path / "new.parquet")
    done = talerec("update", path, "--items", tmp_path / "new.parquet")
    assert done.code == 0
    assert "item-key" not in done.err
    assert "no new rows; new item table with 6 new items without events, version" in done.out
    similar = talerec("similar", path, N_TABLE - 1, "--json")
    assert len(similar.json["items"]) == 10
    later_rows([2]).to_frame().write_csv(tmp_path / "day.csv")
    again = talerec("update", path, tmp_path / "day.csv", "--items", tmp_path / "new.parquet")
    assert "15 new rows, 0 new users, 0 new items; " in again.out
    assert (
        "has no log" in talerec("update", path).err or "needs a log" in talerec("update", path).err
    )


def test_a_model_that_cannot_be_updated_says_so_first(log: tr.Log, tmp_path: Path) -> None:
    path = tr.Content(dims=4).fit(log).save(tmp_path / "c.tale")
    item_table().write_parquet(tmp_path / "items.parquet")
    refused = talerec("update", path, "--items", tmp_path / "items.parquet")
    assert refused.code == 2
    assert "content cannot be updated: refit it with all rows and the whole item" in refused.err
    assert "tempo or ranker" in refused.err
    assert "--updatable" not in refused.err
    markov = tr.Markov().fit(log).save(tmp_path / "m.tale")
    refused = talerec("update", markov, "--items", tmp_path / "items.parquet")
    assert "fitted without --updatable; refit with --updatable" in refused.err

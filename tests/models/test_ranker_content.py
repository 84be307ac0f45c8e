"""A ranker that takes content in: new items, explanations, saving, updates, and its absence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import talerec as tr
from talerec.artifact import Bundle, read_artifact, write_artifact
from talerec.data import Histories
from talerec.errors import ArtifactError, TalerecError
from talerec.models.core import ITEM_COLUMNS, rank_targets, rank_top
from talerec.runtime import Array

pytest.importorskip("lightgbm")
pytest.importorskip("sklearn", reason="the extra content is not installed")

from talerec.models.ranker.content import ItemTable
from talerec.models.ranker.padding import can_pad, pad_parts
from talerec.models.ranker.queries import current_round, delayed_rounds

PARTS = "markov,popular"
COLORS = ["red", "green", "blue", "black"]
DAY = 86_400
N_ITEMS, N_NEW = 160, 12


@cache
def shop(n_users: int = 320, seed: int = 0) -> tr.Log:
    """Users stay with a color and take what has come lately; the last 12 items have no rows."""
    draw = np.random.default_rng(seed)
    rows = []
    for user in range(n_users):
        color = user % 4
        for time in np.sort(draw.uniform(0, 400, 8)):
            newest = int(N_ITEMS * (time + 20) / 420) // 4  # items of a color that are there
            which = max(newest - 1 - int(draw.exponential(3)), 0)
            other = int(draw.integers(0, 4)) if draw.random() < 0.1 else color
            rows.append((user, 4 * which + other, 1_500_000_000 + int(time * DAY)))
    frame = pl.DataFrame(rows, ["user_id", "item_id", "timestamp"], orient="row")
    return tr.Log.from_frame(frame, time_unit="s").with_items(shop_table())


def shop_table(n_items: int = N_ITEMS + N_NEW) -> pl.DataFrame:
    """Items with a color, a price by color, and the date when they came."""
    days = [max(420 * i / N_ITEMS - 20, 0) for i in range(n_items)]
    dates = np.datetime64("2017-07-14") + np.array(days).astype("timedelta64[D]")
    return pl.DataFrame(
        {
            "item_id": range(n_items),
            "title": [f"{COLORS[i % 4]} thing {i % 7}" for i in range(n_items)],
            "color": [COLORS[i % 4] for i in range(n_items)],
            "price": [10.0 * (1 + i % 4) + i % 3 for i in range(n_items)],
            "since": [str(date) for date in dates],
        }
    )


@pytest.fixture(scope="module", autouse=True)
def _few_trees() -> Iterator[None]:
    """Fifteen trees are enough for these logs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("talerec.models.ranker.learning._MAX_TREES", 25)
        yield


@pytest.fixture
def no_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees are not learned, which takes most of a fit."""
    monkeypatch.setattr("talerec.models.ranker.fitting.MIN_QUERIES", 10**9)


@pytest.fixture(scope="module")
def log() -> tr.Log:
    return shop()


@pytest.fixture(scope="module")
def model(log: tr.Log) -> tr.Ranker:
    return tr.Ranker(parts=PARTS).fit(log)


def late(log: tr.Log, days: float = 10) -> Histories:
    """All users' rows, asked some days after the end."""
    now = np.full(len(log.users), int(log.time.max() + days * DAY * 10**6))
    return replace(Histories.of_users(log), now=now)


def test_new_items_are_listed_and_rank_where_they_belong(model: tr.Ranker, log: tr.Log) -> None:
    assert len(model.item_ids) == len(log.items) + len(log.catalogue) > len(log.items)
    assert model.scores_catalogue
    assert model._state.find_second(1, hide_seen=True) is not None
    lists = rank_top(model, late(log), 10)
    is_new = lists.items >= len(log.items)
    assert is_new.any(axis=1).mean() > 0.5
    ids = model.item_ids.to_numpy()
    users = log.users.ids.to_numpy()[:, None]
    assert (ids[lists.items] % 4 == users % 4).mean() > 0.7


def test_it_finds_items_that_were_never_seen(log: tr.Log) -> None:
    split = tr.time_split(log, int(np.quantile(log.time, 0.8)))
    by_ids = tr.evaluate(tr.Markov().fit(split.train), split, hide_seen=True)
    result = tr.evaluate(tr.Ranker(parts=PARTS).fit(split.train), split, hide_seen=True)
    new, new_by_ids = (each.groups["item_rows"]["none"]["NDCG@10"] for each in (result, by_ids))
    assert new_by_ids == 0.0
    assert new > 0.1
    assert result.metrics["NDCG@10"] > by_ids.metrics["NDCG@10"] + 0.05


def test_without_content_the_ranker_is_what_it_was(log: tr.Log, no_trees: None) -> None:
    bare = replace(log, info=None, catalogue=None)
    plain = tr.Ranker(parts=PARTS).fit(bare)
    arrays = plain.fitted.weights.query_arrays
    assert "ranker_content" not in arrays
    for other in (
        tr.Ranker(parts=PARTS, content="off").fit(log),
        tr.Ranker(parts=PARTS).fit(log).fit(bare),
        tr.Ranker(parts=PARTS).fit(replace(log, item_skip=("title", "color", "price", "since"))),
    ):
        others = other.fitted.weights.query_arrays
        assert arrays.keys() == others.keys()
        assert all(array.tobytes() == others[name].tobytes() for name, array in arrays.items())
        assert other.item_ids.equals(plain.item_ids)
        assert not other.scores_catalogue
    taken = tr.Ranker(parts=PARTS).fit(log).fitted.weights.query_arrays
    assert taken.keys() > arrays.keys()


def test_a_table_that_says_nothing_of_the_items_is_left_out(log: tr.Log, no_trees: None) -> None:
    table = shop_table().with_columns(pl.col("item_id") + 1000)
    model = tr.Ranker(parts=PARTS).fit(log.with_items(table))
    assert not model.scores_catalogue
    assert model.item_ids.equals(log.items.ids)


def test_a_column_that_counts_events_is_reported(
    log: tr.Log, no_trees: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("talerec.models.content.leaks._MIN_ITEMS", 10)
    counts = dict(zip(log.items.ids.to_list(), log.counts().tolist(), strict=True))
    table = shop_table()
    table = table.with_columns(sales=pl.Series([counts.get(i, 0) for i in table["item_id"]]))
    tr.Ranker(parts=PARTS).fit(log.with_items(table))
    assert sum("'sales' of the item table follows" in message for message in caplog.messages) == 1
    caplog.clear()
    tr.Ranker(parts=PARTS, content="off").fit(log.with_items(table))
    assert not any("follows" in message for message in caplog.messages)


def test_parts_of_ids_answer_as_before_with_more_items(log: tr.Log) -> None:
    n_items = len(log.items) + 40
    histories = late(log)
    for text in ("tempo", "ease", "slist", "swalk", "sknn", "markov", "rules", "trending"):
        plain = tr.Ranker(parts=text).parts  # the name is valid
        kind = {m.name: m for m in tr.models.core.registry.LIBRARY_MODELS.values()}[plain]
        fitted = kind().fit(replace(log, info=None, catalogue=None))
        before = rank_top(fitted, histories, 20)
        assert can_pad(fitted), text
        pad_parts([fitted], n_items)
        assert fitted.fitted.weights.items == n_items
        after = rank_top(fitted, histories, 20)
        np.testing.assert_array_equal(before.items, after.items, err_msg=text)
        np.testing.assert_array_equal(before.scores, after.scores, err_msg=text)


def test_a_part_with_an_array_of_items_is_fitted_to_all_items(log: tr.Log, no_trees: None) -> None:
    pytest.importorskip("torch")
    model = tr.Ranker(parts="popular,fpmc(epochs=1)").fit(log)
    assert (rank_top(model, late(log), 10).counts == 10).all()
    with pytest.raises(TalerecError, match="fpmc, a part of the ranker, takes no new items"):
        model.add_items(shop_table(N_ITEMS + N_NEW + 1))


def test_queries_ask_for_items_without_training_rows(log: tr.Log) -> None:
    for asks_new in (False, True):
        rounds = delayed_rounds(log, asks_new=asks_new)
        new = [
            np.bincount(r.train.item, minlength=len(log.items))[r.queries.target] == 0
            for r in rounds
        ]
        assert all(flags.any() == asks_new for flags in new)
        assert all(r.train.time.max() < r.known_until for r in rounds)
    held_out = current_round(log, 2, asks_new=True)
    assert len(held_out.queries) >= len(current_round(log, 2).queries)


def test_a_saved_ranker_answers_alike(model: tr.Ranker, log: tr.Log, tmp_path: Path) -> None:
    loaded = tr.load(model.save(tmp_path / "r.tale"), verify=True)
    for other in (loaded, model):
        lists = rank_top(other, late(log), 12)
        single = rank_top(other, late(log).slice(7, 8), 12)
        np.testing.assert_array_equal(lists.items[7], single.items[0])
    users = list(range(0, 320, 9))
    assert loaded.recommend(users, k=9).equals(model.recommend(users, k=9))
    assert loaded.explain_user(3, 171).equals(model.explain_user(3, 171))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("ranker_content", np.array([0])),
        ("ranker_content", np.array([99])),
        ("ranker_content", np.array([2.0])),
        ("ranker_content", np.array([], np.int64)),
    ],
)
def test_a_damaged_ranker_is_refused(
    model: tr.Ranker, tmp_path: Path, name: str, change: Array
) -> None:
    path = model.save(tmp_path / "r.tale")
    bundle = read_artifact(path)
    arrays = {**bundle.arrays, f"aside_{name}": change}
    write_artifact(tmp_path / "bad.tale", Bundle(bundle.facts, arrays, bundle.tables))
    with pytest.raises(ArtifactError, match="the model of content is another part"):
        tr.load(tmp_path / "bad.tale", verify=True)


def test_a_ranker_without_its_item_table_is_refused(model: tr.Ranker, tmp_path: Path) -> None:
    bundle = read_artifact(model.save(tmp_path / "r.tale"))
    training = {k: v for k, v in bundle.facts["training"].items() if k != ITEM_COLUMNS}
    facts = {**bundle.facts, "training": training, "has_item_info": False}
    write_artifact(tmp_path / "bad.tale", Bundle(facts, bundle.arrays, bundle.tables))
    with pytest.raises(ArtifactError, match="the item table is missing"):
        tr.load(tmp_path / "bad.tale", verify=True)


def test_explanations_name_what_items_share_and_add_up(model: tr.Ranker, log: tr.Log) -> None:
    lists = rank_top(model, late(log).slice(5, 6), 10)
    item = next(int(i) for i in lists.items[0] if i >= len(log.items))
    new = int(model.item_ids[item])
    history = log.items.ids.gather(log.item[log.ptr[5] : log.ptr[6]]).to_list()
    frame = model.explain(history, new)
    assert frame.columns == ["item_id", "contribution", "shared"]
    assert any(text.startswith("same color") for text in frame["shared"].drop_nulls())
    families = model.explain_user(5, new, by="families")
    assert "content" in families["family"].to_list()
    reason = families.filter(pl.col("family") == "content")["reason"][0]
    assert reason in {
        "described like what the user had", "same color as before", "it is new",
        "its price suits what the user had",
    }  # fmt: skip


def test_new_items_are_similar_to_items_of_their_kind(model: tr.Ranker) -> None:
    frame = model.similar_items(N_ITEMS + 1, k=6)
    assert (frame["item_id"] % 4 == (N_ITEMS + 1) % 4).sum() >= 5


def test_filters_act_before_new_items_are_proposed(model: tr.Ranker, log: tr.Log) -> None:
    red = [i for i in range(N_ITEMS, N_ITEMS + N_NEW) if i % 4 == 0]
    frame = model.recommend([1, 2, 3], k=10, allow=red)
    assert set(frame["item_id"]) == set(red)
    frame = model.recommend([1, 2, 3], k=10, where="color = 'blue'")
    assert len(frame) == 30
    assert (frame["item_id"] % 4 == 2).all()


def test_items_are_added_without_a_fit(
    model: tr.Ranker, log: tr.Log, no_trees: None, tmp_path: Path
) -> None:
    more = model.add_items(shop_table(N_ITEMS + N_NEW + 8))
    assert len(more.item_ids) == len(model.item_ids) + 8
    added = list(range(N_ITEMS + N_NEW, N_ITEMS + N_NEW + 8))
    frame = more.recommend([1, 2], k=8, allow=added)
    assert sorted(frame["item_id"].to_list()) == sorted(added * 2)
    loaded = tr.load(more.save(tmp_path / "more.tale"), verify=True)
    assert loaded.recommend([1, 2], k=8, allow=added).equals(frame)
    history = [4, 8, added[0]]  # of a user who took a new one
    assert len(loaded.recommend_histories([history], k=5)) == 5
    with pytest.raises(TalerecError, match="does not score items by their content"):
        tr.Ranker(parts=PARTS, content="off").fit(log).add_items(shop_table())


def test_a_service_lists_an_item_from_the_moment_it_is_put(
    model: tr.Ranker, tmp_path: Path
) -> None:
    pytest.importorskip("msgspec", reason="needs the extra serve")
    pytest.importorskip("uvicorn", reason="needs the extra serve")
    from service import service_with_store

    path, address = model.save(tmp_path / "r.tale"), f"sqlite:///{tmp_path}/shop.db"
    with service_with_store(path, tmp_path / "run", address, ids="integer") as local:
        history = [{"item_id": item} for item in (100, 104, 108)]
        body = {"history": history, "k": 10, "allow": [900, 4, 5]}
        answer = local.ask("POST", "/v1/recommend", body)
        assert {item["item_id"] for item in answer.json["items"]} == {4, 5}
        fields = {"title": "red thing 3", "color": "red", "price": 11.0, "since": "2018-08-19"}
        assert local.ask("PUT", "/v1/items/900", fields).status == 200
        answer = local.ask("POST", "/v1/recommend", body)
        assert answer.status == 200, answer
        assert {item["item_id"] for item in answer.json["items"]} == {900, 4, 5}
        similar = local.ask("POST", "/v1/similar", {"item_id": 900, "k": 5})
        assert all(item["item_id"] % 4 == 0 for item in similar.json["items"]), similar


def test_an_update_keeps_content_and_gives_rows_to_new_items(model: tr.Ranker, log: tr.Log) -> None:
    model = model.with_params()
    end = int(log.time.max() // 10**6)
    rows = [(user, N_ITEMS, end + 60 + user) for user in range(0, 320, 2)]
    rows += [(user, 5000, end + 600) for user in range(3)]  # in neither log nor table
    new = pl.DataFrame(rows, ["user_id", "item_id", "timestamp"], orient="row")
    update = tr.update(model, tr.Log.from_frame(new, time_unit="s"))
    assert update.items == 1
    position = model.item_ids.to_list().index(N_ITEMS)
    stage = model._state.first
    assert not stage.content.is_new[position]
    assert stage.content.is_new[position + 1]
    assert stage.log.indptr[position + 1] - stage.log.indptr[position] == 160
    lists = model.recommend([1, 2, 3], k=10)
    assert len(lists) == 30
    again = tr.update(model, tr.Log.from_frame(new.tail(1).with_columns(timestamp=end + 900)))
    assert again.rows == 1


def test_an_update_adds_the_new_items_of_its_table(
    model: tr.Ranker, log: tr.Log, tmp_path: Path
) -> None:
    added = list(range(N_ITEMS + N_NEW, N_ITEMS + N_NEW + 8))
    table = shop_table(N_ITEMS + N_NEW + 8).filter(pl.col("item_id") >= N_ITEMS + N_NEW)
    end = int(log.time.max() // 10**6)
    rows = [(user, 3, end + 60 + user) for user in range(40)]
    new = pl.DataFrame(rows, ["user_id", "item_id", "timestamp"], orient="row")
    for later in (None, tr.Log.from_frame(new, time_unit="s")):
        updated = model.with_params()
        assert tr.update(updated, later, items=table).added == 8
        frame = updated.recommend([1, 2], k=8, allow=added)
        assert sorted(frame["item_id"].to_list()) == sorted(added * 2)
        loaded = tr.load(updated.save(tmp_path / "r.tale", updatable=True), verify=True)
        assert loaded.recommend([1, 2], k=8, allow=added).equals(frame)
        assert tr.update(loaded, None, items=table).added == 0


CHANGED_TABLES = {
    "no color": lambda table: table.drop("color"),
    "no columns": lambda table: table.select("item_id"),
    "another name": lambda table: table.rename({"color": "colour"}),
    "text prices": lambda table: table.with_columns(price=pl.lit("cheap")),
    "numbers of colors": lambda table: table.with_columns(color=pl.int_range(pl.len())),
    "no dates": lambda table: table.with_columns(since=pl.lit("soon")),
    "no prices": lambda table: table.with_columns(price=pl.lit(None, pl.Float64)),
    "more columns": lambda table: table.with_columns(size=pl.lit("x")),
    "fewer items": lambda table: table.head(50),
}


@pytest.mark.parametrize("change", CHANGED_TABLES.values(), ids=CHANGED_TABLES)
def test_an_update_with_a_changed_table_leaves_a_model_that_works(
    model: tr.Ranker, log: tr.Log, change, tmp_path: Path
) -> None:
    model = model.with_params()
    end = int(log.time.max() // 10**6)
    rows = [(user, 3, end + 60 + user) for user in range(40)]
    new = pl.DataFrame(rows, ["user_id", "item_id", "timestamp"], orient="row")
    table = change(shop_table())
    assert tr.update(model, tr.Log.from_frame(new, time_unit="s").with_items(table)).rows == 40
    lists = model.recommend([1, 2], k=5)
    assert len(lists) == 10
    assert (
        tr.load(model.save(tmp_path / "r.tale"), verify=True).recommend([1, 2], k=5).equals(lists)
    )


def test_ranks_of_targets_are_positions_in_the_lists(model: tr.Ranker, log: tr.Log) -> None:
    histories = late(log).slice(0, 60)
    targets = np.random.default_rng(0).integers(0, len(model.item_ids), 60)
    ranked = rank_targets(model, histories, targets, len(model.item_ids))
    for q, target in enumerate(targets.tolist()):
        places = np.flatnonzero(ranked.items[q] == target)
        expected = places[0] + 1 if len(places) else 0
        assert ranked.ranks[q, 0] == expected


def test_columns_of_the_item_table_are_read_by_type() -> None:
    info = pl.DataFrame(
        {
            "item_id": range(4),
            "tags": ["b, a", "A", None, "c,a,b"],
            "price": [1.0, float("nan"), None, float("inf")],
            "since": ["2020-01-02", None, "2021-05-06", "no date"],
        }
    )
    types = [
        tr.data.ItemColumn("tags", "categories", ","), tr.data.ItemColumn("price", "number"),
        tr.data.ItemColumn("since", "date"),
    ]  # fmt: skip
    columns, content = ItemTable.read(info, types)
    assert columns == (("tags",), ("price",), True)
    cells = [content.codes[a:b].tolist() for a, b in pairwise(content.indptr[0])]
    assert cells == [[1, 2], [1], [], [1, 2, 3]]
    assert np.isnan(content.quantities[0, 1:]).all()
    assert content.quantities[0, 0] == 1.0
    days = content.dates // (86_400 * 10**6)
    assert days[0] == np.datetime64("2020-01-02").astype(int)
    assert (content.dates[[1, 3]] < 0).all()

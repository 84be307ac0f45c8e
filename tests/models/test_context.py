"""Context and user columns: found where they matter, ignored as noise, saved, asked, refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import talerec as tr
from command import refusal, talerec, works
from logs import device_frame
from talerec.artifact import read_artifact, write_artifact
from talerec.data import ContextColumn
from talerec.errors import InvalidLogError, TalerecError
from talerec.features import ContextEncoder

pytest.importorskip("lightgbm")


@pytest.fixture(scope="module", autouse=True)
def _short_learning() -> Iterator[None]:
    """Few trees, and few steps of the linear score, are enough for these logs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("talerec.models.ranker.learning._MAX_TREES", 25)
        patch.setattr("talerec.models.ranker.linear._STEPS", 20)
        yield


@pytest.fixture(scope="module")
def log() -> tr.Log:
    return tr.Log.from_frame(device_frame(), context=["device"])


@pytest.fixture(scope="module")
def model(log) -> tr.Ranker:
    return fit_ranker(log)


def fit_ranker(log: tr.Log) -> tr.Ranker:
    return tr.Ranker(parts="markov,popular", candidates=40).fit(log)


def ndcg(log: tr.Log) -> float:
    split = tr.leave_one_out(log)
    return tr.evaluate(fit_ranker(split.train), split).metrics["NDCG@10"]


def test_a_planted_column_raises_the_held_out_gain_and_a_shuffled_one_does_not(log):
    codes = np.random.default_rng(5).permutation(log.context[0].codes)
    shuffled = replace(log, context=(replace(log.context[0], codes=codes),))
    plain = ndcg(replace(log, context=()))
    assert ndcg(log) > plain + 0.04
    assert abs(ndcg(shuffled) - plain) < 0.03  # one standard error is about .015


def test_lists_follow_the_device_that_is_said(model):
    for device, first in (("phone", 20), ("desk", 0)):
        items = model.recommend([1, 2, 3], 5, context={"device": device})["item_id"]
        assert items.is_between(first, first + 19).all()
    each = model.recommend([1, 2], 5, context=[{"device": "phone"}, {"device": "desk"}])
    assert each.filter(user_id=1)["item_id"].min() >= 20
    assert each.filter(user_id=2)["item_id"].max() < 20


def test_missing_and_unknown_values_are_the_same(model):
    plain = model.recommend([1], 5)
    for value in ("tv", None, ""):
        assert model.recommend([1], 5, context={"device": value}).equals(plain)


def test_a_log_without_context_is_fitted_as_before(log):
    """Bits of the same log read without the column, and with the column taken away."""
    plain = tr.Log.from_frame(device_frame())
    one, other = fit_ranker(plain), fit_ranker(replace(log, context=()))
    arrays, others = (each.fitted.weights.query_arrays for each in (one, other))
    assert arrays.keys() == others.keys()
    assert not any("context" in name for name in arrays)
    assert all(arrays[name].tobytes() == others[name].tobytes() for name in arrays)


def test_the_saved_model_answers_and_explains_as_the_fitted_one(model, tmp_path: Path):
    loaded = tr.load(model.save(tmp_path / "m.tale"), verify=True)
    said = {"device": "phone"}
    lists = model.recommend([1, 2], 5, context=said)
    assert loaded.recommend([1, 2], 5, context=said).equals(lists)
    item, score = lists.filter(user_id=1).select("item_id", "score").row(0)
    families = loaded.explain_user(1, item, context=said, by="families")
    assert "chosen with this device" in families["reason"].to_list()
    assert families["contribution"].sum() == pytest.approx(score, abs=1e-6)
    rows = loaded.explain_user(1, item, context=said)
    assert rows["contribution"].sum() == pytest.approx(score, abs=1e-6)
    assert loaded.fitted.log.context[0].values.to_list() == ["desk", "phone"]


def test_a_user_column_is_context_that_users_have(log):
    """Ages decide the items; the table says the age once, and lists need nothing said."""
    rng = np.random.default_rng(1)
    frame = device_frame().drop("device")
    old = np.random.default_rng(2).random(250) < 0.5
    item = old[frame["user_id"].to_numpy()] * 20 + rng.integers(0, 20, len(frame))
    ages = pl.DataFrame({"user_id": range(250), "age": np.where(old, 60, 20) + np.arange(250) % 7})
    aged = tr.Log.from_frame(frame.with_columns(pl.Series("item_id", item))).with_users(ages)
    model = fit_ranker(aged)
    state = model._state.first.context
    assert state.names == [("age", True)]
    inputs = state.build_inputs(tr.Histories.of_users(aged))
    assert len(np.unique(inputs.codes)) == 14  # 14 different ages have a bin each
    empty = model.recommend_histories([[]], 5, context={"age": 63})["item_id"]
    assert (empty >= 20).all()


def test_an_update_keeps_values_and_adds_rows(log, tmp_path: Path):
    frame = device_frame()
    older = tr.Log.from_frame(frame.head(3600), context=["device"])
    model = fit_ranker(older)
    model.save(tmp_path / "m.tale", updatable=True)
    model = tr.load(tmp_path / "m.tale")
    result = tr.update(model, tr.Log.from_frame(frame.tail(400), context=["device"]))
    assert result.rows == 400
    device = model.fitted.log.context[0]
    shown = [device.values[int(code)] for code in device.codes]
    rows = model.fitted.log.to_frame().with_columns(pl.Series("device", shown))
    key = ["user_id", "timestamp", "item_id", "device"]
    expected = log.to_frame().with_columns(
        device=log.context[0].values.gather(log.context[0].codes)
    )
    assert rows.select(key).sort(key).equals(expected.select(key).sort(key))
    assert model._state.first.context.rows.values.shape == (1, 4000)
    with pytest.raises(InvalidLogError, match="context column 'device', which the new rows do not"):
        tr.update(model, tr.Log.from_frame(frame.tail(10)))


BAD_CONTEXTS = [
    ({"devise": "phone"}, "no context column 'devise'; the model has device"),
    ({"device": ["phone"]}, "context 'device' is .*; it takes text"),
    ({"device": 1.5}, "context 'device' is 1.5; it takes text"),
    ({"device": "x" * 300}, "context 'device' has 300 characters; 200 are allowed"),
    ([{"device": "phone"}], "`context` has 1 entries for 2 requests"),
    ("phone", "`context` takes values by column"),
]


@pytest.mark.parametrize(("context", "message"), BAD_CONTEXTS)
def test_bad_contexts_are_refused_in_one_line(model, context, message: str):
    with pytest.raises(TalerecError, match=message):
        model.recommend([1, 2], 3, context=context)


def test_other_models_refuse_context(log):
    model = tr.Markov().fit(log)
    assert model.fitted.log.context == ()
    with pytest.raises(TalerecError, match="markov does not use `context`; the ranker does"):
        model.recommend([1], 3, context={"device": "phone"})


BAD_USERS = [
    ({"user_id": [1, 1], "age": [2, 3]}, "user 1 has two rows in the table of users"),
    ({"user_id": [9001, 9002], "age": [2, 3]}, "describes no user of the log: 0 of [0-9]* ids"),
    ({"user_id": [1, 2]}, "the table of users has no column besides 'user_id'"),
    ({"user_id": [1, 2], "age": [1.0, float("inf")]}, "age is not a finite number"),
    ({"user_id": [1, 2], "tags": [["a"], ["b"]]}, "column 'tags' holds List.* values; context is"),
    ({"user_id": [1, 2], "device": ["a", "b"]}, "there are two context columns 'device'"),
    ({"id": [1, 2], "age": [1, 2]}, "there is no column 'user_id'"),
]


@pytest.mark.parametrize(("table", "message"), BAD_USERS)
def test_bad_tables_of_users_are_refused_in_one_line(log, table, message: str):
    with pytest.raises(InvalidLogError, match=message):
        log.with_users(pl.DataFrame(table))


def test_a_column_that_changes_its_type_is_refused(model, log):
    numbers = ContextColumn.from_series("device", pl.Series([0.5] * log.rows))
    with pytest.raises(InvalidLogError, match="'device' had text when the model was fitted, and"):
        tr.update(model, replace(log, context=(numbers,)))


def damaged_encoders() -> list[bytes]:
    good = b'{"name": "device", "by_user": false, "values": ["a"], "edges": []}'
    return [
        b"[", b"{}", b"[" + good + b"," + good + b"]", b"[1]",
        b"[" + good.replace(b'["a"]', b'["a", "a"]') + b"]",
        b"[" + good.replace(b'["a"]', b"[1]") + b"]",
        b"[" + good.replace(b'["a"]', b"null").replace(b"[]", b"[2, 1]") + b"]",
        b"[" + good.replace(b'["a"]', b"null").replace(b"[]", b"[NaN]") + b"]",
        b"[" + good.replace(b'["a"]', b"null").replace(b"[]", b"[1e999]") + b"]",
        b"[" * 100_000,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def bundle(model, tmp_path_factory):
    return read_artifact(model.save(tmp_path_factory.mktemp("saved") / "m.tale"))


def refuses(bundle, path: Path, **arrays) -> None:
    other = replace(bundle, arrays={**bundle.arrays, **arrays})
    with pytest.raises(TalerecError):
        tr.load(write_artifact(path / "bad.tale", other))


@pytest.mark.parametrize("number", range(10))
def test_damaged_encoders_are_refused(bundle, tmp_path: Path, number: int):
    text = damaged_encoders()[number]
    refuses(bundle, tmp_path, aside_ranker_context=np.frombuffer(text, np.uint8))


def test_damaged_rows_of_context_are_refused(bundle, tmp_path: Path):
    arrays = bundle.arrays
    refuses(
        bundle, tmp_path, aside_ranker_context_values=arrays["aside_ranker_context_values"][:, :-1]
    )
    refuses(bundle, tmp_path, aside_ranker_context_value_indptr=np.array([[0, 9, 3, 4000]]))
    refuses(bundle, tmp_path, aside_ranker_context_times=arrays["aside_ranker_context_times"] + 0.5)
    codes = arrays["context0"].copy()
    codes[7] = 2
    refuses(bundle, tmp_path, context0=codes)


def test_values_beyond_the_thousand_most_frequent_are_missing(caplog):
    names = [f"v{n}" for n in range(1001) for _ in range(2 if n else 1)]
    encoder = ContextEncoder.learn(ContextColumn.from_series("page", pl.Series(names)))
    assert encoder.n_codes == 1001
    assert "'page' has 1,001 values" in caplog.text
    column = ContextColumn.from_series("page", pl.Series(["v0", "v1", "other", None]))
    assert (encoder.encode((column,), 4) == 0).tolist() == [True, False, True, True]


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> Path:
    """A folder with a log of devices, a table of users, and a model of both."""
    folder = tmp_path_factory.mktemp("shop")
    frame = device_frame()
    frame.write_csv(folder / "log.csv")
    frame.drop("device").write_csv(folder / "plain.csv")
    users = pl.DataFrame({"user_id": range(250), "country": ["de", "fr"] * 125})
    users.write_csv(folder / "users.csv")
    pl.concat([users, users.head(1)]).write_csv(folder / "twice.csv")
    users.with_columns(pl.col("user_id") + 10_000).write_csv(folder / "others.csv")
    works("fit", folder / "log.csv", "-o", folder / "m.tale", *RANKER, *COLUMNS,
          folder / "users.csv", "--updatable")  # fmt: skip
    return folder


RANKER = ["--model", "ranker", "--set", "parts=markov,popular", "--set", "candidates=40"]
COLUMNS = ["--context", "device", "--user-table"]


def test_the_command_says_the_context(shop: Path):
    model = tr.load(shop / "m.tale")
    assert [column.name for column in model.fitted.log.context] == ["device", "country"]
    said = ["--context", "device=phone"]
    lists = talerec("recommend", shop / "m.tale", "--users", "1,2", "-k", 5, *said, "--json").json
    items = [[item["item_id"] for item in each["items"]] for each in lists]
    frame = model.recommend([1, 2], 5, context={"device": "phone"})
    assert items == [frame.filter(user_id=user)["item_id"].to_list() for user in (1, 2)]
    explained = works("explain", shop / "m.tale", "--user", 1, "--item", items[0][0], *said)
    assert "chosen with this device" in explained


def test_lists_read_the_columns_of_the_fit_and_know_the_users(shop: Path):
    out = shop / "lists.parquet"
    works(
        "lists", shop / "m.tale", shop / "log.csv", "-o", out, "-k", 5, "--context", "device=phone"
    )
    model = tr.load(shop / "m.tale")
    users = model.fitted.log.users.ids.to_list()
    expected = model.recommend(users, 5, context={"device": "phone"})
    assert (
        pl.read_parquet(out)
        .select("user_id", "item_id")
        .equals(expected.select("user_id", "item_id"))
    )


def test_an_evaluation_uses_the_columns_and_takes_other_models_beside(shop: Path):
    files = [*COLUMNS, shop / "users.csv"]
    with_it = talerec("evaluate", shop / "log.csv", *RANKER, *files, "--json").json
    without = talerec("evaluate", shop / "log.csv", *RANKER, "--json").json
    assert with_it["metrics"]["NDCG@10"] > without["metrics"]["NDCG@10"] + 0.04
    works("evaluate", shop / "log.csv", "--models", "markov,popular", *files)


BAD_COMMANDS = [
    ("fit LOG -o x.tale --context device", "--context: tempo does not use context; the"),
    ("evaluate LOG --model ease --user-table USERS", "--user-table: ease does not use context"),
    ("fit LOG -o x.tale --model ranker --context devise", "there is no column 'devise'"),
    ("fit LOG -o x.tale --model ranker --user-table TWICE", "user 0 has two rows in the table of"),
    ("fit LOG -o x.tale --model ranker --user-table OTHERS", "no user of the log: 0 of 250 ids"),
    ("fit LOG -o x.tale --model ranker --user-table NONE", "none.csv"),
    ("recommend MODEL --users 1 --context device", "--context takes COLUMN=VALUE such as"),
    ("recommend MODEL --users 1 --context devise=phone", "no context column 'devise'; the model"),
    ("lists MODEL PLAIN -o x.csv", "no column 'device'.*model was fitted with --context device"),
    ("update MODEL PLAIN", "no column 'device'.*model was fitted with --context device"),
]


@pytest.mark.parametrize(("command", "message"), BAD_COMMANDS)
def test_bad_input_of_the_command_is_one_line(shop: Path, tmp_path: Path, command, message):
    files = {
        "LOG": "log.csv", "USERS": "users.csv", "TWICE": "twice.csv", "OTHERS": "others.csv",
        "NONE": "none.csv", "MODEL": "m.tale", "PLAIN": "plain.csv",
    }  # fmt: skip
    words = [str(shop / files[word]) if word in files else word for word in command.split()]
    words = [str(tmp_path / word) if word.startswith("x.") else word for word in words]
    assert re.search(message, refusal(*words))
    assert not list(tmp_path.iterdir())

"""`top_items`: one list as plain pairs, equal to the rows of `recommend_histories`."""

from __future__ import annotations

import polars as pl
import pytest

import talerec as tr
from talerec.data import vocabulary
from talerec.errors import TalerecError, UnknownIdError


@pytest.fixture(scope="module")
def log() -> tr.Log:
    return tr.synthetic_log(users=80, items=40)


@pytest.fixture(scope="module", params=[tr.Markov, tr.Tempo, tr.SKNN, tr.Popular])
def model(request: pytest.FixtureRequest, log: tr.Log) -> tr.Model:
    return request.param().fit(log)


OPTIONS = [
    {}, {"k": 3}, {"hide_seen": True}, {"allow": [1, 2, 9]}, {"deny": [1, 2, 3], "k": 40},
    {"as_of": 10**15}, {"allow": [4], "hide_seen": True},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("history", [[3, 4, 9, 3], [], [(5, 1.0e9), (7, 0.9e9)]], ids=str)
def test_pairs_are_the_rows_of_the_frame(model, history, options):
    frame = model.recommend_histories([history], **options)
    pairs = model.top_items(history, **options)
    assert pairs == list(zip(frame["item_id"].to_list(), frame["score"].to_list(), strict=True))
    assert all(type(name) is int and type(score) is float for name, score in pairs)


def test_ids_of_a_large_vocabulary_are_the_same(log, monkeypatch):
    expected = tr.Markov().fit(log).top_items([3, 9], k=40)
    monkeypatch.setattr(vocabulary, "_MAX_DICTIONARY", 10)
    assert tr.Markov().fit(log).top_items([3, 9], k=40) == expected


def test_text_ids_are_text():
    users, items, times = ["a", "a", "b"], ["x", "y", "x"], [1, 2, 3]
    rows = pl.DataFrame({"user_id": users, "item_id": items, "timestamp": times})
    model = tr.Popular().fit(tr.Log.from_frame(rows))
    assert [name for name, _ in model.top_items(["y"], k=2)] == ["x", "y"]


def test_a_history_that_is_no_list_or_has_unknown_ids_is_refused(log):
    model = tr.Markov().fit(log)
    with pytest.raises(UnknownIdError, match="item 'x' is not known"):
        model.top_items(["x"])
    assert model.top_items(["x", 3], unknown="skip") == model.top_items([3])
    with pytest.raises(TalerecError, match="histories is a list"):
        model.top_items("3")
    with pytest.raises(TalerecError, match="`k` is 0"):
        model.top_items([3], k=0)

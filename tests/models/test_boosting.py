"""Boosts equal a full sort of all items to the last bit, with filters and column limits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import oracle
import talerec as tr
from talerec.data import Vocabulary
from talerec.models.core import Fitted, build_boosts
from talerec.models.core.boosts import MAX_VALUES
from talerec.models.linear import Linear
from talerec.ranking import Weights

FORMS = {"dense": 0, "sparse": 0, "table": 140_000}  # items beyond those that anything leads to


@dataclass(eq=False, kw_only=True)
class Given(Linear):
    """A model whose weights are given."""

    name: ClassVar[str] = "given"
    paper: ClassVar[str] = "-"

    def learn_weights(self, log: Any, clock: Any) -> Any:
        raise NotImplementedError


def model_of(form: str, B: np.ndarray, table: dict[str, list[Any]]) -> Given:
    n, more = len(B), FORMS[form]
    weights = Weights(B) if form == "dense" else Weights(padded(B, more))
    ids = pl.Series(np.arange(n + more))
    info = pl.DataFrame({"item_id": ids, **{name: v + [None] * more for name, v in table.items()}})
    model = Given()
    model.set_fitted(Fitted(weights, Vocabulary(ids), info, None, None, {}, {"users": 1}))
    return model


def padded(B: np.ndarray, more: int) -> Any:
    rows = sparse.csr_array(B)
    parts = (rows.data, rows.indices, np.append(rows.indptr, [rows.indptr[-1]] * more))
    return sparse.csr_array(parts, shape=(len(B) + more, len(B) + more))


def brute_force(
    full: list[tuple[int, float]], table: dict[str, list[Any]], boost: Any, per: Any, k: int
) -> list[tuple[int, float]]:
    """Return the list from all scores: boosted, sorted, and cut by column limits."""
    spread = full[0][1] - full[min(len(full), 100) - 1][1] if len(full) > 1 else 0.0

    def amount(item: int) -> float:
        return sum(
            values.get(str(table[column][item]), 0.0)
            for column, values in boost.items()
            if item < len(table[column]) and table[column][item] is not None
        )

    raised = [(item, score + amount(item) * spread) for item, score in full]
    raised.sort(key=lambda pair: (-pair[1], pair[0]))
    answer: list[tuple[int, float]] = []
    used: dict[Any, int] = {}
    for item, score in raised:
        kinds = [(c, table[c][item]) for c in per if table[c][item] is not None]
        if len(answer) < k and all(used.get(kind, 0) < per[kind[0]] for kind in kinds):
            answer.append((item, score))
            used.update({kind: used.get(kind, 0) + 1 for kind in kinds})
    return answer


def pairs(frame: pl.DataFrame) -> list[tuple[int, float]]:
    return list(zip(frame["item_id"].to_list(), frame["score"].to_list(), strict=True))


entries = st.sampled_from([0.0, 0.0, 1.0, 1.0, 0.5, -1.0, 2.0])
boost_values = st.sampled_from([0.0, 0.2, 0.5, 1.0, 3.0, -0.3, -2.0])


@st.composite
def questions(draw: Any) -> Any:
    n = draw(st.integers(1, 8))
    B = np.array([[draw(entries) for _ in range(n)] for _ in range(n)], np.float32)
    table = {
        "brand": [draw(st.sampled_from(["X", "Y", None])) for _ in range(n)],
        "size": [draw(st.sampled_from([1, 2, None])) for _ in range(n)],
    }
    boost = {
        "brand": draw(st.dictionaries(st.sampled_from(["X", "Y", "Z"]), boost_values)),
        "size": draw(st.dictionaries(st.sampled_from(["1", "2"]), boost_values)),
    }
    return {
        "B": B, "table": table, "boost": boost,
        "history": draw(st.lists(st.integers(0, n - 1), max_size=5)),
        "per": draw(st.sampled_from([None, {"brand": 1}, {"brand": 2, "size": 1}])),
        "where": draw(st.sampled_from([None, "size = 1 or brand = 'X'"])),
        "deny": draw(st.none() | st.lists(st.integers(0, n - 1), max_size=2)),
        "hide_seen": draw(st.booleans()),
        "k": draw(st.integers(1, n)),
    }  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@given(questions())
@settings(max_examples=40, deadline=None)
def test_a_boosted_list_equals_scoring_every_item(form: str, query: Any) -> None:
    model = model_of(form, query["B"], query["table"])
    masks = {name: query[name] for name in ("where", "deny", "hide_seen")}
    full = pairs(model.recommend_histories([query["history"]], len(model.item_ids), **masks))
    rules = {"boost": query["boost"], "per": query["per"]}
    answer = model.recommend_histories([query["history"]], query["k"], **masks, **rules)
    expected = brute_force(full, query["table"], query["boost"], query["per"] or {}, query["k"])
    assert pairs(answer) == expected
    for item, score in expected:
        why = model.explain(query["history"], item, boost=query["boost"], **masks)
        assert why["contribution"].sum() == pytest.approx(score, abs=1e-12)


@given(questions())
@settings(max_examples=60, deadline=None)
def test_the_scores_that_are_boosted_are_the_sums_of_the_weights(query: Any) -> None:
    """The same without our own ranking: x @ B by hand, then the formula."""
    model = model_of("sparse", query["B"], query["table"])
    rows = query["history"]
    x = oracle.history_weights(rows, list(range(len(rows))), 2.0, joint=False)
    full = oracle.ranking(x, query["B"], hidden=set(rows) if query["hide_seen"] else ())
    options = {"hide_seen": query["hide_seen"], "boost": query["boost"]}
    answer = model.recommend_histories([rows], len(model.item_ids), **options)
    expected = brute_force(full, query["table"], query["boost"], {}, len(query["B"]))
    assert answer["score"].to_list() == pytest.approx([score for _, score in expected], abs=1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lift", [0.01, 0.3, 1.0, 40.0, -1.0])
def test_many_items_and_many_users_at_once(form: str, lift: float, monkeypatch: Any) -> None:
    """Lists have to grow: the boosted items rank low, and rank 100 is not the last."""
    from talerec.models.core import inference

    monkeypatch.setattr(inference, "_MAX_ENTRIES", 3000)  # several blocks of users
    rng = np.random.default_rng(5)
    n = 700
    B = np.where(rng.random((n, n)) < 0.5, rng.normal(size=(n, n)), 0).astype(np.float32)
    brands = [("rare" if i % 90 == 0 else f"b{i % 7}") for i in range(n)]
    table = {"brand": brands, "shelf": [i % 3 for i in range(n)]}
    model = model_of(form, B, table)
    boost = {"brand": {"rare": lift, "b1": lift / 2, "b2": -0.5}, "shelf": {"2": 0.1}}
    histories = [rng.integers(0, n, 6).tolist() for _ in range(12)]
    for k, per in ((10, None), (5, {"brand": 1}), (60, {"shelf": 25})):
        answer = model.recommend_histories(histories, k, boost=boost, per=per, hide_seen=True)
        for number, history in enumerate(histories):
            full = pairs(model.recommend_histories([history], n, hide_seen=True))
            expected = brute_force(full, table, boost, per or {}, k)
            assert pairs(answer.filter(pl.col("history") == number)) == expected


def test_the_spread_is_the_first_score_less_the_hundredth() -> None:
    B = np.zeros((150, 150), np.float32)
    B[0] = np.arange(150, 0, -1)
    model = model_of("dense", B, {"brand": ["X" if i == 120 else "Y" for i in range(150)]})
    answer = model.recommend_histories([[0]], 150, boost={"brand": {"X": 0.5}})
    base, spread = 150 - 120, 150 - 51
    assert answer.filter(pl.col("item_id") == 120)["score"].item() == base + 0.5 * spread
    why = model.explain([0], 120, boost={"brand": {"X": 0.5}})
    assert why.rows()[-1] == (None, 0.5 * spread, "brand=X")
    assert why["contribution"].sum() == base + 0.5 * spread
    assert model.explain([0], 120).columns == ["item_id", "contribution"]


def test_no_spread_no_boost_and_no_score_no_boost() -> None:
    table = {"brand": ["Y", "X", "X", "X"]}
    even = np.zeros((4, 4), np.float32)
    even[0, 1:3] = 2.0  # two items with one score: a spread of 0
    even[1, 2] = 1.0  # a list of one item
    model = model_of("dense", even, table)
    boost = {"brand": {"X": 5.0}}
    for history in ([0], [1], [3], []):
        plain = model.recommend_histories([history], 4)
        assert model.recommend_histories([history], 4, boost=boost).equals(plain)
    assert model.explain([0], 3, boost=boost)["boost"].drop_nulls().is_empty()


@pytest.mark.parametrize(
    ("values", "boost", "expected"),
    [
        ([1, 2, None], {"1": 0.5, "2.0": 1, "x": 9, "1.5": 9}, [0.5, 1, 0]),
        ([1, 2, None], {1: 0.5, "1": 0.25}, [0.75, 0, 0]),
        ([1.0, 2.5, math.nan], {"1": 0.5, "2.50": 1, "nan": 9}, [0.5, 1, 0]),
        ([True, False, None], {"true": 0.5, False: -1}, [0.5, -1, 0]),
        (["1", "01", None], {"1": 0.5, "None": 9, "null": 9}, [0.5, 0, 0]),
        (["ä", "", "a:b"], {"ä": 0.5, "": 1, "a:b": 2}, [0.5, 1, 2]),
        ([2**62 + 1, 2**62, 0], {str(2**62 + 1): 1.0}, [1, 0, 0]),
        ([None, None, None], {"x": 1.0}, [0, 0, 0]),
    ],
)
def test_values_are_compared_as_the_column_has_them(values: Any, boost: Any, expected: Any) -> None:
    table = pl.DataFrame({"c": values})
    assert build_boosts(table, {"c": boost}).fractions.tolist() == expected


@pytest.mark.parametrize(
    ("boost", "said"),
    [
        ({"colour": {"X": 1}}, "table has no column 'colour'; it has item_id, brand, tags"),
        ({"brand": {"X": math.nan}}, "brand 'X' is nan; it takes a number from -1000 to 1000"),
        ({"brand": {"X": 1e308}}, "it takes a number from -1000 to 1000"),
        ({"brand": {"X": -math.inf}}, "it takes a number"),
        ({"brand": {"X": True}}, "it takes a number"),
        ({"brand": {"X": "0.2"}}, "it takes a number"),
        ({"brand": 0.2}, "it takes values and their numbers"),
        ({"tags": {"X": 1}}, "holds List"),
        ([1], "`boost`: it takes a table"),
        ({"brand": dict.fromkeys(range(MAX_VALUES + 1), 0.1)}, "more than 10,000 values"),
    ],
)  # fmt: skip
def test_what_is_not_a_boost_is_refused(boost: Any, said: str) -> None:
    model = model_of("dense", np.eye(2, dtype=np.float32), {"brand": ["X", "Y"], "tags": [[1], []]})
    with pytest.raises(tr.TalerecError, match="boost") as error:
        model.recommend_histories([[0]], 1, boost=boost)
    assert said in str(error.value)


def test_a_boost_needs_an_item_table_and_nothing_is_boosted_by_nothing() -> None:
    frame = pl.DataFrame({"user_id": [1, 1, 1], "item_id": [1, 2, 1], "timestamp": [1, 2, 3]})
    model = tr.Markov().fit(tr.Log.from_frame(frame, time_unit="s"))
    with pytest.raises(tr.TalerecError, match="`boost` needs an item table"):
        model.recommend([1], 2, boost={"brand": {"X": 1}})
    assert model.recommend([1], 2, boost={}).equals(model.recommend([1], 2))


def test_ten_thousand_values_on_every_item() -> None:
    n = 2000
    B = np.random.default_rng(1).normal(size=(n, n)).astype(np.float32)
    model = model_of("dense", B, {"code": [f"c{i}" for i in range(n)]})
    boost = {"code": {f"c{i}": (i % 200 - 100) * 10.0 for i in range(MAX_VALUES)}}
    answer = model.recommend_histories([[3, 5]], 1000, boost=boost)
    full = pairs(model.recommend_histories([[3, 5]], n))
    table = {"code": [f"c{i}" for i in range(n)]}
    assert pairs(answer) == brute_force(full, table, boost, {}, 1000)


def test_a_limit_starts_anew_for_every_history_and_leaves_items_without_a_value_alone() -> None:
    """Items 0 to 4 share the only value of a column, and 5 to 9 have none."""
    model = model_of("dense", np.ones((10, 10), np.float32), {"brand": ["X"] * 5 + [None] * 5})
    answer = model.recommend_histories([[0], [1], [2]], 6, per={"brand": 1})
    for history in range(3):
        items = answer.filter(pl.col("history") == history)["item_id"].to_list()
        assert items == [0, 5, 6, 7, 8, 9]

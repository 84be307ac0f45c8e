"""Parts of an update against counts from all rows: K by target, tempo, weights, residuals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_updating import all_rows, assert_same, settled_by_hand, two_parts

import talerec as tr
from command import refusal, works, write_log
from logs import DAY, Row, log_of, logs, quick, rows_of
from talerec.data import median_interval
from talerec.gram import TaleWeighting, tale_columns
from talerec.gram.builders import tale_gram
from talerec.models.tempo import log_statistics, tie_order
from talerec.runtime import Clock, dense

WEIGHING: dict[str, Any] = {
    "decay": 0.3, "floor": 0.2, "window": 1.0, "trend": 0.4, "trend_side": "both", "max_history": 5,
}  # fmt: skip


@quick
@given(
    logs(),
    st.sampled_from(["ordered", "joint"]),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from([0.0, 0.7]),
    st.booleans(),
)
def test_columns_of_some_targets_are_those_of_k_counted_whole(
    log: tr.Log, same_time: str, floor: float, reverse_share: float, weighed: bool
) -> None:
    if weighed:
        log = replace(log, weight=1 + np.arange(log.rows) % 3)
    weighing = {**WEIGHING, "same_time": same_time, "floor": floor}
    K = dense(tale_gram(log, **weighing).K)
    is_target = np.arange(len(log.items)) % 2 == 0
    actual = dense(
        tale_columns(log, TaleWeighting(**weighing), is_target, reverse_share=reverse_share)
    )
    np.testing.assert_allclose(
        actual, np.where(is_target, K + reverse_share * K.T, 0.0), rtol=1e-12
    )


@quick
@given(two_parts(), st.sampled_from([1, 2, 4]), st.sampled_from(["ordered", "joint"]))
def test_rows_that_max_history_cuts_off_are_gone_without_a_trace(
    parts: tuple[list[Row], list[Row]], longest: int, same_time: str
) -> None:
    old, new = parts
    options: dict[str, Any] = {
        "reg": 2.0, "solver": "local", "neighbors": 100, "trend": 0.0, "max_history": longest,
        "same_time": same_time,
    }  # fmt: skip
    model = tr.TALE(**options).fit(log_of(old))
    tr.update(model, log_of(new), tolerance=0)
    whole = log_of(all_rows(old, new))
    assert_same(model, tr.TALE(**options).fit(whole))
    G = dense(tr.TALE(**options).gram(whole).G)
    place = model.fitted.items.positions(whole.items.ids, "item", "error")
    triangle = model.fitted.update_state.triangle
    np.testing.assert_allclose(triangle.diagonal[place], np.diag(G), rtol=1e-12)
    left = triangle.lower.values[triangle.lower.values != 0]
    assert len(left) == np.count_nonzero(np.tril(G, -1))


@pytest.mark.parametrize(
    "model",
    [
        tr.SLIT(solver="local"),
        tr.SLIST(solver="local"),
        tr.TALE(solver="local", alpha=0.3, trend=0),
    ],
)
def test_local_models_without_a_kept_half_are_those_of_all_rows(model: tr.Model) -> None:
    log = tr.synthetic_log(1500, seed=3)
    is_new = log.time >= np.sort(log.time)[-60]
    model = type(model)(**{**model.params, "neighbors": 1000})
    expected = type(model)(**model.params).fit(log)
    model.fit(log.keep(~is_new).compact())
    some = model.with_params()
    assert tr.update(some, log.keep(is_new)).solved > 0
    tr.update(model, log.keep(is_new), tolerance=0)
    assert_same(model, expected)
    assert model.fitted.update_state.triangle is None


@pytest.mark.parametrize("name", ["ease", "edlae", "rdlae", "slis", "swalk"])
def test_weights_that_are_more_than_a_targets_equations_are_learned_anew(name: str) -> None:
    log = tr.synthetic_log(1500, seed=3)
    is_new = log.time >= np.sort(log.time)[-60]
    model = tr.MODELS[name](solver="local", neighbors=20).fit(log.keep(~is_new).compact())
    done = tr.update(model, log.keep(is_new))
    assert done.solved == done.targets
    expected = tr.MODELS[name](solver="local", neighbors=20).fit(log)
    users = log.users.ids[:40].to_list()
    updated, theirs = model.recommend(users, 5), expected.recommend(users, 5)
    np.testing.assert_allclose(updated["score"], theirs["score"], rtol=1e-4, atol=1e-5)


# -- tempo -----------------------------------------------------------------------------------------


def tempo_by_hand(model: tr.Tempo, first: tr.Log, whole: tr.Log) -> np.ndarray:
    """Return item weights of all rows, with the statistics and reverse share of the first."""
    ties = "ordered" if tie_order.find_tie_order(first).is_ordered else "joint"
    weighing = {
        "decay": model.pace * median_interval(first), "floor": model.floor,
        "window": model.window, "trend": model.trend, "trend_side": "both",
        "max_history": model.max_history, "same_time": ties,
    }  # fmt: skip
    share = _share(model, first, weighing)
    gram = tale_gram(whole, **weighing)
    G, K = dense(gram.G), dense(gram.K)
    penalty = model.reg + model.dropout / (1 - model.dropout) * np.diag(G)
    return np.linalg.solve(G + np.diag(penalty), K + share * K.T)


def _share(model: tr.Tempo, first: tr.Log, weighing: dict[str, Any]) -> float:
    """c: chance's part in the difference between K and K'."""
    plain = replace(model, shrinkage=0.0, learn="off")
    G, K = dense(plain.gram(first).G), dense(plain.gram(first).K)
    both = dense(replace(model, learn="off").gram(first).K)
    actual = (both - K)[K.T > 0] / K.T[K.T > 0]
    assert np.ptp(actual) < 1e-9 if len(actual) else G.size
    return float(actual[0]) if len(actual) else 0.0


@quick
@given(two_parts(), st.sampled_from(["exact", "local"]), st.sampled_from(["auto", "joint"]))
def test_tempo_keeps_what_it_measured_and_counts_the_rest_from_all_rows(
    parts: tuple[list[Row], list[Row]], solver: str, same_time: str
) -> None:
    old, new = parts
    settings = tr.Tempo(reg=2.0, solver=solver, neighbors=100, same_time=same_time, window=1.0)
    model = replace(settings).fit(log_of(old))
    tr.update(model, log_of(new), tolerance=0)
    whole = log_of(all_rows(old, new))
    trends = settled_by_hand(whole, [old, new], 1.0)
    if same_time == "auto":
        settings = replace(
            settings,
            same_time="ordered" if tie_order.find_tie_order(log_of(old)).is_ordered else "joint",
        )
    B = tempo_by_hand(settings, log_of(old), replace(whole, trends=trends))
    place = model.fitted.items.positions(whole.items.ids, "item", "error")
    actual = dense(model.weights)[np.ix_(place, place)]
    np.testing.assert_allclose(actual, B, rtol=2e-4, atol=1e-5)
    arrays = model.fitted.weights.query_arrays
    np.testing.assert_allclose(arrays["repeats"], log_statistics.measure_repeat_rates(whole))
    fresh = replace(settings).fit(whole).fitted.weights.query_arrays
    assert np.array_equal(arrays["moments"], fresh["moments"])


@pytest.fixture(scope="module")
def shop() -> tuple[tr.Log, np.ndarray]:
    """A log large enough for tempo to learn, and which of its rows came last."""
    log = tr.synthetic_log(40_000, items=300, seed=4).compact()
    return log, log.time >= np.sort(log.time)[-400]


def test_numbers_that_tempo_learned_stay_and_its_lists_stay_good(
    shop: tuple[tr.Log, np.ndarray],
) -> None:
    log, is_new = shop
    model = tr.Tempo(solver="local").fit(log.keep(~is_new).compact())
    before = model.fitted.weights.query_arrays
    assert "number_recency" in before
    done = tr.update(model, log.keep(is_new))
    after = model.fitted.weights.query_arrays
    for name in (
        "decay",
        "joint",
        "lengths",
        "usual",
        *(n for n in before if n.startswith("number_")),
    ):
        assert np.array_equal(before[name], after[name]), name
    assert not np.array_equal(before["moments"], after["moments"])
    assert 0 < done.solved <= done.targets
    users = log.users.ids[:200].to_list()
    updated = model.recommend(users, 10)
    theirs = tr.Tempo(solver="local").fit(log).recommend(users, 10)
    shared = updated.join(theirs, on=["user_id", "item_id"])
    assert len(shared) > 0.8 * len(updated)


def test_many_updates_of_tempo_equal_one_with_all_their_rows() -> None:
    log = tr.synthetic_log(1500, seed=5)
    every = list(dict.fromkeys(sorted(rows_of(log), key=lambda row: row[2])))
    options: dict[str, Any] = {"solver": "local", "neighbors": 1000, "trend": 0.0, "reg": 5.0}
    single = tr.Tempo(**options).fit(log_of(every[:1200]))
    many = single.with_params()
    tr.update(single, log_of(every[1200:]), tolerance=0)
    for at in range(1200, len(every), 3):
        tr.update(many, log_of(every[at : at + 3]), tolerance=0)
    assert many.fitted.training["updates"] >= 95
    assert_same(many, single)
    np.testing.assert_allclose(
        np.sort(many.fitted.update_state.triangle.diagonal),
        np.sort(single.fitted.update_state.triangle.diagonal),
        rtol=1e-12,
    )


# -- weights of rows -------------------------------------------------------------------------------


def weighed(rows: list[Row]) -> pl.DataFrame:
    """Rows with weights of their own, by item and time."""
    users, items, times = zip(*rows, strict=True)
    row_weights = [1.0 + (hash_of(item) + time // DAY) % 4 for _, item, time in rows]
    frame = {"user_id": users, "item_id": items, "timestamp": times, "worth": row_weights}
    return pl.DataFrame(frame)


def hash_of(item: str) -> int:
    return sum(map(ord, item))


@quick
@given(two_parts(), st.sampled_from(["exact", "local"]), st.sampled_from(["tale", "tempo"]))
def test_weights_of_new_rows_are_divided_by_the_mean_of_the_first_ones(
    parts: tuple[list[Row], list[Row]], solver: str, name: str
) -> None:
    old, new = parts
    options: dict[str, Any] = {"reg": 2.0, "solver": solver, "neighbors": 100, "trend": 0.0}
    first, later = (
        tr.Log.from_frame(weighed(part), time_unit="us", weight="worth") for part in parts
    )
    model = tr.MODELS[name](**options).fit(first)
    tr.update(model, later, tolerance=0)
    frame = weighed(all_rows(old, new))
    raw = tr.Log.from_frame(frame, time_unit="us", weight="worth")
    mean = float(np.mean(weighed(old)["worth"].to_numpy()))
    row_weights = (np.ones(raw.rows) if raw.weight is None else raw.weight) * raw.weight_unit / mean
    whole = replace(raw, weight=row_weights)
    if name == "tale":
        expected = tr.TALE(**options)
        expected._fitted = replace(
            expected.fit(raw).fitted, weights=expected.learn_weights(whole, Clock())[0]
        )
        assert_same(model, expected)
    else:
        B = tempo_by_hand(tr.Tempo(**options), first, whole)
        place = model.fitted.items.positions(whole.items.ids, "item", "error")
        np.testing.assert_allclose(
            dense(model.weights)[np.ix_(place, place)], B, rtol=2e-4, atol=1e-5
        )


def test_rows_with_and_without_weights_do_not_mix() -> None:
    rows = rows_of(tr.synthetic_log(300))
    plain, heavy = log_of(rows), weighed([(u, str(i), t) for u, i, t in rows])
    heavy_log = tr.Log.from_frame(heavy, time_unit="us", weight="worth")
    with pytest.raises(tr.TalerecError, match="the model's rows have no weights"):
        tr.update(tr.TALE().fit(log_of([(u, str(i), t) for u, i, t in rows])), heavy_log)
    with pytest.raises(tr.TalerecError, match="the model's rows have weights"):
        tr.update(tr.TALE().fit(heavy_log), log_of([(u, str(i), t) for u, i, t in rows]))
    assert plain.weight_unit is None


# -- what is lacking -------------------------------------------------------------------------------


def test_small_changes_add_up_until_a_target_is_solved_again() -> None:
    """Two items occur together once a night, each time too little to solve them again."""
    base = [(u, i, (u * 50 + i) * DAY // 24) for u in range(60) for i in range(12)]
    model = tr.TALE(solver="local", neighbors=100, trend=0.0, reg=50.0).fit(log_of(base))
    first = dense(model.weights)
    at, tolerance = DAY * 1000, 0.1
    nights = [
        log_of([(1000 + night, 0, at), (1000 + night, 7, at + DAY // 24)]) for night in range(40)
    ]
    alone = [tr.update(model.with_params(), rows, tolerance=tolerance).solved for rows in nights]
    assert not any(alone)
    solved = [tr.update(model, rows, tolerance=tolerance).solved for rows in nights]
    assert not any(solved[:3])
    assert 0 < sum(solved) < 40
    lacking = model.fitted.update_state.residual
    assert lacking.max() <= tolerance
    right = model.with_params()
    tr.update(right, log_of([(5000, 3, at)]), tolerance=0)
    updated, all_anew = dense(model.weights)[:, 7], dense(right.weights)[:, 7]
    assert np.abs(updated - all_anew).max() < np.abs(first[:, 7] - all_anew).max() / 3


# -- the command -----------------------------------------------------------------------------------


def test_the_default_model_is_updated_by_the_command_as_in_python(tmp_path: Path) -> None:
    table = pl.read_csv(write_log(tmp_path / "all.csv", users=30, rows=600))
    is_purchase = pl.int_range(pl.len()) % 5 == 0
    kind = pl.when(is_purchase).then(pl.lit("buy")).otherwise(pl.lit("view"))
    table = table.with_columns(kind=kind)
    model, event_options = (
        tmp_path / "m.tale",
        ("--event", "kind", "--event-weights", "view=1,buy=4"),
    )
    parts = [table.head(500), table.slice(500, 50), table.slice(540, 60)]
    for number, part in enumerate(parts):
        part.write_csv(tmp_path / f"{number}.csv")
    works(
        "fit",
        tmp_path / "0.csv",
        "-o",
        model,
        "--updatable",
        "--set",
        "solver=local",
        *event_options,
    )
    parts[1].drop("kind").write_csv(tmp_path / "bare.csv")
    said = refusal("update", model, tmp_path / "bare.csv")
    assert "no column 'kind'" in said
    assert said.endswith("fitted with --event kind --event-weights view=1,buy=4")
    in_memory = tr.Tempo(solver="local").fit(
        tr.read_log(tmp_path / "0.csv", event="kind", event_weights={"view": 1, "buy": 4})
    )
    for number in (1, 2):
        repeated = event_options if number == 1 else ()  # the model knows what the fit was told
        works("update", model, tmp_path / f"{number}.csv", *repeated)
        rows = tr.read_log(
            tmp_path / f"{number}.csv", event="kind", event_weights={"view": 1, "buy": 4}
        )
        tr.update(in_memory, rows)
    works("verify", model)
    loaded = tr.load(model)
    assert loaded.fitted.training["rows"] == 600
    assert np.array_equal(dense(loaded.weights), dense(in_memory.weights))
    users = list(range(1, 31))
    assert loaded.recommend(users, 5).equals(in_memory.recommend(users, 5))
    assert "sasrec cannot be updated" in refusal(
        "fit", tmp_path / "0.csv", "-o", tmp_path / "n.tale", "--model", "sasrec", "--updatable"
    )

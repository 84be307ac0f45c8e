"""Weights of rows: read, checked, saved, and used as in rows built by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle
import talerec as tr
from command import refusal, talerec, works
from kinds import NEURAL
from logs import DAY, START, log_of, quick, rows
from talerec.data import Histories
from talerec.errors import TalerecError
from talerec.gram import lag_counts, simultaneous_weight
from talerec.gram.builders import tale_gram
from talerec.models import MODELS
from talerec.runtime import dense

TALE: dict[str, Any] = {
    "decay": 1.0, "floor": 0.3, "window": 180.0, "trend": 0.1, "trend_side": "both",
    "same_time": "ordered", "max_history": 2500,
}  # fmt: skip
worths = st.sampled_from([0.25, 1.0, 2.0, 7.5, 1000.0])


@st.composite
def weighed_logs(draw: st.DrawFn) -> tr.Log:
    log = log_of(draw(rows(max_rows=25)))
    weight = np.array(draw(st.lists(worths, min_size=log.rows, max_size=log.rows)))
    return replace(log, weight=weight).normalize_weights()


def by_hand(log: tr.Log, options: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """G = S'VS and K = S'VT, row by row: no running sums, no closed form."""
    n, joint = len(log.items), options["same_time"] == "joint"
    G, K = np.zeros((n, n)), np.zeros((n, n))
    row_weight = np.ones(log.rows) if log.weight is None else log.weight
    window = options["window"] * DAY
    count = [
        sum(
            j == i and abs(int(t) - int(u)) <= window
            for j, u in zip(log.item, log.time, strict=True)
        )
        for i, t in zip(log.item, log.time, strict=True)
    ]
    scale = np.array(count, float) ** -options["trend"]
    for a, b in zip(log.ptr[:-1], log.ptr[1:], strict=True):
        for target in range(a, b):
            others = [
                s for s in range(a, b)
                if (s < target if not joint else s != target and log.time[s] <= log.time[target])
            ]  # fmt: skip
            if not others:
                continue
            source = np.zeros(n)
            for s in others:
                days = (int(log.time[target]) - int(log.time[s])) / DAY
                weight = max(math.exp(-days / options["decay"]), options["floor"])
                source[log.item[s]] += weight * scale[s] * row_weight[s]
            G += row_weight[target] * np.outer(source, source)
            K[:, log.item[target]] += row_weight[target] * source * scale[target]
    return G, K


@quick
@given(
    weighed_logs(),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.sampled_from(["ordered", "joint"]),
    st.sampled_from([0.0, 0.4]),
)
def test_the_gram_of_weighted_rows_equals_rows_built_by_hand(
    log: tr.Log, floor: float, same_time: str, trend: float
) -> None:
    options = {**TALE, "floor": floor, "same_time": same_time, "trend": trend}
    gram = tale_gram(log, **options)
    G, K = by_hand(log, options)
    np.testing.assert_allclose(dense(gram.G), G, rtol=1e-9, atol=1e-9 * max(G.max(), 1))
    np.testing.assert_allclose(dense(gram.K), K, rtol=1e-9, atol=1e-9 * max(K.max(), 1))


@quick
@given(rows(max_rows=25))
def test_both_oracles_agree_for_equal_weights(all_rows: Any) -> None:
    log = log_of(all_rows)
    G, K = by_hand(log, TALE)
    gram = tale_gram(log, **TALE)
    np.testing.assert_allclose(dense(gram.G), G, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(dense(gram.K), K, rtol=1e-9, atol=1e-9)


@quick
@given(weighed_logs())
def test_as_a_target_only_weight_two_equals_the_example_twice(log: tr.Log) -> None:
    """S and T with every example as often as its target is worth; sources keep their entries."""
    row_weight = np.ones(log.rows) if log.weight is None else log.weight
    twice = replace(log, weight=None)
    G, K = np.zeros((len(log.items),) * 2), np.zeros((len(log.items),) * 2)
    S, T = examples(twice, row_weight)
    for x, y, times in zip(
        S,
        T,
        np.concatenate(
            [row_weight[a + 1 : b] for a, b in zip(log.ptr[:-1], log.ptr[1:], strict=True)]
        ),
        strict=True,
    ):
        G += times * np.outer(x, x)
        K += times * np.outer(x, y)
    gram = tale_gram(log, **{**TALE, "trend": 0.0})
    np.testing.assert_allclose(dense(gram.G), G, rtol=1e-9, atol=1e-9 * max(G.max(initial=0), 1))
    np.testing.assert_allclose(dense(gram.K), K, rtol=1e-9, atol=1e-9 * max(K.max(initial=0), 1))


def examples(log: tr.Log, row_weight: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """One row of S and T for every target, in order."""
    S, T = [], []
    for a, b in zip(log.ptr[:-1], log.ptr[1:], strict=True):
        for target in range(a + 1, b):
            x, y = np.zeros(len(log.items)), np.zeros(len(log.items))
            for s in range(a, target):
                x[log.item[s]] += row_weight[s] * oracle.weight(
                    int(log.time[target] - log.time[s]), TALE["decay"], TALE["floor"]
                )
            y[log.item[target]] = 1.0
            S.append(x)
            T.append(y)
    return S, T


@quick
@given(weighed_logs())
def test_counts_of_weighted_rows_equal_counting_by_hand(log: tr.Log) -> None:
    weight, row_weight = (
        np.array([0.0, 1.0, 0.5]),
        np.ones(log.rows) if log.weight is None else log.weight,
    )
    expected = np.zeros((len(log.items),) * 2)
    for a, b in zip(log.ptr[:-1], log.ptr[1:], strict=True):
        for q in range(a, b):
            for s in range(max(a, q - 2), q):
                expected[log.item[s], log.item[q]] += weight[q - s] * row_weight[s] * row_weight[q]
    np.testing.assert_allclose(
        dense(lag_counts(log, weight, max_history=2500)), expected, rtol=1e-9
    )
    popular = tr.Popular().fit(log).fitted.weights.base
    np.testing.assert_allclose(
        popular, [row_weight[log.item == i].sum() for i in range(len(log.items))], rtol=1e-9
    )


def test_entries_of_simultaneous_rows_in_k_follow_their_weights() -> None:
    log = log_of(
        [(1, "a", START), (1, "b", START), (1, "c", START + 1), (2, "a", START), (2, "c", START)]
    )
    log = replace(log, weight=np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    K = by_hand(log, {**TALE, "trend": 0.0, "same_time": "joint"})[1]
    later = by_hand(
        replace(log, time=log.time + np.arange(5)), {**TALE, "trend": 0.0, "floor": 1.0}
    )[1]
    assert simultaneous_weight(log, 180.0, 0.0, 2500) == pytest.approx(2 * (1 * 2 + 4 * 5))
    assert K.sum() > 0
    assert later.sum() > 0


# -- models ----------------------------------------------------------------------------------------


def weighed_frame(seed: int = 0, rows_: int = 300) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "user_id": rng.integers(0, 30, rows_),
            "item_id": [f"i{n}" for n in rng.integers(0, 12, rows_)],
            "timestamp": 1_600_000_000 + 3600 * np.arange(rows_),
            "rating": rng.integers(1, 6, rows_).astype(float),
            "event": rng.choice(["buy", "cart", "view"], rows_, p=[0.2, 0.2, 0.6]),
        }
    )


TAKES = ["tempo", "tale", "markov", "rules", "popular", "trending"]


@pytest.mark.parametrize("name", TAKES)
def test_equal_weights_change_nothing(name: str) -> None:
    frame = weighed_frame().with_columns(w=pl.lit(3.7))
    plain = MODELS[name]().fit(tr.Log.from_frame(frame))
    same = MODELS[name]().fit(tr.Log.from_frame(frame, weight="w"))
    assert plain.recommend([1, 2, 3], 12).equals(same.recommend([1, 2, 3], 12))


@pytest.mark.parametrize("name", TAKES)
def test_only_ratios_matter(name: str) -> None:
    frame = weighed_frame().with_columns(w=pl.col("rating") * 1e6)
    weighted, other = (
        MODELS[name]().fit(tr.Log.from_frame(frame, weight=w)).recommend([1, 2], 5)
        for w in ("rating", "w")
    )
    assert weighted["item_id"].equals(other["item_id"])
    np.testing.assert_allclose(weighted["score"], other["score"], rtol=1e-9)
    plain = MODELS[name]().fit(tr.Log.from_frame(frame)).recommend([1, 2], 5)
    assert not np.allclose(weighted["score"], plain["score"])


@pytest.mark.parametrize("name", TAKES)
def test_weight_zero_equals_the_log_without_the_row(name: str) -> None:
    frame = weighed_frame().with_columns(
        w=pl.when(pl.int_range(300) % 4 == 1).then(0.0).otherwise(pl.col("rating"))
    )
    whole = MODELS[name]().fit(tr.Log.from_frame(frame, weight="w"))
    less = MODELS[name]().fit(tr.Log.from_frame(frame.filter(pl.col("w") > 0), weight="w"))
    users = less.fitted.log.users.ids.to_list()
    assert whole.recommend(users, 5).equals(less.recommend(users, 5))
    assert whole.fitted.training == less.fitted.training


@pytest.mark.parametrize("name", sorted(set(MODELS) - {*TAKES, "content"}))  # it takes them, too
def test_other_models_refuse_weights_by_name(name: str) -> None:
    log = tr.Log.from_frame(weighed_frame(), weight="rating")
    with pytest.raises(TalerecError, match=f"^{name} takes no weights of rows"):
        MODELS[name]().fit(log)
    for options in ({"alpha": 0.5}, {"targets": "multi"}, {"position": 1.0}):
        with pytest.raises(TalerecError, match=r"^tale takes no weights of rows"):
            tr.TALE(**options).fit(log)


def test_queries_use_the_weights_of_histories_before_and_after_saving(tmp_path: Path) -> None:
    log = tr.Log.from_frame(weighed_frame(), weight="rating")
    for model in (tr.TALE(reg=2.0), tr.Tempo(reg=2.0, recency=6), tr.Rules()):
        model.fit(log)
        reloaded = tr.load(model.save(tmp_path / f"{model.name}.tale"))
        assert model.recommend([1, 2, 3], 5).equals(reloaded.recommend([1, 2, 3], 5))
        train_log = model.fitted.log
        a, b = train_log.ptr[4], train_log.ptr[5]
        x = model.query(Histories.of_users(train_log, np.array([4])))
        place = {int(train_log.item[r]): r for r in range(a, b)}
        is_item = x.source < len(train_log.items)
        for source, weight in zip(x.source[is_item], x.weight[is_item], strict=True):
            r = place[int(source)]
            assert weight == pytest.approx(
                math.exp(-(b - 1 - r) / model.recency) * train_log.weight[r]
            )


# -- reading ---------------------------------------------------------------------------------------


def test_events_are_weights_by_name(tmp_path: Path) -> None:
    frame = weighed_frame()
    row_weight = {"view": 1.0, "cart": 3.0, "buy": 10.0}
    named = tr.Log.from_frame(frame, event="event", event_weights=row_weight)
    mapped = frame.with_columns(w=pl.col("event").replace_strict(row_weight))
    assert np.array_equal(named.weight, tr.Log.from_frame(mapped, weight="w").weight)
    assert named.weight.mean() == pytest.approx(1)
    frame.write_csv(tmp_path / "log.csv")
    frame.write_parquet(tmp_path / "log.parquet")
    for name in ("log.csv", "log.parquet"):
        read = tr.read_log(tmp_path / name, event="event", event_weights=row_weight)
        assert np.array_equal(read.weight, named.weight)
    options = ("--event", "event", "--event-weights", "view=1, cart=3,buy=10", "--model", "tale")
    works("fit", tmp_path / "log.csv", "-o", tmp_path / "m.tale", *options)
    is_item = tr.TALE().fit(named)
    assert (
        tr.load(tmp_path / "m.tale")
        .recommend([1], 5)["item_id"]
        .equals(is_item.recommend([1], 5)["item_id"])
    )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1.0, -2.0], "row 2: w -2.0 is below 0"),
        ([1.0, float("nan")], "row 2: w nan is not a finite number"),
        ([float("inf"), 1.0], "row 1: w inf is not a finite number"),
        ([1.0, None], "row 2: w is not a finite number"),
        (["1", "much"], "row 2: w 'much' is not a finite number"),
        ([0.0, 0.0], "every row has the w 0: nothing is left"),
        ([1e308, 1e308], "the weights of w add up to infinity"),
        ([True, False], "holds Boolean values; weights are numbers"),
    ],
)
def test_bad_weights_are_refused_by_row(values: list[Any], said: str) -> None:
    frame = pl.DataFrame(
        {"user_id": [1, 1], "item_id": [1, 2], "timestamp": ["2020-01-01"] * 2, "w": values}
    )
    with pytest.raises(TalerecError, match=said.replace("(", r"\(")):
        tr.Log.from_frame(frame, weight="w")


def event_frame(events: list[str]) -> pl.DataFrame:
    n = len(events)
    times = [1_600_000_000 + row for row in range(n)]
    return pl.DataFrame({"user_id": [1] * n, "item_id": [2] * n, "timestamp": times, "e": events})


def test_the_first_row_of_an_event_without_a_weight_is_named() -> None:
    frame = event_frame(["buy", "view", "cart", "view", "cart"])
    with pytest.raises(TalerecError, match=r"^row 3: e 'cart' has no weight; cart=0 drops such"):
        tr.Log.from_frame(frame, event="e", event_weights={"buy": 1, "view": 2})


def test_there_are_at_most_a_thousand_events() -> None:
    names = [f"e{number}" for number in range(1001)]
    weights = dict.fromkeys(names, 1.0)
    assert tr.Log.from_frame(event_frame(names[1:]), event="e", event_weights=weights).rows == 1000
    with pytest.raises(TalerecError, match="column 'e' has 1,001 different values: too many"):
        tr.Log.from_frame(event_frame(names), event="e", event_weights=weights)


EVENT = ("--event", "event")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--weight", "stars"], "there is no column 'stars'"),
        (["--weight", "rating", "--event", "event", "--event-weights", "buy=1"], "one of the two"),
        (["--event-weights", "buy=1"], "--event-weights needs --event"),
        (
            [*EVENT, "--event-weights", "buy=1,view=2"],
            "event 'cart' has no weight; cart=0 drops such rows",
        ),
        (
            [*EVENT, "--event-weights", "buy=1,vew=2,cart=1"],
            "event 'view' has no weight; view=0 drops such rows",
        ),
        ([*EVENT, "--event-weights", "buy=-1"], "--event-weights takes view=1,cart=3,buy=10"),
        ([*EVENT, "--event-weights", "buy"], "--event-weights takes view=1,cart=3,buy=10"),
        ([*EVENT, "--target", "gift"], "no row is a 'gift': the log has buy, cart, view"),
        (["--target", "buy"], "the log has no events (--event names their column)"),
        (
            [*EVENT, "--target", "buy", "--split", "at:2020-09-20"],
            "--target goes with --split leave-one-out",
        ),
    ],
)
def test_bad_options_are_refused(options: list[str], said: str, tmp_path: Path) -> None:
    weighed_frame().write_csv(tmp_path / "log.csv")
    assert said in refusal("evaluate", tmp_path / "log.csv", *options)


def test_a_column_that_looks_like_weights_and_is_not_used_is_mentioned(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    weighed_frame().write_csv(path)
    said = talerec("describe", path).err
    assert (
        said.count("column 'rating' is not used: all rows have the same weight (see --weight)") == 1
    )
    assert "column 'event' is not used" in said
    assert "is not used" not in talerec("describe", path, "--weight", "rating").err


# -- a target event --------------------------------------------------------------------------------


@pytest.mark.parametrize("refit", [False, True])
def test_the_target_is_each_users_last_row_of_the_event(refit: bool) -> None:
    log = tr.Log.from_frame(weighed_frame(), event="event")
    split = tr.leave_one_out(log, refit=refit, target="buy")
    buy = log.event_names.index("buy")
    train, test, validation, without = [], {}, {}, 0
    for user, (a, b) in enumerate(zip(log.ptr[:-1].tolist(), log.ptr[1:].tolist(), strict=True)):
        targets = [r for r in range(a + 1, b) if log.event[r] == buy]
        without += not targets
        if targets:
            test[user] = targets[-1]
        if len(targets) > 1:
            validation[user] = targets[-2]
        end = b if not targets else targets[-1] if refit or len(targets) < 2 else targets[-2]
        train += list(range(a, end))
    assert split.without == without
    assert split.train.rows == len(train)
    assert np.array_equal(split.train.time, log.time[train])
    for cases, train_log in ((split.test, test), (split.validation, validation)):
        if refit and cases is None:
            continue
        assert cases.user.tolist() == list(train_log)
        assert cases.histories.stop.tolist() == list(train_log.values())
        assert cases.target_time.tolist() == [int(log.time[r]) for r in train_log.values()]


def test_evaluate_predicts_purchases_and_counts_users_without_any(tmp_path: Path) -> None:
    weighed_frame().write_csv(tmp_path / "log.csv")
    options = (
        "--event",
        "event",
        "--target",
        "buy",
        "--event-weights",
        "view=1,cart=3,buy=10",
        "--json",
    )
    result = talerec("evaluate", tmp_path / "log.csv", *options).json
    log = tr.Log.from_frame(weighed_frame(), event="event")
    split = tr.leave_one_out(log, target="buy")
    assert result["cases"] == len(split.test)
    assert result["without"] == split.without > 0
    assert result["split"] == "leave-one-out (buy)"
    assert f"{split.without} users have no target event and are excluded" in result["notes"]


# -- logs without times ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    sorted(
        set(MODELS)
        - {"tale", "tempo", "trending", "sknn", "stan", "blend", "ranker", "lastbasket"}
        - {"tifuknn", "content"}  # it needs an item table
        - set(NEURAL)
    ),
)
def test_models_that_need_no_time_are_fitted_without(name: str, tmp_path: Path) -> None:
    frame = weighed_frame().sort("user_id", maintain_order=True)
    timed = MODELS[name]().fit(tr.Log.from_frame(frame))
    frame.select("user_id", "item_id").write_csv(tmp_path / "log.csv")
    outcome = talerec("fit", tmp_path / "log.csv", "-o", tmp_path / "m.tale", "--model", name)
    assert outcome.code == 0
    assert "there is no column timestamp: rows stay in their order" in outcome.err
    result = tr.load(tmp_path / "m.tale").recommend([1, 2, 3], 5)
    assert result.equals(timed.recommend([1, 2, 3], 5))
    same = MODELS[name]().fit(tr.read_log(tmp_path / "log.csv", time=None)).recommend([1, 2, 3], 5)
    assert same.equals(result)


@pytest.mark.parametrize("name", ["tale", "tempo", "trending", "sknn", "stan", "ranker"])
def test_models_that_need_times_refuse_a_log_without(name: str, tmp_path: Path) -> None:
    frame = weighed_frame().select("user_id", "item_id")
    frame.write_csv(tmp_path / "log.csv")
    said = refusal("fit", tmp_path / "log.csv", "-o", tmp_path / "m.tale", "--model", name)
    assert "there is no column 'timestamp'" in said
    with pytest.raises(TalerecError, match=f"{name} needs times, and the log has none"):
        MODELS[name]().fit(tr.Log.from_frame(frame, time=None))


def test_a_log_without_times_is_described_and_not_split_by_time() -> None:
    log = tr.Log.from_frame(weighed_frame().select("user_id", "item_id"), time=None)
    facts = tr.describe(log)
    assert facts["first_time"] is None
    assert facts["interval_days"] == {"mean": None, "median": None}
    assert facts["rows"] == 300
    with pytest.raises(TalerecError, match="the log has no times"):
        tr.time_split(log, "2020-01-01")
    assert tr.evaluate_log(tr.EASE(), log).metrics["HR@10"] > 0

"""What a row is worth: read, checked, kept, and in Gram, query and evaluation as rows built by hand say."""

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
from talerec.data.histories import Histories
from talerec.errors import TalerecError
from talerec.gram.builders import gap_counts, tale_gram, tied_weight
from talerec.models import MODELS
from talerec.runtime.arrays import dense

TALE: dict[str, Any] = {
    "decay": 1.0, "floor": 0.3, "window": 180.0, "trend": 0.1, "trend_side": "both", "same_time": "ordered", "max_history": 2500,
}  # fmt: skip
worths = st.sampled_from([0.25, 1.0, 2.0, 7.5, 1000.0])


@st.composite
def weighed_logs(draw: st.DrawFn) -> tr.Log:
    log = log_of(draw(rows(max_rows=25)))
    weight = np.array(draw(st.lists(worths, min_size=log.rows, max_size=log.rows)))
    return replace(log, weight=weight).evenly_weighed()


def by_hand(log: tr.Log, options: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """G = S'VS and K = S'VT, row by row: no running sums, no closed form."""
    n, joint = len(log.items), options["same_time"] == "joint"
    G, K = np.zeros((n, n)), np.zeros((n, n))
    worth = np.ones(log.rows) if log.weight is None else log.weight
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
                source[log.item[s]] += weight * scale[s] * worth[s]
            G += worth[target] * np.outer(source, source)
            K[:, log.item[target]] += worth[target] * source * scale[target]
    return G, K


@quick
@given(
    weighed_logs(),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.sampled_from(["ordered", "joint"]),
    st.sampled_from([0.0, 0.4]),
)
def test_the_gram_of_weighed_rows_equals_rows_built_by_hand(
    log: tr.Log, floor: float, same_time: str, trend: float
) -> None:
    options = {**TALE, "floor": floor, "same_time": same_time, "trend": trend}
    made = tale_gram(log, **options)
    G, K = by_hand(log, options)
    np.testing.assert_allclose(dense(made.G), G, rtol=1e-9, atol=1e-9 * max(G.max(), 1))
    np.testing.assert_allclose(dense(made.K), K, rtol=1e-9, atol=1e-9 * max(K.max(), 1))


@quick
@given(rows(max_rows=25))
def test_the_hand_that_builds_rows_agrees_with_the_other_one_where_all_weigh_the_same(
    all_rows: Any,
) -> None:
    log = log_of(all_rows)
    G, K = by_hand(log, TALE)
    made = tale_gram(log, **TALE)
    np.testing.assert_allclose(dense(made.G), G, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(dense(made.K), K, rtol=1e-9, atol=1e-9)


@quick
@given(weighed_logs())
def test_as_a_target_alone_weight_two_is_the_example_twice(log: tr.Log) -> None:
    """S and T with every example as often as its target is worth; sources keep their entries."""
    worth = np.ones(log.rows) if log.weight is None else log.weight
    twice = replace(log, weight=None)
    G, K = np.zeros((len(log.items),) * 2), np.zeros((len(log.items),) * 2)
    S, T = examples(twice, worth)
    for x, y, times in zip(
        S,
        T,
        np.concatenate([worth[a + 1 : b] for a, b in zip(log.ptr[:-1], log.ptr[1:], strict=True)]),
        strict=True,
    ):
        G += times * np.outer(x, x)
        K += times * np.outer(x, y)
    made = tale_gram(log, **{**TALE, "trend": 0.0})
    np.testing.assert_allclose(dense(made.G), G, rtol=1e-9, atol=1e-9 * max(G.max(initial=0), 1))
    np.testing.assert_allclose(dense(made.K), K, rtol=1e-9, atol=1e-9 * max(K.max(initial=0), 1))


def examples(log: tr.Log, worth: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """One row of S and T for every target, in order."""
    S, T = [], []
    for a, b in zip(log.ptr[:-1], log.ptr[1:], strict=True):
        for target in range(a + 1, b):
            x, y = np.zeros(len(log.items)), np.zeros(len(log.items))
            for s in range(a, target):
                x[log.item[s]] += worth[s] * oracle.weight(
                    int(log.time[target] - log.time[s]), TALE["decay"], TALE["floor"]
                )
            y[log.item[target]] = 1.0
            S.append(x)
            T.append(y)
    return S, T


@quick
@given(weighed_logs())
def test_counts_of_weighed_rows_equal_counting_by_hand(log: tr.Log) -> None:
    weight, worth = (
        np.array([0.0, 1.0, 0.5]),
        np.ones(log.rows) if log.weight is None else log.weight,
    )
    expected = np.zeros((len(log.items),) * 2)
    for a, b in zip(log.ptr[:-1], log.ptr[1:], strict=True):
        for q in range(a, b):
            for s in range(max(a, q - 2), q):
                expected[log.item[s], log.item[q]] += weight[q - s] * worth[s] * worth[q]
    np.testing.assert_allclose(
        dense(gap_counts(log, weight, max_history=2500)), expected, rtol=1e-9
    )
    popular = tr.Popular().fit(log).fitted.weights.base
    np.testing.assert_allclose(
        popular, [worth[log.item == i].sum() for i in range(len(log.items))], rtol=1e-9
    )


def test_what_simultaneous_rows_have_in_k_follows_their_weights() -> None:
    log = log_of(
        [(1, "a", START), (1, "b", START), (1, "c", START + 1), (2, "a", START), (2, "c", START)]
    )
    log = replace(log, weight=np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    K = by_hand(log, {**TALE, "trend": 0.0, "same_time": "joint"})[1]
    later = by_hand(
        replace(log, time=log.time + np.arange(5)), {**TALE, "trend": 0.0, "floor": 1.0}
    )[1]
    assert tied_weight(log, 180.0, 0.0, 2500) == pytest.approx(2 * (1 * 2 + 4 * 5))
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
    one, other = (
        MODELS[name]().fit(tr.Log.from_frame(frame, weight=w)).recommend([1, 2], 5)
        for w in ("rating", "w")
    )
    assert one["item_id"].equals(other["item_id"])
    np.testing.assert_allclose(one["score"], other["score"], rtol=1e-9)
    plain = MODELS[name]().fit(tr.Log.from_frame(frame)).recommend([1, 2], 5)
    assert not np.allclose(one["score"], plain["score"])


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


@pytest.mark.parametrize("name", sorted(set(MODELS) - {*TAKES}))
def test_other_models_refuse_weights_by_name(name: str) -> None:
    log = tr.Log.from_frame(weighed_frame(), weight="rating")
    with pytest.raises(TalerecError, match=f"^{name} takes no weights of rows"):
        MODELS[name]().fit(log)
    for options in ({"alpha": 0.5}, {"targets": "multi"}, {"position": 1.0}):
        with pytest.raises(TalerecError, match=r"^tale takes no weights of rows"):
            tr.TALE(**options).fit(log)


def test_a_history_is_asked_with_its_weights_before_and_after_saving(tmp_path: Path) -> None:
    log = tr.Log.from_frame(weighed_frame(), weight="rating")
    for model in (tr.TALE(reg=2.0), tr.Tempo(reg=2.0, recency=6), tr.Rules()):
        model.fit(log)
        again = tr.load(model.save(tmp_path / f"{model.name}.tale"))
        assert model.recommend([1, 2, 3], 5).equals(again.recommend([1, 2, 3], 5))
        known = model.fitted.log
        a, b = known.ptr[4], known.ptr[5]
        x = model.query(Histories.of_users(known, np.array([4])))
        place = {int(known.item[r]): r for r in range(a, b)}
        own = x.source < len(known.items)
        for source, weight in zip(x.source[own], x.weight[own], strict=True):
            r = place[int(source)]
            assert weight == pytest.approx(math.exp(-(b - 1 - r) / model.recency) * known.weight[r])


# -- reading ---------------------------------------------------------------------------------------


def test_events_are_weights_by_name(tmp_path: Path) -> None:
    frame = weighed_frame()
    worth = {"view": 1.0, "cart": 3.0, "buy": 10.0}
    named = tr.Log.from_frame(frame, event="event", event_weights=worth)
    mapped = frame.with_columns(w=pl.col("event").replace_strict(worth))
    assert np.array_equal(named.weight, tr.Log.from_frame(mapped, weight="w").weight)
    assert named.weight.mean() == pytest.approx(1)
    frame.write_csv(tmp_path / "log.csv")
    frame.write_parquet(tmp_path / "log.parquet")
    for name in ("log.csv", "log.parquet"):
        read = tr.read_log(tmp_path / name, event="event", event_weights=worth)
        assert np.array_equal(read.weight, named.weight)
    options = ("--event", "event", "--event-weights", "view=1, cart=3,buy=10", "--model", "tale")
    works("fit", tmp_path / "log.csv", "-o", tmp_path / "m.tale", *options)
    own = tr.TALE().fit(named)
    assert (
        tr.load(tmp_path / "m.tale")
        .recommend([1], 5)["item_id"]
        .equals(own.recommend([1], 5)["item_id"])
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
        ([1e308, 1e308], "the weights of w add up to more than a number can hold"),
        ([True, False], "holds Boolean values; weights are numbers"),
    ],
)
def test_bad_weights_are_refused_by_row(values: list[Any], said: str) -> None:
    frame = pl.DataFrame(
        {"user_id": [1, 1], "item_id": [1, 2], "timestamp": ["2020-01-01"] * 2, "w": values}
    )
    with pytest.raises(TalerecError, match=said.replace("(", r"\(")):
        tr.Log.from_frame(frame, weight="w")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--weight", "stars"], "there is no column 'stars'"),
        (["--weight", "rating", "--event", "event", "--event-weights", "buy=1"], "one of the two"),
        (["--event-weights", "buy=1"], "--event-weights needs --event COLUMN"),
        (["--event", "event", "--event-weights", "buy=1,view=2"], "event 'cart' has no weight; cart=0 leaves such rows out"),
        (["--event", "event", "--event-weights", "buy=1,vew=2,cart=1"], "event 'view' has no weight; view=0 leaves such rows out"),
        (["--event", "event", "--event-weights", "buy=-1"], "--event-weights takes view=1,cart=3,buy=10"),
        (["--event", "event", "--event-weights", "buy"], "--event-weights takes view=1,cart=3,buy=10"),
        (["--event", "event", "--target", "gift"], "no row is a 'gift': the log has buy, cart, view"),
        (["--target", "buy"], "the log has no events (--event COLUMN names them)"),
        (["--event", "event", "--target", "buy", "--split", "at:2020-09-20"], "--target goes with --split leave-one-out"),
    ],
)  # fmt: skip
def test_bad_options_are_refused(options: list[str], said: str, tmp_path: Path) -> None:
    weighed_frame().write_csv(tmp_path / "log.csv")
    assert said in refusal("evaluate", tmp_path / "log.csv", *options)


def test_a_column_that_looks_like_weights_and_is_not_used_is_mentioned(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    weighed_frame().write_csv(path)
    said = talerec("describe", path).err
    assert (
        said.count(
            "column 'rating' is not used: every row counts alike (--weight rating weighs them)"
        )
        == 1
    )
    assert "column 'event' is not used" in said
    assert "is not used" not in talerec("describe", path, "--weight", "rating").err


# -- a target event --------------------------------------------------------------------------------


@pytest.mark.parametrize("refit", [False, True])
def test_a_target_is_each_users_last_row_of_that_event(refit: bool) -> None:
    log = tr.Log.from_frame(weighed_frame(), event="event")
    split = tr.leave_one_out(log, refit=refit, target="buy")
    buy = log.event_names.index("buy")
    train, test, validation, without = [], {}, {}, 0
    for user, (a, b) in enumerate(zip(log.ptr[:-1].tolist(), log.ptr[1:].tolist(), strict=True)):
        asked = [r for r in range(a + 1, b) if log.event[r] == buy]
        without += not asked
        if asked:
            test[user] = asked[-1]
        if len(asked) > 1:
            validation[user] = asked[-2]
        end = b if not asked else asked[-1] if refit or len(asked) < 2 else asked[-2]
        train += list(range(a, end))
    assert split.without == without
    assert split.train.rows == len(train)
    assert np.array_equal(split.train.time, log.time[train])
    for cases, known in ((split.test, test), (split.validation, validation)):
        if refit and cases is None:
            continue
        assert cases.user.tolist() == list(known)
        assert cases.histories.stop.tolist() == list(known.values())
        assert cases.target_time.tolist() == [int(log.time[r]) for r in known.values()]


def test_evaluate_asks_for_purchases_and_counts_users_without(tmp_path: Path) -> None:
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
    found = talerec("evaluate", tmp_path / "log.csv", *options).json
    log = tr.Log.from_frame(weighed_frame(), event="event")
    split = tr.leave_one_out(log, target="buy")
    assert found["cases"] == len(split.test)
    assert found["without"] == split.without > 0
    assert found["split"] == "leave-one-out (buy)"
    assert (
        f"{split.without} users have no such row to ask for: they are not asked" in found["notes"]
    )


# -- logs without times ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    sorted(set(MODELS) - {"tale", "tempo", "trending", "sknn", "stan", "blend"} - set(NEURAL)),
)
def test_models_that_need_no_time_are_fitted_without(name: str, tmp_path: Path) -> None:
    frame = weighed_frame().sort("user_id", maintain_order=True)
    timed = MODELS[name]().fit(tr.Log.from_frame(frame))
    frame.select("user_id", "item_id").write_csv(tmp_path / "log.csv")
    outcome = talerec("fit", tmp_path / "log.csv", "-o", tmp_path / "m.tale", "--model", name)
    assert outcome.code == 0
    assert "there is no column timestamp: rows are taken in their order" in outcome.err
    found = tr.load(tmp_path / "m.tale").recommend([1, 2, 3], 5)
    assert found.equals(timed.recommend([1, 2, 3], 5))
    same = MODELS[name]().fit(tr.read_log(tmp_path / "log.csv", time=None)).recommend([1, 2, 3], 5)
    assert same.equals(found)


@pytest.mark.parametrize("name", ["tale", "tempo", "trending", "sknn", "stan"])
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

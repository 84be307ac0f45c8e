"""The next basket as the target: a slow twin, repeats and new items, leaks and bad input."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import talerec as tr
from command import talerec
from kinds import maker
from logs import DAY, SECOND, START, at, histories_of, log_of, logs, rows, rows_of, tiny_log
from talerec.data.split import SplitPlan, basket_splits
from talerec.errors import InvalidLogError, TalerecError
from talerec.evaluation import BasketEvaluation, read_any_result
from talerec.evaluation.intervals import compare_pairs

CUTOFF = START + 10 * DAY // 24
METRICS = [f"{name}@1" for name in ("recall", "precision", "HR", "NDCG", "F1")]


def baskets_of(events):
    """Return each user's baskets: (time, items) in order of time; equal items once."""
    users = {}
    for user, history in histories_of(events).items():
        times = sorted({time for *_, time in history})
        users[user] = [(t, {item for _, item, time in history if time == t}) for t in times]
    return users


def slow_metrics(listed, targets, k):
    """Return recall, precision, HR, NDCG and F1 of the first k of a list."""
    top = listed[:k]
    hits = [item in targets for item in top]
    gain = sum(hit / math.log2(place + 2) for place, hit in enumerate(hits))
    ideal = sum(1 / math.log2(place + 2) for place in range(min(k, len(targets))))
    recall, precision = sum(hits) / len(targets), sum(hits) / k
    f1 = 2 * recall * precision / (recall + precision) if sum(hits) else 0.0
    return [recall, precision, float(any(hits)), gain / ideal, f1]


def slow_rows(model, cases, ks, hide_seen):
    """Return a dict per basket with the metrics of all items, of repeats and of new items."""
    table = []
    for user, history, (time, basket) in cases:
        listed = model.recommend_histories(
            [[(item, at(when)) for when, items in history for item in items]],
            k=min(max(ks), len(model.item_ids)), hide_seen=hide_seen, unknown="skip",
            as_of=at(time),
        )["item_id"].to_list()  # fmt: skip
        seen = {item for _, items in history for item in items}
        row = {"user_id": user, "basket_size": len(basket), "repeats": len(basket & seen)}
        for part, targets in (("", basket), ("repeat_", basket & seen), ("new_", basket - seen)):
            for k in ks:
                values = slow_metrics(listed, targets, k) if targets else [None] * 5
                for name, value in zip(
                    ("recall", "precision", "HR", "NDCG", "F1"), values, strict=True
                ):
                    row[f"{part}{name}@{k}"] = value
        table.append(row)
    return table


def slow_cases(users, plan):
    """Return training rows' end by user, and (user, earlier baskets, basket) of each case."""
    cases = []
    for user, baskets in users.items():
        if plan in ("leave-one-out", "validation"):
            last = -1 if plan == "leave-one-out" else -2
            if len(baskets) >= 3:
                cases.append((user, baskets[:last], baskets[last]))
            continue
        later = [n for n, (time, _) in enumerate(baskets) if time >= CUTOFF and n]
        if plan == "at":
            later = [n for n in later if baskets[n - 1][0] < CUTOFF]
        cases += [(user, baskets[:n], baskets[n]) for n in later]
    return cases


@given(
    logs(max_users=4, max_items=6, max_rows=30),
    st.booleans(),
    st.sampled_from(["leave-one-out", "validation", "at", "every"]),
)
@settings(max_examples=20, deadline=None)
def test_baskets_equal_a_slow_loop(log, hide_seen, plan):
    """Order in a basket and equal items of a basket do not matter to these models."""
    cases = slow_cases(baskets_of(rows_of(log)), plan)
    text, on = f"{plan}:{np.datetime64(CUTOFF, 'us')}", "test"
    if plan in ("leave-one-out", "validation"):
        text, on = "leave-one-out", "validation" if plan == "validation" else "test"
    model = tr.TALE(reg=1.0, same_time="joint")
    try:
        result = tr.evaluate_baskets(model, log, text, on=on, k=[1, 3], hide_seen=hide_seen)
    except TalerecError:
        assert not cases or (log.time >= CUTOFF).all()
        return
    expected = slow_rows(model, cases, [1, 3], hide_seen)
    assert len(result.frame) == len(expected)
    for row, slow in zip(result.frame.iter_rows(named=True), expected, strict=True):
        assert {name: row[name] for name in slow} == pytest.approx(slow)


@given(rows(max_users=3, max_rows=25), st.integers(0, 3))
@settings(max_examples=25, deadline=None)
def test_rows_of_a_basket_get_the_time_of_its_first_row(events, seed):
    rng = np.random.default_rng(seed)
    basket = [f"{user}-{rng.integers(0, 3)}" for user, *_ in events]
    users, items, times = zip(*events, strict=True)
    frame = {"user_id": users, "item_id": items, "timestamp": times, "b": basket}
    log = tr.join_baskets(tr.Log.from_frame(pl.DataFrame(frame), time_unit="us", group="b"))
    first = {b: min(t for t, c in zip(times, basket, strict=True) if c == b) for b in basket}
    moved = [(u, i, first[b]) for (u, i, _), b in zip(events, basket, strict=True)]
    assert sorted(rows_of(log)) == sorted(rows_of(log_of(moved)))
    assert (np.diff(log.time)[np.diff(log.user_codes()) == 0] >= 0).all()


def shop(n_users=12, n_baskets=6):
    """Return rows of weekly baskets of three items, two of which the user buys again."""
    return [
        (u, item, (b * 7 + u % 3) * 86_400)
        for u in range(n_users)
        for b in range(n_baskets)
        for item in (u, 40 + u % 4, 60 + (u + b) % 9)
    ]


def test_later_baskets_and_items_of_the_same_basket_do_not_help():
    """Later rows, and more rows in the target basket, do not change which items are listed."""
    last = max(t for *_, t in shop())
    lists = []
    later = [(u, 1, last + 86_400) for u in range(12)]
    for events in (shop(), [*shop(), *later]):
        plan = SplitPlan(f"at:{np.datetime64((last - 7 * 86_400) * SECOND, 'us')}")
        (split,) = basket_splits(plan, tiny_log(events))
        model = tr.Tempo().fit(split.train)
        histories = split.cases("test").histories
        lists.append(tr.evaluate_baskets(tr.Tempo(), tiny_log(events), plan).frame)
        assert (histories.stop - histories.start).max() == 15
        assert model.fitted.log.rows == split.train.rows
    assert lists[0].equals(lists[1])


def test_repeats_and_new_items_are_measured_apart():
    result = tr.evaluate_baskets(tr.Popular(), tiny_log(shop()), k=[10])
    shown = result.to_dict()
    assert shown["cases"] == shown["users"] == 12
    assert shown["basket_size"] == 3
    sizes = result.frame.select("basket_size", "repeats").to_numpy()
    assert shown["repeat_share"] == pytest.approx(sizes[:, 1].sum() / sizes[:, 0].sum())
    cases = [part["cases"] for part in shown["groups"]["repeat_share"].values()]
    assert sum(cases) == 12
    assert shown["new"]["cases"] == (sizes[:, 1] < 3).sum()
    assert set(shown["metrics"]) == {f"{m}@10" for m in ("recall", "precision", "HR", "NDCG", "F1")}
    low, high = shown["intervals"]["recall@10"]
    assert 0 <= low <= shown["metrics"]["recall@10"] <= high <= 1


def test_a_user_with_many_baskets_is_one_observation():
    events = [(0, 0, n) for n in range(1000)] + [
        (u, 1 + u % 3, n) for u in range(1, 12) for n in (u, 900)
    ]
    result = tr.evaluate_baskets(tr.Popular(), tiny_log(events), "every:1970-01-01 00:08:20", k=[1])
    assert len(result.frame) == 511
    assert result.users == 12
    low, high = result.intervals["recall@1"]
    assert high - low > 0.25  # 511 independent baskets would give 0.03


def test_baskets_of_ten_thousand_items_are_measured():
    events = [("a", n, t) for t in (1, 2, 3) for n in range(10_000)] + [("b", 1, 1), ("b", 2, 5)]
    result = tr.evaluate_baskets(tr.Popular(), tiny_log(events), k=[5])
    assert result.frame["basket_size"].to_list() == [10_000]
    assert result.metrics["precision@5"] == 1.0
    assert result.metrics["recall@5"] == pytest.approx(0.0005)


def test_bad_baskets_are_refused():
    log = tiny_log([("a", 1, 1), ("a", 2, 1), ("a", 3, 2)])
    with pytest.raises(InvalidLogError, match="no user has three baskets"):
        tr.evaluate_baskets(tr.Popular(), log)
    with pytest.raises(TalerecError, match="no row lies before"):
        tr.evaluate_baskets(tr.Popular(), log, "at:1970-01-01")
    for action in (tr.join_baskets, lambda rows: tr.evaluate_baskets(tr.Popular(), rows)):
        with pytest.raises(InvalidLogError, match="need"):
            action(replace(log, unit="none"))
    with pytest.raises(TalerecError, match="`target` does not go with baskets"):
        list(basket_splits(SplitPlan(target="buy"), log))


def test_the_command_evaluates_baskets(tmp_path):
    path = tmp_path / "shop.csv"
    frame = tiny_log(shop()).to_frame()
    times = frame["timestamp"].dt.epoch("s")
    basket = (frame["user_id"] * 1000 + times // 86_400 // 7).alias("basket_id")
    frame.with_columns((times + 1_600_000_000).alias("timestamp"), basket).write_csv(path)
    options = ("evaluate", path, "--model", "popular", "-k", "5,10")
    by_column = talerec(*options, "--basket", "basket_id", "--json").json
    by_time = talerec(*options, "--basket", "time", "--json").json
    assert by_column["metrics"] == by_time["metrics"]
    assert {"recall@5", "precision@5", "HR@5", "NDCG@5", "F1@5"} <= set(by_time["metrics"])
    text = talerec(*options, "--basket", "time")
    assert text.code == 0
    assert "By share of repeats" in text.out
    for words, message in (
        (["--basket", "nothing"], "there is no column 'nothing'"),
        (["--basket", "time", "--ties", "random:0..2"], "--basket takes one order of ties"),
        (["--basket", "time", "--split", "at:2000-01-01"], "no row lies before"),
    ):
        refused = talerec(*options, *words)
        assert refused.code == 2
        assert message in refused.err
        assert refused.err.count("\n") <= 2


def test_several_models_are_evaluated_and_compared_on_baskets(tmp_path):
    log, names = tiny_log(shop()), "personal,popular,tempo"
    boards = [
        tr.evaluate_models(log, names, "every:1970-01-22", k=[2, 5], baskets=True, folder=tmp_path)
        for _ in range(2)
    ]  # the second finds its results in the folder
    for label, result in boards[0].results.items():
        single = tr.evaluate_baskets(label, log, "every:1970-01-22", k=[2, 5])
        assert result.frame.equals(single.frame)
        assert result.to_dict().keys() == single.to_dict().keys()
        stored = boards[1].results[label]
        assert stored.frame.equals(result.frame)
        assert stored.facts() == result.facts()
        assert boards[1].costs[label].own_seconds == boards[0].costs[label].own_seconds
    board = boards[0]
    assert board.headline == "NDCG@5"
    frames = [board.results[n].frame.sort("user_id", "time") for n in ("personal", "popular")]
    sums = [frame.group_by("user_id").agg(pl.col("NDCG@5").sum(), pl.len()) for frame in frames]
    a, b = (part.sort("user_id") for part in sums)
    by_hand = compare_pairs(*(p["NDCG@5"].to_numpy() for p in (a, b)), a["len"].to_numpy())
    assert board.differences["popular"].metrics["NDCG@5"] == by_hand
    assert board.differences["popular"].metrics_hidden == {}
    assert set(board.adjusted) == {"metrics"}
    assert board.to_dict()["differences"]["popular"]["metrics_hidden"] == {}
    page = board.report()
    shown = board.results["personal"].description
    for text in ("recall@5 of repeats", "Take ", "Difference to personal", shown):
        assert text in page
    assert "Seen hidden" not in page
    assert "NDCG@5" in board.plot()


def test_a_result_of_baskets_is_saved_compared_and_shown(tmp_path):
    log = tiny_log(shop())
    results = [tr.evaluate_baskets(name, log, k=[2, 5]) for name in ("personal", "popular")]
    paths = [result.save(tmp_path / f"{result.model}.parquet") for result in results]
    loaded = [read_any_result(path) for path in paths]
    assert [r.to_dict()["metrics"] for r in loaded] == [r.metrics for r in results]
    assert [r.facts() for r in loaded] == [r.facts() for r in results]
    comparison = tr.compare(*loaded)
    assert comparison.metrics["recall@5"].users == 12
    assert not comparison.significant_hidden
    assert "seen items hidden" not in comparison.verdict
    assert "NDCG@5 by repeat share" in comparison.report()
    page = results[0].report()
    for text in ("How good is personal?", "12 baskets of 12 users", "by repeat share", "Repeats"):
        assert text in page
    assert "recall@5" in results[0].plot()
    with pytest.raises(TalerecError, match="is a result of next baskets"):
        tr.Evaluation.load(paths[0])
    single = tr.evaluate_log("popular", log, k=[2, 5])
    with pytest.raises(TalerecError, match="next baskets and the other of single next items"):
        tr.compare(single, loaded[0])
    with pytest.raises(TalerecError, match="is no result of next baskets"):
        BasketEvaluation.load(single.save(tmp_path / "single.parquet"))
    with pytest.raises(TalerecError, match="baskets are evaluated in one order"):
        tr.evaluate_models(log, "popular", ties="random:0..1", baskets=True)


def test_the_order_of_ties_is_applied_to_baskets():
    events = [
        (u, (u + 3 * n + m) % 11, n * 86_400) for u in range(20) for n in range(5) for m in (5, 0)
    ]
    log, results = tr.join_baskets(tiny_log(events)), {}
    for ties in ("file", "item", "random:3"):
        results[ties] = tr.evaluate_baskets("markov", log, k=[3], ties=ties)
        by_hand = tr.evaluate_baskets("markov", tr.order_ties(log, ties), k=[3])
        assert results[ties].frame.equals(by_hand.frame)
        assert results[ties].ties == ties
    assert not results["file"].frame.equals(results["item"].frame)


def test_commands_evaluate_several_models_on_baskets_and_compare_files(tmp_path):
    path = tmp_path / "shop.csv"
    tiny_log(shop()).to_frame().write_csv(path)
    options = ("evaluate", path, "--basket", "time", "-k", "5")
    board = talerec(
        *options, "--models", "personal,popular", "--json", "-o", tmp_path / "done",
        "--report", tmp_path / "models.html",
    ).json  # fmt: skip
    assert board["order"] == ["personal", "popular"]
    assert len(list((tmp_path / "done").iterdir())) == 2
    for name in ("personal", "popular"):
        single = talerec(
            *options, "--model", name, "--json", "-o", tmp_path / f"{name}.parquet",
            "--report", tmp_path / f"{name}.html",
        ).json  # fmt: skip
        assert single["metrics"] == board["models"][name]["metrics"]
        assert single["unit"] == "basket"
    assert talerec(*options, "--models", "personal,popular").code == 0
    files = (tmp_path / "personal.parquet", tmp_path / "popular.parquet")
    report = tmp_path / "compare.html"
    compared = talerec("compare", *files, "--report", report, "--json").json
    assert compared["metrics_hidden"] == {}
    assert compared["metrics"]["NDCG@5"] == {
        key: value
        for key, value in board["differences"]["popular"]["metrics"]["NDCG@5"].items()
        if key != "p_holm"
    }
    assert "recall@5" in talerec("compare", *files).out
    pages = [tmp_path / f"{name}.html" for name in ("models", "personal", "compare")]
    assert all("<!DOCTYPE html>" in page.read_text() for page in pages)


@pytest.mark.parametrize("name", ["markov", "tale", "personal", "tifuknn", "tempo"])
def test_baskets_of_one_item_are_leave_one_out(name):
    """Where every basket has one item, recall is the hit rate of the next item."""
    log = tr.synthetic_log(3000, items=60)
    user = log.user_codes()
    log = replace(log, time=log.time.min() + np.arange(log.rows) * SECOND)  # no equal times
    baskets = tr.evaluate_baskets(maker(name)(), log, k=[5], on="validation")
    rows_ = tr.evaluate_log(maker(name)(), tr.join_baskets(log), k=[5], on="validation")
    assert baskets.metrics["recall@5"] == pytest.approx(rows_.metrics["HR@5"])
    assert baskets.metrics["HR@5"] == baskets.metrics["recall@5"]
    assert (baskets.frame["basket_size"] == 1).all()
    assert len(baskets.frame) == (np.bincount(user) >= 3).sum()


@pytest.mark.parametrize("largest", [3000, 300, 75, 5])
def test_intervals_cover_where_one_user_has_thousands_of_baskets(largest):
    """Users have rates of their own; one has up to 91 % of the baskets: users are counted."""
    rng, n_covered = np.random.default_rng(0), 0
    sizes = np.array([largest] + [5] * 60)
    for _ in range(200):
        rate = rng.beta(2, 2, len(sizes))
        user = np.repeat(np.arange(len(sizes)), sizes)
        hit = (rng.random(len(user)) < rate[user]).astype(float)
        frame = pl.DataFrame({"user_id": user, **dict.fromkeys(METRICS, hit)})
        result = BasketEvaluation("m", {}, None, "s", "test", False, (1,), {}, frame)
        low, high = result.intervals["recall@1"]
        n_covered += low <= 0.5 <= high
    assert n_covered >= 183  # of 200 at 95 %: less has a probability of 1.5 %


def test_models_that_cannot_take_baskets_say_so_in_one_line(tmp_path):
    path = tmp_path / "plain.csv"
    tiny_log(shop()).to_frame().drop("timestamp").write_csv(path)
    for words in (["--basket", "time"], ["--basket", "time", "--model", "tifuknn"]):
        refused = talerec("evaluate", path, *words)
        assert refused.code == 2
        assert "timestamp" in refused.err
        assert refused.err.count("\n") <= 2
    refused = talerec("evaluate", path, "--session-gap", "30m")
    assert refused.code == 2
    assert "timestamp" in refused.err

"""Each row from a cutoff on is a query: against a slow twin, and bad input."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import talerec as tr
from command import talerec
from logs import DAY, SECOND, START, at, histories_of, log_of, logs, rows_of, tiny_log
from talerec.data import order_ties
from talerec.data.split import SplitPlan
from talerec.errors import InvalidLogError, TalerecError
from talerec.evaluation import GROUPS

CUTOFF = START + 10 * DAY // 24


def slow_cases(rows, cutoff, end=None):
    """Return (user, history, target) of each query, and (user, target) of rows without history."""
    cases, first = [], []
    for user, events in histories_of(rows).items():
        for _, item, time in events:
            if time < cutoff or (end is not None and time >= end):
                continue
            history = [(i, t) for _, i, t in events if t < time]
            if history:
                cases.append((user, history, (item, time)))
            else:
                first.append((user, (item, time)))
    return cases, first


def slow_rank(model, history, item, time, hide_seen):
    """Return the rank of an item in the list of all items after a history, or None."""
    order = model.recommend_histories(
        [[(i, at(t)) for i, t in history]],
        k=len(model.item_ids),
        hide_seen=hide_seen,
        unknown="skip",
        as_of=at(time),
    )["item_id"].to_list()
    return order.index(item) + 1 if item in order else None


def split_or_none(log, cutoff, **options):
    """Return the splits, or None if the log has no case."""
    try:
        return tr.every_row_split(log, at(cutoff), **options)
    except TalerecError:
        return None


@given(logs(max_users=5, max_items=6, max_rows=30), st.booleans())
@settings(max_examples=25, deadline=None)
def test_every_row_equals_a_slow_loop_over_rows(log, hide_seen):
    rows = rows_of(log)
    cases, first = slow_cases(rows, CUTOFF)
    train = [row for row in rows if row[2] < CUTOFF]
    splits = split_or_none(log, CUTOFF)
    if splits is None:
        assert not cases or not train or len(train) == len(rows)
        return
    (split,) = splits
    assert rows_of(split.train) == rows_of(log_of(train))
    for model in (tr.TALE(reg=1.0), tr.Rules()):
        result = tr.evaluate(model.fit(split.train), split, hide_seen=hide_seen)
        ranks = [slow_rank(model, h, *target, hide_seen) for _, h, target in cases]
        assert result.frame["rank"].to_list() == ranks
        assert result.frame["user_id"].to_list() == [user for user, *_ in cases]
        assert result.frame["history_length"].to_list() == [len(h) for _, h, _ in cases]
    trained = {user for user, *_ in train}
    labels = ["known" if user in trained else "new" for user, *_ in cases]
    assert result.frame["user"].to_list() == labels
    check_first_rows(result, split, first)


def check_first_rows(result, split, first):
    """Compare the metrics of first rows with ranks in the order of trending items."""
    assert result.first_rows.get("cases", 0) == len(first)
    if first:
        trending = tr.Trending().fit(split.train)
        ranks = [slow_rank(trending, [], item, time, False) for _, (item, time) in first]
        hits = [rank is not None and rank <= 5 for rank in ranks]
        assert result.first_rows["metrics"]["HR@5"] == pytest.approx(np.mean(hits))
        assert result.first_rows["users"] == len({user for user, _ in first})


@given(logs(max_users=4, max_items=5, max_rows=30))
@settings(max_examples=15, deadline=None)
def test_refitting_evaluates_the_same_queries_with_later_models(log):
    start, width = START, DAY // 8
    log = log.keep(log.time < START + DAY).compact() if (log.time < START + DAY).any() else log
    rows = rows_of(log)
    splits = split_or_none(log, start + width, refit_every="3h") or []
    wanted_cases = []
    for number in range(1, 9):
        begin = start + number * width
        part, _ = slow_cases(rows, begin, begin + width)
        train = [row for row in rows if row[2] < begin]
        if part and train:
            wanted_cases.append((begin, len(train), [(u, len(h), i) for u, h, (i, _) in part]))
    found_cases = []
    for split in splits:
        cases, names = split.cases("test"), log.items.ids
        lengths = cases.histories.stop - cases.histories.start
        keys = zip(cases.user, lengths, log.item[cases.target_row], strict=True)
        listed = [(split.users.ids[int(u)], int(n), names[int(i)]) for u, n, i in keys]
        begin = int(np.datetime64(split.window).astype("datetime64[us]").astype(int))
        found_cases.append((begin, split.train.rows, listed))
    if log.time.max() < START + DAY:
        assert found_cases == wanted_cases


def test_a_split_of_every_row_is_written_by_hand():
    rows = [("a", 1, 0), ("a", 2, 10), ("a", 3, 10), ("a", 4, 12), ("b", 1, 11), ("b", 1, 11)]
    rows += [("b", 2, 20), ("c", 2, 30)]
    (split,) = tr.every_row_split(tiny_log(rows), at(10 * SECOND))
    cases = split.cases("test")
    lengths = cases.histories.stop - cases.histories.start
    assert lengths.tolist() == [1, 1, 3, 2]  # a: 2 and 3 at once, then 4; b: 2
    assert cases.labels["user"].tolist() == [0, 0, 0, 1]
    assert cases.target.tolist() == [-1, -1, -1, -1]  # training has item 1 alone
    assert split.first_rows.target.tolist() == [0, 0, -1]  # b: 1, 1; c: 2
    assert split.train.rows == 1


def test_one_user_with_thousands_of_queries_counts_as_one_observation():
    rows = [(0, i % 5, i) for i in range(2000)] + [(u, u % 5, u) for u in range(1, 12)]
    rows += [(u, (u + 1) % 5, 1500 + u) for u in range(1, 12)]
    result = tr.evaluate_log(tr.Markov(), tiny_log(rows), "every:1970-01-01 00:16:40", k=[1])
    assert (result.cases, result.users) == (1011, 12)
    low, high = result.intervals["HR@1"]
    assert high - low > 0.5  # 1,000 independent cases would give 0.06


def test_new_users_and_first_rows_are_reported(tmp_path):
    log = tr.synthetic_log(3000, items=60, seed=4)
    result = tr.evaluate_log(tr.Rules(), log, "every:last:20%", ties="random:0..1")
    saved = tr.Evaluation.load(result.save(tmp_path / "rules.parquet"))
    for each in (result, saved):
        shown = json.loads(json.dumps(each.to_dict()))
        assert set(shown["groups"]) == {*GROUPS, "user"}
        assert set(shown["groups"]["user"]) == {"known", "new"}
    assert set(result.to_dict()["first_rows"]) == {"cases", "users", "metrics", "intervals"}
    assert saved.first_rows == {}
    once = tr.evaluate_log(tr.Rules(), order_ties(log, "random:0"), "every:last:20%")
    assert result.first_rows == once.first_rows  # not counted once per order
    assert tr.compare(result, saved).metrics["NDCG@10"].difference == 0


def test_first_rows_of_several_periods_are_added():
    log = tr.synthetic_log(3000, items=60, seed=4)
    parts = [
        tr.evaluate(tr.Rules().fit(split.train), split)
        for split in tr.every_row_split(log, "2024-06-01", refit_every="60d")
    ]
    whole = tr.evaluate_log(tr.Rules(), log, "every:2024-06-01,60d")
    n_cases = [part.first_rows.get("cases", 0) for part in parts]
    assert sum(map(bool, n_cases)) > 1
    assert whole.first_rows["cases"] == sum(n_cases)
    hits = [p.first_rows["cases"] * p.first_rows["metrics"]["HR@10"] for p in parts if p.first_rows]
    assert whole.first_rows["metrics"]["HR@10"] == pytest.approx(sum(hits) / sum(n_cases))
    assert len(whole.windows) == len(parts)


def test_validation_of_every_row_ends_at_the_cutoff():
    log = tr.synthetic_log(2000, seed=1)
    (split,) = tr.every_row_split(log, "last:20%", on="validation")
    (tested,) = tr.every_row_split(log, "last:20%")
    cutoff = int(split.cases("validation").target_time.max())
    assert cutoff <= int(np.sort(log.time)[1600])
    held_out = len(split.cases("validation")) + len(split.first_rows)
    assert split.train.rows + held_out == tested.train.rows


def test_last_holds_out_a_share_of_the_rows():
    log = tr.synthetic_log(2000, seed=1)
    (split,) = SplitPlan("last:10%").splits(log)
    assert split.name == "last:10%"
    assert split.train.rows == 1800
    (same,) = SplitPlan(f"at:{split.window}").splits(log)
    assert same.cases("test").target_row.tolist() == split.cases("test").target_row.tolist()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("every:", "is not a time"),
        ("every:soon", "'soon' is not a time"),
        ("every:2019-01-01,7", "`refit_every` is '7'; it takes 30s, 10m, 2h or 7d"),
        ("every:2019-01-01,0d", "`refit_every`"),
        ("every:last:0%", "last takes a percentage of the rows such as last:10%"),
        ("last:10", "last takes a percentage"),
        ("last:100%", "last takes a percentage"),
        ("last:nan%", "last takes a percentage"),
        ("last:-5%", "last takes a percentage"),
    ],
)
def test_an_invalid_plan_is_refused(text, message):
    with pytest.raises(TalerecError, match=message):
        SplitPlan(text)


def test_cutoffs_without_rows_on_one_side_are_refused():
    log = tiny_log([("a", 1, 5), ("a", 2, 6), ("b", 1, 7)])
    for cutoff, message in ((0, "no row lies before"), (100, "no row lies after")):
        with pytest.raises(TalerecError, match=message):
            tr.every_row_split(log, at(cutoff * SECOND))
    with pytest.raises(TalerecError, match="no row lies after the first window begins"):
        tr.every_row_split(log, at(100 * SECOND), refit_every="1d")
    with pytest.raises(TalerecError, match="windows are more than 1,000: make them longer"):
        tr.every_row_split(tiny_log([("a", 1, 0), ("a", 2, 10**8)]), at(SECOND), refit_every="1s")
    with pytest.raises(TalerecError, match="has an earlier row of its user"):
        tr.every_row_split(log, at(7 * SECOND))
    with pytest.raises(InvalidLogError, match="the log has no times"):
        tr.every_row_split(replace(log, unit="none"), at(7))


def test_the_command_evaluates_every_row(tmp_path):
    path = tmp_path / "log.parquet"
    tr.synthetic_log(2000, items=50, seed=2).to_frame().write_parquet(path)
    out = tmp_path / "markov.parquet"
    options = ("--model", "markov", "--split", "every:last:20%", "--refit-every", "30d")
    shown = talerec("evaluate", path, *options, "--json", "-o", out).json
    assert shown["split"] == "every:last:20%,30d"
    assert shown["cases"] == len(pl.read_parquet(out))
    assert len(shown["windows"]) > 1
    text = talerec("evaluate", path, *options).out
    assert "First rows of new users" in text

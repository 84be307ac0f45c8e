"""Evaluation: metrics from ranks, groups, and a protocol that cannot look ahead."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import talerec as tr
from logs import at, logs, rows_of, tiny_log
from talerec.data import histories
from talerec.errors import TalerecError
from talerec.evaluation.metrics import metric_expressions
from talerec.models.core import inference
from talerec.runtime import threads


@given(st.lists(st.integers(0, 30), min_size=1), st.integers(1, 20))
def test_metrics_equal_their_definitions(ranks, k):
    frame = pl.DataFrame({"rank": ranks})
    found = frame.select(expression.mean() for expression in metric_expressions([k])).row(
        0, named=True
    )
    hits = [r for r in ranks if 1 <= r <= k]
    assert found[f"HR@{k}"] == pytest.approx(len(hits) / len(ranks))
    assert found[f"NDCG@{k}"] == pytest.approx(sum(1 / math.log2(r + 1) for r in hits) / len(ranks))
    assert found[f"MRR@{k}"] == pytest.approx(sum(1 / r for r in hits) / len(ranks))


def slow_evaluation(model, log, hide_seen, on):
    """Leave-one-out by hand: lists, external ids, the model's own recommendations."""
    histories = {}
    for user, item, moment in rows_of(log):
        histories.setdefault(user, []).append((item, at(moment)))
    known = set(model.item_ids.to_list())
    ranks = []
    for rows in histories.values():
        if len(rows) < 3:
            continue
        end = len(rows) - (1 if on == "test" else 2)
        best = model.recommend_histories(
            [rows[:end]], k=len(known), hide_seen=hide_seen, unknown="skip"
        )
        order = best["item_id"].to_list()
        target = rows[end][0]
        ranks.append(order.index(target) + 1 if target in order else None)
    return ranks


@given(
    logs(max_users=5, max_items=6, max_rows=40),
    st.booleans(),
    st.sampled_from(["test", "validation"]),
)
@settings(max_examples=25, deadline=None)
def test_ranks_equal_recommending_everything_and_looking(log, hide_seen, on):
    try:
        split = tr.leave_one_out(log)
    except TalerecError:
        return
    for same_time in ("ordered", "joint"):
        model = tr.TALE(reg=1.0, same_time=same_time).fit(split.train)
        result = tr.evaluate(model, split, hide_seen=hide_seen, on=on)
        assert result.frame["rank"].to_list() == slow_evaluation(model, log, hide_seen, on)


def walk(users=60, items=12, rows=7, seed=3):
    rng = np.random.default_rng(seed)
    return tiny_log(
        [
            (u, int((u + s + rng.integers(0, 2)) % items), 1.6e9 + float(rng.integers(0, 10**6)))
            for u in range(users)
            for s in range(rows)
        ]
    )


def test_small_blocks_and_many_threads_change_nothing(monkeypatch):
    split = tr.leave_one_out(walk())
    model = tr.TALE(reg=1.0).fit(split.train)
    whole = tr.evaluate(model, split)
    monkeypatch.setattr(inference, "_SMALL", 0)
    monkeypatch.setattr(histories, "_CHUNK_HISTORIES", 7)
    monkeypatch.setattr(histories, "_CHUNK_ROWS", 20)
    monkeypatch.setattr(threads, "thread_count", lambda: 3)
    assert tr.evaluate(model, split).frame.equals(whole.frame)


def test_a_future_row_changes_nothing_that_was_learned():
    rows = rows_of(walk())
    last = max(moment for _, _, moment in rows)
    before = tr.leave_one_out(tr.Log.from_frame(frame(rows)))
    split_point = last - 10**11
    planted = [*rows, (0, 999, last + 1)]
    first = tr.time_split(tr.Log.from_frame(frame(rows)), split_point)
    second = tr.time_split(tr.Log.from_frame(frame(planted)), split_point)
    assert 999 not in second.train.items.ids.to_list()
    a, b = (tr.TALE().fit(split.train) for split in (first, second))
    np.testing.assert_array_equal(np.asarray(a.weights), np.asarray(b.weights))
    assert before.train.rows < len(rows)


def frame(rows):
    users, items, times = (list(column) for column in zip(*rows, strict=True))
    return pl.DataFrame({"user_id": users, "item_id": items, "timestamp": times})


def test_an_item_that_training_never_saw_is_a_miss_and_stays_a_case():
    log = tiny_log([(u, i, 1e9 + i) for u in range(5) for i in (1, 2, 3)] + [(0, 99, 2e9)])
    split = tr.leave_one_out(log)
    result = tr.evaluate(tr.TALE(reg=1.0).fit(split.train), split)
    assert len(result.frame) == 5
    assert result.frame["rank"][0] is None
    assert result.frame["popularity"][0] == "tail"


def test_a_repeat_is_a_miss_when_seen_items_are_hidden():
    log = tiny_log([(u, i, 1e9 + s) for u in range(6) for s, i in enumerate((1, 2, 1, 2))])
    split = tr.leave_one_out(log)
    model = tr.TALE(reg=0.1).fit(split.train)
    assert tr.evaluate(model, split).metrics["HR@5"] == 1.0
    assert tr.evaluate(model, split, hide_seen=True).metrics["HR@5"] == 0.0


def test_groups_are_means_over_their_cases_and_cover_all():
    split = tr.leave_one_out(walk())
    result = tr.evaluate(tr.TALE(reg=1.0).fit(split.train), split)
    for parts in result.groups.values():
        assert sum(part["cases"] for part in parts.values()) == len(result.frame)
        total = sum((part["NDCG@10"] or 0) * part["cases"] for part in parts.values())
        assert total / len(result.frame) == pytest.approx(result.metrics["NDCG@10"])


def test_equal_gaps_fall_into_one_group():
    log = tiny_log(
        [(u, i, 1e9 + (100 * u if i == 4 else 0)) for u in range(9) for i in (1, 2, 3, 4)]
    )
    split = tr.leave_one_out(log)
    found = tr.evaluate(tr.TALE().fit(split.train), split).frame
    per_gap = found.group_by("gap_us").agg(pl.col("gap").n_unique())
    assert per_gap["gap"].max() == 1
    order = found.sort("gap_us")["gap"].to_list()
    assert order == sorted(order, key=["short", "mid", "long"].index)


def test_head_is_the_top_fifth_of_the_items_by_training_rows():
    """Five items in training, item 0 by far the most frequent: it alone is the head."""
    rows = []
    for u in range(10):
        target = 0 if u % 2 else 1
        rows += [(u, i, 1e9 + s) for s, i in enumerate((0, u % 4 + 1, 2, target))]
    split = tr.leave_one_out(tiny_log(rows))
    result = tr.evaluate(tr.Popular().fit(split.train), split)
    assert result.frame["popularity"].to_list() == ["tail", "head"] * 5


def test_a_model_of_other_rows_is_refused():
    split = tr.leave_one_out(walk())
    with pytest.raises(TalerecError, match="not fitted to this split"):
        tr.evaluate(tr.TALE().fit(walk(items=5)), split)


def test_k_that_is_no_count_is_refused():
    split = tr.leave_one_out(walk())
    model = tr.Popular().fit(split.train)
    for k in (0, -3, 1.5, True):
        with pytest.raises(TalerecError, match="`k` is"):
            tr.evaluate(model, split, k=[k])


@given(st.lists(st.integers(1, 30), min_size=2, max_size=40), st.integers(1, 12))
@settings(max_examples=50, deadline=None)
def test_metrics_equal_an_independent_librarys(ranks, k):
    """scikit-learn knows the same figures under other names."""
    from sklearn.metrics import label_ranking_average_precision_score, ndcg_score

    items = 30
    rng = np.random.default_rng(len(ranks))
    truth, scores = np.zeros((len(ranks), items)), np.zeros((len(ranks), items))
    for case, place in enumerate(ranks):
        order = rng.permutation(items)
        truth[case, order[place - 1]] = 1
        scores[case, order] = np.arange(items, 0, -1)
    frame = pl.DataFrame({"rank": ranks})
    found = frame.select(e.mean() for e in metric_expressions([k, items])).row(0, named=True)
    assert found[f"NDCG@{k}"] == pytest.approx(ndcg_score(truth, scores, k=k))
    assert found[f"MRR@{items}"] == pytest.approx(
        label_ranking_average_precision_score(truth, scores)
    )
    from sklearn.metrics import top_k_accuracy_score

    labels = np.arange(items)
    hits = top_k_accuracy_score(truth.argmax(axis=1), scores, k=k, labels=labels)
    assert found[f"HR@{k}"] == pytest.approx(hits)


def test_lists_are_described_as_by_hand():
    """Coverage, novelty and lift from the recommended lists themselves."""
    split = tr.leave_one_out(walk(users=30))
    model = tr.Markov().fit(split.train)
    result = tr.evaluate(model, split, k=[3])
    names = model.item_ids.to_list()
    rows = np.bincount(split.train.item, minlength=len(names))
    lists, histories = [], []
    for c in range(len(split.test)):
        h = split.test.histories
        history = [names[i] for i in h.item[h.start[c] : h.stop[c]]]
        histories.append(np.mean([rows[names.index(i)] for i in history]))
        lists.append(model.recommend_histories([history], k=3)["item_id"].to_list())
    counts = [[rows[names.index(i)] for i in best] for best in lists if best]
    assert result.lists["coverage@3"] == pytest.approx(
        len({i for b in lists for i in b}) / len(names)
    )
    bits = [np.mean([-math.log2(c / rows.sum()) for c in some]) for some in counts]
    assert result.lists["novelty@3"] == pytest.approx(np.mean(bits))
    lift = np.mean([np.mean(some) for some in counts]) / np.mean(histories)
    assert result.lists["lift@3"] == pytest.approx(lift)


def test_both_ways_of_treating_seen_items_are_in_one_result():
    log = tiny_log(
        [(u, i, 1e9 + s) for u in range(6) for s, i in enumerate((1, 2, 3, 1, u % 3 + 4))]
    )
    split = tr.leave_one_out(log)
    model = tr.Rules().fit(split.train)
    shown, hidden = tr.evaluate(model, split), tr.evaluate(model, split, hide_seen=True)
    assert shown.metrics_hidden == hidden.metrics == hidden.metrics_hidden
    assert shown.frame["rank_hidden"].equals(hidden.frame["rank_hidden"])


def test_repeats_and_long_histories_are_groups():
    rows = [(u, s, 1e9 + s) for u in range(9) for s in range(u + 1)]
    rows += [(u, 0 if u % 2 else 77, 2e9 + u) for u in range(9)]
    split = tr.leave_one_out(tiny_log(rows))
    frame = tr.evaluate(tr.Popular().fit(split.train), split).frame
    wanted = ["repeat" if u % 2 else "new" for u in frame["user_id"].to_list()]
    assert frame["kind"].to_list() == wanted
    assert frame["history_length"].to_list() == [u + 1 for u in frame["user_id"].to_list()]
    lengths = frame.sort("history_length")["length"].to_list()
    assert lengths == sorted(lengths, key=["short", "mid", "long"].index)


def baskets(seed=0):
    """A log of baskets: four rows at a time, in an order that is not that of the item ids."""
    rng = np.random.default_rng(seed)
    rows = [(u, int(i), 86_400 * d) for u in range(60) for d in range(4) for i in rng.choice(20, 4)]
    return tiny_log(rows)


def test_a_result_names_the_order_that_the_rows_have():
    log, model = baskets(), tr.Markov()
    by_file, by_item = (tr.evaluate_log(model, log, ties=ties) for ties in ("file", "item"))
    assert by_file.metrics != by_item.metrics
    assert (by_file.ties, by_item.ties) == ("file", "item")
    for ties in ("item", "random:3"):
        ordered = tr.order_ties(log, ties)
        result = tr.evaluate_log(model, ordered)  # as they are in the log
        assert result.ties == ties == result.to_dict()["ties"]
        assert result.frame["ties"].unique().to_list() == [ties]
        assert result.metrics == tr.evaluate_log(model, log, ties=ties).metrics
        if ties == "item":
            assert tr.evaluate_log(model, ordered, ties="item").metrics == by_item.metrics


def test_metrics_in_file_order_are_those_of_the_file():
    """An ordered log has lost that order; before, its item order was shown under both names."""
    log, model = baskets(), tr.Markov()
    result = tr.evaluate_log(model, log, ties="random:0..1")
    assert set(result.fixed_order_metrics) == {"file", "item"}
    for order, metrics in result.fixed_order_metrics.items():
        assert metrics == tr.evaluate_log(model, log, ties=order).metrics
    for ties in ("item", "random:3"):
        again = tr.evaluate_log(model, tr.order_ties(log, ties), ties="random:0..1")
        assert again.ties == "random:0..1"
        assert again.fixed_order_metrics == {"item": result.fixed_order_metrics["item"]}
        assert again.to_dict()["beside"] == again.fixed_order_metrics
        assert "in item order" in again.tie_sentence
        assert "in file order" not in again.tie_sentence


def test_many_ties_are_said_and_few_are_not():
    from talerec.data import tie_warning

    assert tie_warning(0.05, "file") is None
    assert "44% of neighbouring rows have the same time" in tie_warning(0.44, "item")
    assert "random:0..4 shows" in tie_warning(0.44, "item")
    assert "means over random orders" in tie_warning(0.44, "random:0..4")


def test_former_names_of_an_evaluation_work_with_a_warning() -> None:
    split = tr.leave_one_out(tr.synthetic_log(users=50, items=20))
    result = tr.evaluate(tr.Popular().fit(split.train), split)
    names = {
        "beside": "fixed_order_metrics",
        "without": "users_without_target",
        "asked": "description",
    }
    for former, name in names.items():
        with pytest.warns(DeprecationWarning, match=f"Evaluation.{former} is now {name}"):
            assert getattr(result, former) == getattr(result, name)
    with pytest.raises(AttributeError, match="no attribute 'judged'"):
        _ = result.judged

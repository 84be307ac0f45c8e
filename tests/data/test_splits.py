"""Splits: what is learned comes before what is asked, in every plan."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinds import maker
from logs import START, Row, at, described, histories_of, log_of, logs, quick, rows_of, tiny_log
from talerec.data import DAY, Log, order_ties
from talerec.data.split import Cases, Split, SplitPlan, leave_one_out, time_split
from talerec.data.split.splits import rolling_split
from talerec.errors import InvalidLogError, TalerecError
from talerec.models import MODELS
from talerec.models.core import rank_targets

SECOND = 10**6


def list_cases(split, on):
    """Return (user, history, target, time) of every case, as ids; None for an unknown item."""
    cases, listed = split.cases(on), []
    names = split.train.items.ids.to_list()
    for c in range(len(cases)):
        h = cases.histories
        rows = h.item[h.start[c] : h.stop[c]].tolist()
        history = [names[i] if i >= 0 else None for i in rows]
        target = names[cases.target[c]] if cases.target[c] >= 0 else None
        user = split.users.ids[int(cases.user[c])]
        listed.append((user, history, target, int(cases.target_time[c])))
    return listed


@given(logs(max_users=6, max_items=5, max_rows=40), st.integers(0, 40))
@quick
def test_validation_at_a_cutoff_is_the_same_split_one_step_earlier(log, place):
    moment = int(np.sort(log.time)[place % log.rows]) if log.rows else 0
    try:
        split = time_split(log, at(moment), on="validation")
    except TalerecError:
        return
    before = log_of([row for row in rows_of(log) if row[2] < moment])
    latest = max(moment for _, _, moment in rows_of(split.train.compact()))
    first_asked = min(time for *_, time in list_cases(split, "validation"))
    assert latest < first_asked < moment
    repeated = time_split(before, split.window)
    assert list_cases(repeated, "test") == list_cases(split, "validation")
    assert rows_of(repeated.train) == rows_of(split.train)
    with pytest.raises(TalerecError, match="has no test rows"):
        split.cases("test")


def test_the_validation_share_is_that_of_the_test_and_half_at_most():
    rows = [(u, i, 1000 + 10 * i + u) for u in range(10) for i in range(10)]
    log = tiny_log(rows)
    times = sorted(moment for _, _, moment in rows)
    split = time_split(log, at(times[80] * SECOND), on="validation")
    assert split.train.rows == 64  # a fifth lies after the moment, and a fifth of 80 is held back
    split = time_split(log, at(times[20] * SECOND), on="validation")
    assert split.train.rows == 10  # four fifths lie after it, but only half may be held back


@given(logs(max_users=6, max_items=5, max_rows=40), st.integers(1, 6))
@quick
def test_rolling_windows_test_first_rows_in_them_and_train_on_earlier_rows(log, parts):
    first, last = int(log.time.min()), int(log.time.max())
    days = (last - first + 1) / parts / DAY
    if round(days * DAY) < 1:
        return
    expected_cases = {}
    width = round(days * DAY)
    for start in range(first, last + 1, width):
        listed = []
        for user, rows in histories_of(rows_of(log)).items():
            past = [item for _, item, moment in rows if moment < start]
            ahead = [moment for *_, moment in rows if start <= moment < start + width]
            if past and ahead:
                listed.append((user, past, ahead[0]))
        if listed:
            expected_cases[str(np.datetime64(start, "us"))] = listed
    if not expected_cases:
        with pytest.raises(TalerecError, match="no window of"):
            rolling_split(log, at(first), days)
        return
    splits = rolling_split(log, at(first), days)
    assert [split.window for split in splits] == list(expected_cases)
    for split in splits:
        start = int(np.datetime64(split.window, "us").astype(int))
        assert rows_of(split.train) == [row for row in rows_of(log) if row[2] < start]
        assert [(u, h, t) for u, h, _, t in list_cases(split, "test")] == expected_cases[
            split.window
        ]


def test_validation_windows_end_where_test_windows_begin():
    day = DAY // SECOND
    log = tiny_log([(u, i, i * day + u) for u in range(3) for i in range(10)])
    test = rolling_split(log, at(6 * DAY), 2.0)
    validation = rolling_split(log, at(6 * DAY), 2.0, on="validation")
    assert [s.window for s in test] == ["1970-01-07T00:00:00.000000", "1970-01-09T00:00:00.000000"]
    assert [s.window for s in validation] == [
        "1970-01-03T00:00:00.000000",
        "1970-01-05T00:00:00.000000",
    ]


def test_a_refit_trains_on_validation_rows_and_has_the_same_test_cases():
    log = tiny_log([(u, (u + s) % 5, 100 * s + u) for u in range(5) for s in range(4)])
    plain, refit = leave_one_out(log), leave_one_out(log, refit=True)
    assert refit.train.rows == plain.train.rows + 5
    assert [(u, t) for u, _, _, t in list_cases(refit, "test")] == [
        (u, t) for u, _, _, t in list_cases(plain, "test")
    ]
    with pytest.raises(TalerecError, match="has no validation rows"):
        refit.cases("validation")


DAY_SECONDS = 86_400


def walk():
    return [
        (u, (u * 3 + s * s) % 7, s * DAY_SECONDS + 600 * u) for u in range(12) for s in range(8)
    ]


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("plan", ["at:1970-01-05", "rolling:1970-01-05,3"])
def test_rows_of_the_future_change_no_answer(name, plan):
    """Rows after the last target, of other users and new items, change no model's answers."""
    last = max(moment for *_, moment in walk())
    planted = [*walk(), *((u, 99, last + 1 + u) for u in range(12, 30))]
    answers = []
    for rows in (walk(), planted):
        splits = list(SplitPlan(plan).splits(described(tiny_log(rows))))
        answers.append([ranks(maker(name)(), split) for split in splits])
    assert answers[0] == answers[1]


def ranks(model, split):
    cases = split.cases("test")
    model.fit(split.train)
    return rank_targets(model, cases.histories, cases.target).ranks.tolist()


@pytest.mark.parametrize("name", sorted(MODELS))
def test_held_out_rows_of_leave_one_out_do_not_affect_the_model(name):
    """Other items and times in users' last two rows: the model answers as before."""
    held = [(u, 90 + u, t + 10**8) if t >= 6 * DAY_SECONDS else (u, i, t) for u, i, t in walk()]
    asked_of = [[1, 2], [3], [4, 5, 6]]
    answers = []
    for rows in (walk(), held):
        split = leave_one_out(described(tiny_log(rows)))
        answers.append(maker(name)().fit(split.train).recommend_histories(asked_of, k=5))
    assert answers[0].equals(answers[1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("random", "`split` is 'random'"),
        ("at:", "is not a time"),
        ("rolling:2019-01-01", "rolling takes TIME,DAYS"),
        ("rolling:2019-01-01,x", "rolling takes TIME,DAYS"),
    ],
)
def test_an_invalid_plan_is_refused_before_anything_is_read(text, message):
    with pytest.raises(TalerecError, match=message):
        SplitPlan(text)


def test_impossible_windows_are_refused():
    log = tiny_log([("u", "a", 1), ("u", "b", 2), ("v", "a", 3)])
    for days, message in ((0, "above 0"), (1e-12, "shorter than"), (1e-9, "windows")):
        with pytest.raises(TalerecError, match=message):
            rolling_split(log, 0, days)
    with pytest.raises(TalerecError, match="no row lies after"):
        rolling_split(log, "2030-01-01", 7)
    with pytest.raises(TalerecError, match="cannot be scored"):
        list(SplitPlan("leave-one-out", refit=True).splits(log, "validation"))


def test_the_repr_of_a_split_has_its_counts():
    log = tiny_log([(u, (u + s) % 5, 100 * s + u) for u in range(5) for s in range(4)])
    assert repr(leave_one_out(log)) == (
        "Split(leave-one-out, 10 training rows, 5 validation cases, 5 test cases)"
    )
    assert repr(time_split(log, "99000000")) == "Split(at:99000000, 5 training rows, 5 test cases)"


# -- against loops over Python lists ---------------------------------------------------------------

Question = tuple[Any, list[tuple[Any, int]], Any, int]  # user, history, target, its time


def questions(split: Split, cases: Cases) -> list[Question]:
    """Cases as (user, [(item or None, time)], target or None, time), in external ids."""
    words = [*split.train.items.ids.to_list(), None]  # -1 is the last
    history = cases.histories
    return [
        (
            split.users.ids[int(cases.user[c])],
            [
                (words[history.item[r]], int(history.time[r]))
                for r in range(history.start[c], history.stop[c])
            ],
            words[cases.target[c]],
            int(cases.target_time[c]),
        )
        for c in range(len(cases))
    ]


def question(history: list[Row], target: Row, train_items: set[Any]) -> Question:
    past = [(item if item in train_items else None, time) for _, item, time in history]
    return target[0], past, target[1] if target[1] in train_items else None, target[2]


@quick
@given(logs(max_items=8, max_rows=40))
def test_leave_one_out_holds_out_the_last_two_rows_of_each_user(log: Log) -> None:
    histories = histories_of(rows_of(log))
    askers = {user: history for user, history in histories.items() if len(history) >= 3}
    if not askers:
        with pytest.raises(InvalidLogError, match="no user has three rows"):
            leave_one_out(log)
        return
    split = leave_one_out(log)
    train = [row for u, h in histories.items() for row in (h[:-2] if u in askers else h)]
    train_items = {item for _, item, _ in train}
    assert rows_of(split.train) == train
    assert split.train.items.ids.to_list() == sorted(train_items)
    assert split.train.users.ids.to_list() == sorted(histories)
    assert questions(split, split.cases("validation")) == [
        question(history[:-2], history[-2], train_items) for history in askers.values()
    ]
    assert questions(split, split.cases("test")) == [
        question(history[:-1], history[-1], train_items) for history in askers.values()
    ]


@quick
@given(logs(max_items=8, max_rows=40), st.data())
def test_a_split_at_a_cutoff_tests_the_first_row_from_then_on(
    log: Log, data: st.DataObject
) -> None:
    times = sorted(set(log.time.tolist()))
    moment = data.draw(st.sampled_from([*times, times[0] - 1, times[-1] + 1]))
    histories = histories_of(rows_of(log))
    train = [row for row in rows_of(log) if row[2] < moment]
    train_items = {item for _, item, _ in train}
    expected = []
    for history in histories.values():
        past = [row for row in history if row[2] < moment]
        later = [row for row in history if row[2] >= moment]
        if past and later:
            expected.append(question(past, later[0], train_items))
    if not expected:
        with pytest.raises(TalerecError, match="the point of the split"):
            time_split(log, at(moment))
        return
    split = time_split(log, at(moment))
    assert rows_of(split.train) == train
    assert split.train.items.ids.to_list() == sorted(train_items)
    assert questions(split, split.cases("test")) == expected


def test_leave_one_out_by_hand() -> None:
    log = tiny_log(
        [("u", "a", 1), ("u", "b", 2), ("u", "new", 3), ("u", "a", 4), ("v", "b", 1), ("v", "b", 2)]
    )
    split = leave_one_out(log)
    second = 10**6
    assert split.train.items.ids.to_list() == ["a", "b"]
    assert questions(split, split.cases("validation")) == [
        ("u", [("a", second), ("b", 2 * second)], None, 3 * second)
    ]
    assert questions(split, split.cases("test")) == [
        ("u", [("a", second), ("b", 2 * second), (None, 3 * second)], "a", 4 * second)
    ]


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_split_needs_rows_on_both_sides(side: str) -> None:
    log = tiny_log([("u", "a", 5), ("u", "b", 6)])
    moment = 5 * 10**6 if side == "before" else 7 * 10**6
    with pytest.raises(TalerecError, match=f"no row lies {side} the point of the split"):
        time_split(log, moment)


def test_a_split_needs_a_user_on_both_sides() -> None:
    log = tiny_log([("u", "a", 1), ("v", "b", 9)])
    with pytest.raises(TalerecError, match="no user has rows on both sides"):
        time_split(log, 5 * 10**6)


def test_a_cutoff_beyond_any_date_is_refused() -> None:
    with pytest.raises(TalerecError, match="is beyond any date"):
        time_split(tiny_log([("u", "a", 1)]), 10**30)


def test_users_without_rows_are_excluded() -> None:
    log = tiny_log(
        [(user, item, t) for user in "uvwx" for item, t in zip("abcd", range(4), strict=True)]
    )
    for gone in ("u", "v", "x", "ux", "vwx"):
        rest = log.keep(~np.isin(log.user_codes(), [ord(user) - ord("u") for user in gone]))
        left = [user for user in "uvwx" if user not in gone]
        for split in (time_split(rest, 2 * 10**6), leave_one_out(rest)):
            assert [user for user, _, _, _ in questions(split, split.test)] == left
            assert split.train.users.ids.to_list() == left


def test_one_user_and_one_item_can_be_split() -> None:
    log = tiny_log([("u", "a", t) for t in range(5)])
    split = leave_one_out(log)
    assert (split.train.rows, len(split.test), split.test.target.tolist()) == (3, 1, [0])
    assert time_split(log, 10**6).train.rows == 1


def test_a_split_keeps_the_item_table_of_the_training_items() -> None:
    log = tiny_log([("u", "a", 1), ("u", "b", 2), ("u", "c", 3)])
    log = log.with_items(pl.DataFrame({"item_id": ["c", "b", "a"], "title": ["C", "B", "A"]}))
    info = leave_one_out(log).train.info
    assert info is not None
    assert info.rows() == [("a", "A")]


def test_cases_are_for_test_or_validation() -> None:
    log = tiny_log([("u", "a", 1), ("u", "b", 2), ("u", "a", 3)])
    with pytest.raises(TalerecError, match="`on` is 'train'; it takes test or validation"):
        leave_one_out(log).cases("train")
    with pytest.raises(TalerecError, match="a split at:2000000 has no validation rows"):
        time_split(log, "2000000").cases("validation")
    assert leave_one_out(log).name == "leave-one-out"


def test_time_order_decides_which_row_is_last_and_ties_keep_their_order() -> None:
    log = log_of([("u", "z", START), ("u", "y", START), ("u", "x", START - 1)])
    (case,) = questions(leave_one_out(log), leave_one_out(log).test)
    assert case[3] == START
    assert leave_one_out(log).train.items.ids.to_list() == ["x"]
    by_item = leave_one_out(order_ties(log, "item"))
    assert log.items.ids[int(order_ties(log, "item").item[-1])] == "z"
    assert by_item.train.items.ids.to_list() == ["x"]


@pytest.mark.parametrize(
    "moment",
    [
        "2020-01-02",
        datetime(2020, 1, 2),
        datetime(2020, 1, 2, tzinfo=UTC),
        1577923200 * 10**6,
        1577923200,
        1577923200.0,
        1577923200000,
        np.datetime64("2020-01-02"),
    ],
)
def test_a_cutoff_is_a_text_a_datetime_or_a_number(moment: Any) -> None:
    day = 1577836800  # 2020-01-01
    log = tiny_log([("u", "a", day), ("u", "b", day + 86_400), ("u", "c", day + 90_000)])
    split = time_split(log, moment)
    assert split.train.items.ids.to_list() == ["a"]
    assert split.test.target_time.tolist() == [(day + 86_400) * 10**6]

"""Splits: what is learned comes before what is asked, in every plan."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logs import histories_of, log_of, logs, quick, rows_of, tiny_log
from talerec.data.splits import Plan, leave_one_out, rolling_split, time_split
from talerec.data.times import DAY
from talerec.errors import TalerecError
from talerec.models import MODELS, asking

SECOND = 10**6


def asked(split, on):
    """(user, history, target, time) of every case; items are ids, None where training has none."""
    cases, found = split.cases(on), []
    names = split.train.items.ids.to_list()
    for c in range(len(cases)):
        h = cases.histories
        rows = h.item[h.start[c] : h.stop[c]].tolist()
        history = [names[i] if i >= 0 else None for i in rows]
        target = names[cases.target[c]] if cases.target[c] >= 0 else None
        user = split.users.ids[int(cases.user[c])]
        found.append((user, history, target, int(cases.target_time[c])))
    return found


@given(logs(max_users=6, max_items=5, max_rows=40), st.integers(0, 40))
@quick
def test_validation_at_a_moment_is_the_same_split_one_step_earlier(log, place):
    moment = int(np.sort(log.time)[place % log.rows]) if log.rows else 0
    try:
        split = time_split(log, moment, on="validation")
    except TalerecError:
        return
    before = log_of([row for row in rows_of(log) if row[2] < moment])
    latest = max(moment for _, _, moment in rows_of(split.train.compact()))
    first_asked = min(time for *_, time in asked(split, "validation"))
    assert latest < first_asked < moment
    again = time_split(before, int(np.datetime64(split.window, "us").astype(int)))
    assert asked(again, "test") == asked(split, "validation")
    assert rows_of(again.train) == rows_of(split.train)
    with pytest.raises(TalerecError, match="has no test rows"):
        split.cases("test")


def test_the_validation_share_is_that_of_the_test_and_half_at_most():
    rows = [(u, i, 1000 + 10 * i + u) for u in range(10) for i in range(10)]
    log = tiny_log(rows)
    times = sorted(moment for _, _, moment in rows)
    split = time_split(log, times[80] * SECOND, on="validation")
    assert split.train.rows == 64  # a fifth lies after the moment, and a fifth of 80 is held back
    split = time_split(log, times[20] * SECOND, on="validation")
    assert split.train.rows == 10  # four fifths lie after it, but only half may be held back


@given(logs(max_users=6, max_items=5, max_rows=40), st.integers(1, 6))
@quick
def test_rolling_windows_ask_for_first_rows_in_them_and_learn_from_what_was_before(log, parts):
    first, last = int(log.time.min()), int(log.time.max())
    days = (last - first + 1) / parts / DAY
    if round(days * DAY) < 1:
        return
    wanted = {}
    width = round(days * DAY)
    for start in range(first, last + 1, width):
        found = []
        for user, rows in histories_of(rows_of(log)).items():
            past = [item for _, item, moment in rows if moment < start]
            ahead = [moment for *_, moment in rows if start <= moment < start + width]
            if past and ahead:
                found.append((user, past, ahead[0]))
        if found:
            wanted[str(np.datetime64(start, "us"))] = found
    if not wanted:
        with pytest.raises(TalerecError, match="no window of"):
            rolling_split(log, first, days)
        return
    splits = rolling_split(log, first, days)
    assert [split.window for split in splits] == list(wanted)
    for split in splits:
        start = int(np.datetime64(split.window, "us").astype(int))
        assert rows_of(split.train) == [row for row in rows_of(log) if row[2] < start]
        assert [(u, h, t) for u, h, _, t in asked(split, "test")] == wanted[split.window]


def test_validation_windows_end_where_test_windows_begin():
    day = DAY // SECOND
    log = tiny_log([(u, i, i * day + u) for u in range(3) for i in range(10)])
    test = rolling_split(log, 6 * DAY, 2.0)
    validation = rolling_split(log, 6 * DAY, 2.0, on="validation")
    assert [s.window for s in test] == ["1970-01-07T00:00:00.000000", "1970-01-09T00:00:00.000000"]
    assert [s.window for s in validation] == [
        "1970-01-03T00:00:00.000000",
        "1970-01-05T00:00:00.000000",
    ]


def test_a_refit_learns_from_validation_rows_and_asks_the_same():
    log = tiny_log([(u, (u + s) % 5, 100 * s + u) for u in range(5) for s in range(4)])
    plain, refit = leave_one_out(log), leave_one_out(log, refit=True)
    assert refit.train.rows == plain.train.rows + 5
    assert [(u, t) for u, _, _, t in asked(refit, "test")] == [
        (u, t) for u, _, _, t in asked(plain, "test")
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
    """Rows after the last question, of other users and new items, change nothing for any model."""
    last = max(moment for *_, moment in walk())
    planted = [*walk(), *((u, 99, last + 1 + u) for u in range(12, 30))]
    answers = []
    for rows in (walk(), planted):
        splits = list(Plan(plan).splits(tiny_log(rows)))
        answers.append([ranks(MODELS[name](), split) for split in splits])
    assert answers[0] == answers[1]


def ranks(model, split):
    cases = split.cases("test")
    model.fit(split.train)
    return asking.places(model, cases.histories, cases.target).tolist()


@pytest.mark.parametrize("name", sorted(MODELS))
def test_held_back_rows_of_leave_one_out_teach_nothing(name):
    """Other items, other times in the last two rows of every user: the model answers as before."""
    held = [(u, 90 + u, t + 10**8) if t >= 6 * DAY_SECONDS else (u, i, t) for u, i, t in walk()]
    asked_of = [[1, 2], [3], [4, 5, 6]]
    answers = []
    for rows in (walk(), held):
        split = leave_one_out(tiny_log(rows))
        answers.append(MODELS[name]().fit(split.train).recommend_histories(asked_of, k=5))
    assert answers[0].equals(answers[1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("random", "--split is 'random'"),
        ("at:", "is not a time"),
        ("rolling:2019-01-01", "rolling takes TIME,DAYS"),
        ("rolling:2019-01-01,x", "rolling takes TIME,DAYS"),
    ],
)
def test_a_plan_that_means_nothing_is_refused_before_anything_is_read(text, message):
    with pytest.raises(TalerecError, match=message):
        Plan(text)


def test_windows_that_cannot_be_are_refused():
    log = tiny_log([("u", "a", 1), ("u", "b", 2), ("v", "a", 3)])
    for days, message in ((0, "above 0"), (1e-12, "shorter than"), (1e-9, "windows")):
        with pytest.raises(TalerecError, match=message):
            rolling_split(log, 0, days)
    with pytest.raises(TalerecError, match="no row lies after"):
        rolling_split(log, "2030-01-01", 7)
    with pytest.raises(TalerecError, match="cannot be scored"):
        list(Plan("leave-one-out", refit=True).splits(log, "validation"))

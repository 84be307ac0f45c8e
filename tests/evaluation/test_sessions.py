"""Sessions in place of users: slow twins, the protocol of session-rec, and bad input."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import talerec as tr
from command import talerec
from logs import DAY, SECOND, START, at, histories_of, log_of, quick, rows, rows_of
from talerec.data import count_earlier_in_session
from talerec.errors import InvalidLogError, TalerecError

MINUTE = 60 * SECOND


def session_log(events):
    """Return a log of (user, session, item, microseconds), with its column of sessions."""
    users, sessions, items, times = (list(column) for column in zip(*events, strict=True))
    frame = {"user_id": users, "s": sessions, "item_id": items, "timestamp": times}
    return tr.Log.from_frame(pl.DataFrame(frame), time_unit="us", group="s")


@st.composite
def session_rows(draw):
    """Rows (user, session, item, time) with ties; sessions of a user may overlap in time."""
    return [
        (user, f"{user}-{draw(st.integers(0, 2))}", item, time)
        for user, item, time in draw(rows(max_users=4, max_rows=25))
    ]


@given(session_rows())
@quick
def test_sessions_of_a_column_equal_grouping_by_hand(events):
    log = tr.split_sessions(session_log(events))
    expected = histories_of([(session, item, time) for _, session, item, time in events])
    assert rows_of(log) == [row for session in expected.values() for row in session]
    owner = {session: user for user, session, *_ in events}
    assert log.owners.to_list() == [owner[session] for session in expected]
    assert log.group is None


@given(rows(max_users=4, max_rows=25), st.sampled_from(["1s", "3h", "7d"]))
@quick
def test_sessions_of_a_gap_equal_a_loop_by_hand(events, gap):
    width = {"1s": SECOND, "3h": DAY // 8, "7d": 7 * DAY}[gap]
    by_hand = []
    for user, history in histories_of(events).items():
        session = None
        for number, (_, item, time) in enumerate(history):
            if not number or time - history[number - 1][2] > width:
                session = f"{user}/{np.datetime64(time, 'us')}"
            by_hand.append((session, item, time))
    shown = rows_of(tr.split_sessions(log_of(events), gap))
    starts = [
        (row[0].split("/")[0], np.datetime64(row[0].split("/")[1]), *row[1:]) for row in shown
    ]
    slow = [(s.split("/")[0], np.datetime64(s.split("/")[1]), i, t) for s, i, t in by_hand]
    assert sorted(starts) == sorted(slow)


@given(session_rows(), st.booleans())
@quick
def test_positions_count_earlier_rows_of_the_session(events, across):
    log = tr.split_sessions(session_log(events), across=across)
    group = log.user_codes() if log.group is None else log.group
    expected = [
        sum(group[b] == group[a] and log.time[b] < log.time[a] for b in range(log.rows))
        for a in range(log.rows)
    ]
    assert count_earlier_in_session(log).tolist() == expected


@given(session_rows(), st.booleans())
@quick
def test_queries_of_sessions_equal_a_loop_by_hand(events, across):
    cutoff = START + 10 * DAY // 24
    slow = []
    for user, session, item, time in events:
        earlier = [e for e in events if e[1] == session and e[3] < time]
        if time >= cutoff and earlier:
            history = [e for e in events if e[0] == user and e[3] < time] if across else earlier
            slow.append((user, time, item, len(history), len(earlier) + 1))
    try:
        (split,) = tr.every_row_split(
            tr.split_sessions(session_log(events), across=across), at(cutoff)
        )
    except TalerecError:
        assert not slow or all(e[3] >= cutoff for e in events)
        return
    result = tr.evaluate(tr.Popular().fit(split.train), split)
    frame = result.frame
    names = frame["position"].to_list()
    shown = zip(
        frame["user_id"], frame["time"].dt.epoch("us"), frame["history_length"], names, strict=True
    )
    labels = {2: "2", 3: "3", 4: "4", 5: "5"}
    expected = [
        (user, time, length, labels.get(place, "6 to 10" if place <= 10 else "over 10"))
        for user, time, _, length, place in slow
    ]
    assert sorted(shown) == sorted(expected)
    assert result.users == len({user for user, *_ in slow})


def test_next_items_of_click_sessions_equal_the_protocol_of_session_rec():
    """HR@20 and MRR@20 at every position of sessions that begin after the training rows."""
    frame = tr.synthetic_sessions(3000, items=120, seed=3).to_frame()
    log = tr.split_sessions(tr.Log.from_frame(frame, group="user_id"))
    (split,) = tr.every_row_split(log, "2024-10-01")
    model = tr.Markov().fit(split.train)
    result = tr.evaluate(model, split, k=[20])
    cutoff, hits, gains = int(np.datetime64("2024-10-01", "us").astype(int)), [], []
    for session in histories_of(rows_of(log)).values():
        if session[0][2] < cutoff:
            continue
        clicks = [item for _, item, _ in session]
        for place in range(1, len(clicks)):
            prefix = clicks[:place]
            top = model.recommend_histories([prefix], k=20, unknown="skip")["item_id"].to_list()
            rank = top.index(clicks[place]) + 1 if clicks[place] in top else 0
            hits.append(rank > 0)
            gains.append(1 / rank if rank else 0.0)
    group = result.groups["user"]["new"]
    assert len(hits) > 100
    assert sum(part["cases"] for part in result.groups["position"].values()) == result.cases
    assert group["cases"] == len(hits)
    assert group["HR@20"] == pytest.approx(np.mean(hits))
    assert group["MRR@20"] == pytest.approx(np.mean(gains))


def test_statistics_count_users_and_not_sessions():
    events = [
        (u, f"{u}-{s}", (s + i) % 5, START + s * DAY + i * MINUTE)
        for u in range(12) for s in range(20) for i in range(3)
    ]  # fmt: skip
    log = tr.split_sessions(session_log(events))
    for plan in ("leave-one-out", "every:last:20%", "every:last:20%,1d"):
        result = tr.evaluate_log(tr.Markov(), log, plan)
        assert result.users == 12 < result.cases, plan
    assert result.first_rows["users"] == 12 < result.first_rows["cases"]


def test_bad_sessions_are_refused():
    crossing = session_log([("a", "s", 1, START), ("b", "s", 2, START + 1)])
    with pytest.raises(InvalidLogError, match="session 's' has rows of users 'a' and 'b'"):
        tr.split_sessions(crossing)
    plain = log_of([("a", 1, START), ("a", 2, START + DAY)])
    with pytest.raises(TalerecError, match="the log has no sessions"):
        tr.split_sessions(plain)
    with pytest.raises(TalerecError, match="`session_gap` needs times"):
        tr.split_sessions(replace(plain, unit="none"), "30m")
    for gap in ("", "30", "0m", "half an hour", "9e9d", "٣m"):
        with pytest.raises(TalerecError, match=r"`session_gap` is .* it takes 30s, 10m, 2h or 7d"):
            tr.split_sessions(plain, gap)
    with pytest.raises(TalerecError, match="has an earlier row of its session"):
        tr.every_row_split(tr.split_sessions(plain, "30m"), at(START + DAY))  # one row each
    with pytest.raises(InvalidLogError, match="no session has three rows"):
        tr.leave_one_out(tr.split_sessions(plain, "30m"))
    missing = pl.DataFrame({"user_id": [1], "item_id": [2], "timestamp": [3], "s": [None]})
    with pytest.raises(InvalidLogError, match="row 1: s is empty"):
        tr.Log.from_frame(missing, group="s")


def test_commands_take_sessions(tmp_path):
    rng, path = np.random.default_rng(1), tmp_path / "clicks.csv"
    session = np.arange(900) // 4
    frame = {"user_id": session // 5, "item_id": rng.integers(0, 9, 900), "visit": session}
    frame["timestamp"] = START // SECOND + session * 86_400 + np.arange(900) % 4 * 60
    pl.DataFrame(frame).sample(900, shuffle=True, seed=1).write_csv(path)
    options = ("--model", "markov", "--split", "every:last:20%", "--json")
    results = [
        talerec("evaluate", path, *options, *words).json
        for words in (["--session", "visit"], ["--session-gap", "30m"])
    ]
    for name in ("cases", "users", "metrics", "groups"):
        assert results[0][name] == results[1][name]
    assert {"2", "3", "4"} <= set(results[0]["groups"]["position"])
    assert results[0]["groups"]["position"]["5"]["cases"] == 0
    across = talerec("evaluate", path, *options, "--session", "visit", "--across").json
    assert across["cases"] == results[0]["cases"]
    model = tmp_path / "markov.tale"
    fit = talerec("fit", path, "-o", model, "--model", "markov", "--session", "visit")
    assert fit.code == 0
    assert len(tr.load(model).fitted.log.users) == 225
    assert "225 " in talerec("describe", path, "--session", "visit").out
    for words, message in (
        (["--session", "visit", "--session-gap", "30m"], "--session and --session-gap exclude"),
        (["--across"], "--across needs --session or --session-gap"),
        (["--session", "visit", "--basket", "time"], "--basket and sessions exclude each other"),
        (["--session", "nothing"], "(--session or --basket names another)"),
        (["--session-gap", "30"], "--session-gap is '30'"),
    ):
        refused = talerec("evaluate", path, *words)
        assert refused.code == 2
        assert refused.err.count("\n") == 1
        assert message in refused.err

"""Online evaluation against an offline replay of the same events, and on pure noise.

The replay is a loop over plain lists. It asks the library for each list, and shares no code with
the service.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import talerec as tr
from talerec.artifact import read_manifest

pytest.importorskip("msgspec", reason="needs the extra serve")

from talerec.serve import Settings
from talerec.serve.online import EvaluationProcess
from talerec.serve.process.learner import learn
from talerec.store import Event, Measurement, MeasurementStore, Store, StoredRow

SECOND = 1_000_000
HOUR, DAY = 3600 * SECOND, 86_400 * SECOND
TRAINED, OUTDATED, REPEATED = -1, -2, -3
USERS, ITEMS = 30, 60


def shop_rows(now: int, seed: int = 0) -> list[tuple[str, str, int]]:
    """Return rows (user, item, time) of twenty days up to an hour ago; neighbours follow items."""
    rng, rows = np.random.default_rng(seed), []
    for user in range(USERS):
        item = int(rng.integers(ITEMS))
        for when in sorted(rng.integers(now - 20 * DAY, now - HOUR, 25).tolist()):
            item = int(rng.integers(ITEMS)) if rng.random() < 0.4 else (item + 1) % ITEMS
            rows.append((f"u{user}", f"i{item}", int(when)))
    return rows


def log_of(rows: list[tuple[str, str, int]]) -> tr.Log:
    frame = pl.DataFrame(rows, ["user_id", "item_id", "timestamp"], orient="row")
    return tr.Log.from_frame(frame, time_unit="us")


def shop_events(rows: list[tuple[str, str, int]], now: int, seed: int = 1) -> list[Event]:
    """Return arriving events: new, late, simultaneous, of new users and items, and sent again."""
    rng = np.random.default_rng(seed)
    latest = {user: max(when for name, _, when in rows if name == user) for user, _, _ in rows}
    events: list[Event] = []
    for n in range(240):
        user = f"u{rng.integers(USERS)}" if rng.random() < 0.7 else f"new{rng.integers(40)}"
        item = f"i{rng.integers(ITEMS)}" if rng.random() < 0.95 else "unheard of"
        when = now - HOUR + n * 10 * SECOND
        kind = n % 8
        if kind == 1 and events:  # sent again: one of the last events, or any
            user, item, when = events[-1 if n % 16 == 1 else int(rng.integers(len(events)))][:3]
        elif kind == 2:  # late: other events have later times
            when -= int(rng.integers(1, 1800)) * SECOND
        elif kind == 3:  # rows of the training log
            user, item, when = rows[int(rng.integers(len(rows)))]
        elif kind == 4 and user in latest:  # not after the user's last row
            when = latest[user] - int(rng.integers(2)) * SECOND
        elif kind == 5 and events:  # simultaneous with the event before
            user, when = events[-1].user, events[-1].time
        elif kind == 6:  # within the training log, of whichever user
            when = now - 90 * 60 * SECOND + n * SECOND
        events.append(Event(user, item, int(when)))
    return events


# -- the replay ------------------------------------------------------------------------------------


@dataclass
class Trained:
    """A model, its version, and what it was trained on.

    rows: all training rows; has_rows: whether the artifact has them, too; seq: the last row of the
    store that it was trained on.
    """

    model: tr.Model
    version: str
    rows: list[tuple[str, str, int]]
    has_rows: bool = True
    seq: int = 0

    @classmethod
    def load(cls, path: Path, rows: list[tuple[str, str, int]] | None = None) -> Trained:
        model, facts = tr.load(path), read_manifest(path)
        log = model.fitted.log
        if log is not None:
            frame = log.to_frame().with_columns(pl.col("timestamp").dt.epoch("us"))
            rows = list(frame.select("user_id", "item_id", "timestamp").rows())
        assert rows is not None
        seq = int(facts["training"].get("store_seq", 0))
        return cls(model, facts["version"], rows, log is not None, seq)


def replay_rank(
    trained: Trained, event: StoredRow, stored: list[StoredRow], arrived: list[StoredRow],
    deleted: dict[str, int],
) -> int:  # fmt: skip
    """Return the rank of an event's item, or why it has none.

    stored: the rows of the store before the event; arrived: these, and those deleted since.
    """
    of_user = [row for row in stored if row.user == event.user]
    if any((row.item, row.time) == (event.item, event.time) for row in of_user):
        return REPEATED
    rows = [(item, when) for user, item, when in trained.rows if user == event.user]
    if event.seq <= trained.seq or (trained.has_rows and (event.item, event.time) in rows):
        return TRAINED
    limits = [when for _, when in rows] if trained.has_rows else [when for *_, when in trained.rows]
    if any(event.time <= when for when in limits):
        return OUTDATED
    if not trained.has_rows or deleted.get(event.user, 0) > trained.seq:
        rows = []
    history = [row for row in rows if row[1] < event.time]
    have = Counter(history)
    later = [row for row in of_user if row.seq > trained.seq and row.time < event.time]
    for row in sorted(later, key=lambda row: (row.time, row.seq)):
        if have[str(row.item), row.time] > 0:  # an event of the training log is one row
            have[str(row.item), row.time] -= 1
        else:
            history.append((str(row.item), row.time))
    shown: list[str] = []
    if history:
        history.sort(key=lambda row: row[1])
        top = trained.model.recommend_histories([history], 10, unknown="skip", as_of=event.time)
        shown = top["item_id"].to_list()
    names = set(trained.model.item_ids.to_list())
    if not shown and not any(item in names for item, _ in history):
        shown = replay_popular(trained, event, arrived)
    return shown.index(str(event.item)) + 1 if event.item in shown else 0


def count_users(rows: list[tuple[str, str, int]], since: int, most: int) -> Counter[str]:
    """Count the rows of each item since a time, at most `most` of a user and an item."""
    pairs = Counter((user, item) for user, item, when in rows if when >= since)
    counts: Counter[str] = Counter()
    for (_, item), n in pairs.items():
        counts[item] += min(n, most)
    return counts


def replay_popular(trained: Trained, event: StoredRow, arrived: list[StoredRow]) -> list[str]:
    """Return the ten most popular items right before an event."""
    rows = [row for row in trained.rows if row[2] < event.time]
    new = [
        (row.user, str(row.item), row.time)
        for row in arrived
        if row.item is not None and row.seq > trained.seq and row.time < event.time
    ]
    end = max((when for *_, when in rows), default=0)
    recent = count_users(rows, end - 7 * DAY, 3 if trained.has_rows else len(rows))
    total = Counter(item for _, item, _ in rows) if trained.has_rows else recent
    counts = recent
    if new:
        since = (max(when for *_, when in new) // HOUR - 7 * 24) * HOUR
        counts = count_users(rows, since, 3)
        if not trained.has_rows:  # an artifact without rows has the counts of its last days only
            counts = Counter(recent) if end >= since else Counter()
        latest = recent
        if trained.has_rows and rows:
            thousandth = sorted(when for *_, when in rows)[-1000:][0]
            latest = count_users(rows, min(end - 7 * DAY, thousandth), 3)
        older = {item: max(0, latest[item] - counts[item]) for item in latest}
        counts += count_users(new, since, 3)
        known = set(trained.model.item_ids.to_list())
        missing = 1000 - sum(n for item, n in counts.items() if item in known)
        n_older = sum(older.values())
        if missing > 0 and n_older:
            counts += Counter({item: n * min(1, missing / n_older) for item, n in older.items()})
    names = trained.model.item_ids.to_list()
    first = [n for n in range(len(names)) if counts[names[n]]]
    rest = [n for n in range(len(names)) if not counts[names[n]]]
    first.sort(key=lambda n: (-counts[names[n]], n))
    rest.sort(key=lambda n: (-recent[names[n]], -total[names[n]], n))
    return [names[n] for n in [*first, *rest][:10]]


# -- the service -----------------------------------------------------------------------------------


def start(now: float, address: str, folder: Path, **settings: Any) -> tuple[Any, Any]:
    """Return an evaluation process with loaded models, and its evaluator, from `now` on."""
    process = EvaluationProcess(Settings(measure=1.0, store=address, **settings), folder)
    evaluator = process.open_evaluator()
    assert evaluator is not None
    evaluator.step(now)
    for holder in process._holders.values():
        holder.start()
    return process, evaluator


def drain(evaluator: Any, now: float) -> None:
    while evaluator.step(now):
        pass


def results(address: str) -> tuple[dict[tuple[int, str], Measurement], dict[str, Any]]:
    """Return the measurements by event and role, and the published summary."""
    with MeasurementStore.open(address) as store:
        rows = {(row.seq, row.role): row for row in store.read_since(0)}
        return rows, json.loads(store.read_summary() or "{}")


def check_summary(summary: dict[str, Any], wanted: dict[tuple[int, str], tuple[str, int]]) -> None:
    """Compare the published figures with those of the replay: (seq, role) -> (version, rank)."""
    roles = {role for _, role in wanted}
    for window in ("hour", "day"):
        shown = summary[window]
        for role in roles:
            ranks = [rank for (_, name), (_, rank) in sorted(wanted.items()) if name == role]
            measured = [rank for rank in ranks if rank >= 0]
            assert shown[role]["events"] == len(measured)
            assert shown[role]["HR@10"] == sum(rank > 0 for rank in measured) / len(measured)
            mean = sum(1 / rank for rank in measured if rank) / len(measured)
            assert shown[role]["MRR@10"] == pytest.approx(mean, rel=len(measured) * 2**-52)
            reasons = {"trained": TRAINED, "outdated": OUTDATED, "repeated": REPEATED}
            counts = {name: ranks.count(code) for name, code in reasons.items()}
            assert shown["not_measured"][role] == counts
            assert all(counts.values()) or role == "candidate"  # it has no rows to compare with
        if len(roles) == 2:
            seqs = {seq for seq, _ in wanted}
            pairs = [(wanted[seq, "current"][1], wanted[seq, "candidate"][1]) for seq in seqs]
            pairs = [pair for pair in pairs if min(pair) >= 0]
            assert shown["difference"]["events"] == len(pairs)
            gain = sum((b > 0) - (a > 0) for a, b in pairs) / len(pairs)
            assert shown["difference"]["HR@10"]["difference"] == gain


@pytest.mark.parametrize(
    ("current", "candidate"), [("tempo", "tale"), ("tale", "popular"), ("markov", "sknn")]
)
@pytest.mark.parametrize("lagging", [False, True])
def test_online_figures_equal_those_of_an_offline_replay(
    tmp_path: Path, current: str, candidate: str, lagging: bool
) -> None:
    """The candidate has other training rows, and no histories; a lagging process reads all at once.

    Among the events are late, simultaneous, repeated and trained ones, and deletions of users.
    """
    now_s = time.time()
    now = int(now_s) * SECOND
    rows = shop_rows(now)
    fewer = [row for row in rows if row[2] < now - 80 * 60 * SECOND]
    paths = {"current": tmp_path / "a.tale", "candidate": tmp_path / "b.tale"}
    tr.MODELS[current]().fit(log_of(rows)).save(paths["current"])
    tr.MODELS[candidate]().fit(log_of(fewer)).save(paths["candidate"], histories=False)
    trained = {
        "current": Trained.load(paths["current"]),
        "candidate": Trained.load(paths["candidate"], fewer),
    }
    address = f"sqlite:///{tmp_path}/shop.db"
    names = {"path": paths["current"], "candidate": paths["candidate"]}
    _, evaluator = start(now_s, address, tmp_path, **names)
    events, deletions = shop_events(rows, now), {100: "u3", 170: "new1"}
    events[99] = Event("first visit", "i5", now - 60 * SECOND)  # popular items are counted here
    events[169] = Event("first visit too", "i6", now - 50 * SECOND)
    events[150] = Event("as late as the log", "i7", max(when for *_, when in fewer))
    last = max((when, item) for user, item, when in rows if user == "u3")[1]
    for n in range(102, 132, 3):  # after the deletion: the training rows of u3 no longer count
        events[n] = Event(
            "u3", f"i{(int(last[1:]) + n // 3 - 33) % ITEMS}", now - (200 - n) * SECOND
        )
    arrived: list[StoredRow] = []
    deleted: dict[str, int] = {}
    wanted: dict[tuple[int, str], tuple[str, int]] = {}
    with Store.open(address) as store:
        for n, event in enumerate(events):
            if n in deletions:
                if not lagging:
                    drain(evaluator, now_s)
                user = deletions[n]
                seq = deleted[user] = store.delete_user(user, now - DAY)
                gone = {row.seq for row in arrived if row.user == user}
                wanted = {key: value for key, value in wanted.items() if key[0] not in gone}
                if lagging:  # their rows are gone before anything is read
                    arrived = [row for row in arrived if row.user != user]
            seq = store.meta().seq + 1
            if store.append([[event]])[0].deleted:  # it is not later than its user's deletion
                continue
            row = StoredRow(seq, event.user, event.item, event.time)
            arrived.append(row)
            if not lagging and n % 7 == 0:
                evaluator.step(now_s)
        drain(evaluator, now_s)
    evaluator.step(now_s + 10)  # publishes the summary
    for n, row in enumerate(arrived):
        if row.seq < deleted.get(row.user, 0):
            continue
        if row.time < now_s * SECOND - DAY:  # older than `live_days`
            continue
        before = arrived[:n]
        past = {user: seq for user, seq in deleted.items() if seq < row.seq}
        stored = [each for each in before if each.seq > past.get(each.user, 0)]
        for role, facts in trained.items():
            rank = replay_rank(facts, row, stored, before, past)
            wanted[row.seq, role] = (facts.version, rank)
    measured, summary = results(address)
    assert {key: (row.version, row.rank) for key, row in measured.items()} == wanted
    check_summary(summary, wanted)


def test_online_figures_follow_a_model_that_learns_from_the_store(tmp_path: Path) -> None:
    """A learned model is not measured on what it has learned, even if that is sent again."""
    now_s = time.time()
    now = int(now_s) * SECOND
    rows = shop_rows(now)
    path, address = tmp_path / "shop.tale", f"sqlite:///{tmp_path}/shop.db"
    tr.TALE().fit(log_of(rows)).save(path)
    process, evaluator = start(now_s, address, tmp_path, path=path)
    arrived: list[StoredRow] = []
    wanted: dict[tuple[int, str], tuple[str, int]] = {}
    versions = []
    with Store.open(address) as store:
        for part in (slice(0, 90), slice(90, 160), slice(160, 240)):
            trained = Trained.load(path)
            versions.append(trained.version)
            for event in shop_events(rows, now)[part]:
                store.append([[event]])
                row = StoredRow(len(arrived) + 1, event.user, event.item, event.time)
                if row.time >= now_s * SECOND - DAY:
                    rank = replay_rank(trained, row, arrived, arrived, {})
                    wanted[row.seq, "current"] = (trained.version, rank)
                arrived.append(row)
            drain(evaluator, now_s)
            assert learn(path, address) is not None
            process._holders["current"].refresh()
    evaluator.step(now_s + 10)
    assert len(set(versions)) == 3
    measured, summary = results(address)
    assert {key: (row.version, row.rank) for key, row in measured.items()} == wanted
    check_summary(summary, wanted)


# -- noise -----------------------------------------------------------------------------------------


def test_noise_has_the_hit_rate_of_chance_although_its_last_day_is_sent_again(
    tmp_path: Path,
) -> None:
    """Ten of 200 items: chance is .05. Measured on rows of its own, tempo would have .44."""
    now_s = time.time()
    now, rng = int(now_s) * SECOND, np.random.default_rng(4)
    times = np.sort(rng.integers(now - 10 * DAY, now - HOUR, 6000)).tolist()
    rows = [(f"u{rng.integers(300)}", f"i{rng.integers(200)}", when) for when in times]
    path, address = tmp_path / "noise.tale", f"sqlite:///{tmp_path}/noise.db"
    tr.Tempo().fit(log_of(rows)).save(path)
    _, evaluator = start(now_s, address, tmp_path, path=path)
    again = [Event(*row) for row in rows if row[2] > now - DAY + HOUR]
    fresh = [
        Event(f"u{rng.integers(300)}", f"i{rng.integers(200)}", now - (600 - n) * SECOND)
        for n in range(600)
    ]
    with Store.open(address) as store:
        store.append([again])
        store.append([fresh])
    drain(evaluator, now_s)
    evaluator.step(now_s + 10)
    day = results(address)[1]["day"]
    assert day["not_measured"]["current"] == {"trained": len(again), "outdated": 0, "repeated": 0}
    assert day["current"]["events"] == len(fresh)
    error = (0.05 * 0.95 / len(fresh)) ** 0.5
    assert abs(day["current"]["HR@10"] - 0.05) < 3 * error

"""Events are part of the next answer, and count for popular items."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import talerec as tr
from talerec.data import merge_logs

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from logs import count_last_week
from service import Local, history_of, ids, send, service_with_store
from talerec.models.core import STORE, STORE_SEQ
from talerec.serve.model import ServedModel
from talerec.serve.users import UserHistories
from talerec.store import Event, EventTail, Store, StoredRow
from waiting import LONG_S, until

SECOND, DAY = 10**6, 86_400 * 10**6


# -- the next answer -------------------------------------------------------------------------------


def test_the_next_answer_equals_the_library_with_the_event(
    service: Local, saved: Path, log: tr.Log
) -> None:
    model = tr.load(saved)
    for place in (0, 7, 30):
        user, rows = log.users.ids[place], history_of(log, place)
        for item in (5, 17):
            moment = int(log.time.max()) + 5 * SECOND
            sent = {"user_id": user, "item_id": item, "timestamp": moment}
            assert send(service, sent).json == {"accepted": 1, "duplicates": 0}
            rows.append((item, moment))
            said = service.post("/v1/recommend", {"user_id": user, "k": 9, "hide_seen": True})
            expected = model.recommend_histories([rows], k=9, hide_seen=True)
            assert ids(said) == expected["item_id"].to_list()
            assert [entry["score"] for entry in said.json["items"]] == expected["score"].to_list()


def test_a_user_is_explained_with_the_events_of_the_store(
    service: Local, saved: Path, log: tr.Log
) -> None:
    model, moment = tr.load(saved), int(log.time.max()) + 5 * SECOND
    user, rows = log.users.ids[7], history_of(log, 7)
    sent = [("never-seen", moment), (5, moment + SECOND)]
    send(service, *({"user_id": user, "item_id": i, "timestamp": t} for i, t in sent))
    rows += sent
    best = service.post("/v1/recommend", {"user_id": user, "k": 1}).json["items"][0]
    said = service.post("/v1/explain", {"user_id": user, "item_id": best["item_id"]}).json
    expected = model.explain(rows, best["item_id"], unknown="skip")["contribution"].to_list()
    assert [row["item_id"] for row in said["rows"]] == [item for item, _ in rows]
    assert [row["contribution"] for row in said["rows"]] == pytest.approx(expected, abs=1e-12)
    assert said["score"] == pytest.approx(best["score"], abs=1e-9)
    stranger = service.post("/v1/explain", {"user_id": "nobody", "item_id": 5}).json
    assert (stranger["rows"], stranger["score"]) == ([], 0.0)
    for request in ({}, {"history": [], "user_id": user}):
        assert service.post("/v1/explain", {**request, "item_id": 5}).code == "invalid"


@pytest.mark.parametrize("kind", ["tempo", "sknn", "markov", "popular"])
def test_every_kind_of_model_answers_for_users_with_events(
    kind: str, log: tr.Log, tmp_path: Path
) -> None:
    path = tr.MODELS[kind]().fit(log).save(tmp_path / "m.tale")
    model = tr.load(path)
    with service_with_store(path, tmp_path / "run", f"sqlite:///{tmp_path}/shop.db") as local:
        for place in (0, 7):
            user, rows = log.users.ids[place], history_of(log, place)
            late = int(log.time.max()) + 7200 * SECOND
            rows += [(5, late), (9, late + SECOND)]
            sent = [{"user_id": user, "item_id": i, "timestamp": t} for i, t in rows[-2:]]
            assert send(local, *sent).status == 202
            for hide in (False, True):
                request = {"user_id": user, "k": 7, "hide_seen": hide}
                expected = model.recommend_histories([rows], k=7, hide_seen=hide)
                assert ids(local.post("/v1/recommend", request)) == expected["item_id"].to_list()
                request["as_of"] = late + DAY
                expected = model.recommend_histories([rows], k=7, hide_seen=hide, as_of=late + DAY)
                assert ids(local.post("/v1/recommend", request)) == expected["item_id"].to_list()
            for when in (late + SECOND, late, rows[-3][1]):  # between the events, before them
                request = {"user_id": user, "k": 7, "hide_seen": True, "as_of": when}
                expected = model.recommend_histories([rows], k=7, hide_seen=True, as_of=when)
                assert ids(local.post("/v1/recommend", request)) == expected["item_id"].to_list()
                timed = [{"item_id": i, "timestamp": t} for i, t in rows]
                request = {**request, "history": timed}
                del request["user_id"]
                assert ids(local.post("/v1/recommend", request)) == expected["item_id"].to_list()
                for by in ({"user_id": user}, {"history": timed}):
                    said = local.post("/v1/explain", {**by, "item_id": 5, "as_of": when}).json
                    earlier = [item for item, time in rows if time < when]
                    assert [row["item_id"] for row in said["rows"]] == earlier
            request = {"user_id": user, "k": 60, "as_of": rows[0][1]}  # no row is before the first
            assert local.post("/v1/recommend", request).json["fallback"] == "trending"
        stranger = local.post("/v1/recommend", {"user_id": "nobody", "k": 60}).json
        assert (stranger["fallback"], len(stranger["items"])) == ("trending", 60)


def test_without_events_a_user_is_answered_as_the_library_does(
    service: Local, saved: Path, log: tr.Log, tmp_path: Path
) -> None:
    model, alone = tr.load(saved), Local(saved, tmp_path / "alone")
    for user in log.users.ids[:10].to_list():
        expected = model.recommend([user], k=6)["item_id"].to_list()
        for local in (service, alone):
            assert ids(local.post("/v1/recommend", {"user_id": user, "k": 6})) == expected
            assert ids(local.post("/v1/recommend", {"user_id": str(user), "k": 6})) == expected
        batch = {"requests": [{"user_id": user, "k": 6}, {"history": [], "k": 2}]}
        answers = service.post("/v1/recommend:batch", batch).json["answers"]
        assert [item["item_id"] for item in answers[0]["items"]] == expected


def test_concurrent_users_get_their_own_answers(service: Local, log: tr.Log) -> None:
    users = log.users.ids[:20].to_list()
    for n, user in enumerate(users):
        send(service, {"user_id": user, "item_id": n + 1})
    expected = [ids(service.post("/v1/recommend", {"user_id": u, "k": 8})) for u in users]
    answers = service.post_all("/v1/recommend", [{"user_id": u, "k": 8} for u in users])
    assert [ids(answer) for answer in answers] == expected
    assert len({tuple(answer) for answer in expected}) > 5


def test_events_of_a_new_user_are_its_history(service: Local, saved: Path) -> None:
    start = 1_700_000_000
    events = [
        {"user_id": "n\u00f6w", "item_id": 9, "timestamp": start + 60, "event": "buy"},
        {"user_id": "n\u00f6w", "item_id": "never seen", "timestamp": start, "event_id": "e1"},
        {"user_id": "other", "item_id": 3, "timestamp": start},
    ]
    assert send(service, *events).status == 202
    shown = service.get("/v1/users/n\u00f6w").json
    assert shown["user_id"] == "n\u00f6w"
    assert shown["history"] == [
        {"item_id": "never seen", "timestamp": "2023-11-14T22:13:20+00:00", "event_id": "e1"},
        {"item_id": 9, "timestamp": "2023-11-14T22:14:20+00:00", "event": "buy"},
    ]
    request = service.post("/v1/recommend", {"user_id": "n\u00f6w", "k": 5})
    expected = tr.load(saved).recommend_histories([["never seen", 9]], k=5, unknown="skip")
    assert ids(request) == expected["item_id"].to_list()
    assert "fallback" not in request.json


def test_an_event_without_a_time_gets_the_current_time(service: Local) -> None:
    before = datetime.now(UTC)
    send(service, {"user_id": "ann", "item_id": 1})
    (row,) = service.get("/v1/users/ann").json["history"]
    assert before <= datetime.fromisoformat(row["timestamp"]) <= datetime.now(UTC)


rows_of = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5)), max_size=8)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(old=rows_of.filter(bool), new=rows_of, ties=st.sampled_from(["file", "item"]))
def test_events_are_merged_as_an_update_merges_rows(
    old: list[tuple[int, int]], new: list[tuple[int, int]], ties: str, tmp_path_factory: Any
) -> None:
    """Items 1 to 3 are in the log, 4 may not be; many times are equal."""
    folder = tmp_path_factory.mktemp("m")

    def frame(rows: list[tuple[int, int]]) -> tr.Log:
        every = [("ann", item, time * SECOND) for item, time in rows]
        table = pl.DataFrame(every, schema=["user_id", "item_id", "timestamp"], orient="row")
        return tr.order_ties(tr.Log.from_frame(table, time_unit="us"), ties)

    first = frame(old)
    path = tr.Popular().fit(first).save(folder / "m.tale")
    model = ServedModel(path, verify=False)
    address = f"sqlite:///{folder}/shop.db"
    with Store.open(address) as store:
        store.append([[Event("ann", str(item), time * SECOND) for item, time in new]])
    tail = EventTail(address, 100)
    rows = UserHistories(tail, 100).get(model, "ann")
    tail.close()
    assert rows is not None
    expected = merge_logs(first, frame(new)).log if new else first
    names = expected.items.ids.gather(expected.item).to_list()
    log_items = set(first.items.ids.to_list())
    if ties == "item" and any(name not in log_items for name in names):
        return  # an item without a position has no place among simultaneous ones
    shown = [
        first.items.ids[item] if item >= 0 else int(str(rows.events[place].item))
        for place, item in enumerate(rows.item.tolist())
    ]
    assert list(zip(shown, rows.time.tolist(), strict=True)) == list(
        zip(names, expected.time.tolist(), strict=True)
    )


def test_events_in_the_artifact_are_not_added_twice(log: tr.Log, tmp_path: Path) -> None:
    """An artifact names its store and the last seq; the seq of another store is ignored."""
    address = f"sqlite:///{tmp_path}/shop.db"
    late = int(log.time.max()) + DAY
    with Store.open(address) as store:
        store.append([[Event("1", "5", late + n) for n in range(3)]])
        name = store.meta().store
    tail = EventTail(address, 100)
    for training, added in (
        ({STORE: name, STORE_SEQ: 2}, 1),
        ({STORE: "another", STORE_SEQ: 2}, 3),
        ({}, 3),
    ):
        model = tr.Popular().fit(log)
        model.fitted.training.update(training)
        served = ServedModel(model.save(tmp_path / "m.tale"), verify=False)
        rows = UserHistories(tail, 5000).get(served, "1")
        assert rows is not None
        assert len(rows) == len(history_of(log, 0)) + added
    tail.close()


def test_only_the_last_rows_of_a_long_history_are_read(saved: Path, tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/shop.db"
    with Store.open(address) as store:
        store.append([[Event("long", str(n % 60 + 1), n * SECOND) for n in range(3000)]])
    with service_with_store(saved, tmp_path / "run", address, max_history=50) as local:
        shown = local.get("/v1/users/long").json["history"]
        assert [row["item_id"] for row in shown] == [n % 60 + 1 for n in range(2950, 3000)]
        send(local, {"user_id": "long", "item_id": 7})
        shown = local.get("/v1/users/long").json["history"]
        assert [row["item_id"] for row in shown] == [n % 60 + 1 for n in range(2951, 3000)] + [7]
        assert local.post("/v1/recommend", {"user_id": "long", "k": 3}).status == 200


def test_no_user_gets_the_events_of_another(service: Local, log: tr.Log) -> None:
    """Users have disjoint items: the reasons of each answer are among the user's items."""
    rng, user_items = np.random.default_rng(1), dict[str, set[int]]()
    for n in range(60):
        items = rng.choice(np.arange(1, 61), 3, replace=False).tolist()
        user_items[f"new{n}"] = set(items)
        send(service, *({"user_id": f"new{n}", "item_id": item} for item in items))
    users = rng.choice(list(user_items), 100).tolist()
    answers = service.post_all("/v1/recommend", [{"user_id": user, "k": 5} for user in users])
    for user, answer in zip(users, answers, strict=True):
        reasons = {reason["item_id"] for item in answer.json["items"] for reason in item["because"]}
        assert reasons <= user_items[user]
        assert reasons


# -- what is popular now ---------------------------------------------------------------------------


def test_unknown_users_get_popular_items_filled_up_to_k(service: Local, log: tr.Log) -> None:
    request = {"user_id": "nobody", "k": 60}
    first = service.post("/v1/recommend", request).json
    assert first["fallback"] == "trending"
    assert sorted(item["item_id"] for item in first["items"]) == log.items.ids.to_list()
    late = int(log.time.max()) // SECOND + 60
    rare = [first["items"][-1]["item_id"], first["items"][-2]["item_id"]]
    assert first["items"][0]["score"] == log.counts(7.0).max()
    week = count_last_week(log)
    n_users = int(week.max()) + 3
    rows = [
        {"user_id": f"u{n}", "item_id": item, "timestamp": late}
        for n in range(n_users)
        for item in (rare[0], "not known")
    ]
    send(service, *rows, {"user_id": "x", "item_id": rare[1], "timestamp": late})
    total = min(1000, week.sum() + n_users + 1)

    def counted() -> Any:
        """Return the answer once all events are counted, which happens with a delay."""
        answer = service.post("/v1/recommend", request).json
        shown = sum(item["score"] for item in answer["items"])
        return answer if shown == pytest.approx(total) else None

    now = until(counted)
    assert now["items"][0]["item_id"] == rare[0]
    counts = {item["item_id"]: item["score"] for item in now["items"]}
    for place, item in enumerate(log.items.ids.to_list()):
        if item not in rare:
            assert week[place] - 2 < counts[item] <= week[place]
    assert counts[rare[1]] >= 1
    assert len(now["items"]) == 60
    history = service.post("/v1/recommend", {"history": [], "k": 1}).json
    assert history["items"][0]["item_id"] == rare[0]
    some = service.post("/v1/recommend", {**request, "k": 5, "deny": [rare[0]]}).json
    assert rare[0] not in [item["item_id"] for item in some["items"]]
    assert len(some["items"]) == 5


def test_one_sender_does_not_lead_the_popular_items_even_after_a_fit(
    service: Local, log: tr.Log, saved: Path, tmp_path: Path
) -> None:
    """A user counts three times per item: as events, and as rows of the next model's log."""
    first, second = log.items.ids[:2].to_list()
    late = int(log.time.max()) + SECOND
    rows = [{"user_id": user, "item_id": first, "timestamp": late} for user in range(1, 61)]
    rows += [{"user_id": 1, "item_id": second, "timestamp": late + n} for n in range(500)]

    def scores(local: Local) -> dict[Any, float]:
        answer = local.post("/v1/recommend", {"user_id": "nobody", "k": 50}).json["items"]
        return {each["item_id"]: each["score"] for each in answer}

    assert send(service, *rows).json["accepted"] == 560
    until(lambda: scores(service)[first] >= 60)
    most = count_last_week(log)[1] + 3
    until(lambda: scores(service).get(second, 0) <= most)
    assert next(iter(scores(service))) == first
    frame = log.to_frame().with_columns(pl.col("timestamp").dt.epoch("us"))
    whole = pl.concat([frame, pl.DataFrame(rows, schema=frame.schema)])
    path = tr.TALE(reg=20).fit(tr.Log.from_frame(whole, time_unit="us")).save(tmp_path / "n.tale")
    with service_with_store(path, tmp_path / "new", f"sqlite:///{tmp_path}/new.db") as local:
        after = scores(local)
        assert next(iter(after)) == first
        assert after[second] <= most


def test_the_first_events_after_an_old_log_decide_nothing_and_many_events_all(
    saved: Path, log: tr.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of the log's last week make up for the events that are missing to a thousand."""
    monkeypatch.setattr("talerec.serve.model.popular._MAX_RECOUNT_SHARE", 0)
    model = ServedModel(saved, verify=False)
    popular, late = model.popular, int(log.time.max()) + 9 * DAY
    week = count_last_week(log)

    def send_events(n_events: int, item: int, first_user: int) -> tuple[list[int], list[float]]:
        """Add an event of each of so many users; return item ids and counts, popular first."""
        item_id = str(log.items.ids[item])
        users = range(first_user, first_user + n_events)
        popular.events.add([StoredRow(n, f"u{n}", item_id, late) for n in users])
        order, counts = popular.ranked()
        return order.tolist(), counts.tolist()

    rare, ranked = int(np.argmin(week)), np.argsort(-week, kind="stable").tolist()
    others = [item for item in ranked if item != rare]
    order, counts = send_events(1, rare, 0)
    assert order[:20] == ranked[:20]
    assert counts[:20] == week[ranked[:20]].tolist()
    order, counts = send_events(499, rare, 1)  # half of the rows make up for the missing events
    shown = dict(zip(order, counts, strict=True))
    assert (order[0], sum(counts)) == (rare, pytest.approx(1000))
    assert [shown[item] for item in others] == pytest.approx(
        [500 / week.sum() * week[item] for item in others]
    )
    order, counts = send_events(500, rare, 500)
    assert order[0] == rare
    by_log = list(zip(log.counts(7.0), log.counts(), strict=True))
    assert [by_log[item] for item in order[1:]] == sorted(map(by_log.__getitem__, others))[::-1]
    assert counts == [1000.0] + [0.0] * len(others)


def test_slow_counting_does_not_hide_later_events(
    saved: Path, log: tr.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that counts popular items is delayed until another request is answered."""
    monkeypatch.setattr("talerec.serve.model.popular._MAX_RECOUNT_SHARE", 0)
    monkeypatch.setattr("talerec.serve.model.popular._MIN_ROWS", 0)
    model = ServedModel(saved, verify=False)
    popular, late = model.popular, int(log.time.max()) + 9 * DAY
    popular.events.add([StoredRow(1, "ann", "5", late)])
    began, go_on, count = threading.Event(), threading.Event(), popular._count_with_events

    def slowly() -> Any:
        counted = count()
        if threading.current_thread() is slow:
            began.set()
            assert go_on.wait(LONG_S)
        return counted

    def counts() -> dict[int, float]:
        order, times = popular.ranked()
        return {log.items.ids[int(item)]: n for item, n in zip(order, times, strict=True) if n}

    assert counts() == {5: 1}
    popular.events.add([StoredRow(2, "ann", "7", late)])
    monkeypatch.setattr(popular, "_count_with_events", slowly)
    slow = threading.Thread(target=popular.ranked)
    slow.start()
    assert began.wait(LONG_S)
    popular.events.add([StoredRow(3, "ann", "9", late)])
    assert {5: 1}.items() <= counts().items()
    go_on.set()
    slow.join(LONG_S)
    assert counts() == {5: 1, 7: 1, 9: 1}

"""What was shown: ids of answers, impressions in the store, clicks, deletion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import talerec as tr
from command import talerec
from service import Local
from talerec.serve import SharedState
from talerec.serve.online import ImpressionCounts
from talerec.serve.users import ImpressionQueue, ShownResponse
from talerec.store import (
    IdSigner,
    Impression,
    ImpressionStore,
    RefusedError,
    StoreError,
    export_user,
    now_us,
)
from waiting import until

HOUR = 3_600_000_000


@pytest.fixture
def shop(saved: Path, tmp_path: Path) -> Any:
    """A service that keeps all impressions; its threads run."""
    address = f"sqlite:///{tmp_path}/shop.db"
    ImpressionStore.open(address).close()
    local = Local(saved, tmp_path / "run", store=address, impressions=1.0, ids="text")
    local.shows_ids = True
    local.app.start()
    yield local
    local.app.stop()


def show(local: Local, user: str) -> dict[str, Any]:
    answer: dict[str, Any] = local.post("/v1/recommend", {"user_id": user, "k": 5}).json
    return answer


def figures(local: Local, n_answers: int, n_clicks: int) -> dict[str, Any]:
    """Return the figures of /v1/stats once they count so many answers and clicks."""

    def read() -> Any:
        counts = local.get("/v1/stats").json["impressions"]
        is_there = counts.get("answers") == n_answers and counts.get("clicks") == n_clicks
        return counts if is_there else None

    return until(read)


def test_clicks_by_id_and_by_window_are_counted_once(shop: Local) -> None:
    first, second = show(shop, "ann"), show(shop, "bob")
    item = str(first["items"][1]["item_id"])
    named = {"user_id": "ann", "item_id": item, "recommendation_id": first["recommendation_id"]}
    plain = {"user_id": "bob", "item_id": str(second["items"][0]["item_id"])}
    assert shop.post("/v1/events", {"events": [named, named, plain]}).json["accepted"] == 3
    counts = figures(shop, 2, 2)
    assert counts["impressions"] == 10
    assert counts["by_model"][first["model"]]["clicks"] == 2
    assert [counts["by_rank"][str(rank)]["clicks"] for rank in range(1, 6)] == [1, 1, 0, 0, 0]
    assert counts["not_clicks"]["repeated"] == 1


def test_metrics_have_the_figures_by_model_rank_and_list(shop: Local) -> None:
    assert shop.get("/metrics").status == 200  # before anything was shown
    answer = show(shop, "ann")
    click = {"user_id": "ann", "item_id": str(answer["items"][1]["item_id"])}
    shop.post("/v1/events", {"events": [click]})
    figures(shop, 1, 1)
    lines = shop.get("/metrics").body.decode().splitlines()
    for line in (
        f'talerec_shown_items{{role="current",version="{answer["model"]}"}} 5',
        f'talerec_shown_clicks{{role="current",version="{answer["model"]}"}} 1',
        'talerec_shown_clicks{rank="1"} 0', 'talerec_shown_clicks{rank="2"} 1',
        'talerec_shown_items{list="recommend"} 5', 'talerec_shown_clicks{list="recommend"} 1',
        "talerec_impressions_written_total 1", "talerec_impressions_lost_total 0",
    ):  # fmt: skip
        assert line in lines


def test_forged_and_malformed_ids_have_their_answers(shop: Local) -> None:
    event = {"user_id": "ann", "item_id": "1"}
    forged = {**event, "recommendation_id": IdSigner(b"another").make_id(now_us())}
    answer = shop.post("/v1/events", {"events": [forged]})
    assert answer.json["accepted"] == answer.json["unknown_recommendations"] == 1
    malformed = shop.post("/v1/events", {"events": [{**event, "recommendation_id": "x"}]})
    assert (malformed.status, malformed.code) == (422, "invalid_event")


def test_a_deleted_user_leaves_no_impression_not_even_a_late_one(shop: Local) -> None:
    answer = show(shop, "ann")
    click = {"user_id": "ann", "item_id": str(answer["items"][0]["item_id"])}
    assert shop.post("/v1/events", {"events": [click]}).status == 202
    figures(shop, 1, 1)
    late = Impression("0" * 38, "ann", now_us(), "v", "current", None, None, '["1"]', None, None)
    assert shop.ask("DELETE", "/v1/users/ann").status == 200
    with ImpressionStore(shop.app.settings.store or "") as store:
        assert store.write_impressions([late]) == 0
        assert store.read_user_impressions("ann") == []
    assert figures(shop, 0, 0)["by_rank"] == {}


# -- bad input -------------------------------------------------------------------------------------


def test_events_that_are_no_clicks_are_counted_by_reason(shop: Local) -> None:
    answer, now = show(shop, "ann"), now_us()
    items = [str(item["item_id"]) for item in answer["items"]]
    shown_id, anonymous = answer["recommendation_id"], shop.post("/v1/recommend", {"history": []})
    old = IdSigner(read_secret(shop)).make_id(now - HOUR)
    event = {"user_id": "ann", "item_id": items[0], "recommendation_id": shown_id}
    events = [
        {**event, "user_id": "bob"},
        {**event, "item_id": "none of these"},
        {**event, "timestamp": (now - HOUR) / 1e6},
        {**event, "timestamp": (now + HOUR) / 1e6},
        {**event, "event": "hide"},
        {**event, "recommendation_id": old},  # an answer that was not kept, or was removed
        {"user_id": "ann", "item_id": items[1], "timestamp": (now - HOUR) / 1e6},
        {"user_id": "bob", "item_id": items[2]},
        {**event, "recommendation_id": anonymous.json["recommendation_id"], "user_id": "cid",
         "item_id": str(anonymous.json["items"][0]["item_id"])},
        event, event,
    ]  # fmt: skip
    sent = shop.post("/v1/events", {"events": events}).json
    assert sent == {"accepted": len(events), "duplicates": 0}
    counts = figures(shop, 2, 2)
    reasons = ("other_user", "not_shown", "early", "late", "negative", "repeated")
    assert counts["not_clicks"] == dict.fromkeys(reasons, 1)


@pytest.mark.parametrize("wrong", ["", "g" * 38, "A" * 38, "0" * 37, "0" * 39, "x" * 10_000])
def test_a_malformed_id_refuses_the_request_in_one_line(shop: Local, wrong: str) -> None:
    event = {"user_id": "ann", "item_id": "1", "recommendation_id": wrong}
    answer = shop.post("/v1/events", {"events": [{"user_id": "ann", "item_id": "1"}, event]})
    assert (answer.status, answer.code) == (422, "invalid_event")
    message = answer.json["error"]["message"]
    assert message.startswith("events[1]: recommendation_id")
    assert len(message) < 200
    assert shop.get("/v1/users/ann").status == 404  # nothing of the request was stored


def test_answers_that_nobody_sees_are_not_kept(saved: Path, tmp_path: Path) -> None:
    address, other = f"sqlite:///{tmp_path}/shop.db", tmp_path / "other.tale"
    tr.load(saved).save(other)
    local = Local(saved, tmp_path / "run", store=address, impressions=1.0, beside=(other,))
    local.app.start()
    for body in ({"impression": False}, {"as_of": "2024-01-01"}):
        assert local.post("/v1/recommend", {"user_id": 1, "k": 3, **body}).status == 200
    beside = "/v1/recommend?beside=other"
    until(lambda: local.post(beside, {"user_id": 1, "k": 3}).status == 200)  # once it is loaded
    assert local.post("/v1/recommend:batch", {"requests": [{"user_id": 1, "k": 3}]}).status == 200
    assert local.post("/v1/recommend", {"user_id": 1, "k": 3, "deny": [7]}).status == 200
    local.app.stop()  # writes what waits
    with ImpressionStore(address) as store:
        (rows,) = store.read_impressions(0)
    assert [row.rules for row in rows] == ['{"deny": 1}']


def test_a_share_of_users_is_kept_always_the_same(saved: Path, tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/shop.db"
    local = Local(saved, tmp_path / "run", store=address, impressions=0.3, ids="text")
    local.app.start()
    for _ in range(2):
        for n in range(200):
            local.post("/v1/recommend", {"user_id": f"u{n}", "k": 1})
    local.app.stop()
    with ImpressionStore(address) as store:
        users = [row.user for rows in store.read_impressions(0) for row in rows]
    assert 30 < len(set(users)) < 90
    assert all(users.count(user) == 2 for user in set(users))


def read_secret(local: Local) -> bytes:
    with ImpressionStore(local.app.settings.store or "") as store:
        return store.read_secret()


# -- the queue -------------------------------------------------------------------------------------


class FakeStore:
    """A store that keeps impressions in a list, and fails as often as it is told."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.rows = list(errors), list[Impression]()

    def write_impressions(self, rows: list[Impression]) -> int:
        if self.errors:
            raise self.errors.pop(0)
        self.rows += rows
        return len(rows)

    def close(self) -> None:
        pass


def answer_of(n: int) -> ShownResponse:
    return ShownResponse(f"{n:038x}", "ann", n, "v", "current", None, None, [n])


def counters(shared: SharedState) -> list[int]:
    return [int(shared.value(f"impressions_{name}")) for name in ("queued", "written", "lost")]


def test_a_full_queue_loses_answers_and_counts_them(tmp_path: Path) -> None:
    shared, store = SharedState(tmp_path, 1, 0, ("/a",)), FakeStore()
    queue: Any = ImpressionQueue(store, shared)  # type: ignore[arg-type]
    for n in range(20_010):
        queue.add(answer_of(n))
    assert counters(shared) == [20_010, 0, 10]
    queue.start()
    queue.stop(60)
    assert counters(shared) == [20_010, 20_000, 10]
    assert [row.time for row in store.rows] == list(range(20_000))


def test_a_failing_store_delays_impressions_and_a_refused_value_loses_them(tmp_path: Path) -> None:
    shared = SharedState(tmp_path, 1, 0, ("/a",))
    store = FakeStore(StoreError("locked"), RefusedError("too long"))
    queue: Any = ImpressionQueue(store, shared)  # type: ignore[arg-type]
    queue.add(answer_of(1))
    queue.start()
    until(lambda: counters(shared) == [1, 0, 1])  # once locked, then refused
    queue.add(answer_of(2))
    until(lambda: counters(shared) == [2, 1, 1])
    queue.stop(60)
    assert [row.time for row in store.rows] == [2]


def test_what_a_killed_worker_had_not_written_counts_as_lost(tmp_path: Path) -> None:
    shared = SharedState(tmp_path, 1, 0, ("/a",))
    killed: Any = ImpressionQueue(FakeStore(), shared)  # type: ignore[arg-type]
    for n in range(3):
        killed.add(answer_of(n))  # its thread never runs
    queue: Any = ImpressionQueue(FakeStore(), SharedState(tmp_path, 1, 0, ("/a",)))  # type: ignore[arg-type]
    queue.add(answer_of(3))
    queue.start()
    queue.stop(60)
    assert counters(shared) == [4, 1, 3]


# -- deletion, retention, export -------------------------------------------------------------------


def test_what_was_shown_is_exported_and_deleted_with_the_user(shop: Local, tmp_path: Path) -> None:
    answer, anonymous = show(shop, "ann"), shop.post("/v1/recommend", {"history": [], "k": 2}).json
    show(shop, "bob")
    item = str(anonymous["items"][0]["item_id"])
    click = {"user_id": "ann", "item_id": item, "recommendation_id": anonymous["recommendation_id"]}
    shop.post("/v1/events", {"events": [click]})
    figures(shop, 3, 1)
    address = shop.app.settings.store or ""
    with ImpressionStore(address) as store:
        records = export_user(store, "ann").filter(pl.col("record") == "impression")
        shown = [str(item["item_id"]) for item in [*answer["items"], *anonymous["items"]]]
        assert records["item_id"].to_list() == shown
        assert records["recommendation_id"].n_unique() == 2
        (event,) = export_user(store, "ann").filter(pl.col("record") == "event").to_dicts()
        assert event["recommendation_id"] == anonymous["recommendation_id"]
        assert shop.ask("DELETE", "/v1/users/ann").status == 200
        left = [row.user for rows in store.read_impressions(0) for row in rows]
        store.empty_log()
    assert left == ["bob"]
    contents = b"".join(file.read_bytes() for file in tmp_path.glob("shop.db*"))
    for shown_id in (answer["recommendation_id"], anonymous["recommendation_id"]):
        assert shown_id.encode() not in contents


def test_old_impressions_are_removed_in_groups(tmp_path: Path) -> None:
    signer = IdSigner(b"key")
    with ImpressionStore.open(f"sqlite:///{tmp_path}/shop.db") as store:
        rows = [
            Impression(
                signer.make_id(time), "ann", time, "v", "current", None, None, '["1"]', None, None
            )
            for time in range(1, 7001)
        ]
        store.write_impressions(rows)
        assert [store.prune_impressions(6001) for _ in range(3)] == [5000, 1000, 0]
        left = [row.time for group in store.read_impressions(0) for row in group]
    assert sorted(left) == list(range(6001, 7001))


def test_the_export_has_a_row_per_shown_item_and_marks_clicks(shop: Local, tmp_path: Path) -> None:
    answer = show(shop, "ann")
    items = [str(item["item_id"]) for item in answer["items"]]
    hidden = {"user_id": "ann", "item_id": items[2], "event": "hide"}
    shop.post("/v1/events", {"events": [{"user_id": "ann", "item_id": items[1]}, hidden]})
    figures(shop, 1, 1)
    path, clicks = tmp_path / "shown.csv", [False, True, False, False, False]
    export = ("impressions", "export", "--store", shop.app.settings.store, "-o", path)
    assert talerec(*export, "--json").json == {"path": str(path), "rows": 5, "clicks": 1}
    frame = pl.read_csv(path)
    assert frame["recommendation_id"].to_list() == [answer["recommendation_id"]] * 5
    assert frame["item_id"].cast(pl.String).to_list() == items
    assert frame["clicked"].to_list() == clicks
    assert frame["probability"].to_list() == [1.0] * 5
    assert talerec(*export, "--negative-events", "none", "--json").json["clicks"] == 2
    assert talerec(*export, "--attribution", "1s", "--json").json["rows"] == 5
    wrong = talerec(*export, "--since", "soon")
    assert wrong.code != 0
    assert "--since is 'soon'" in wrong.err


# -- counting --------------------------------------------------------------------------------------


def test_figures_that_take_long_delay_nobody(shop: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    show(shop, "ann")
    counted = figures(shop, 1, 0)
    counts: ImpressionCounts = shop.app.api.shown_lists.counts
    with counts._lock:  # as if another thread counted
        assert counts.read() is counts.latest
        assert shop.get("/v1/stats").json["impressions"]["answers"] == counted["answers"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"impressions": 1.5}, {"impressions": 0.1, "store": None}, {"explore": 0.05},
        {"explore": 0.9, "impressions": 1.0}, {"attribution": 0.0},
    ],
)  # fmt: skip
def test_wrong_settings_are_named(saved: Path, tmp_path: Path, wrong: dict[str, Any]) -> None:
    settings = {"store": f"sqlite:///{tmp_path}/shop.db", **wrong}
    with pytest.raises(tr.TalerecError, match=f"`{next(iter(wrong))}`|{next(iter(wrong))}"):
        Local(saved, tmp_path / "run", **settings)

"""Impressions under attack and careless operation: each attempt has a defined, counted end."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import talerec as tr
from command import refusal
from service import Local
from talerec.serve import Settings, SharedState, schemas
from talerec.serve.users import ImpressionQueue, ShownResponse
from talerec.store import IdSigner, Impression, ImpressionStore, Store, now_us
from waiting import until

HOUR = 3_600_000_000


@pytest.fixture(autouse=True)
def quick_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are counted whenever they are asked for, however long that takes."""
    monkeypatch.setattr("talerec.serve.online.impressions._MIN_AGE_S", 0.0)
    monkeypatch.setattr("talerec.serve.online.impressions._AGE_FACTOR", 0.0)


@contextmanager
def open_shop(saved: Path, folder: Path, store: Path, **settings: Any) -> Iterator[Local]:
    """Run a service that keeps all impressions in the SQLite file `store`."""
    address = f"sqlite:///{store}"
    if not store.exists():
        ImpressionStore.open(address).close()
    settings = {"impressions": 1.0, "ids": "text", **settings}
    local = Local(saved, folder, store=address, **settings)
    local.shows_ids = True
    local.app.load()
    local.app.start()
    try:
        yield local
    finally:
        local.app.stop()


def show(local: Local, user: str = "ann") -> dict[str, Any]:
    answer: dict[str, Any] = local.post("/v1/recommend", {"user_id": user, "k": 3}).json
    return answer


def click(local: Local, answer: dict[str, Any], user: str = "ann", **more: Any) -> Any:
    item = str(answer["items"][0]["item_id"])
    event = {"user_id": user, "item_id": item, "recommendation_id": answer["recommendation_id"]}
    sent = local.post("/v1/events", {"events": [{**event, **more}]})
    assert sent.status == 202
    return sent.json


def figures(local: Local, n_answers: int, n_clicks: int) -> dict[str, Any]:
    """Return the figures of /v1/stats once they count so many answers and clicks."""

    def read() -> Any:
        counts = local.get("/v1/stats").json["impressions"]
        is_there = counts.get("answers") == n_answers and counts.get("clicks") == n_clicks
        return counts if is_there else None

    return until(read)


def counters(local: Local) -> dict[str, int]:
    queue: dict[str, int] = local.get("/v1/stats").json["impressions"]["queue"]
    return queue


# -- ids -------------------------------------------------------------------------------------------


def test_a_flood_of_forged_ids_leaves_events_and_no_id(saved: Path, tmp_path: Path) -> None:
    path, signer = tmp_path / "shop.db", IdSigner(b"guessed")
    forged = [signer.make_id(now_us()) for _ in range(2000)]
    with open_shop(saved, tmp_path / "run", path) as local:
        genuine = show(local)["recommendation_id"]
        flipped = f"{genuine[:-1]}{(int(genuine[-1], 16) + 1) % 16:x}"
        later = f"{int(genuine[:14], 16) + 1:014x}{genuine[14:]}"
        events = [
            {"user_id": "eve", "item_id": "3", "recommendation_id": shown_id}
            for shown_id in (*forged, flipped, later)
        ]
        sent = local.post("/v1/events", {"events": events}).json
        assert sent["accepted"] == sent["unknown_recommendations"] == 2002
        line = "talerec_recommendation_ids_refused_total 2002"
        assert line in local.get("/metrics").body.decode().splitlines()
        assert figures(local, 1, 0)["not_clicks"] == dict.fromkeys(
            ("other_user", "not_shown", "early", "late", "repeated", "negative"), 0
        )
    raw = b"".join(file.read_bytes() for file in tmp_path.glob("shop.db*"))
    assert not any(shown_id.encode() in raw for shown_id in (forged[0], forged[-1], flipped, later))
    assert genuine.encode() in raw


def test_an_id_of_another_store_is_unknown_and_one_of_a_sibling_service_is_not(
    saved: Path, tmp_path: Path
) -> None:
    path, other = tmp_path / "shop.db", tmp_path / "other.db"
    with (
        open_shop(saved, tmp_path / "a", path) as first,
        open_shop(saved, tmp_path / "b", path) as second,
        open_shop(saved, tmp_path / "c", other) as elsewhere,
    ):
        answer = show(first)
        assert click(elsewhere, answer)["unknown_recommendations"] == 1
        assert "unknown_recommendations" not in click(second, answer)
        for local in (first, second):
            figures(local, 1, 1)
        figures(elsewhere, 0, 0)
        show(second, "bob")
        assert second.ask("DELETE", "/v1/users/ann").status == 200
        for local in (first, second):
            figures(local, 1, 0)
        assert (counters(first)["queued"], counters(second)["queued"]) == (1, 1)


def test_a_click_of_a_user_who_was_deleted_in_between_is_an_event_and_no_click(
    saved: Path, tmp_path: Path
) -> None:
    with open_shop(saved, tmp_path / "run", tmp_path / "shop.db") as local:
        answer = show(local)
        assert local.ask("DELETE", "/v1/users/ann").status == 200  # the answer may still wait
        assert click(local, answer)["accepted"] == 1
        figures(local, 0, 0)
        assert len(local.get("/v1/users/ann").json["history"]) == 1
        until(lambda: counters(local)["written"] == 1)
        assert figures(local, 0, 0)["impressions"] == 0


# -- clocks ----------------------------------------------------------------------------------------


def test_a_clock_that_is_set_back_makes_early_clicks_and_no_failure(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import talerec.store.clock as clock

    real = clock.time_ns
    settings = {"explore": 0.5}
    with open_shop(saved, tmp_path / "run", tmp_path / "shop.db", **settings) as local:
        with monkeypatch.context() as ahead:
            ahead.setattr(clock, "time_ns", lambda: real() + 1000 * HOUR)
            future = show(local)
            until(lambda: counters(local)["written"] == 1)
        click(local, future)  # an hour before its list
        click(local, show(local, "bob"), "bob")
        counts = figures(local, 2, 1)
        assert counts["not_clicks"]["early"] == 1
        assert local.get("/metrics").status == 200
    with open_shop(saved, tmp_path / "run", tmp_path / "shop.db") as local:
        figures(local, 2, 1)


# -- the store and the models ----------------------------------------------------------------------


def test_impressions_wait_for_a_file_that_was_moved_and_go_into_no_other(
    saved: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, away, other = (tmp_path / name for name in ("shop.db", "away.db", "other.db"))
    Store.open(f"sqlite:///{other}").close()
    names = ("", "-wal", "-shm")

    def move(source: Path, target: Path) -> None:
        for name in names:
            if Path(f"{source}{name}").exists():
                os.rename(f"{source}{name}", f"{target}{name}")

    with open_shop(saved, tmp_path / "run", path) as local:
        show(local)
        until(lambda: counters(local)["written"] == 1)
        move(path, away)
        show(local, "bob")
        until(lambda: "impressions wait for the store" in caplog.text)
        shutil.copyfile(other, path)
        caplog.clear()
        show(local, "cid")
        until(lambda: "impressions wait for the store" in caplog.text)
        assert counters(local) == {"queued": 3, "written": 1, "lost": 0}
        path.unlink()
        move(away, path)
        until(lambda: counters(local)["written"] == 3)
    with ImpressionStore(f"sqlite:///{path}") as store:
        assert [row.user for rows in store.read_impressions(0) for row in rows] == [
            "ann", "bob", "cid",
        ]  # fmt: skip


def test_a_candidate_that_is_removed_while_it_serves_goes_on_and_its_figures_stay(
    saved: Path, tmp_path: Path
) -> None:
    path, candidate = tmp_path / "shop.db", tmp_path / "next.tale"
    tr.MODELS["popular"]().fit(tr.load(saved).fitted.log).save(candidate)
    settings = {"candidate": candidate, "share": 1.0, "watch": 0.05}
    with open_shop(saved, tmp_path / "run", path, **settings) as local:
        version = show(local)["model"]
        assert version != local.app.holder.current.version
        shutil.rmtree(candidate)
        local.app.api.candidate._refresh_if_changed(force=True)  # as its thread does
        assert show(local, "bob")["model"] == version
        assert figures(local, 2, 0)["by_role"]["candidate"]["impressions"] == 6
    with open_shop(saved, tmp_path / "run", path) as local:  # without the candidate
        counts = until(lambda: local.get("/v1/stats").json["impressions"].get("comparison"))
        assert counts["candidate"] == version
        assert show(local)["model"] != version


# -- limits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["impressions", "explore", "share", "attribution"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), -0.1, 1e300])
def test_numbers_without_sense_are_refused(
    saved: Path, tmp_path: Path, name: str, value: float
) -> None:
    settings = {"store": f"sqlite:///{tmp_path}/shop.db", "impressions": 1.0, "candidate": saved}
    with pytest.raises(tr.TalerecError, match=name):
        Settings(path=saved, **{**settings, name: value})


@pytest.mark.parametrize(
    "option",
    [("--explore", "nan"), ("--explore", "1e9"), ("--impressions", "nan"), ("--share", "inf"),
     ("--attribution", "0s"), ("--attribution", "nanm"), ("--attribution", "99999999999d")],
)  # fmt: skip
def test_the_command_refuses_them_in_one_line(
    saved: Path, tmp_path: Path, option: tuple[str, str]
) -> None:
    store = ("--store", f"sqlite:///{tmp_path}/shop.db", "--impressions", "1")
    more = () if option[0] != "--share" else ("--candidate", saved)
    message = refusal("serve", saved, *store, *more, *option)
    assert option[0] in message


class StuckStore:
    """A store that keeps impressions in a list."""

    def __init__(self) -> None:
        self.rows = list[Impression]()

    def write_impressions(self, rows: list[Impression]) -> int:
        self.rows += rows
        return len(rows)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("n_items", "rules", "room"), [(1000, None, 200), (1, "x" * 9900, 2000)])
def test_long_answers_and_long_rules_do_not_fill_the_memory(
    n_items: int, rules: str | None, room: int, tmp_path: Path
) -> None:
    """20 MB wait at most: 200,000 items, or the rules of 2,000 answers."""
    shared, store = SharedState(tmp_path, 1, 0, ("/a",)), StuckStore()
    queue: Any = ImpressionQueue(store, shared)  # type: ignore[arg-type]
    items: list[schemas.Id] = list(range(n_items))
    for n in range(room + 100):
        queue.add(ShownResponse(f"{n:038x}", "ann", n, "v", "current", None, rules, items))
    lost = shared.value("impressions_lost")
    assert (lost, shared.value("impressions_queued")) == (100, room + 100)
    queue.start()
    until(lambda: shared.value("impressions_written") == room)
    queue.add(ShownResponse("0" * 38, "ann", 300, "v", "current", None, None, items))  # room again
    queue.stop(60)
    assert len(store.rows) == room + 1
    assert {row.rules for row in store.rows[:-1]} == {rules}


def test_of_long_rules_the_names_are_kept(saved: Path, tmp_path: Path) -> None:
    """A request takes rules of a megabyte; what waits of an answer has at most 10,000 characters.

    Rules up to that length are kept as they are.
    """
    address = f"sqlite:///{tmp_path}/shop.db"
    local = Local(saved, tmp_path / "run", store=address, impressions=1.0)
    local.app.start()
    for size in (10, 5000):
        where = " or ".join(f"item_id = {n}" for n in range(20))
        boost = {"item_id": {str(n): 0.1 for n in range(size)}}
        answer = local.post("/v1/recommend", {"user_id": 1, "where": where, "boost": boost})
        assert answer.status == 200, answer.json
    local.app.stop()
    with ImpressionStore(address) as store:
        rules = [json.loads(row.rules or "") for (row) in next(iter(store.read_impressions(0)))]
    assert rules[0]["boost"] == {"item_id": {str(n): 0.1 for n in range(10)}}
    assert rules[1] == {"too_long": ["where", "boost"]}

"""Attacks on the event store: its file, ids of another kind, deleted users, a busy sender."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

import talerec as tr
from attacked import PATIENCE, START, Attack, Outcome, Service, Shop, within

EVENTS = 60  # sent before an attack, and after it
FAR = 10**6  # ids of users that the model does not know begin here


def store_file(shop: Shop) -> Path:
    return shop.folder / "store" / "shop.db"


def start(shop: Shop, *options: str) -> Service:
    store_file(shop).parent.mkdir(exist_ok=True)
    return shop.ready("--store", f"sqlite:///{store_file(shop)}", *options)


def send(service: Service, *events: dict[str, Any]) -> int:
    return service.ask("POST", "/v1/events", {"events": list(events)})[0]


def send_some(service: Service, begin: int) -> set[str]:
    """Send events one by one, for some seconds; return the ids of those acknowledged."""
    acknowledged, end = set(), time.monotonic() + PATIENCE
    for n in range(begin, begin + EVENTS):
        if time.monotonic() > end:  # a store that fails slowly
            break
        event = {"user_id": FAR + n % 9, "item_id": n % 150 + 1, "event_id": f"e{n}"}
        if send(service, event) == 202:
            acknowledged.add(f"e{n}")
    return acknowledged


def stored_ids(path: Path) -> set[str]:
    """Return the event ids in a copy of the store's files, as SQLite reads them."""
    try:
        connection = sqlite3.connect(path)
        rows = connection.execute("select event_id from talerec_events").fetchall()
    except sqlite3.Error:
        return set()
    connection.close()
    return {row[0] for row in rows}


def talerec(shop: Shop, *arguments: object) -> int:
    command = [sys.executable, "-c", START, *map(str, arguments)]
    variables = {**os.environ, "PYTHONPATH": str(shop.checkout / "src")}
    return subprocess.run(command, env=variables, capture_output=True).returncode


# -- the file --------------------------------------------------------------------------------------


def attack_file(shop: Shop, attack: Callable[[Path], None], *, comes_back: bool = False) -> Outcome:
    """Attack the file between two rounds of events, and count acknowledged events that are gone.

    Events that were acknowledged before a file was destroyed do not count, unless it comes back.
    """
    path = store_file(shop)
    service = start(shop)
    before = send_some(service, 0)
    attack(path)
    after = send_some(service, EVENTS)
    ready = service.ask("GET", "/health/ready")[0]
    recommends = bool(service.recommend())
    if comes_back:
        away = path.parent / "away"
        for file in sorted(away.iterdir()):
            os.replace(file, path.parent / file.name)
        within(lambda: service.ask("GET", "/health/ready")[0] == 200, 10)
        after |= send_some(service, 2 * EVENTS)
    service.process.terminate()
    service.process.wait(30)
    expected = before | after if comes_back else after
    missing = len(expected - stored_ids(path))
    text = f"{len(after)} of {EVENTS * (1 + comes_back)} acknowledged afterwards"
    text += f", {missing} acknowledged lost, ready says {ready}"
    return Outcome(bool(missing) or ready == 200 or not recommends, text)


def file_removed(shop: Shop) -> Outcome:
    return attack_file(shop, lambda path: path.unlink())


def log_removed(shop: Shop) -> Outcome:
    return attack_file(shop, lambda path: Path(f"{path}-wal").unlink())


def move_away(path: Path) -> None:
    (path.parent / "away").mkdir()
    os.replace(path, path.parent / "away" / path.name)


def file_moved(shop: Shop) -> Outcome:
    return attack_file(shop, move_away, comes_back=True)


def replace_by_other(path: Path, replace: Callable[[Path, Path], Any]) -> None:
    other = path.with_name("other.db")
    with sqlite3.connect(other) as connection:
        connection.execute("create table other (text)")
        connection.executemany("insert into other values (?)", [("x" * 3000,)] * 100)
    connection.close()
    replace(other, path)


def file_replaced(shop: Shop) -> Outcome:
    return attack_file(shop, lambda path: replace_by_other(path, os.replace))


def file_overwritten(shop: Shop) -> Outcome:
    return attack_file(shop, lambda path: replace_by_other(path, shutil.copyfile))


def file_truncated(shop: Shop) -> Outcome:
    return attack_file(shop, lambda path: os.truncate(path, 0))


# -- events ----------------------------------------------------------------------------------------


def text_among_integers(shop: Shop) -> Outcome:
    """One event with a text id; then a fit with the events of the store."""
    service = start(shop, "--learn", "every=2s")
    status = send(service, {"user_id": "ann", "item_id": 3})
    send(service, {"user_id": FAR, "item_id": 3})

    def learned() -> bool:
        stats = json.loads(service.ask("GET", "/v1/stats")[1] or b"{}")
        return bool((stats.get("learning") or {}).get("learned"))

    if not within(learned, 60):
        return Outcome(True, f"the event gets {status}, no fit afterwards")
    kind = tr.load(shop.path).fitted.items.ids.dtype
    return Outcome(kind == pl.String, f"the event gets {status}, ids become {kind}")


def comes_back_by_import(shop: Shop) -> Outcome:
    """Events, one of them dated ahead, are exported; the user is deleted; they are imported."""
    service = start(shop)
    address = f"sqlite:///{store_file(shop)}"
    now = int(time.time())
    for when in (now - 9 * 86_400, now - 60, now + 80_000):
        send(service, {"user_id": FAR, "item_id": 3, "timestamp": when})
    exported = shop.folder / "events.parquet"
    talerec(shop, "events", "export", "--store", address, "-o", exported)
    service.ask("DELETE", f"/v1/users/{FAR}")
    talerec(shop, "events", "import", exported, "--store", address)
    return count_events(service)


def comes_back_by_resending(shop: Shop) -> Outcome:
    service = start(shop)
    now = int(time.time())
    events = [
        {"user_id": FAR, "item_id": 3, "timestamp": when, "event_id": str(when)}
        for when in (now - 9 * 86_400, now - 60, now + 80_000)
    ]
    send(service, *events)
    service.ask("DELETE", f"/v1/users/{FAR}")
    send(service, *events)
    return count_events(service)


def count_events(service: Service) -> Outcome:
    time.sleep(1)  # workers poll five times a second
    status, body = service.ask("GET", f"/v1/users/{FAR}")
    rows = len(json.loads(body)["history"]) if status == 200 else 0
    return Outcome(bool(rows), f"{rows} of 3 events of a deleted user are there again")


def strangers_deleted(shop: Shop) -> Outcome:
    service = start(shop)
    for n in range(300):
        service.ask("DELETE", f"/v1/users/{FAR + n}")
    connection = sqlite3.connect(store_file(shop))
    rows = connection.execute("select count(*) from talerec_deletions").fetchone()[0]
    connection.close()
    return Outcome(rows > 0, f"{rows} records of 300 users whom nobody knew")


def one_sender(shop: Shop) -> Outcome:
    """Twenty users choose an item, one user another item a thousand times."""
    service = start(shop)
    send(service, *({"user_id": FAR + n, "item_id": 5} for n in range(20)))
    send(service, *({"user_id": FAR + 99, "item_id": 7} for _ in range(1000)))
    time.sleep(2)
    answer = json.loads(
        service.ask("POST", "/v1/recommend", {"user_id": FAR + 500, "k": 3})[1] or b"{}"
    )
    first = answer.get("items", [{}])[0].get("item_id")
    return Outcome(first != 5, f"popular now: item {first} (20 users chose 5, one sender 7)")


ATTACKS: dict[str, Attack] = {
    "file-removed": ("the store's file is removed", file_removed),
    "log-removed": ("the store's write-ahead log is removed", log_removed),
    "file-moved": ("the store's file is moved away and back", file_moved),
    "file-replaced": ("another file is moved to the store's place", file_replaced),
    "file-overwritten": ("another file is copied over the store", file_overwritten),
    "file-truncated": ("the store's file is truncated", file_truncated),
    "text-id": ("a text id among integers, then a fit", text_among_integers),
    "import-deleted": ("events of a deleted user are imported", comes_back_by_import),
    "resend-deleted": ("events of a deleted user are sent again", comes_back_by_resending),
    "strangers": ("300 unknown users are deleted", strangers_deleted),
    "one-sender": ("one sender repeats an item a thousand times", one_sender),
}

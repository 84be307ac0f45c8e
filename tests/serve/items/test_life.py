"""The life of a catalogue, seen from outside: two workers, killed and started again in between."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from processes import workers_of
from service import Remote, rows
from waiting import until

BLUE = {"title": "blue tent", "brand": "brand blue", "tags": ["blue", "size 2"], "price": 50.0}
TOKEN = "a-token-for-this-test-alone"


def ask_everywhere(remote: Remote, body: dict[str, Any]) -> list[list[Any]]:
    """Return the items of answers of both workers: the system spreads connections over them."""
    lists: list[list[Any]] = []
    workers: set[str] = set()  # each worker gives its requests ids of its own

    def has_asked_both() -> bool:
        answer = remote.ask("POST", "/v1/recommend", body)
        assert answer.status == 200, answer
        lists.append([item["item_id"] for item in answer.json["items"]])
        workers.add(answer.headers["x-request-id"].partition("-")[0])
        return len(workers) == 2

    until(has_asked_both)
    return lists


@pytest.mark.slow
def test_the_life_of_a_catalogue(content: Path, tmp_path: Path) -> None:
    options = ("--workers", "2", "--store", f"sqlite:///{tmp_path}/shop.db", "--ids", "integer")
    remote = Remote(content, *options, token=TOKEN)
    blue, red = ({"history": rows(history), "k": 8} for history in ([2, 6], [0, 4]))
    for_blue = {**blue, "k": 24}

    def put(fields: dict[str, Any], item: int = 100) -> None:
        answer = remote.ask("PUT", f"/v1/items/{item}", fields)
        assert answer.status == 200, answer

    def is_everywhere(body: dict[str, Any], item: int, listed: bool) -> bool:
        return all((item in items) == listed for items in ask_everywhere(remote, body))

    def everywhere(body: dict[str, Any], item: int = 100, *, listed: bool) -> None:
        # a response does not wait for ever for the other worker, which a busy machine may stall
        until(lambda: is_everywhere(body, item, listed), f"item {item}: listed should be {listed}")

    try:
        everywhere(for_blue, listed=False)
        put(BLUE)
        put(BLUE, 101)
        everywhere(blue, listed=True)  # to the right user
        everywhere(red, listed=False)
        cheap = {**blue, "where": "price < 5"}
        everywhere(cheap, listed=False)
        put({"price": 3.0})
        everywhere(cheap, listed=True)
        assert remote.ask("DELETE", "/v1/items/101").status == 200
        everywhere(for_blue, 101, listed=False)
        remote.process = _kill_and_restart(remote, content, options)
        everywhere(cheap, listed=True)
        everywhere(for_blue, 101, listed=False)
        assert remote.ask("GET", "/v1/items/101").status == 404
        put({"available": False})
        everywhere({**for_blue, "allow": [100, 2]}, listed=False)
        put({"available": True, "hidden": True})
        everywhere({**for_blue, "allow": [100, 2]}, listed=False)
        put({"hidden": False})
        everywhere(blue, listed=True)
        end = datetime.now(UTC) + timedelta(seconds=5)
        put({"available_until": end.isoformat()})
        until(lambda: is_everywhere(blue, 100, True) or datetime.now(UTC) > end)
        until(lambda: datetime.now(UTC) > end)
        everywhere(for_blue, listed=False)  # nobody has changed anything
        put({"available_until": None})
        everywhere(blue, listed=True)
        assert remote.ask("DELETE", "/v1/items/100").status == 200
        everywhere(for_blue, listed=False)
    finally:
        remote.stop()


def _kill_and_restart(remote: Remote, content: Path, options: Any) -> Any:
    """Kill all processes of a service at once, and start it again on another port."""
    workers = workers_of(remote.process.pid)
    for pid in (remote.process.pid, *workers):
        os.kill(pid, signal.SIGKILL)
    remote.process.wait()
    assert remote.process.stdout is not None
    remote.process.stdout.close()
    again = Remote(content, *options, token=TOKEN)
    remote.port, remote.url = again.port, again.url
    return again.process

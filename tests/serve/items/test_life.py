"""The life of a catalogue, seen from outside: two workers, killed and started again in between."""

from __future__ import annotations

import os
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from processes import workers_of
from service import Remote, rows
from talerec.serve.http import item_routes
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

    is_late = False

    def change(method: str, item: int, fields: dict[str, Any] | None = None) -> None:
        """Change an item. The service waits for all workers, but not for ever for a busy one."""
        nonlocal is_late
        begin = time.monotonic()
        answer = remote.ask(method, f"/v1/items/{item}", fields)
        is_late = time.monotonic() - begin >= item_routes._WAIT_S
        assert answer.status == 200, answer

    def is_so(body: dict[str, Any], item: int, listed: bool) -> bool:
        return all((item in items) == listed for items in ask_everywhere(remote, body))

    def check(body: dict[str, Any], item: int = 100, *, listed: bool) -> None:
        """Both workers list the item or not: at once after a change that all have applied."""
        assert is_so(body, item, listed) or is_late
        until(lambda: is_so(body, item, listed))

    try:
        check(for_blue, listed=False)
        change("PUT", 100, BLUE)
        change("PUT", 101, BLUE)
        check(blue, listed=True)  # to the right user
        check(red, listed=False)
        cheap = {**blue, "where": "price < 5"}
        check(cheap, listed=False)
        change("PUT", 100, {"price": 3.0})
        check(cheap, listed=True)
        change("DELETE", 101)
        check(for_blue, 101, listed=False)
        remote.process = _kill_and_restart(remote, content, options)
        is_late = False
        check(cheap, listed=True)
        check(for_blue, 101, listed=False)
        assert remote.ask("GET", "/v1/items/101").status == 404
        change("PUT", 100, {"available": False})
        check({**for_blue, "allow": [100, 2]}, listed=False)
        change("PUT", 100, {"available": True, "hidden": True})
        check({**for_blue, "allow": [100, 2]}, listed=False)
        change("PUT", 100, {"hidden": False})
        check(blue, listed=True)
        end = datetime.now(UTC) + timedelta(seconds=5)
        change("PUT", 100, {"available_until": end.isoformat()})
        assert is_so(blue, 100, True) or is_late or datetime.now(UTC) > end
        until(lambda: datetime.now(UTC) > end)
        check(for_blue, listed=False)  # nobody has changed anything
        change("PUT", 100, {"available_until": None})
        check(blue, listed=True)
        change("DELETE", 100)
        check(for_blue, listed=False)
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

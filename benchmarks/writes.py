"""Processor time per stored event: POST /v1/events of a worker, from JSON to the response.

    python benchmarks/writes.py                                   # this checkout
    python benchmarks/sides.py --other CHECKOUT --turns 9 -- benchmarks/writes.py

The application runs in this process without a server; its threads commit to a SQLite file and poll
it. The JSON object on the last line has microseconds of processor time per event.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import talerec as tr
from talerec.serve import Settings
from talerec.serve.http import App

CLIENTS = 8  # requests at the same time


async def post(app: App, body: bytes) -> int:
    """Return the status of one request with events."""
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if "status" in message:
            statuses.append(message["status"])

    headers = [(b"content-type", b"application/json"), (b"host", b"127.0.0.1")]
    scope = {"type": "http", "method": "POST", "path": "/v1/events", "query_string": b""}
    scope |= {"client": ("127.0.0.9", 40_000), "headers": headers}
    await app(scope, receive, send)
    return statuses[0]


async def send_all(app: App, bodies: list[bytes]) -> None:
    left = iter(bodies)

    async def client() -> None:
        for body in left:
            assert await post(app, body) == 202

    await asyncio.gather(*(client() for _ in range(CLIENTS)))


def measure(app: App, name: str, requests: int, batch: int) -> float:
    """Return the microseconds of processor time per event."""
    start = 1_700_000_000_000_000
    events = [
        {"user_id": n % 5000, "item_id": n % 150 + 1, "timestamp": start + n,
         "event": "view", "event_id": f"{name}-{n}"}
        for n in range(requests * batch)
    ]  # fmt: skip
    bodies = [
        json.dumps({"events": events[begin : begin + batch]}).encode()
        for begin in range(0, len(events), batch)
    ]
    before = time.process_time()
    asyncio.run(send_all(app, bodies))
    return 1e6 * (time.process_time() - before) / len(events)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=2000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="talerec-bench-") as name:
        folder = Path(name)
        log = tr.synthetic_log(3000, users=300, items=150, seed=3)
        path = tr.TALE(reg=20).fit(log).save(folder / "shop.tale")
        (folder / "run").mkdir()
        app = App(Settings(path=path, store=f"sqlite:///{folder}/shop.db"), folder / "run")
        app.holder.refresh()
        app.start()
        measure(app, "warm", 200, 10)
        costs = {
            "us per event, 1 a request": measure(app, "single", args.requests, 1),
            "us per event, 100 a request": measure(app, "batch", args.requests // 5, 100),
        }
        app.stop()
    print(json.dumps(costs))


if __name__ == "__main__":
    main()

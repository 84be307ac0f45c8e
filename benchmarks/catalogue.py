"""Items added to a running service: how soon all are answered, and what requests notice.

    python benchmarks/catalogue.py                    # 10,000 items into a shop of 5,000
    python benchmarks/catalogue.py --items 2000 --new 500 --single 20

A model of content is served by two workers with a SQLite store. Clients ask for recommendations
without a pause, before and while the new items are put in requests of 1,000 lines. The items are
answered once a list of each worker that allows exactly 1,000 of them has all 1,000.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import talerec as tr  # noqa: E402
from service import Remote  # noqa: E402

WORDS = [f"word{n}" for n in range(2000)]
NDJSON = {"content-type": "application/x-ndjson"}
JSON = {"content-type": "application/json"}


def make_table(first: int, n_items: int, seed: int) -> list[dict[str, Any]]:
    """Return rows of an item table with ids from `first` on: a title, tags and a price."""
    draw = np.random.default_rng(seed)
    groups, words = draw.integers(0, 40, n_items), draw.integers(0, len(WORDS), (n_items, 8))
    prices = draw.random(n_items).round(2) * 100
    return [
        {
            "item_id": first + n,
            "title": " ".join(WORDS[word] for word in words[n]),
            "tags": [f"group {groups[n]}", f"half {groups[n] % 2}"],
            "price": float(prices[n]),
        }
        for n in range(n_items)
    ]


class Client(threading.Thread):
    """Asks for recommendations over one connection until it is stopped."""

    def __init__(self, port: int, body: bytes) -> None:
        super().__init__(daemon=True)
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.body, self.is_stopped, self.failed = body, False, 0
        self.answers: list[tuple[float, float]] = []  # when, and how many seconds it took

    def run(self) -> None:
        while not self.is_stopped:
            begin = time.monotonic()
            try:
                self.connection.request("POST", "/v1/recommend", self.body, JSON)
                response = self.connection.getresponse()
                response.read()
                self.failed += response.status != 200
            except OSError:
                self.failed += 1
            self.answers.append((begin, time.monotonic() - begin))


def ask_workers(port: int, path: str, body: bytes, n_workers: int) -> list[Any]:
    """Return the answer of each worker: they give their requests ids of their own."""
    answers: dict[str, Any] = {}
    while len(answers) < n_workers:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", path, body, JSON)
        response = connection.getresponse()
        worker = str(response.headers["x-request-id"]).partition("-")[0]
        answers[worker] = json.loads(response.read())
        connection.close()
    return list(answers.values())


def count_answered(port: int, ids: list[int], history: list[Any], n_workers: int) -> int:
    """Return how many of some items the lists of every worker have that allow only these."""
    body = json.dumps({"history": history, "allow": ids, "k": len(ids)}).encode()
    answers = ask_workers(port, "/v1/recommend", body, n_workers)
    return min(len(answer.get("items", [])) for answer in answers)


def percentile(clients: list[Client], begin: float, end: float, share: float) -> float:
    """Return a percentile of the response times, in milliseconds, of requests in a period."""
    times = [
        seconds for client in clients for when, seconds in client.answers if begin <= when < end
    ]
    return float(np.percentile(times, share) * 1000) if times else float("nan")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Serve a shop, add items to it under load, and return the figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = pl.DataFrame(make_table(0, options.items, 1))
        draw = np.random.default_rng(2)
        rows = {
            "user_id": np.repeat(np.arange(options.items // 2), 6),
            "item_id": draw.integers(0, options.items, options.items // 2 * 6),
            "timestamp": 1.6e9 + draw.random(options.items // 2 * 6) * 1e7,
        }
        log = tr.Log.from_frame(pl.DataFrame(rows)).with_items(table)
        path = tr.Content(dims=options.dims).fit(log).save(folder / "shop.tale")
        store = ("--store", f"sqlite:///{folder}/shop.db", "--ids", "integer")
        remote = Remote(path, "--workers", "2", *store)
        try:
            return measure(remote, options)
        finally:
            remote.stop()


def measure(remote: Remote, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of adding items to a running service."""
    history = [{"item_id": n} for n in range(20)]
    body = json.dumps({"history": history, "k": 10}).encode()
    clients = [Client(remote.port, body) for _ in range(options.clients)]
    for client in clients:
        client.start()
    started = time.monotonic()
    time.sleep(options.seconds)
    single = []
    for n in range(options.single):
        begin = time.monotonic()
        assert remote.ask("PUT", f"/v1/items/{n}", {"price": 1000.0 + n}).status == 200
        single.append(time.monotonic() - begin)
    begin = time.monotonic()
    new = make_table(10_000_000, options.new, 3)
    for first in range(0, len(new), 1000):
        lines = "\n".join(json.dumps(item) for item in new[first : first + 1000]).encode()
        answer = remote.ask("POST", "/v1/items", lines, NDJSON)
        assert answer.status == 200, answer
    stored = time.monotonic()
    ids = [item["item_id"] for item in new]
    for first in range(0, len(new), 1000):
        chunk = ids[first : first + 1000]
        while count_answered(remote.port, chunk, history, 2) < len(chunk):
            assert time.monotonic() < stored + 300, "not all items are answered"
    answered = time.monotonic()
    for client in clients:
        client.is_stopped = True
    for client in clients:
        client.join()
    return {
        "items": options.items,
        "new": options.new,
        "seconds_stored": round(stored - begin, 2),
        "seconds_answered": round(answered - begin, 2),
        "put_ms_median": round(float(np.median(single)) * 1000, 1),
        "requests": sum(len(client.answers) for client in clients),
        "failed": sum(client.failed for client in clients),
        "p50_ms_before": round(percentile(clients, started, started + options.seconds, 50), 1),
        "p50_ms_while": round(percentile(clients, begin, stored, 50), 1),
        "p99_ms_before": round(percentile(clients, started, started + options.seconds, 99), 1),
        "p99_ms_while": round(percentile(clients, begin, stored, 99), 1),
    }


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=5000, help="items of the model")
    parser.add_argument("--new", type=int, default=10_000, help="items to add")
    parser.add_argument("--single", type=int, default=50, help="price changes, one by one")
    parser.add_argument("--dims", type=int, default=256, help="dimensions of the model")
    parser.add_argument("--clients", type=int, default=2, help="concurrent clients")
    parser.add_argument("--seconds", type=float, default=5.0, help="load before the change")
    print(json.dumps(run(parser.parse_args())))


if __name__ == "__main__":
    main()

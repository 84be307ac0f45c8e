"""Attacks on a running service: models replaced under it, clients that do not read, signals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import time
from contextlib import suppress

import polars as pl

import talerec as tr
from attacked import (
    TIMEOUT,
    Attack,
    Outcome,
    Shop,
    has_answer,
    in_use,
    is_running,
    request,
    version,
    within,
)
from talerec.artifact import Bundle, read_artifact, write_artifact

CLIENTS = 40  # who do not read


# -- models ----------------------------------------------------------------------------------------


def copied_file_by_file(shop: Shop) -> Outcome:
    service = shop.ready()
    for file in sorted(shop.new.iterdir(), key=lambda file: file.name != "manifest.json"):
        shutil.copyfile(file, shop.path / file.name)
        time.sleep(0.7)
    return in_use(service, version(shop.new))


def copied_over_the_live_one(shop: Shop) -> Outcome:
    """Copy over the live files, each truncated first, as `cp` does."""
    service = shop.ready()
    for file in shop.path.iterdir():
        file.open("r+b").truncate(0)
    answers = [service.recommend() for _ in range(5)]
    if service.process.poll() is not None or not all(answers):
        return Outcome(True, f"the service ends ({service.process.poll()})")
    return Outcome(False, "serves on")


def cannot_answer(shop: Shop) -> Outcome:
    """Serve a tempo model without an array: it loads, and fails at its first request."""
    log = tr.synthetic_log(3000, users=300, items=150, seed=3)
    bundle = read_artifact(tr.Tempo().fit(log).save(shop.path.with_name("t.tale")))
    del bundle.arrays["aside_decay"]
    shop.path = write_artifact(shop.path.with_name("bad.tale"), bundle)
    service = shop.serve()
    seconds = within(lambda: service.process.poll() is not None)
    if seconds:
        return Outcome(service.process.returncode != 2, f"ends with {service.process.returncode}")
    service.process.terminate()
    heard = within(lambda: service.process.poll() is not None, 5)
    return Outcome(True, "never listens" + ("" if heard else ", does not hear SIGTERM"))


def leads_outside(shop: Shop) -> Outcome:
    """The served model is replaced by one with valid hashes and indices out of range."""
    log = tr.synthetic_log(3000, users=300, items=150, seed=3)
    shop.path = tr.TALE(solver="local").fit(log).save(
        shop.path.with_name("local.tale")
    )  # fmt: skip
    service = shop.ready("--workers", "2")
    shop.tamper("indices", slice(None), 2**30)
    time.sleep(4)
    answers = [service.recommend() for _ in range(10)]
    gone = answers.count({})
    return Outcome(
        bool(gone), "refused, serves on" if not gone else f"{gone} of 10 requests fail: workers die"
    )


def long_title(shop: Shop) -> Outcome:
    log = tr.synthetic_log(3000, users=300, items=150, seed=3)
    named = log.info.with_columns(
        title=pl.when(pl.int_range(pl.len()) == 2).then(pl.lit("x" * 10_000_000)).otherwise("title")
    )
    shop.path = tr.TALE().fit(log.with_items(named)).save(shop.path.with_name("long.tale"))
    _, body = shop.ready().ask("GET", "/v1/items?q=3")
    return Outcome(len(body) > 10**6, f"an answer of {len(body):,} bytes")


def parquet_bomb(shop: Shop) -> Outcome:
    """Serve an item table of a few kilobytes that unpacks to 800 MB."""
    bundle = read_artifact(shop.path)
    titles = pl.Series("title", [str(n % 10) * 5_400_000 for n in range(150)]).cast(pl.String)
    table = bundle.tables["items"].with_columns(titles)
    service = shop.ready()
    before = service.memory()
    write_artifact(
        shop.path, Bundle(bundle.facts, dict(bundle.arrays), {**bundle.tables, "items": table})
    )
    most = 0.0
    for _ in range(40):
        most = max(most, service.memory() - before)
        time.sleep(0.1)
    return Outcome(most > 200, f"memory grows by {most:,.0f} MB")


# -- clients ---------------------------------------------------------------------------------------


def clients_that_do_not_read(shop: Shop) -> Outcome:
    """Clients request the largest allowed batch and read nothing."""
    log = tr.synthetic_log(30_000, items=1500, seed=3)
    shop.path = tr.TALE(solver="exact").fit(log).save(shop.path.with_name("large.tale"))
    service = shop.ready("--timeout", str(TIMEOUT))
    card = json.loads(service.ask("GET", "/v1/model")[1])["limits"]
    requests = min(card["max_batch"], card.get("max_items", 10**9) // 1000)
    body = json.dumps(
        {"requests": [{"history": [{"item_id": 3}], "k": 1000}] * int(requests)}
    ).encode()
    service.ask("POST", "/v1/recommend:batch", json.loads(body))
    before = service.memory()
    clients = [service.send("POST", "/v1/recommend:batch", body) for _ in range(CLIENTS)]
    most, start = 0.0, time.monotonic()
    while time.monotonic() < start + 3 * TIMEOUT:
        most = max(most, service.memory() - before)
        time.sleep(0.1)
    left = service.memory() - before
    for client in clients:
        client.close()
    fine = most < 200 and left < 60 and bool(service.recommend())
    return Outcome(
        not fine, f"memory grows by {most:,.0f} MB, {left:,.0f} MB after {3 * TIMEOUT} s"
    )


def two_reloads(shop: Shop) -> Outcome:
    """Reload requests wait for a worker that is stopped and cannot follow."""
    service = shop.ready("--workers", "2", "--timeout", "20")
    time.sleep(2)  # until both are ready
    stopped, *_ = service.workers()[-1:]
    os.kill(stopped, signal.SIGSTOP)
    try:
        shutil.rmtree(shop.path)
        shutil.copytree(shop.new, shop.path)
        free = [
            client
            for client in (service.send("GET", "/health/live", keep=True) for _ in range(24))
            if has_answer(client, 0.1)
        ]
        for client in free[:3]:
            client.sendall(request("POST", "/v1/reload", keep=True))
        time.sleep(1.5)
        for client in free[3:7]:
            client.sendall(request("POST", "/v1/similar", b'{"item_id": 3}', keep=True))
        good = sum(has_answer(client, 2) for client in free[3:7])
    finally:
        os.kill(stopped, signal.SIGCONT)
    return Outcome(
        good < 4, f"{good} of 4 requests for similar items to the other worker are answered"
    )


def large_headers(shop: Shop) -> Outcome:
    service = shop.ready()
    with socket.create_connection(("127.0.0.1", service.port), 20) as client:
        client.sendall(
            b"GET /health/live HTTP/1.1\r\nhost: 127.0.0.1\r\nx: " + b"y" * 60_000 + b"\r\n\r\n"
        )
        status = int(client.recv(1000).split()[1])
    return Outcome(status != 431, f"60 kB of headers in one piece: {status}")


def long_echo(shop: Shop) -> Outcome:
    status, body = shop.ready().ask("POST", "/v1/similar", {"item_id": "x" * 900_000})
    return Outcome(len(body) > 2000, f"{status} with {len(body):,} bytes")


# -- processes -------------------------------------------------------------------------------------


def killed_parent(shop: Shop) -> Outcome:
    service = shop.ready("--workers", "2")
    pids = service.workers()
    service.process.kill()
    seconds = within(lambda: not any(map(is_running, pids)), 15)
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return Outcome(
        not seconds, f"workers end after {seconds:.1f} s" if seconds else "workers serve on"
    )


def signal_while_compiling(shop: Shop) -> Outcome:
    """SIGTERM arrives during the first start, which compiles kernels for half a minute."""
    service = shop.serve(NUMBA_CACHE_DIR=str(shop.folder / "kernels"))
    time.sleep(6)
    service.process.terminate()
    seconds = within(lambda: service.process.poll() is not None, 60)
    slow = seconds > 5 or not seconds
    return Outcome(
        slow, f"ends {seconds:.1f} s after SIGTERM" if seconds else "does not end in 60 s"
    )


ATTACKS: dict[str, Attack] = {
    "files": ("a model copied file by file, manifest first", copied_file_by_file),
    "cp": ("the live files cut short, as `cp` does", copied_over_the_live_one),
    "start": ("a model that loads and cannot answer, at the start", cannot_answer),
    "unread": (
        f"{CLIENTS} clients request the largest batch and read nothing",
        clients_that_do_not_read,
    ),
    "outside": ("hashes right, indices outside", leads_outside),
    "title": ("a title of 10 MB", long_title),
    "bomb": ("an item table that unpacks to 800 MB", parquet_bomb),
    "parent": ("the parent is killed", killed_parent),
    "reloads": ("three reloads wait for a worker that hangs", two_reloads),
    "compile": ("SIGTERM while kernels are compiled", signal_while_compiling),
    "headers": ("headers above the limit in one piece", large_headers),
    "echo": ("an id of 900 kB", long_echo),
}  # fmt: skip

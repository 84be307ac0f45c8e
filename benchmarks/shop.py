"""A simulated shop: a synthetic log is replayed to a service that learns from it.

    python benchmarks/shop.py                 # learning against frozen; a bad and a good candidate
    python benchmarks/shop.py --only candidates
    python benchmarks/shop.py --speed 1000             # as the clock goes, a thousand times as fast

*learning*: the service refits its model repeatedly (`--learn`); the initial model is a candidate
that serves nobody (`--share 0`). Both rank each event before it arrives, so the lines of the chart
are about the same events. *candidates*: `popular` against tempo, and tempo against `popular`: the
interval of the difference must have the right sign. Without `--speed`, a replay takes `--seconds`.

Written to `--out`: shop.html, with the chart. The exit code is 1 if a sign is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import talerec as tr
from talerec.reports import Series, line_chart, page
from talerec.store import Measurement, MeasurementStore

START = "import sys; from talerec.cli.main import main; sys.argv[0] = 'talerec'; main()"
TOKEN = "only-for-this-benchmark"
DAY = 86_400_000_000  # microseconds
PARTS = 16  # of a replay, in the chart
POSTED = 100  # events of one request, at most


class Service:
    """`talerec serve` with a store, in its own processes."""

    def __init__(self, model: Path, store: str, *options: str) -> None:
        living = ("--store", store, "--measure", "1", "--live-days", "100000", *options)
        command = [sys.executable, "-c", START, "serve", str(model), "--port", "0", *living]
        environment = {**os.environ, "TALEREC_TOKEN": TOKEN}
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        self.url = f"http://127.0.0.1:{said.split('://127.0.0.1:')[1].split('/')[0].split()[0]}"

    def ask(self, path: str, body: Any = None) -> Any:
        headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def until_measured(self, seconds: float) -> dict[str, Any]:
        """Return the statistics once every event is evaluated, or after a time limit."""
        end = time.monotonic() + seconds
        while True:
            stats = self.ask("/v1/stats")
            measured = stats["measured"]
            done = measured and not measured["behind"] and measured["at"] > self.sent + 1
            if done or time.monotonic() > end:
                return stats
            time.sleep(0.5)

    sent = 0.0  # when the last event was sent

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def replay(service: Service, rows: list[tuple[Any, Any, int]], seconds: float) -> float:
    """Send rows in order, spread over `seconds` as their times are; return events a second."""
    first, last = rows[0][2], rows[-1][2]
    begun, sent = time.monotonic(), 0
    while sent < len(rows):
        now = first + (time.monotonic() - begun) / seconds * (last - first)
        due = sent
        while due < len(rows) and due < sent + POSTED and rows[due][2] <= now:
            due += 1
        if due == sent:
            time.sleep(0.005)
            continue
        events = [
            {"user_id": user, "item_id": item, "timestamp": moment, "event_id": f"e{n}"}
            for n, (user, item, moment) in enumerate(rows[sent:due], sent)
        ]
        service.ask("/v1/events", {"events": events})
        sent = due
    service.sent = time.time()
    return len(rows) / (time.monotonic() - begun)


def in_time(log: tr.Log) -> tuple[list[tuple[Any, Any, int]], int]:
    """Return the rows of a log by time, with external ids."""
    user = np.repeat(np.arange(len(log.users)), np.diff(log.ptr))
    order = np.argsort(log.time, kind="stable")
    users, items = log.users.ids.to_list(), log.items.ids.to_list()
    where = zip(
        user[order].tolist(), log.item[order].tolist(), log.time[order].tolist(), strict=True
    )
    rows = [(users[u], items[i], t) for u, i, t in where]
    return rows, len(rows)


def seconds_of(rows: list[tuple[Any, Any, int]], arguments: argparse.Namespace) -> float:
    if arguments.speed is None:
        return float(arguments.seconds)
    return (rows[-1][2] - rows[0][2]) / 1e6 / float(arguments.speed)


def by_part(measured: list[Measurement], role: str, seqs: list[int]) -> list[float]:
    """Return HR@10 of a model (current or candidate) in each part of the events."""
    of_role = [row for row in measured if row.role == role]
    parts = []
    for low, high in pairwise(seqs):
        hits = [1 <= row.rank <= 10 for row in of_role if low <= row.seq < high]
        parts.append(float(np.mean(hits)) if hits else float("nan"))
    return parts


def learning(arguments: argparse.Namespace, folder: Path) -> tuple[bool, list[str]]:
    """Compare a service that refits its model with the initial model."""
    log = tr.synthetic_log(arguments.rows, seed=arguments.seed)
    rows, total = in_time(log)
    cut = int(total * 0.5)
    before = tr.time_split(log, rows[cut][2]).train
    model = tr.Tempo().fit(before).save(folder / "shop.tale", updatable=True)
    frozen = shutil.copytree(model, folder / "frozen.tale")
    store = f"sqlite:///{folder}/learning.db"
    options = ("--candidate", str(frozen), "--share", "0", "--learn", arguments.learn)
    service = Service(model, store, *options)
    try:
        live = rows[cut:]
        rate = replay(service, live, seconds_of(live, arguments))
        stats = service.until_measured(60)
    finally:
        service.stop()
    with MeasurementStore.open(store) as measurements:
        measured = measurements.read_since(0)
    seqs = np.linspace(1, len(live) + 1, PARTS + 1).astype(int).tolist()
    days = [(live[min(seq, len(live)) - 1][2] - live[0][2]) / DAY for seq in seqs[1:]]
    names = {"current": f"--learn {arguments.learn}", "candidate": "the model of the beginning"}
    series = [Series(name, days, by_part(measured, role, seqs)) for role, name in names.items()]
    chart = line_chart(
        series,
        title="HR@10 on the events as they arrive",
        x_label="days of the shop",
        y_label="HR@10",
    )
    difference = stats["measured"]["day"]["difference"]["HR@10"]
    versions = {row.version for row in measured if row.role == "current"}
    said = (
        f"{len(live):,} events at {rate:,.0f} a second, "
        f"{len(versions)} models served one after the other; "
        f"frozen less learning: {difference['difference']:+.4f} "
        f"({difference['interval'][0]:+.4f} to {difference['interval'][1]:+.4f}), "
        f"{stats['measured']['left_out']:,} events left out"
    )
    print("learning:", said)
    return difference["interval"][1] < 0, [page.figure(chart, said)]


def candidates(arguments: argparse.Namespace, folder: Path) -> tuple[bool, list[str]]:
    """Compare a bad candidate with a good model, and the reverse."""
    log = tr.synthetic_log(arguments.rows, seed=arguments.seed)
    rows, total = in_time(log)
    live = rows[int(total * 0.9) :]
    before = tr.time_split(log, live[0][2]).train
    paths = {
        name: tr.MODELS[name]().fit(before).save(folder / f"{name}.tale")
        for name in ("tempo", "popular")
    }
    good, said = True, []
    for current, candidate, sign in (("tempo", "popular", -1), ("popular", "tempo", 1)):
        store = f"sqlite:///{folder}/{current}.db"
        service = Service(
            paths[current], store, "--candidate", str(paths[candidate]), "--share", "0.2"
        )
        try:
            replay(service, live, min(20.0, seconds_of(live, arguments)))
            differences = service.until_measured(60)["measured"]["day"]["difference"]
        finally:
            service.stop()
        words = ", ".join(
            f"{name} {differences[name]['difference']:+.4f} "
            f"({differences[name]['interval'][0]:+.4f} to {differences[name]['interval'][1]:+.4f})"
            for name in ("HR@10", "MRR@10")
        )
        said.append(f"{candidate} less {current}: {words}; {differences['events']:,} events")
        print("candidate:", said[-1])
        good = good and all(
            sign * end > 0 for name in ("HR@10", "MRR@10") for end in differences[name]["interval"]
        )
    return good, [page.note(text) for text in said]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", choices=["learning", "candidates"])
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--learn", default="every=15s")
    parser.add_argument("--speed", type=float, help="times as fast as the log's own clock")
    parser.add_argument("--seconds", type=float, default=120.0, help="of a replay, without --speed")
    parser.add_argument("--out", type=Path, default=Path("shop.html"))
    arguments = parser.parse_args()
    parts, good = [], True
    for name, run in (("learning", learning), ("candidates", candidates)):
        if arguments.only in (None, name):
            with tempfile.TemporaryDirectory() as folder:
                right, shown = run(arguments, Path(folder))
            good = good and right
            parts.append(page.section(name.capitalize(), *shown))
    arguments.out.write_text(page.render_page("A simulated shop", parts))
    print(arguments.out, "right" if good else "WRONG")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

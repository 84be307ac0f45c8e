"""Requests a second, and how long they take, of `talerec serve` under load from another process (wrk).

    python benchmarks/serve.py                                 # 10,000 items
    python benchmarks/serve.py --artifact DIR/1000000.tale     # benchmarks/scale.py --keep DIR makes it
    python benchmarks/serve.py --servers uvicorn granian       # one application under two servers

A history of 20, the last rows of users of the log, k 10; two cores, shared with the load. In one run and
in turns of two seconds, of which the medians are shown: *ours*; *constant*, the same application (HTTP, routes,
limits, JSON in and out, metrics) with one ready-made answer in place of the model's; *nothing*,
`/health/live`. wrk comes from Debian's package.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

LENGTH, K, BODIES = 20, 10, 2000
CONSTANT = "TALEREC_BENCH_CONSTANT"  # workers are told by the environment
ARTIFACT = "TALEREC_BENCH_ARTIFACT"


def give_a_constant() -> None:
    """From now on every recommendation in this process is the same: the model's first answer."""
    from talerec.serve.service import Served

    answer, known = Served.recommend_all, []

    def constant(self: Served, asked: list[Any]) -> list[Any]:
        if not known:
            known.extend(answer(self, asked[:1]))
        return known * len(asked)

    Served.recommend_all = constant  # type: ignore[method-assign]


if os.environ.get(CONSTANT):
    give_a_constant()


def application() -> Any:
    """What granian serves: a worker's application with numbers of its own."""
    from talerec.serve.app import App
    from talerec.serve.settings import Settings

    return App(Settings(path=Path(os.environ[ARTIFACT])), Path(tempfile.mkdtemp()))


class Running:
    """A service in processes of its own, until the block ends."""

    def __init__(self, server: str, path: Path, workers: int, port: int, constant: bool) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.environment = {**os.environ, ARTIFACT: str(path), "TALEREC_THREADS": "1"}
        self.environment |= {CONSTANT: "1"} if constant else {}
        ours = [
            sys.executable,
            __file__,
            "--run",
            str(path),
            "--workers",
            str(workers),
            "--port",
            str(port),
        ]
        theirs = [
            sys.executable, "-m", "granian", "--interface", "asgi", "--factory", "--workers", str(workers),
            "--port", str(port), "--no-access-log", "--log-level", "error", "--loop", "uvloop", "serve:application",
        ]  # fmt: skip
        self.command = ours if server == "uvicorn" else theirs

    def __enter__(self) -> Running:
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(
            self.command,
            env=self.environment,
            cwd=Path(__file__).parent,
            stdout=quiet,
            stderr=quiet,
        )
        for _ in range(1200):
            try:
                urllib.request.urlopen(f"{self.url}/health/ready", timeout=5).close()
                time.sleep(1.5)  # the other workers
                return self
            except OSError:
                if self.process.poll() is not None:
                    raise
                time.sleep(0.1)
        self.__exit__()
        raise TimeoutError("the service did not become ready")

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def load(self, path: str, script: Path | None, given: argparse.Namespace) -> dict[str, float]:
        """Load, and the microseconds of processor time that a request took in the service."""
        before = self._spent()
        found = wrk(f"{self.url}{path}", script, given)
        spent = self._spent() - before
        return {**found, "cpu": 1e6 * spent / max(found["rate"] * given.seconds, 1)}

    def _spent(self) -> float:
        """Processor seconds of the service and its workers so far."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        stats = [
            Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1] for one in (pid, *children)
        ]
        ticks = sum(int(number) for stat in stats for number in stat.split()[11:13])
        return ticks / os.sysconf("SC_CLK_TCK")


def run_service(path: Path, workers: int, port: int) -> None:
    from talerec.serve import server
    from talerec.serve.settings import Settings

    server.run(Settings(path=path, workers=workers, port=port), print)


def wrk(url: str, script: Path | None, given: argparse.Namespace) -> dict[str, float]:
    """One run of the load; requests a second, milliseconds, and what went wrong."""
    command = ["wrk", "-t1", f"-c{given.connections}", f"-d{given.seconds}s", "--latency"]
    command += ["-s", str(script)] if script else []
    text = subprocess.run([*command, url], check=True, capture_output=True, text=True).stdout
    units = {"us": 1e-3, "ms": 1.0, "s": 1e3}

    def time_of(name: str) -> float:
        found = re.search(rf"{name}\s+([\d.]+)(us|ms|s)", text)
        return float(found[1]) * units[found[2]] if found else float("nan")

    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    bad = sum(int(n) for n in re.findall(r"Non-2xx or 3xx responses: (\d+)", text))
    bad += sum(map(int, re.findall(r"(?:connect|read|write|timeout) (\d+)", text)))
    return {
        "rate": float(rate[1]) if rate else 0.0,
        "p50": time_of("50%"),
        "p99": time_of("99%"),
        "bad": bad,
    }


def questions(path: Path, folder: Path) -> Path:
    """A script for wrk with histories as users of the log have them."""
    import numpy as np

    import talerec as tr

    model = tr.load(path)
    log, rng = model.fitted.log, np.random.default_rng(0)
    assert log is not None, "the artifact has to keep its histories"
    long = np.flatnonzero(np.diff(log.ptr) >= LENGTH)
    ends = log.ptr[rng.choice(long, BODIES) + 1]
    ids = model.item_ids
    with (folder / "bodies").open("w") as out:
        for end in ends.tolist():
            rows = [
                {"item_id": item} for item in ids.gather(log.item[end - LENGTH : end]).to_list()
            ]
            out.write(json.dumps({"history": rows, "k": K}) + "\n")
    script = folder / "ask.lua"
    script.write_text(
        f'local bodies = {{}}\nfor line in io.lines("{folder / "bodies"}") do bodies[#bodies + 1] = line end\n'
        'local turn, kind = 0, {["content-type"] = "application/json"}\n'
        "request = function()\n  turn = turn + 1\n"
        '  return wrk.format("POST", "/v1/recommend", kind, bodies[turn % #bodies + 1])\nend\n'
    )
    print(f"{len(ids):,} items, history of {LENGTH}, k {K}")
    return script


def small_artifact(folder: Path) -> Path:
    import talerec as tr

    log = tr.synthetic_log(200_000, items=12_000)
    return tr.TALE(solver="local").fit(log).save(folder / "small.tale")


def measure(path: Path, folder: Path, given: argparse.Namespace) -> None:
    script = questions(path, folder)
    print(f"{'':34} {'requests/s':>10} {'p50 ms':>8} {'p99 ms':>8} {'cpu us':>8} {'failed':>7}")
    for server in given.servers:
        for workers in given.workers:
            for _ in range(given.turns):
                turn(server, workers, path, script, given)


def turn(server: str, workers: int, path: Path, script: Path, given: argparse.Namespace) -> None:
    found: dict[str, list[dict[str, float]]] = {"ours": [], "constant": [], "nothing": []}
    ours = Running(server, path, workers, given.port, False)
    constant = Running(server, path, workers, given.port + 1, True)
    with ours, constant:
        ours.load("", script, argparse.Namespace(connections=4, seconds=1))  # warm
        for _ in range(given.slices):
            found["ours"] += [ours.load("", script, given)]
            found["constant"] += [constant.load("", script, given)]
            found["nothing"] += [ours.load("/health/live", None, given)]
    middle = {
        name: {key: statistics.median(one[key] for one in slices) for key in slices[0]}
        for name, slices in found.items()
    }
    for name, it in middle.items():
        label = f"{server}, {workers} workers: {name}"
        bad = sum(one["bad"] for one in found[name])
        print(
            f"{label:34} {it['rate']:10,.0f} {it['p50']:8.2f} {it['p99']:8.2f} {it['cpu']:8.0f} {bad:7.0f}"
        )
    rates = middle["constant"]["rate"] / middle["ours"]["rate"]
    cpu = middle["ours"]["cpu"] / middle["constant"]["cpu"]
    print(f"{'':34} constant / ours {rates:.2f} by rate, {cpu:.2f} by processor time", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--artifact", type=Path)
    parser.add_argument("--seconds", type=int, default=2, help="of one slice of load")
    parser.add_argument(
        "--slices", type=int, default=7, help="of each, in turns; medians are shown"
    )
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--workers", type=int, nargs="+", default=[2])
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--servers", nargs="+", default=["uvicorn"], choices=["uvicorn", "granian"])
    parser.add_argument("--port", type=int, default=8471)
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        run_service(given.run, given.workers[0], given.port)
        return
    if shutil.which("wrk") is None:
        sys.exit("needs wrk (apt-get install wrk)")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measure(given.artifact or small_artifact(folder), folder, given)


if __name__ == "__main__":
    main()

"""Requests a second, their duration, and processor time per request of `talerec serve`.

    python benchmarks/serve.py                               # 12,000 items; wrk makes the load
    python benchmarks/serve.py --artifact DIR/1000000.tale   # from scale.py --keep DIR
    python benchmarks/serve.py --servers uvicorn granian       # one application under two servers
    python benchmarks/serve.py --other CHECKOUT --turns 9      # this checkout against another

A request has a history of 20, the last rows of a user of the log, and k 10; two cores, shared with
the load. Without `--other`, medians of short slices in turns: *ours*; *constant*, the same
application (HTTP, routes, limits, JSON in and out, metrics) with one ready-made answer in place of
the model's; *nothing*, `/health/live`. wrk comes from Debian's package.

With `--other`, the processor time per request of this checkout divided by that of another one (a
folder with `src/`): in every turn both services are started afresh and get the same requests, a
fixed number, in short slices A B B A from this process; then the median of all turns with its 95 %
interval. Each checkout fits its own model unless there is `--artifact`; both must give identical
answers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from load import KEPT, http_requests, send

LENGTH, K, BODIES = 20, 10, 2000
CHECKOUT = Path(__file__).parents[1]
SLICE = 500  # requests to one of two checkouts before it is the other's turn
CONSTANT = "TALEREC_BENCH_CONSTANT"  # workers are told by the environment
ARTIFACT = "TALEREC_BENCH_ARTIFACT"


def give_a_constant() -> None:
    """From now on every recommendation in this process is the same: the model's first answer."""
    from talerec.serve.model import ServedModel

    answer, cached = ServedModel.recommend_all, []

    def constant(self: ServedModel, requests: list[Any]) -> list[Any]:
        if not cached:
            cached.extend(answer(self, requests[:1]))
        return cached * len(requests)

    ServedModel.recommend_all = constant  # type: ignore[method-assign]


if os.environ.get(CONSTANT):
    give_a_constant()


def application() -> Any:
    """What granian serves: a worker's application with numbers of its own."""
    from talerec.serve import Settings
    from talerec.serve.http import App

    return App(Settings(path=Path(os.environ[ARTIFACT])), Path(tempfile.mkdtemp()))


def environment_of(checkout: Path) -> dict[str, str]:
    """Return the environment in which Python imports the package of this checkout."""
    source = checkout.resolve() / "src"
    if not (source / "talerec").is_dir():
        sys.exit(f"{checkout} is not a checkout: there is no {source / 'talerec'}")
    return {**os.environ, "PYTHONPATH": str(source)}


class Running:
    """A service in its own processes, until the block ends."""

    def __init__(
        self,
        path: Path,
        workers: int,
        port: int,
        *,
        server: str = "uvicorn",
        constant: bool = False,
        checkout: Path = CHECKOUT,
    ) -> None:
        self.port, self.url = port, f"http://127.0.0.1:{port}"
        self.environment = {**environment_of(checkout), ARTIFACT: str(path), "TALEREC_THREADS": "1"}
        self.environment |= {CONSTANT: "1"} if constant else {}
        place = ["--workers", str(workers), "--port", str(port)]
        ours = [sys.executable, __file__, "--run", str(path), *place]
        theirs = [
            sys.executable, "-m", "granian", "--interface", "asgi", "--factory", *place,
            "--no-access-log", "--log-level", "error", "--loop", "uvloop", "serve:application",
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
        for _ in range(3000):
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

    def load(self, path: str, script: Path | None, args: argparse.Namespace) -> dict[str, float]:
        """Return the figures of a load, with processor microseconds per request."""
        before = self.processor_seconds()
        figures = wrk(f"{self.url}{path}", script, args)
        spent = self.processor_seconds() - before
        return {**figures, "cpu": 1e6 * spent / max(figures["rate"] * args.seconds, 1)}

    def processor_seconds(self) -> float:
        """Return user and system seconds of the service and its workers so far."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        stats = [
            Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1]
            for process_id in (pid, *children)
        ]
        ticks = sum(int(number) for stat in stats for number in stat.split()[11:13])
        return ticks / os.sysconf("SC_CLK_TCK")


def run_service(path: Path, workers: int, port: int) -> None:
    try:
        from talerec.serve import Settings
        from talerec.serve.process import supervisor as server
    except ImportError:  # a checkout of version 0.2
        from talerec.serve import server
        from talerec.serve.settings import Settings

    server.run(Settings(path=path, workers=workers, port=port), print)


def wrk(url: str, script: Path | None, args: argparse.Namespace) -> dict[str, float]:
    """Run wrk; return requests a second, milliseconds, and failures."""
    command = ["wrk", "-t1", f"-c{args.connections}", f"-d{args.seconds}s", "--latency"]
    command += ["-s", str(script)] if script else []
    text = subprocess.run([*command, url], check=True, capture_output=True, text=True).stdout
    units = {"us": 1e-3, "ms": 1.0, "s": 1e3}

    def time_of(name: str) -> float:
        match = re.search(rf"{name}\s+([\d.]+)(us|ms|s)", text)
        return float(match[1]) * units[match[2]] if match else float("nan")

    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    bad = sum(int(n) for n in re.findall(r"Non-2xx or 3xx responses: (\d+)", text))
    bad += sum(map(int, re.findall(r"(?:connect|read|write|timeout) (\d+)", text)))
    return {
        "rate": float(rate[1]) if rate else 0.0,
        "p50": time_of("50%"),
        "p99": time_of("99%"),
        "bad": bad,
    }


def write_bodies(path: Path, target: Path) -> None:
    """Write requests with the last rows of users of the training log, as JSON lines."""
    import numpy as np

    import talerec as tr

    model = tr.load(path)
    log, rng = model.fitted.log, np.random.default_rng(0)
    assert log is not None, "the artifact must have its histories"
    long = np.flatnonzero(np.diff(log.ptr) >= LENGTH)
    ends = log.ptr[rng.choice(long, BODIES) + 1]
    ids = model.item_ids
    with target.open("w") as out:
        for end in ends.tolist():
            items = ids.gather(log.item[end - LENGTH : end]).to_list()
            out.write(json.dumps({"history": [{"item_id": item} for item in items], "k": K}) + "\n")
    print(f"{len(ids):,} items, history of {LENGTH}, k {K}")


def wrk_script(folder: Path) -> Path:
    """Write a script for wrk that sends the bodies in turn."""
    script = folder / "ask.lua"
    script.write_text(
        f'local bodies = {{}}\nfor line in io.lines("{folder / "bodies"}") '
        "do bodies[#bodies + 1] = line end\n"
        'local turn, kind = 0, {["content-type"] = "application/json"}\n'
        "request = function()\n  turn = turn + 1\n"
        '  return wrk.format("POST", "/v1/recommend", kind, bodies[turn % #bodies + 1])\nend\n'
    )
    return script


def make_artifact(path: Path, model: str, items: int) -> None:
    import talerec as tr

    params = {"solver": "local"} if model in ("tale", "slist", "tempo") else {}
    log = tr.synthetic_log(max(200_000, 2 * items), items=items)
    tr.MODELS[model](**params).fit(log).save(path)


def measure(path: Path, folder: Path, args: argparse.Namespace) -> None:
    write_bodies(path, folder / "bodies")
    script = wrk_script(folder)
    print(f"{'':34} {'requests/s':>10} {'p50 ms':>8} {'p99 ms':>8} {'cpu us':>8} {'failed':>7}")
    for server in args.servers:
        for workers in args.workers:
            for _ in range(args.turns):
                turn(server, workers, path, script, args)


def turn(server: str, workers: int, path: Path, script: Path, args: argparse.Namespace) -> None:
    slices_by_name: dict[str, list[dict[str, float]]] = {"ours": [], "constant": [], "nothing": []}
    ours = Running(path, workers, args.port, server=server)
    constant = Running(path, workers, args.port + 1, server=server, constant=True)
    with ours, constant:
        ours.load("", script, argparse.Namespace(connections=4, seconds=1))  # warm
        for _ in range(args.slices):
            slices_by_name["ours"] += [ours.load("", script, args)]
            slices_by_name["constant"] += [constant.load("", script, args)]
            slices_by_name["nothing"] += [ours.load("/health/live", None, args)]
    middle = {
        name: {key: statistics.median(figures[key] for figures in slices) for key in slices[0]}
        for name, slices in slices_by_name.items()
    }
    for name, it in middle.items():
        label = f"{server}, {workers} workers: {name}"
        bad = sum(figures["bad"] for figures in slices_by_name[name])
        print(
            f"{label:34} {it['rate']:10,.0f} {it['p50']:8.2f} {it['p99']:8.2f} "
            f"{it['cpu']:8.0f} {bad:7.0f}"
        )
    rates = middle["constant"]["rate"] / middle["ours"]["rate"]
    cpu = middle["ours"]["cpu"] / middle["constant"]["cpu"]
    print(f"{'':34} constant / ours {rates:.2f} by rate, {cpu:.2f} by processor time", flush=True)


# -- two checkouts ---------------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def answers_of(service: Running, requests: list[bytes]) -> list[Any]:
    """Return the answers to requests over one connection, without version and random id."""
    answers = [json.loads(body) for body in asyncio.run(send(service.port, requests, 1))]
    ids = {"model", "recommendation_id"}
    return [{key: value for key, value in answer.items() if key not in ids} for answer in answers]


def median_interval(values: list[float]) -> tuple[float, float, float]:
    """Return the median and its 95 % interval (the extremes, if there are few values).

    That m values or fewer of n lie below the true median has the probability of m heads or fewer in
    n tosses.
    """
    ordered, n = sorted(values), len(values)
    tails = [2 * sum(math.comb(n, i) for i in range(m + 1)) / 2**n for m in range(n // 2)]
    outside = max(0, sum(tail <= 0.05 for tail in tails) - 1)  # values left out on each side
    return statistics.median(ordered), ordered[outside], ordered[n - 1 - outside]


def compare(folder: Path, args: argparse.Namespace) -> None:
    checkouts = {"ours": CHECKOUT, "other": args.other}
    paths = {name: args.artifact or folder / f"{name}.tale" for name in checkouts}
    for name, checkout in checkouts.items():
        if args.artifact is None:
            make = ["--make", str(paths[name]), "--model", args.model, "--items", str(args.items)]
            subprocess.run(
                [sys.executable, __file__, *make], env=environment_of(checkout), check=True
            )
    write = ["--bodies", str(folder / "bodies"), "--artifact", str(paths["ours"])]
    subprocess.run([sys.executable, __file__, *write], env=environment_of(CHECKOUT), check=True)
    requests = http_requests(folder / "bodies", args.requests)
    print(
        f"{args.turns} turns of {args.requests:,} requests to each, "
        f"{args.connections} connections, {args.workers[0]} workers"
    )
    print(f"{'turn':>4} {'ours, us':>9} {'other, us':>9} {'ratio':>7}")
    ratios = []
    for turn in range(args.turns):
        ours, other = compared_turn(turn, checkouts, paths, requests, args)
        ratios.append(ours / other)
        print(f"{turn + 1:4} {ours:9.1f} {other:9.1f} {ours / other:7.3f}", flush=True)
    middle, low, high = median_interval(ratios)
    print(
        f"processor time per request, ours / other: {middle:.3f} "
        f"(95 % interval {low:.3f} to {high:.3f})"
    )


def compared_turn(
    turn: int,
    checkouts: dict[str, Path],
    paths: dict[str, Path],
    requests: list[bytes],
    args: argparse.Namespace,
) -> tuple[float, float]:
    """Return microseconds per request of two freshly started services; the order alternates."""
    first, second = ("ours", "other") if turn % 2 == 0 else ("other", "ours")
    services = {
        name: Running(paths[name], args.workers[0], free_port(), checkout=checkouts[name])
        for name in (first, second)
    }
    with services[first], services[second]:
        answers = {name: answers_of(service, requests[:KEPT]) for name, service in services.items()}
        if answers["ours"] != answers["other"]:
            sys.exit("the two checkouts give different answers")
        for service in services.values():  # warm
            asyncio.run(send(service.port, requests[: 4 * SLICE], args.connections))
        before = {name: service.processor_seconds() for name, service in services.items()}
        for n, begin in enumerate(range(0, len(requests), SLICE)):
            for name in (first, second) if n % 2 == 0 else (second, first):
                some = requests[begin : begin + SLICE]
                asyncio.run(send(services[name].port, some, args.connections))
        spent = {name: services[name].processor_seconds() - before[name] for name in services}
    return 1e6 * spent["ours"] / len(requests), 1e6 * spent["other"] / len(requests)


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
    parser.add_argument("--model", default="tale", help="of which an artifact is made")
    parser.add_argument("--items", type=int, default=12_000, help="of that artifact")
    parser.add_argument("--other", type=Path, help="checkout to compare this one with")
    parser.add_argument(
        "--requests", type=int, default=8000, help="to each, in one turn, with --other"
    )
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--bodies", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        run_service(args.run, args.workers[0], args.port)
    elif args.make:
        make_artifact(args.make, args.model, args.items)
    elif args.bodies:
        write_bodies(args.artifact, args.bodies)
    else:
        with tempfile.TemporaryDirectory() as name:
            (measure_alone if args.other is None else compare)(Path(name), args)


def measure_alone(folder: Path, args: argparse.Namespace) -> None:
    if shutil.which("wrk") is None:
        sys.exit("needs wrk (apt-get install wrk)")
    path = args.artifact or folder / "small.tale"
    if args.artifact is None:
        make_artifact(path, args.model, args.items)
    measure(path, folder, args)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Install each extra alone from the wheel into an empty environment, and let it do its job.

    python tools/extras.py                          # every extra that users install
    python tools/extras.py tune serve               # some of them
    python tools/extras.py --wheel FILE --out DIR   # a wheel that is built; where to work

A first environment gets the wheel and what it requires. The commands that need an extra must refuse
in it, with one line, before they read anything. An environment of an extra sees these packages, and
those that pip installs for the extra, and no others. Exit status 1 if something does not work.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
READY_S = 300.0  # seconds that a service may take to start, also on a machine that stalls

#: Commands that need an extra, with inputs that do not exist: the extra is missed first.
REFUSED = {
    "spark": ("fit none.parquet -o m.tale --engine spark", "evaluate none.parquet --engine spark"),
    "tune": ("tune none.csv",),
    "rank": ("fit none.csv -o m.tale --model ranker", "evaluate none.csv --model ranker"),
    "content": ("fit none.csv -o m.tale --model content --items none.csv",),
    "serve": ("serve none.tale",),
    "torch": (
        "fit none.csv -o m.tale --model sasrec",
        "fit none.csv -o m.tale --model blend --set parts=tempo,sasrec",
        "evaluate none.csv --model tale --set solver=torch",
        "tune none.csv --model sasrec --grid paper",
    ),
    "databases": ("describe postgresql://ann@127.0.0.1:9/shop --query events",),
}


class Problem(Exception):
    """Something that an installed extra does not do; the text says what."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and a folder with log.csv in which commands run."""

    folder: Path
    work: Path

    @property
    def python(self) -> Path:
        """The interpreter of the environment."""
        windows = self.folder / "Scripts" / "python.exe"
        return windows if windows.exists() else self.folder / "bin" / "python"

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start the interpreter with arguments; `variables` are added to its environment."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "OTEL_"))}
        return subprocess.Popen(
            [str(self.python), *arguments], cwd=self.work, env={**inherited, **variables},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *arguments: str) -> str:
        """Return what a Python program prints; Problem with its errors if it fails."""
        process = self.start(*arguments)
        out, err = process.communicate()
        if process.returncode:
            raise Problem(f"{' '.join(arguments)} failed: {err.strip()[-2000:]}")
        return out

    def talerec(self, command: str) -> str:
        """Return what a command line of talerec prints; Problem if it fails."""
        return self.run("-m", "talerec", *shlex.split(command))


# -- environments ----------------------------------------------------------------------------------


def pip(*arguments: str, python: Path | None = None) -> None:
    """Run pip, for another interpreter if `python` is given; CalledProcessError if it fails."""
    where = [] if python is None else ["--python", str(python)]
    versions = {"PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    subprocess.run(
        [sys.executable, "-m", "pip", *where, *arguments, "--quiet"],
        env={**os.environ, **versions}, check=True, capture_output=True, text=True,
    )  # fmt: skip


def build_wheel(out: Path) -> Path:
    """Build the wheel of this tree into a folder, and return its path."""
    for old in out.glob("*.whl"):
        old.unlink()
    pip("wheel", "--no-deps", "--wheel-dir", str(out), str(ROOT))
    return next(out.glob("*.whl"))


def make_environment(out: Path, name: str, paths: list[Path]) -> Environment:
    """Make a virtual environment without packages that also imports from `paths`."""
    folder, work = out / "environments" / name, out / "work" / name
    subprocess.run(
        [sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], check=True
    )
    work.mkdir(parents=True, exist_ok=True)
    write_log(work / "log.csv")
    environment = Environment(folder, work)
    lines = "".join(f"{path}\n" for path in paths)
    (find_packages(environment) / "base.pth").write_text(lines, encoding="utf-8")
    return environment


def find_packages(environment: Environment) -> Path:
    """Return the folder that pip installs packages of an environment into."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(environment.run("-c", code).strip())


def write_log(path: Path, n_users: int = 60, n_items: int = 25) -> None:
    """Write a log of random users and items, a row a day, the same at every call."""
    draw = random.Random(7)
    lines = ["user_id,item_id,timestamp"]
    for user in range(n_users):
        days = range(19_000, 19_000 + draw.randrange(4, 9))
        lines += [f"{user},{draw.randrange(n_items)},{86_400 * day}" for day in days]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


# -- jobs ------------------------------------------------------------------------------------------


def expect(is_right: bool, problem: str) -> None:
    """Raise Problem unless something is right."""
    if not is_right:
        raise Problem(problem)


def check_refusals(base: Environment, extras: list[str]) -> None:
    """Raise Problem unless commands without their extra end with one line that names it."""
    for extra in extras:
        for command in REFUSED.get(extra, ()):
            process = base.start("-m", "talerec", *command.split())
            out, err = process.communicate()
            is_named = f"pip install 'talerec[{extra}]'" in err and err.count("\n") == 1
            says = f"{process.returncode}, {(out + err).strip()[-2000:]!r}"
            expect(process.returncode == 2 and is_named, f"talerec {command} ends with {says}")


def use_tune(environment: Environment) -> None:
    """Search for a parameter."""
    result = json.loads(environment.talerec("tune log.csv --model markov --trials 2 --json"))
    expect(len(result["trials"]) == 2, f"a search of 2 trials has {len(result['trials'])}")


def use_content(environment: Environment) -> None:
    """Fit a model of what an item table says, and recommend an item that the log does not have."""
    lines = [f"{item},{'red' if item % 2 else 'blue'},number {item % 5}" for item in range(30)]
    table = environment.work / "items.csv"
    table.write_text("\n".join(["item_id,color,title", *lines]) + "\n", encoding="utf-8")
    environment.talerec("fit log.csv -o content.tale --model content --items items.csv")
    shown = environment.talerec("recommend content.tale --users 5 -k 3 --allow 25,26,27 --json")
    expect(len(json.loads(shown)[0]["items"]) == 3, "new items are not recommended")


def use_serve(environment: Environment) -> None:
    """Serve a model and ask it for a list."""
    with serving(environment) as ask:
        ask()


def use_trace(environment: Environment) -> None:
    """Serve a model, ask it, and receive the trace of the request."""
    paths: list[str] = []
    is_sent = threading.Event()

    class Collector(BaseHTTPRequestHandler):
        """Notes the path of each POST request, and accepts it."""

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(200)
            self.end_headers()
            paths.append(self.path)
            is_sent.set()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        }
        with serving(environment, **variables) as ask:
            ask()
            is_sent.wait(READY_S)
        server.shutdown()
    expect("/v1/traces" in paths, f"no trace was sent: {paths}")


@contextmanager
def serving(environment: Environment, **variables: str) -> Iterator[Callable[[], None]]:
    """Serve a model; yield a function that asks for a list. The service ends with the block."""
    environment.talerec("fit log.csv -o shop.tale --model popular")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = ["-m", "talerec", "serve", "shop.tale", "--port", str(port)]
    process = environment.start(*command, **variables)

    def ask() -> None:
        """Request a list of 3 items; Problem if it has another number of items."""
        body = json.dumps({"history": [{"item_id": 1}], "k": 3}).encode()
        headers = {"content-type": "application/json"}
        with urllib.request.urlopen(
            urllib.request.Request(f"{address}/v1/recommend", body, headers), timeout=30
        ) as response:
            items = json.load(response)["items"]
        expect(len(items) == 3, f"a list of 3 items has {len(items)}")

    try:
        _wait_until_ready(process, f"{address}/health/ready")
        yield ask
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=READY_S)


def _wait_until_ready(process: subprocess.Popen[Any], address: str) -> None:
    """Wait until an address answers; Problem if the process ends first or takes too long."""
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise Problem(f"the service ended: {process.communicate()[1].strip()[-2000:]}")
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise Problem(f"the service was not ready after {READY_S:.0f} s")


def use_databases(environment: Environment) -> None:
    """Read a log from DuckDB, and find the driver of PostgreSQL with its own client library."""
    code = (
        "import duckdb; duckdb.connect('shop.duckdb').execute("
        "\"create table events as select * from read_csv('log.csv')\")"
    )
    environment.run("-c", code)
    command = "describe duckdb:///shop.duckdb --query 'select * from events' --json"
    described = json.loads(environment.talerec(command))
    expect(described["users"] == 60, f"the log in DuckDB has {described['users']} users, not 60")
    driver = environment.run("-c", "import psycopg; print(psycopg.pq.__impl__)").strip()
    expect(driver == "binary", f"psycopg uses its {driver} implementation")


def use_torch(environment: Environment) -> None:
    """Train a network, ask it, and solve TALE's equations with torch."""
    small = "--set epochs=1 --set dim=8 --set layers=1"
    environment.talerec(f"fit log.csv -o net.tale --model sasrec {small}")
    lists = json.loads(environment.talerec("recommend net.tale --users 5 -k 3 --json"))
    expect(bool(lists), "the network recommends nothing")
    result = environment.talerec("evaluate log.csv --model tale --set solver=torch --json")
    expect(json.loads(result)["solver"] == "torch", "TALE was not solved with torch")


def use_spark(environment: Environment) -> None:
    """Fit a model on Spark, evaluate it there, and write lists."""
    code = "import polars as pl; pl.read_csv('log.csv').write_parquet('log.parquet')"
    environment.run("-c", code)
    spark = "--engine spark --master local[2]"
    environment.talerec(f"fit log.parquet -o spark.tale --model tale {spark}")
    environment.talerec("verify spark.tale")
    by_time = "--split at:2022-01-12"  # the fifth day of the log
    result = environment.talerec(f"evaluate log.parquet --model tale {by_time} {spark} --json")
    expect(json.loads(result)["cases"] > 0, "the evaluation on Spark has no cases")
    environment.talerec(f"lists spark.tale log.parquet -o lists -k 3 {spark}")
    expect(any((environment.work / "lists").glob("*.parquet")), "Spark wrote no lists")


def use_rank(environment: Environment) -> None:
    """Fit a ranker, which learns trees, and ask it."""
    environment.talerec("fit log.csv -o rank.tale --model ranker --set parts=markov,ease")
    lists = json.loads(environment.talerec("recommend rank.tale --users 5 -k 3 --json"))
    expect(bool(lists), "the ranker recommends nothing")
    environment.talerec("verify rank.tale")


#: What each extra that users install is for. Others (dev, docs, browser ...) are of this project.
JOBS: dict[str, Callable[[Environment], None]] = {
    "tune": use_tune,
    "content": use_content,
    "serve": use_serve,
    "trace": use_trace,
    "databases": use_databases,
    "rank": use_rank,
    "torch": use_torch,
    "spark": use_spark,
}


def try_extras(extras: list[str], out: Path, wheel: Path | None = None) -> list[str]:
    """Install extras, each alone, and let each do its job; return what does not work.

    out: a folder for the environments, which are made anew. wheel: of this tree if None. If pip
    cannot install even the wheel and what it requires, that is a subprocess.CalledProcessError.
    """
    out.mkdir(parents=True, exist_ok=True)
    wheel = build_wheel(out / "dist") if wheel is None else wheel
    version = wheel.name.split("-")[1]
    base = make_environment(out, "base", [])
    pip("install", "--no-compile", str(wheel), python=base.python)
    problems = list(_run_job("without extras", lambda: check_refusals(base, extras)))
    for extra in extras:
        environment = make_environment(out, extra, [find_packages(base)])
        problems += _run_job(f"talerec[{extra}]", partial(_try_extra, extra, version, environment))
    return problems


def _try_extra(extra: str, version: str, environment: Environment) -> None:
    """Install an extra of the version into an environment, and let it do its job."""
    try:
        pip("install", "--no-compile", f"talerec[{extra}]=={version}", python=environment.python)
    except subprocess.CalledProcessError as error:
        raise Problem(f"it cannot be installed: {error.stderr.strip()[-2000:]}") from None
    JOBS[extra](environment)


def _run_job(name: str, job: Callable[[], None]) -> Iterator[str]:
    """Run a job, print how long it takes, and yield the problem it ends with, if any."""
    begun = time.monotonic()
    try:
        job()
    except (Problem, OSError, LookupError, ValueError) as error:
        yield f"{name}: {error}"
    print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)


def main() -> None:
    """Try the extras that the arguments name; print the problems, and exit with 1 if any."""
    summary, _, details = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help="of " + ", ".join(JOBS))
    parser.add_argument("--wheel", type=Path, help="the wheel (default: built from this tree)")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "extras", help="a folder")
    options = parser.parse_args()
    if unknown := set(options.extras) - set(JOBS):
        parser.error(f"no extra {', '.join(sorted(unknown))}: there are {', '.join(JOBS)}")
    problems = try_extras(options.extras or list(JOBS), options.out.resolve(), options.wheel)
    for problem in problems:
        print(f"extras: {problem}", file=sys.stderr)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()

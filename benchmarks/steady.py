"""A service under load while its model is replaced, while it stops, and for a long time.

    python benchmarks/steady.py             # ten replacements in five ways, a damaged one, SIGTERM
    python benchmarks/steady.py --soak 600  # and ten minutes of load: memory has to stay flat

The ways: `save` in place (as `fit` does), `talerec install`, a symbolic link to another folder, a
slow copy file by file with the manifest first, and a copy over the live files, which truncates them
first. Printed for each: the seconds from the completion of the new artifact until every worker
serves it.

Every answer must be identical to the library's for the model version that it names, ids and scores
alike. *failed*: no answer, or a status other than 200. *mixed*: not the answer of the model that it
names. *dropped*: the request was sent, but its answer did not arrive completely. The exit code is 1
if any of them is above 0.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import talerec as tr

TOKEN = "only-for-this-benchmark"
BODIES, LENGTH, K = 40, 20, 10
START = "import sys; from talerec.cli.main import main; sys.argv[0] = 'talerec'; main()"


class Service:
    """`talerec serve` in its own processes."""

    def __init__(self, path: Path, *options: str) -> None:
        command = [sys.executable, "-c", START, "serve", str(path), "--port", "0", *options]
        environment = {**os.environ, "TALEREC_TOKEN": TOKEN}
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        self.port = int(said.split("://127.0.0.1:")[1].split("/")[0])
        self._wait()

    def _wait(self) -> None:
        for _ in range(1200):
            try:
                self.ask("/health/ready")
                return
            except OSError:
                if self.process.poll() is not None:
                    raise
                time.sleep(0.1)
        raise TimeoutError("the service did not become ready")

    def ask(self, path: str, method: str = "GET") -> bytes:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        url = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read()

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        lines = self.ask("/metrics").decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


class Load:
    """Connections that send one request after the other, and check every answer."""

    def __init__(self, port: int, bodies: list[bytes], expected: dict[str, list[Any]]) -> None:
        self.port, self.bodies, self.expected = port, bodies, expected
        self.count: Counter[str] = Counter()
        self.versions: Counter[str] = Counter()
        self.going, self.ending = True, False
        self.examples: list[str] = []

    async def run(self, connections: int) -> None:
        await asyncio.gather(*(self._connection(n) for n in range(connections)))

    async def _connection(self, number: int) -> None:
        turn = number
        while self.going:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                if self.ending:
                    return
                self._note("failed", "could not connect")
                await asyncio.sleep(0.05)
                continue
            try:
                while self.going:
                    turn += 1
                    if not await self._one(reader, writer, turn % len(self.bodies)):
                        break
            finally:
                writer.close()

    async def _one(self, reader: Any, writer: Any, which: int) -> bool:
        """Send one request; return whether the connection stays open."""
        body = self.bodies[which]
        head = (
            f"POST /v1/recommend HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {TOKEN}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        try:
            writer.write(head.encode() + body)
            said = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            size = int(said.split("content-length: ")[1].split("\r\n")[0])
            answer = await reader.readexactly(size)
        except (OSError, asyncio.IncompleteReadError) as error:
            self._note("dropped", f"{type(error).__name__} (ending: {self.ending})")
            return False
        self._check_answer(said, answer, which)
        return "connection: close" not in said

    def _check_answer(self, head: str, answer: bytes, which: int) -> None:
        if " 200 " not in head.split("\r\n")[0]:
            self._note("failed", answer.decode()[:200])
            return
        response = json.loads(answer)
        ranked = [[item["item_id"], item["score"]] for item in response["items"]]
        self.versions[response["model"]] += 1
        right = ranked == self.expected.get(response["model"], [None] * len(self.bodies))[which]
        self._note("answered" if right else "mixed", f"{response['model']} {ranked[:2]}")

    def _note(self, kind: str, what: str) -> None:
        self.count[kind] += 1
        if kind != "answered" and self.count[kind] <= 3:
            self.examples.append(f"{kind}: {what}")


def make(folder: Path, rows: int, items: int) -> tuple[list[bytes], dict[str, Any]]:
    """Return two models of one shop, requests, and the library's answers by model version."""
    log = tr.synthetic_log(rows, items=items, titles=False)
    models: list[tr.Model] = [tr.TALE(solver="local", reg=reg).fit(log) for reg in (50, 100)]
    rng, ids = np.random.default_rng(0), models[0].item_ids.to_list()
    starts = rng.integers(0, log.rows - LENGTH, BODIES).tolist()
    histories = [[ids[i] for i in log.item[a : a + LENGTH]] for a in starts]
    bodies = [
        json.dumps({"history": [{"item_id": item} for item in rows], "k": K}).encode()
        for rows in histories
    ]
    expected = {}
    for number, model in enumerate(models):
        path = model.save(folder / f"{number}.tale")
        frame = model.recommend_histories(histories, k=K)
        expected[version_of(path)] = [
            [list(row) for row in part.select("item_id", "score").rows()]
            for part in frame.partition_by("history", maintain_order=True)
        ]
    return bodies, expected


def version_of(path: Path) -> str:
    return str(json.loads((path / "manifest.json").read_text())["version"])


def damaged(folder: Path, target: Path) -> None:
    """Put a damaged model in place: its manifest is intact, one byte of its weights is wrong."""
    broken = folder / "broken.tale"
    shutil.copytree(folder / "0.tale", broken)
    if version_of(broken) == version_of(target):
        shutil.rmtree(broken)
        shutil.copytree(folder / "1.tale", broken)
    manifest = json.loads((broken / "manifest.json").read_text())
    file = broken / manifest["files"]["data"]["file"]
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    for name in os.listdir(broken):
        if name.endswith((".npy", ".parquet")):
            shutil.copy(broken / name, target / f"{name}.copied")
            os.replace(target / f"{name}.copied", target / name)
    shutil.copy(broken / "manifest.json", target / "manifest.json.copied")
    os.replace(target / "manifest.json.copied", target / "manifest.json")


def by_saving(new: Path, target: Path) -> None:
    """Save in place, as `talerec fit` does, with the manifest last."""
    tr.load(new).save(target)


def by_installing(new: Path, target: Path) -> None:
    subprocess.run([sys.executable, "-c", START, "install", str(new), str(target)], check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip


def by_linking(new: Path, target: Path) -> None:
    """Point the symbolic link that names the artifact to another folder, in one step."""
    place = target.with_name(f"deployed-{time.monotonic_ns()}.tale")
    shutil.copytree(new, place)
    unfinished = target.with_name("link.new")
    unfinished.symlink_to(place)
    os.replace(unfinished, target)


def by_copying_files(new: Path, target: Path) -> None:
    """Copy the manifest first, and one file slowly."""
    for file in sorted(new.iterdir(), key=lambda file: file.name != "manifest.json"):
        time.sleep(0.15)
        content = file.read_bytes()
        with (target / file.name).open("wb") as out:
            out.write(content[: len(content) // 2])
            out.flush()
            time.sleep(0.15)
            out.write(content[len(content) // 2 :])


def by_copying_over(new: Path, target: Path) -> None:
    """Copy as `cp -r new/. target/`: truncates files that workers may have mapped."""
    subprocess.run(["cp", "-r", f"{new}/.", str(target)], check=True)


WAYS = {
    "fit in place": by_saving,
    "install": by_installing,
    "symbolic link": by_linking,
    "copy file by file": by_copying_files,
    "cp over the live one": by_copying_over,
}


async def reloads(args: Any, service: Service, folder: Path) -> bool:
    """Replace the model in different ways; return whether every worker followed in time."""
    target, served, slowest = folder / "served.tale", 0, 0.0
    for turn in range(args.reloads):
        if turn == args.reloads // 2:
            refused = service.metric("talerec_reloads_refused_total")
            await asyncio.to_thread(damaged, folder, target)
            await _until(service, "talerec_reloads_refused_total", refused + 1, args)
            print("a damaged model: damaged, refused", flush=True)
        served = 1 - served
        way, replace = list(WAYS.items())[turn % len(WAYS)]
        new = folder / f"{served}.tale"
        await asyncio.to_thread(replace, new, target)
        whole = time.monotonic()
        name = f'talerec_model_workers{{version="{version_of(new)}"}}'
        await _until(service, name, args.workers, args)
        seconds = time.monotonic() - whole
        slowest = max(slowest, seconds)
        print(f"{way}: {args.workers} workers moved {seconds:.1f} s after it was whole", flush=True)
        await asyncio.sleep(args.seconds / args.reloads)
    return slowest < args.within


async def _until(service: Service, name: str, value: float, args: Any) -> None:
    end = time.monotonic() + max(60.0, args.within)
    while time.monotonic() < end:
        if await asyncio.to_thread(service.metric, name) >= value:
            return
        await asyncio.sleep(0.1)
    raise TimeoutError("the workers did not move")


async def soak(args: Any, service: Service) -> bool:
    """Return whether the workers' memory grows by at most 5 % from first to second half."""
    seen = []
    end = time.monotonic() + args.soak
    while time.monotonic() < end:
        await asyncio.sleep(min(5.0, args.soak / 10))
        seen.append(await asyncio.to_thread(service.metric, "talerec_resident_bytes"))
    middle = len(seen) // 2
    first, second = np.mean(seen[1:middle]), np.mean(seen[middle:])
    print(f"soak of {args.soak:.0f} s: {first / 1e6:.1f} MB, then {second / 1e6:.1f} MB")
    return bool(second <= 1.05 * first)


async def measure(args: Any, folder: Path) -> int:
    bodies, expected = make(folder, args.rows, args.items)
    by_linking(folder / "0.tale", folder / "served.tale")
    service = Service(folder / "served.tale", "--workers", str(args.workers), "--watch", "0.5")
    load = Load(service.port, bodies, expected)
    running = asyncio.create_task(load.run(args.connections))
    flat = prompt = True
    try:
        prompt = await reloads(args, service, folder)
        if args.soak:
            flat = await soak(args, service)
        load.ending = True
        stopped = time.monotonic()
        code = await asyncio.to_thread(service.stop)
        print(f"SIGTERM: ended with {code} after {time.monotonic() - stopped:.1f} s")
        await asyncio.wait_for(running, 30)
    finally:
        load.going = False
        service.stop()
    print(f"answers by version: {dict(load.versions)}")
    kinds = ("answered", "failed", "mixed", "dropped")
    print(", ".join(f"{load.count[kind]:,} {kind}" for kind in kinds))
    for example in load.examples:
        print(f"  {example}")
    bad = sum(load.count[kind] for kind in kinds[1:])
    return int(bool(bad) or code != 0 or not flat or not prompt or len(load.versions) < 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reloads", type=int, default=10)
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="that the reloads are spread over"
    )
    parser.add_argument(
        "--within", type=float, default=10.0, help="seconds in which every worker has to follow"
    )
    parser.add_argument("--soak", type=float, default=0.0, help="seconds of load after the reloads")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--items", type=int, default=12_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(asyncio.run(measure(args, Path(folder))))


if __name__ == "__main__":
    main()

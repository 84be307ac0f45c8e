"""Attacks by files: updates at once, artifacts that name code, FIFOs where files are expected."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import talerec as tr
from attacked import PATIENCE, START, Attack, Outcome, Shop, within
from talerec.artifact.integrity import manifest_version

ROUNDS = 3  # of two updates at once
COMPILING = 300  # seconds that an update may take where no kernel is compiled yet

#: `talerec update` that waits before it saves, 3 s at most, until the other update has got there.
MEETING = """
import sys, time
from pathlib import Path
from talerec.cli.main import main
from talerec.models.core import Model

here, there, save = Path(sys.argv[1]), Path(sys.argv[2]), Model.save

def save_later(*args, **named):
    here.touch()
    end = time.monotonic() + 3
    while not there.exists() and time.monotonic() < end:
        time.sleep(0.01)
    return save(*args, **named)

Model.save = save_later
sys.argv = ["talerec", *sys.argv[3:]]
main()
"""


def start(shop: Shop, code: str, *args: object) -> subprocess.Popen[str]:
    """Start Python code with the checkout's package, in the shop's folder."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        cwd=shop.folder, env={**os.environ, "PYTHONPATH": str(shop.checkout / "src")},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> str:
    """Wait until a process ends, kernels compiled first, and return its standard error."""
    try:
        return process.communicate(timeout=COMPILING)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        raise


def run(shop: Shop, *args: object) -> tuple[int | None, str, float]:
    """Return exit code (None: it hangs and was killed), last line and seconds of a command."""
    began = time.monotonic()
    process = start(shop, START, *args)
    try:
        _, errors = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None, "", time.monotonic() - began
    return process.returncode, (errors.splitlines() or [""])[-1], time.monotonic() - began


# -- updates ---------------------------------------------------------------------------------------


def updatable_shop(shop: Shop) -> list[Path]:
    """Save a model that can be updated to `shop.path`; return two files of later rows."""
    frame = tr.synthetic_log(3000, users=300, items=150, seed=3).to_frame().sort("timestamp")
    shop.path = tr.TALE(solver="local").fit(frame.head(2800)).save(
        shop.folder / "updatable.tale", updatable=True
    )  # fmt: skip
    files = [shop.folder / "a.csv", shop.folder / "b.csv"]
    for number, file in enumerate(files):
        frame.slice(2800 + 100 * number, 100).write_csv(file)
    return files


def updates_at_once(shop: Shop) -> Outcome:
    """Two updates save at the same time; rows of one that ends with 0 must be in the model."""
    files = updatable_shop(shop)
    original, rows = shop.path, tr.load(shop.path).fitted.training["rows"]
    lost, refused = 0, 0
    for number in range(ROUNDS):
        path = shutil.copytree(original, shop.folder / f"{number}.tale")
        marks = [shop.folder / f"{number}-{name}" for name in "ab"]
        both = [
            start(shop, MEETING, here, there, "update", path, file)
            for (here, there), file in zip((marks, marks[::-1]), files, strict=True)
        ]
        for process in both:
            finish(process)
        succeeded = sum(process.returncode == 0 for process in both)
        refused += 2 - succeeded
        lost += rows + 100 * succeeded - tr.load(path, verify=True).fitted.training["rows"]
    return Outcome(lost > 0, f"{lost} of {200 * ROUNDS} rows lost, {refused} updates refused")


def installed_during_an_update(shop: Shop) -> Outcome:
    """Another model is installed while an update computes: it must not be undone silently."""
    file, _ = updatable_shop(shop)
    here, there = shop.folder / "here", shop.folder / "there"
    process = start(shop, MEETING, here, there, "update", shop.path, file)
    if not within(here.exists, COMPILING):
        process.kill()
        return Outcome(True, "the update did not come to saving")
    run(shop, "install", shop.new, shop.path)
    there.touch()
    errors = finish(process)
    stays = manifest(shop.path)["version"] == manifest(shop.new)["version"]
    code = process.returncode
    if stays and code:
        message = errors.splitlines()[-1].partition(".tale ")[2]
        return Outcome(False, f"the update ends with {code}: {message}")
    return Outcome(True, f"the update ends with {code}, the installed model is gone")


# -- code ------------------------------------------------------------------------------------------


def manifest(path: Path) -> dict[str, object]:
    facts: dict[str, object] = json.loads((path / "manifest.json").read_text())
    return facts


def name_code(path: Path) -> None:
    """Let the manifest name a class of a module in the current directory, with a valid hash."""
    facts = manifest(path) | {"model": "evil:Kind"}
    facts["version"] = manifest_version(facts)
    (path / "manifest.json").write_text(json.dumps(facts))


def artifact_names_code(shop: Shop) -> Outcome:
    trace = shop.folder / "trace"
    (shop.folder / "evil.py").write_text(f"open({str(trace)!r}, 'a').write('x')\nclass Kind: ...")
    with chdir(shop.folder):
        service = shop.ready("--watch", "0.5")  # keeps the model that it has
        name_code(shop.path)
        for command in (("verify", shop.path), ("similar", shop.path, "3")):
            run(shop, *command)
        service.ask("POST", "/v1/reload")
    answers = bool(service.recommend())
    n_imports = len(trace.read_text()) if trace.exists() else 0
    what = f"its module is imported {n_imports} times" if n_imports else "refused"
    return Outcome(bool(n_imports) or not answers, what + (", serves on" if answers else ""))


# -- FIFOs -----------------------------------------------------------------------------------------


def fifo_starts(shop: Shop) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Yield a name and a command, each time after a FIFO was put where a file is expected."""
    (file, _), original = updatable_shop(shop), shop.path
    for name, command in (
        (".talerec.lock", ("update", "{}", file)),
        (".talerec.update.lock", ("update", "{}", file)),
        ("manifest.json", ("verify", "{}")),
    ):
        path = shutil.copytree(original, shop.folder / f"fifo-{name}.tale")
        (path / name).unlink(missing_ok=True)
        os.mkfifo(path / name)
        yield name, tuple(path if part == "{}" else part for part in command)


def fifo_as_a_lock_file(shop: Shop) -> Outcome:
    hanging, seconds = [], []
    for name, command in fifo_starts(shop):
        code, _, took = run(shop, *command)
        seconds.append(took)
        hanging += [name] * (code is None)
    folder = shop.folder / "copies" / "talerec-x"  # as another user could make it in /tmp
    folder.mkdir(parents=True)
    os.mkfifo(folder / "owner")
    service = shop.serve("--copies", str(shop.folder / "copies"))
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.append(service.process.stdout.readline()))
    reader.daemon = True
    reader.start()
    reader.join(PATIENCE)
    hanging += [] if any(lines) else ["owner (serve)"]
    if hanging:
        return Outcome(True, "hangs at " + ", ".join(hanging))
    return Outcome(False, f"refused within {max(seconds):.1f} s, Python's own start included")


ATTACKS: dict[str, Attack] = {
    "updates": (f"two updates at once, {ROUNDS} times", updates_at_once),
    "installed": ("a model is installed while an update computes", installed_during_an_update),
    "evil": ("an artifact that names a module in the current directory", artifact_names_code),
    "fifo": ("a FIFO where a lock file or manifest is expected", fifo_as_a_lock_file),
}

"""A ranker with networks among its parts, which are trained where a GPU is.

    python benchmarks/ranker_networks.py pack DATA PACK [--log ml-1m] [--networks sasrec hstu]
    python benchmarks/ranker_networks.py train PACK OUT [--minutes 6]  # needs NumPy and torch only
    python benchmarks/ranker_networks.py use DATA OUT [--networks sasrec hstu] [--model M] [--test]

`pack` writes the rows that parts of the ranker are fitted to (all training rows, and those without
the rows of current queries), and settings of networks, to the folder PACK. `train` trains all
networks at once, each in a process of its own, and saves each training to OUT as soon as it ends; a
training that the time limit ends is saved as it is. `use` fits the ranker of these trainings and
prints what its guard measured, which the order of parts may be chosen by; with --test, it prints
NDCG@10 of the ranker and of each part on the test rows, too. --model M saves the ranker to M, or
reads it where M exists. `pack --quick` packs tiny networks.
Networks are trained for as many epochs as early stopping chose before, inside the training rows
(docs/neural.md).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

_COMMON = {"dim": 128, "max_history": 200, "dropout": 0.2, "judges": 0}
_QUICK = {"dim": 16, "max_history": 20, "epochs": 3}
#: Networks by name, those worth most first: the model, and settings that are not its defaults.
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "sasrec": ("sasrec", {**_COMMON, "epochs": 40}),
    "hstu": ("hstu", {**_COMMON, "loss": "softmax", "layers": 2, "heads": 2, "epochs": 40}),
    "hstu3": ("hstu", {**_COMMON, "loss": "softmax", "layers": 3, "heads": 4, "epochs": 46}),
}
ROWS = ("all", "current")

_CONTROL = "nvidia-cuda-mps-control"
_PROBE = "import torch; x = torch.ones(512, 512, device='cuda'); assert (x @ x).sum() > 0"
_LEAST_EPOCHS = 3  # of a training that is saved
_SAVING = 5.0  # seconds kept free at the end


# -- here: rows out --------------------------------------------------------------------------------


def pack(folder: Path, packs: Path, log: str, networks: list[str], quick: bool) -> None:
    """Write the rows of each fit of a part, and a job for each network on them."""
    import talerec as tr
    from ranker import read_split

    packs.mkdir(parents=True, exist_ok=True)
    train = read_split(folder, log, "loo", "test").train
    logs = tr.Ranker().training_rows(train)
    jobs = []
    for name in ROWS:
        rows = logs[name]
        item = rows.item.astype(np.uint16 if len(rows.items) < 2**16 else np.int32)
        columns = {"ptr": rows.ptr.astype(np.int32), "item": item, "time": rows.time}
        np.savez_compressed(packs / f"{name}.npz", **columns, items=len(rows.items))
        size = (packs / f"{name}.npz").stat().st_size / 2**20
        print(f"{name}: {rows.rows:,} rows, {len(rows.items):,} items, {size:.1f} MiB")
    for network in networks:
        kind, changes = NETWORKS[network]
        params = tr.MODELS[kind](**{**changes, **(_QUICK if quick else {})}).params
        jobs += [{"name": f"{network}-{name}", "rows": name, "kind": kind, "params": params}
                 for name in ROWS]  # fmt: skip
    (packs / "jobs.json").write_text(json.dumps(jobs))


# -- there: rows in, networks out ------------------------------------------------------------------


def share_gpu() -> bool:
    """Start CUDA's multi-process service; return whether a process can use the GPU by it.

    Without it, processes take turns on the GPU, and small steps of several networks are slow.
    """
    if shutil.which(_CONTROL) is None:
        return False
    folder = tempfile.mkdtemp(prefix="mps")
    names = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
    os.environ.update(names)
    try:
        _run_control(["-d"], None)
        subprocess.run([sys.executable, "-c", _PROBE], timeout=45, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"no multi-process service: {error}", flush=True)
        stop_sharing()
        for name in names:
            del os.environ[name]
        return False
    return True


def stop_sharing() -> None:
    """Stop CUDA's multi-process service, if it runs."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        _run_control([], "quit -t 1\n")


def _run_control(arguments: list[str], text: str | None) -> None:
    """Run the service's control program; its output goes nowhere, as the service keeps it open."""
    source = {"input": text} if text else {"stdin": subprocess.DEVNULL}
    subprocess.run(
        [_CONTROL, *arguments], **source, text=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, timeout=10, check=True,
    )  # fmt: skip


def train_network(job: dict[str, Any], packs: str, out: str, end: float) -> None:
    """Train one network until `end` at the latest (seconds since 1970), and save it."""
    import torch

    from talerec.neural import NetSettings, Rows, checkpoints, devices, training

    torch.set_num_threads(1)
    devices.DETERMINISTIC = False
    name, packed = job["name"], np.load(f"{packs}/{job['rows']}.npz")
    rows = Rows(
        packed["ptr"].astype(np.int64), packed["item"].astype(np.int32),
        packed["time"].astype(np.int64), int(packed["items"]),
    )  # fmt: skip
    settings = NetSettings.of(job["kind"], job["params"])
    start = time.time()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "checkpoint.npz"
        trained = training.train(
            rows, settings, checkpoint=checkpoint, seconds=end - start, every=math.inf
        )
        if trained is None:  # the time is over: take the network as it is
            state, arrays = checkpoints.read(checkpoint)
            course = state["course"]
            if course["epoch"] < _LEAST_EPOCHS:
                print(f"{name}: only {course['epoch']} epochs", flush=True)
                return
            facts = {"kind": job["kind"], "params": settings.params(), "rows": rows.fingerprint()}
            ended = {"epochs": course["epoch"], "losses": course["losses"], "was_ended": True}
            version = {"version": training.VERSION, "device": str(settings.device)}
            net = {k.removeprefix("net|"): a for k, a in arrays.items() if k.startswith("net|")}
            trained = training.Training(
                {**facts, **ended, **version, "seconds": state["spent"]}, net
            )
    saved = trained.save(Path(out) / f"{name}.npz")
    losses = trained.facts["losses"]
    print(
        f"{name}: {trained.facts['epochs']} epochs, {trained.facts['seconds']:.0f} s, loss "
        f"{losses[0]:.3f} to {losses[-1]:.3f}, {saved.stat().st_size / 2**20:.1f} MiB, "
        f"{time.strftime('%H:%M:%S')}",
        flush=True,
    )


def train(packs: Path, out: Path, minutes: float) -> None:
    """Train all packed networks at once, each in a process of its own, until the time is over."""
    end = time.time() + 60 * minutes - _SAVING
    out.mkdir(parents=True, exist_ok=True)
    jobs = json.loads((packs / "jobs.json").read_text())
    import torch  # from a cold disk, which counts against no other time limit

    is_shared = share_gpu()
    print(f"torch {torch.__version__}, shared GPU: {is_shared}, {time.strftime('%H:%M:%S')}")
    sys.stdout.flush()
    if not is_shared:  # processes take turns: the two that are worth most
        jobs = [job for job in jobs if job["name"].split("-")[0] in list(NETWORKS)[:2]]
    context = multiprocessing.get_context("spawn")
    arguments = [(job, str(packs), str(out), end) for job in jobs]
    processes = [context.Process(target=train_network, args=each) for each in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(max(1.0, end + 2 * _SAVING - time.time()))
        if process.is_alive():
            process.kill()
    if is_shared:
        stop_sharing()


# -- here: the ranker ------------------------------------------------------------------------------


def use(folder: Path, out: Path, options: argparse.Namespace) -> None:
    """Fit the ranker of trainings; print its guard's verdicts, and with --test test figures."""
    import talerec as tr
    from ranker import LOGS, gains, read_split
    from talerec.models.ranker.parts import default_parts, name_parts

    split = read_split(folder, options.log, "loo", "test")
    names = [f"{network}-{rows}" for network in options.networks for rows in ROWS]
    trainings = [out / f"{name}.npz" for name in names]
    parts = options.parts.replace("LINEAR", default_parts(split.train))
    if options.model is not None and options.model.exists():
        model = tr.load(options.model)
    else:
        start = time.perf_counter()
        model = tr.Ranker.from_trainings(split.train, trainings, parts=parts)
        print(f"fitted in {time.perf_counter() - start:.0f} s, {model.fitted.seconds}", flush=True)
        if options.model is not None:
            model.save(options.model)
    print(model.parts)
    for line in model.describe_learned():
        print(line, flush=True)
    if not options.test:
        return
    hide_seen = not LOGS[options.log][2]
    mine = gains(tr.evaluate(model, split, hide_seen=hide_seen), hide_seen=hide_seen)
    print(f"seen {'hidden' if hide_seen else 'allowed'}: NDCG@10 of {len(mine):,} test rows")
    print(f"  ranker {mine.mean():.4f}", flush=True)
    models = model._state.first.parts
    for name, part in zip(name_parts(models), models, strict=True):
        theirs = gains(tr.evaluate(part, split, hide_seen=hide_seen), hide_seen=hide_seen)
        ahead, error = (mine - theirs).mean(), (mine - theirs).std() / math.sqrt(len(mine))
        print(
            f"  {name} {theirs.mean():.4f}; the ranker is {ahead:+.4f} ahead, "
            f"standard error {error:.4f} ({ahead / error:+.1f})",
            flush=True,
        )


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("pack")
    command.add_argument("data", type=Path)
    command.add_argument("packs", type=Path)
    command.add_argument("--log", default="ml-1m")
    command.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    command.add_argument("--quick", action="store_true")
    command = commands.add_parser("train")
    command.add_argument("packs", type=Path)
    command.add_argument("out", type=Path)
    command.add_argument("--minutes", type=float, default=6.0)
    command = commands.add_parser("use")
    command.add_argument("data", type=Path)
    command.add_argument("out", type=Path)
    command.add_argument("--log", default="ml-1m")
    command.add_argument("--networks", nargs="+", default=["sasrec", "hstu"])
    command.add_argument("--parts", default="LINEAR,sasrec,hstu", help="LINEAR: the default parts")
    command.add_argument("--model", type=Path, help="saved to this file, or read if it exists")
    command.add_argument("--test", action="store_true")
    options = parser.parse_args()
    if options.command == "pack":
        pack(options.data, options.packs, options.log, options.networks, options.quick)
    elif options.command == "train":
        train(options.packs, options.out, options.minutes)
    else:
        use(options.data, options.out, options)


if __name__ == "__main__":
    main()

"""Neural models: resuming a killed training, and a catalogue of a million items.

NumPy and torch suffice.

    python benchmarks/neural_scale.py resume PACKS LOG  # resumed or not; cost of determinism
    python benchmarks/neural_scale.py large             # 10 million rows, a million items

LOG is the name of a log that `benchmarks/neural.py pack` wrote to PACKS.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

_EPOCHS = 8


def settings_of(packs: Path | None, **changes: Any) -> Any:
    """Return SASRec's settings with changes; without the library, defaults of a pack."""
    from talerec.neural import NetSettings

    if packs is not None and (packs / "defaults.json").exists():
        params = json.loads((packs / "defaults.json").read_text())["sasrec"]
    else:
        from talerec.models import MODELS

        params = MODELS["sasrec"]().params
    return NetSettings.of("sasrec", {**params, "judges": 0, **changes})


def rows_of(packs: Path, log: str) -> Any:
    """A packed log's rows."""
    from talerec.neural import Rows

    packed = np.load(packs / f"{log}.npz")
    return Rows(packed["ptr"], packed["item"], packed["time"], int(packed["items"]))


# -- killed and resumed ----------------------------------------------------------------------------


def once(packs: Path, log: str, checkpoint: Path, out: Path) -> None:
    """Run a short training with a checkpoint after every epoch."""
    from talerec.neural import training

    settings = settings_of(packs, epochs=_EPOCHS)
    training.train(rows_of(packs, log), settings, checkpoint=checkpoint, every=0.0).save(out)


def resume(packs: Path, log: str) -> None:
    """Train twice, killing the second training after some epochs; compare what comes out."""
    from talerec.neural import read

    with tempfile.TemporaryDirectory() as folder:
        whole, broken = Path(folder, "whole.npz"), Path(folder, "broken.npz")
        checkpoint = Path(folder, "kept.npz")
        command = [sys.executable, __file__, "once", str(packs), log]
        subprocess.run([*command, f"{folder}/unused.npz", str(whole)], check=True)
        child = subprocess.Popen([*command, str(checkpoint), str(broken)])
        epoch = wait_for_epoch(checkpoint, 3, child)
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert not broken.exists()
        subprocess.run([*command, str(checkpoint), str(broken)], check=True)
        first, other = read(whole)[1], read(broken)[1]
        same = all(first[name].tobytes() == other[name].tobytes() for name in first)
    print(json.dumps({"killed_after_epoch": epoch, "of": _EPOCHS, "same_bits": same}), flush=True)
    print(json.dumps({"seconds_an_epoch": cost(packs, log)}), flush=True)


def wait_for_epoch(checkpoint: Path, epoch: int, child: subprocess.Popen[bytes]) -> int:
    """Wait until a checkpoint is of this epoch; the epoch it is of then."""
    from talerec.neural import read

    while child.poll() is None:
        if checkpoint.exists():
            done = read(checkpoint)[0]["course"]["epoch"]
            if done >= epoch:
                return int(done)
        time.sleep(0.05)
    raise SystemExit("the training ended before it could be killed")


def cost(packs: Path, log: str) -> dict[str, float]:
    """Return seconds of an epoch with and without deterministic operations, after warm-up."""
    from talerec.neural import devices, training

    seconds: dict[str, float] = {}
    training.train(rows_of(packs, log), settings_of(packs, epochs=1))  # wakes the device
    for exact in (True, False):
        devices.DETERMINISTIC = exact
        times = []
        for epochs in (2, 6):
            start = time.perf_counter()
            training.train(rows_of(packs, log), settings_of(packs, epochs=epochs))
            times.append(time.perf_counter() - start)
        seconds["deterministic" if exact else "otherwise"] = round((times[1] - times[0]) / 4, 3)
    return seconds


# -- a million items -------------------------------------------------------------------------------


def large_rows(rows: int, items: int, length: int = 20) -> Any:
    """Rows whose next item is drawn near the last one, or by popularity."""
    from talerec.neural import Rows

    rng = np.random.default_rng(0)
    users = rows // length
    popular = (items * rng.random(users * length) ** 3).astype(np.int32)
    item = popular.reshape(users, length)
    for at in range(1, length):
        near = (item[:, at - 1] + rng.integers(1, 20, users)) % items
        item[:, at] = np.where(rng.random(users) < 0.5, near, item[:, at])
    time_of = np.arange(users * length, dtype=np.int64) * 1_000_000
    return Rows(np.arange(users + 1) * length, item.reshape(-1), time_of, items)


def large(rows: int, items: int, which: str) -> None:
    """Train one epoch with a full softmax and one with a sampled softmax."""
    import torch

    from talerec.neural import training

    train_rows = large_rows(rows, items)
    ways: dict[str, dict[str, Any]] = {
        "sampled": {"loss": "sampled", "negatives": 4096},
        "softmax": {"loss": "softmax"},
    }
    for name, way in ways.items():
        if which not in (name, "both"):
            continue
        settings = settings_of(PACKS, epochs=1, batch=16_384, precision="bfloat16", **way)
        start = time.perf_counter()
        facts = training.train(train_rows, settings).facts
        result = {
            "loss": name,
            "rows": len(train_rows.item),
            "items": items,
            "device": facts["device"],
        }
        result |= {"seconds": round(time.perf_counter() - start, 1), "mean_loss": facts["losses"]}
        if torch.cuda.is_available():
            result["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
            torch.cuda.reset_peak_memory_stats()
        print(json.dumps(result), flush=True)


#: Where defaults are read on a machine without the library.
PACKS = Path(os.environ["PACKS"]) if "PACKS" in os.environ else None


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    todo = parser.add_subparsers(dest="what", required=True)
    for what in ("resume", "once"):
        command = todo.add_parser(what)
        command.add_argument("packs", type=Path)
        command.add_argument("log")
        if what == "once":
            command.add_argument("checkpoint", type=Path)
            command.add_argument("out", type=Path)
    command = todo.add_parser("large")
    command.add_argument("--rows", type=int, default=10_000_000)
    command.add_argument("--items", type=int, default=1_000_000)
    command.add_argument("--which", choices=("sampled", "softmax", "both"), default="both")
    args = vars(parser.parse_args())
    what = args.pop("what")
    {"resume": resume, "once": once, "large": large}[what](**args)


if __name__ == "__main__":
    main()

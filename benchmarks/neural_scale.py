"""Neural models: a training that is killed and goes on, and a catalogue of a million items. NumPy and torch suffice.

    python benchmarks/neural_scale.py resume PACKS LOG  # killed and resumed against not killed, and what determinism costs
    python benchmarks/neural_scale.py large             # one epoch of ten million rows and a million items

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
    """SASRec's settings, some of them changed; its defaults are read from a pack where the library is not."""
    from talerec.neural.settings import Settings

    if packs is not None and (packs / "defaults.json").exists():
        known = json.loads((packs / "defaults.json").read_text())["sasrec"]
    else:
        from talerec.models import MODELS

        known = MODELS["sasrec"]().params
    return Settings.of("sasrec", {**known, "judges": 0, **changes})


def rows_of(packs: Path, log: str) -> Any:
    """A packed log's rows."""
    from talerec.neural.settings import Rows

    kept = np.load(packs / f"{log}.npz")
    return Rows(kept["ptr"], kept["item"], kept["time"], int(kept["items"]))


# -- killed and resumed ----------------------------------------------------------------------------


def once(packs: Path, log: str, checkpoint: Path, out: Path) -> None:
    """A short training, with a checkpoint after every epoch."""
    from talerec.neural import training

    settings = settings_of(packs, epochs=_EPOCHS)
    training.train(rows_of(packs, log), settings, checkpoint=checkpoint, every=0.0).save(out)


def resume(packs: Path, log: str) -> None:
    """Train twice, killing the second training after some epochs; compare what comes out."""
    from talerec.neural.checkpoints import read

    with tempfile.TemporaryDirectory() as folder:
        whole, broken = Path(folder, "whole.npz"), Path(folder, "broken.npz")
        kept = Path(folder, "kept.npz")
        command = [sys.executable, __file__, "once", str(packs), log]
        subprocess.run([*command, f"{folder}/unused.npz", str(whole)], check=True)
        child = subprocess.Popen([*command, str(kept), str(broken)])
        epoch = wait_for_epoch(kept, 3, child)
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert not broken.exists()
        subprocess.run([*command, str(kept), str(broken)], check=True)
        one, other = read(whole)[1], read(broken)[1]
        same = all(one[name].tobytes() == other[name].tobytes() for name in one)
    print(json.dumps({"killed_after_epoch": epoch, "of": _EPOCHS, "same_bits": same}), flush=True)
    print(json.dumps({"seconds_an_epoch": cost(packs, log)}), flush=True)


def wait_for_epoch(kept: Path, epoch: int, child: subprocess.Popen[bytes]) -> int:
    """Wait until a checkpoint is of this epoch; the epoch it is of then."""
    from talerec.neural.checkpoints import read

    while child.poll() is None:
        if kept.exists():
            done = read(kept)[0]["course"]["epoch"]
            if done >= epoch:
                return int(done)
        time.sleep(0.05)
    raise SystemExit("the training ended before it could be killed")


def cost(packs: Path, log: str) -> dict[str, float]:
    """Seconds of an epoch with deterministic operations and without, the first epochs left out."""
    from talerec.neural import devices, training

    found: dict[str, float] = {}
    training.train(rows_of(packs, log), settings_of(packs, epochs=1))  # wakes the device
    for exact in (True, False):
        devices.DETERMINISTIC = exact
        taken = []
        for epochs in (2, 6):
            start = time.perf_counter()
            training.train(rows_of(packs, log), settings_of(packs, epochs=epochs))
            taken.append(time.perf_counter() - start)
        found["deterministic" if exact else "otherwise"] = round((taken[1] - taken[0]) / 4, 3)
    return found


# -- a million items -------------------------------------------------------------------------------


def large_rows(rows: int, items: int, length: int = 20) -> Any:
    """Rows whose next item is drawn near the last one, or by popularity."""
    from talerec.neural.settings import Rows

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
    """One epoch, by a softmax over all items and by one over a sample."""
    import torch

    from talerec.neural import training

    made = large_rows(rows, items)
    ways: dict[str, dict[str, Any]] = {
        "sampled": {"loss": "sampled", "negatives": 4096},
        "softmax": {"loss": "softmax"},
    }
    for name, way in ways.items():
        if which not in (name, "both"):
            continue
        settings = settings_of(PACKS, epochs=1, batch=16_384, precision="bfloat16", **way)
        start = time.perf_counter()
        facts = training.train(made, settings).facts
        told = {"loss": name, "rows": len(made.item), "items": items, "device": facts["device"]}
        told |= {"seconds": round(time.perf_counter() - start, 1), "mean_loss": facts["losses"]}
        if torch.cuda.is_available():
            told["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
            torch.cuda.reset_peak_memory_stats()
        print(json.dumps(told), flush=True)


#: Where defaults are read on a machine without the library.
PACKS = Path(os.environ["PACKS"]) if "PACKS" in os.environ else None


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    todo = parser.add_subparsers(dest="what", required=True)
    for what in ("resume", "once"):
        one = todo.add_parser(what)
        one.add_argument("packs", type=Path)
        one.add_argument("log")
        if what == "once":
            one.add_argument("checkpoint", type=Path)
            one.add_argument("out", type=Path)
    one = todo.add_parser("large")
    one.add_argument("--rows", type=int, default=10_000_000)
    one.add_argument("--items", type=int, default=1_000_000)
    one.add_argument("--which", choices=("sampled", "softmax", "both"), default="both")
    asked = vars(parser.parse_args())
    what = asked.pop("what")
    {"resume": resume, "once": once, "large": large}[what](**asked)


if __name__ == "__main__":
    main()

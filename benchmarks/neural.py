"""Neural models: pack logs here, train networks where a GPU is, evaluate them here.

    python benchmarks/neural.py pack DATA PACKS              # logs -> PACKS/NAME.npz, for training
    python benchmarks/neural.py train PACKS OUT --jobs JOBS  # needs only NumPy and torch; resumes
    python benchmarks/neural.py judge DATA OUT               # evaluates every training in OUT
    python benchmarks/neural.py blend DATA LOG A.npz B.npz   # tempo and a network

JOBS is a file with a line of JSON for each training:
    {"name": "a", "log": "beauty-item", "model": "sasrec", "set": {"dim": 128}, "held": false}
Settings default to those of the model. With `held`, training stops by the validation rows, prints
NDCG@10 on them and is not repeated on all rows: a quick way to compare settings. `seconds` limits
the duration. A log named LOG+first has the rows on which a blend fits its parts first.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import numpy as np

#: Packed logs: the file, the order of ties, and rows that a user and an item have at least.
LOGS = {
    "ml-1m-random": ("ml-1m.inter.gz", "random:0", 5),
    "ml-1m-file": ("ml-1m.inter.gz", "file", 5),
    "beauty-item": ("amazon-beauty.inter.gz", "item", 5),
    "beauty-random": ("amazon-beauty.inter.gz", "random:0", 5),
    "ml-100k-random": ("ml-100k.inter.gz", "random:0", 5),
    "ml-100k-file": ("ml-100k.inter.gz", "file", 5),
    "yelp-random": ("yelp-2019.inter.gz", "random:0", 5),
    "yelp-file": ("yelp-2019.inter.gz", "file", 5),
}

#: After the name of a log: the rows of a blend's first fit.
FIRST = "+first"


# -- here: logs in ---------------------------------------------------------------------------------


def split_of(data: Path, name: str) -> Any:
    """Return the split of a log for training and evaluation."""
    import talerec as tr

    file, ties, core = LOGS[name.removesuffix(FIRST)]
    log = tr.order_ties(tr.k_core(tr.read_log(data / file), core), ties)
    return tr.leave_one_out(log)


def pack(data: Path, packs: Path, names: list[str]) -> None:
    """Write the training rows of logs, and the rows held back from them, as plain arrays."""
    packs.mkdir(parents=True, exist_ok=True)
    for name in names:
        split = split_of(data, name)
        if name.endswith(FIRST):
            pack_first(split.train, packs / f"{name}.npz")
            continue
        train, held = split.train, {}
        users = {user: number for number, user in enumerate(train.users.ids.to_list())}
        for on in ("validation", "test"):
            cases = split.cases(on)
            positions = np.array([users[user] for user in split.users.ids[cases.user].to_list()])
            item, when = np.full(len(users), -2, np.int32), np.zeros(len(users), np.int64)
            item[positions], when[positions] = cases.target, cases.target_time
            held |= {f"{on}_item": item, f"{on}_time": when}
        rows = {"ptr": train.ptr, "item": train.item, "time": train.time, "items": len(train.items)}
        np.savez_compressed(packs / f"{name}.npz", **rows, **held)
        print(
            f"{name}: {train.rows:,} rows, {len(train.users):,} users, {len(train.items):,} items"
        )


def pack_first(log: Any, path: Path) -> None:
    """Write the rows on which a blend fits its parts first."""
    import talerec as tr

    rows = tr.Blend.first_rows(log)
    np.savez_compressed(path, ptr=rows.ptr, item=rows.item, time=rows.time, items=len(rows.items))
    print(f"{path.stem}: {rows.rows:,} rows")


# -- there: rows in, arrays out --------------------------------------------------------------------


def defaults() -> dict[str, dict[str, Any]]:
    """Return the parameters of every neural model, for machines without the library."""
    from talerec.models import MODELS

    return {name: kind().params for name, kind in MODELS.items() if kind.extra == "torch"}


def run(job: dict[str, Any]) -> dict[str, Any] | None:
    """Run one training; return its facts, or None if its time ran out."""
    import torch

    from talerec.neural import NetSettings, Rows, devices, training

    torch.set_num_threads(1)
    devices.DETERMINISTIC = job.get("deterministic", True)
    out, packed = Path(job["out"]), np.load(f"{job['packs']}/{job['log']}.npz")
    done = out / f"{job['name']}.json"
    if done.exists():
        saved: dict[str, Any] = json.loads(done.read_text())
        return saved
    settings = NetSettings.of(job["model"], {**job["defaults"], **job.get("set", {})})
    rows, held = Rows(packed["ptr"], packed["item"], packed["time"], int(packed["items"])), None
    if job.get("held"):
        held = np.flatnonzero(packed["validation_item"] >= 0)
        rows = rows.with_last(
            held, packed["validation_item"][held], packed["validation_time"][held]
        )
    left = min(job["end"] - time.time(), job.get("seconds", float("inf")))
    if left < 5:
        return None
    checkpoint = out / "checkpoints" / f"{job['name']}.npz"
    try:
        trained = training.train(rows, settings, held=held, checkpoint=checkpoint, seconds=left)
    except Exception as error:  # one failure must not end the others
        return {"name": job["name"], "error": f"{type(error).__name__}: {error}"[:300]}
    if trained is None and held is not None:
        trained = best_so_far(checkpoint, settings, rows.without_last(held))
    if trained is None:
        return None
    peak = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else 0.0
    brief = {
        k: trained.facts[k]
        for k in ("epochs", "ndcg", "seconds", "device", "ended_at")
        if k in trained.facts
    }
    job_facts = {k: job[k] for k in ("name", "log", "model") if k in job} | {
        "set": job.get("set", {})
    }
    result = {**job_facts, **brief, "peak_mb": round(peak), "held": bool(job.get("held"))}
    if job.get("keep", True):
        trained.save(out / f"{job['name']}.npz")
    done.write_text(json.dumps(result))
    checkpoint.unlink(missing_ok=True)
    return result


def best_so_far(checkpoint: Path, settings: Any, rows: Any) -> Any:
    """Return the best network of an unfinished training; None before its first validation."""
    from talerec.neural import VERSION, checkpoints, training

    if not checkpoint.exists():
        return None
    state, arrays = checkpoints.read(checkpoint)
    best = {k.removeprefix("best|"): a for k, a in arrays.items() if k.startswith("best|")}
    if not best:
        return None
    identity = {"kind": settings.kind, "params": settings.params(), "rows": rows.fingerprint()}
    course = {"epochs": state["course"]["best"], "ndcg": state["course"]["value"]}
    ended = {"version": VERSION, "seconds": state["spent"], "device": settings.device}
    facts = {**identity, **course, **ended, "ended_at": state["course"]["epoch"]}
    return training.Training(facts, best)


def train(packs: Path, out: Path, jobs: Path, minutes: float, processes: int) -> None:
    """Run the jobs, several at a time; those that are not done go on with the next call."""
    out.mkdir(parents=True, exist_ok=True)
    end, default_params = (
        time.time() + 60 * minutes,
        json.loads((packs / "defaults.json").read_text()),
    )
    lines = [json.loads(line) for line in jobs.read_text().splitlines() if line.strip()]
    common = {"packs": str(packs), "out": str(out), "end": end}
    todo = [{**job, **common, "defaults": default_params[job["model"]]} for job in lines]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for result in pool.imap_unordered(run, todo):
            print("not done" if result is None else json.dumps(result), flush=True)


# -- here: judging ---------------------------------------------------------------------------------


def evaluate_all(data: Path, out: Path, on: str) -> None:
    """Evaluate every training in a folder, seen items allowed and hidden; print JSON lines."""
    import talerec as tr

    splits: dict[str, Any] = {}
    for file in sorted(out.glob("*.json")):
        job = json.loads(file.read_text())
        if not file.with_suffix(".npz").exists():
            continue
        if job["log"] not in splits:
            splits[job["log"]] = split_of(data, job["log"])
        split = splits[job["log"]]
        model = tr.MODELS[job["model"]].from_training(split.train, file.with_suffix(".npz"))
        result = tr.evaluate(model, split, on=on).to_dict()
        metrics = {"metrics": result["metrics"], "hidden": result["metrics_hidden"]}
        print(json.dumps({**job, "on": on, **metrics}), flush=True)


def blend(data: Path, log: str, trainings: list[Path], parts: str) -> None:
    """Evaluate a blend whose neural parts were trained elsewhere."""
    import talerec as tr

    split = split_of(data, log)
    model = tr.Blend.from_trainings(split.train, trainings, parts=parts)
    for line in model.describe_learned():
        print(line)
    for on in ("validation", "test"):
        result = tr.evaluate(model, split, on=on).to_dict()
        facts = {"log": log, "parts": model.parts, "weights": model.part_weights.tolist(), "on": on}
        facts |= {"metrics": result["metrics"], "hidden": result["metrics_hidden"]}
        print(json.dumps(facts), flush=True)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    todo = parser.add_subparsers(dest="what", required=True)
    command = todo.add_parser("pack")
    command.add_argument("data", type=Path)
    command.add_argument("packs", type=Path)
    command.add_argument("--logs", nargs="+", default=list(LOGS))
    command = todo.add_parser("train")
    command.add_argument("packs", type=Path)
    command.add_argument("out", type=Path)
    command.add_argument("--jobs", type=Path, required=True)
    command.add_argument("--minutes", type=float, default=1e9)
    command.add_argument("--processes", type=int, default=1)
    command = todo.add_parser("judge")
    command.add_argument("data", type=Path)
    command.add_argument("out", type=Path)
    command.add_argument("--on", default="test")
    command = todo.add_parser("blend")
    command.add_argument("data", type=Path)
    command.add_argument("log")
    command.add_argument("trainings", type=Path, nargs="+")
    command.add_argument("--parts", default="tempo,sasrec")
    args = vars(parser.parse_args())
    what = args.pop("what")
    if what == "pack":
        pack(args["data"], args["packs"], args["logs"])
        (args["packs"] / "defaults.json").write_text(json.dumps(defaults()))
    elif what == "train":
        train(**args)
    elif what == "blend":
        blend(**args)
    else:
        evaluate_all(**args)


if __name__ == "__main__":
    main()

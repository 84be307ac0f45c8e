"""Neural models: pack logs here, train several networks side by side where a GPU is, judge them here.

    python benchmarks/neural.py pack DATA PACKS              # logs -> PACKS/NAME.npz, which is all that training needs
    python benchmarks/neural.py train PACKS OUT --jobs JOBS  # needs NumPy and torch alone; --minutes N, then goes on
    python benchmarks/neural.py judge DATA OUT               # the library's own evaluation of every training in OUT
    python benchmarks/neural.py blend DATA LOG A.npz B.npz   # tempo and a network, trained on LOG and on LOG+first

JOBS is a file with a line of JSON for each training:
    {"name": "a", "log": "beauty-item", "model": "sasrec", "set": {"dim": 128}, "held": false}
Settings that are not given are those of the model. With `held`, training stops on the validation rows and is not
repeated on all: a quick way to compare settings, whose NDCG@10 on these rows is printed; `seconds` is the most that it
may take. A log named LOG+first has the rows on which a blend fits its parts first.
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
    """The split of a log on which everything is trained and judged."""
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
        users = {one: number for number, one in enumerate(train.users.ids.to_list())}
        for on in ("validation", "test"):
            cases = split.cases(on)
            mine = np.array([users[one] for one in split.users.ids[cases.user].to_list()])
            item, when = np.full(len(users), -2, np.int32), np.zeros(len(users), np.int64)
            item[mine], when[mine] = cases.target, cases.target_time
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
    """Every neural model's parameters, for machines that have only NumPy and torch."""
    from talerec.models import MODELS

    return {name: kind().params for name, kind in MODELS.items() if kind.extra == "torch"}


def run(job: dict[str, Any]) -> dict[str, Any] | None:
    """One training; None where its time was over."""
    import torch

    from talerec.neural import devices, training
    from talerec.neural.settings import Rows, Settings

    torch.set_num_threads(1)
    devices.DETERMINISTIC = job.get("deterministic", True)
    out, kept = Path(job["out"]), np.load(f"{job['packs']}/{job['log']}.npz")
    done = out / f"{job['name']}.json"
    if done.exists():
        found: dict[str, Any] = json.loads(done.read_text())
        return found
    settings = Settings.of(job["model"], {**job["defaults"], **job.get("set", {})})
    rows, held = Rows(kept["ptr"], kept["item"], kept["time"], int(kept["items"])), None
    if job.get("held"):
        held = np.flatnonzero(kept["validation_item"] >= 0)
        rows = rows.with_last(held, kept["validation_item"][held], kept["validation_time"][held])
    left = min(job["end"] - time.time(), job.get("seconds", float("inf")))
    if left < 5:
        return None
    checkpoint = out / "checkpoints" / f"{job['name']}.npz"
    try:
        made = training.train(rows, settings, held=held, checkpoint=checkpoint, seconds=left)
    except Exception as error:  # one failure must not end the others
        return {"name": job["name"], "error": f"{type(error).__name__}: {error}"[:300]}
    if made is None and held is not None:
        made = best_so_far(checkpoint, settings, rows.without_last(held))
    if made is None:
        return None
    peak = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else 0.0
    brief = {
        k: made.facts[k]
        for k in ("epochs", "ndcg", "seconds", "device", "ended_at")
        if k in made.facts
    }
    told = {k: job[k] for k in ("name", "log", "model") if k in job} | {"set": job.get("set", {})}
    result = {**told, **brief, "peak_mb": round(peak), "held": bool(job.get("held"))}
    if job.get("keep", True):
        made.save(out / f"{job['name']}.npz")
    done.write_text(json.dumps(result))
    checkpoint.unlink(missing_ok=True)
    return result


def best_so_far(checkpoint: Path, settings: Any, rows: Any) -> Any:
    """What a training that stops on validation rows has reached when its time is over; None before its first judgement."""
    from talerec.neural import checkpoints, training
    from talerec.neural.settings import VERSION

    if not checkpoint.exists():
        return None
    kept, arrays = checkpoints.read(checkpoint)
    best = {k.removeprefix("best|"): a for k, a in arrays.items() if k.startswith("best|")}
    if not best:
        return None
    told = {"kind": settings.kind, "params": settings.params(), "rows": rows.fingerprint()}
    course = {"epochs": kept["course"]["best"], "ndcg": kept["course"]["value"]}
    ended = {"version": VERSION, "seconds": kept["spent"], "device": settings.device}
    facts = {**told, **course, **ended, "ended_at": kept["course"]["epoch"]}
    return training.Training(facts, best)


def train(packs: Path, out: Path, jobs: Path, minutes: float, processes: int) -> None:
    """Run the jobs, several at a time; those that are not done go on with the next call."""
    out.mkdir(parents=True, exist_ok=True)
    end, known = time.time() + 60 * minutes, json.loads((packs / "defaults.json").read_text())
    lines = [json.loads(line) for line in jobs.read_text().splitlines() if line.strip()]
    common = {"packs": str(packs), "out": str(out), "end": end}
    todo = [{**job, **common, "defaults": known[job["model"]]} for job in lines]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for result in pool.imap_unordered(run, todo):
            print("not done" if result is None else json.dumps(result), flush=True)


# -- here: judging ---------------------------------------------------------------------------------


def judge(data: Path, out: Path, on: str) -> None:
    """Judge every training in a folder, seen items allowed and hidden; a line of JSON for each."""
    import talerec as tr

    splits: dict[str, Any] = {}
    for file in sorted(out.glob("*.json")):
        told = json.loads(file.read_text())
        if not file.with_suffix(".npz").exists():
            continue
        if told["log"] not in splits:
            splits[told["log"]] = split_of(data, told["log"])
        split = splits[told["log"]]
        model = tr.MODELS[told["model"]].from_training(split.train, file.with_suffix(".npz"))
        result = tr.evaluate(model, split, on=on).to_dict()
        found = {"metrics": result["metrics"], "hidden": result["metrics_hidden"]}
        print(json.dumps({**told, "on": on, **found}), flush=True)


def blend(data: Path, log: str, trainings: list[Path], parts: str) -> None:
    """Judge a blend whose neural parts were trained elsewhere."""
    import talerec as tr

    split = split_of(data, log)
    model = tr.Blend.from_trainings(split.train, trainings, parts=parts)
    for line in model.chosen():
        print(line)
    for on in ("validation", "test"):
        found = tr.evaluate(model, split, on=on).to_dict()
        told = {"log": log, "parts": model.parts, "weights": model.part_weights.tolist(), "on": on}
        told |= {"metrics": found["metrics"], "hidden": found["metrics_hidden"]}
        print(json.dumps(told), flush=True)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    todo = parser.add_subparsers(dest="what", required=True)
    one = todo.add_parser("pack")
    one.add_argument("data", type=Path)
    one.add_argument("packs", type=Path)
    one.add_argument("--logs", nargs="+", default=list(LOGS))
    one = todo.add_parser("train")
    one.add_argument("packs", type=Path)
    one.add_argument("out", type=Path)
    one.add_argument("--jobs", type=Path, required=True)
    one.add_argument("--minutes", type=float, default=1e9)
    one.add_argument("--processes", type=int, default=1)
    one = todo.add_parser("judge")
    one.add_argument("data", type=Path)
    one.add_argument("out", type=Path)
    one.add_argument("--on", default="test")
    one = todo.add_parser("blend")
    one.add_argument("data", type=Path)
    one.add_argument("log")
    one.add_argument("trainings", type=Path, nargs="+")
    one.add_argument("--parts", default="tempo,sasrec")
    asked = vars(parser.parse_args())
    what = asked.pop("what")
    if what == "pack":
        pack(asked["data"], asked["packs"], asked["logs"])
        (asked["packs"] / "defaults.json").write_text(json.dumps(defaults()))
    elif what == "train":
        train(**asked)
    elif what == "blend":
        blend(**asked)
    else:
        judge(**asked)


if __name__ == "__main__":
    main()

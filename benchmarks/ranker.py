"""Accuracy and costs of the ranker beside its parts, log by log: resumable, one column at a time.

    python benchmarks/ranker.py DATA [--on validation] [--only beauty] [--split loo] [-o FILE]
    python benchmarks/ranker.py DATA --others all [--split at]
    python benchmarks/ranker.py DATA --speed [--parts] --only retail
    python benchmarks/ranker.py DATA --growth 0.1,1,5

DATA is the folder with the logs. NDCG@10, all items ranked, ties in random order; "loo" is
leave-one-out, "at" a split by time with 80 % of the rows before it. Every finished column is a line
of FILE (JSON), and is not computed again. --others compares the ranker with further models, by
name, or with all linear and counting ones. `ranker_speed.py` has --speed (seconds, memory, answers
a second, and where the time goes) and --growth (synthetic logs of so many million rows).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import ranker_speed
import talerec as tr
from talerec.runtime import peak_rss_mb

#: Logs: file, core, and whether seen items are allowed (where users repeat items).
LOGS = {
    "retail": ("online-retail.csv.gz", 5, True),
    "beauty": ("amazon-beauty.inter.gz", 5, False),
    "ml-1m": ("ml-1m.inter.gz", 5, False),
    "ml-100k": ("ml-100k.inter.gz", 5, False),
    "ifdb": ("ifdb-games.csv.gz", 5, False),
    "dunnhumby": ("dunnhumby-sample.csv.gz", 2, True),
    "yelp": ("yelp-2019.inter.gz", 5, False),
}
#: All linear and counting models; the ranker's parts are measured with it.
OTHERS = (
    "tempo,tale,slist,slit,slis,swalk,ease,edlae,rdlae,sknn,stan,tifuknn,markov,rules,association,"
    "popular,trending,personal,lastbasket"
)
MODES = ("allowed", "hidden")  # seen items
TARGETS = {"retail": 0.185, "beauty": 0.070, "ml-1m": 0.172, "ifdb": 0.135, "dunnhumby": 0.043}


def read_split(folder: Path, name: str, split: str, on: str) -> tr.Split:
    """Return one log as training rows and held-out cases."""
    file, core, _ = LOGS[name]
    log = tr.order_ties(tr.k_core(tr.read_log(str(folder / file)), core), "random:0")
    if split == "loo":
        return tr.leave_one_out(log)
    return tr.time_split(log, int(np.sort(log.time)[int(0.8 * log.rows)] / 1e6), on=on)


def gains(result: tr.Evaluation, *, hide_seen: bool) -> np.ndarray:
    """Return NDCG@10 of each case, with seen items hidden or not."""
    frame = result.frame
    name = "rank_hidden" if hide_seen and "rank_hidden" in frame.columns else "rank"
    rank = frame[name].fill_null(0).to_numpy()
    return np.where((rank >= 1) & (rank <= 10), 1 / np.log2(np.maximum(rank, 1) + 1), 0.0)


def measure(split: tr.Split, on: str) -> dict[str, Any]:
    """Fit the ranker; return its accuracy and that of its parts, seconds, memory, verdicts."""
    begun, processor = time.perf_counter(), time.process_time()
    model = tr.Ranker().fit(split.train)
    column: dict[str, Any] = {"fit_s": time.perf_counter() - begun, "seconds": model.fitted.seconds}
    column |= {"processor_s": time.process_time() - processor}  # of all threads
    column |= {"peak_mb": peak_rss_mb(), "described": model.describe_learned()}
    column |= {mode: {} for mode in MODES}
    add_model(column, "ranker", model, split, on)
    for part in model._state.first.parts:
        add_model(column, part.name, part, split, on)
    return column


def add_model(column: dict[str, Any], name: str, model: Any, split: tr.Split, on: str) -> None:
    """Evaluate a fitted model; the ranker is the first one, whose gains are kept for the others.

    Of the others, the column gets NDCG@10, and by how many standard errors the ranker is ahead.
    """
    for mode, hide_seen in zip(MODES, (False, True), strict=True):
        result = gains(tr.evaluate(model, split, on=on, hide_seen=hide_seen), hide_seen=hide_seen)
        if "gains" not in column[mode]:
            column[mode] = {"gains": result.tolist(), "cases": len(result), name: result.mean()}
            continue
        difference = np.array(column[mode]["gains"]) - result
        error = float(difference.std() / np.sqrt(len(difference)))
        ahead = float(difference.mean() / error) if error else 0.0
        column[mode][name] = [result.mean(), ahead]


def show(key: str, column: dict[str, Any]) -> None:
    """Print one column."""
    name = key.split()[0]
    mode = "allowed" if LOGS[name][2] else "hidden"
    for shown in MODES:
        values = dict(column[shown])
        figures = [f"ranker {values.pop('ranker'):.4f}"]
        values.pop("cases"), values.pop("gains", None)
        ranked = sorted(values.items(), key=lambda entry: -entry[1][0])
        figures += [f"{part} {gain:.4f} ({ahead:+.1f} se)" for part, (gain, ahead) in ranked]
        goal = (
            f"  goal {TARGETS[name]}" if shown == mode and name in TARGETS and "loo" in key else ""
        )
        print(f"{key:28s} {shown:8s} {', '.join(figures)}{goal}")
    print(f"{'':28s} fit {column['fit_s']:.0f} s, {column['peak_mb']:.0f} MB")


def main() -> None:
    """Measure the columns that FILE does not have, and print all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--on", default="test", choices=("test", "validation"))
    parser.add_argument("--only", default=",".join(LOGS))
    parser.add_argument("--split", default="loo,at")
    parser.add_argument("--others", default="", help="names of models, or: all")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--parts", action="store_true", help="with --speed: each part's fit, too")
    parser.add_argument("--growth", help="million rows of synthetic logs, such as 0.1,1,5")
    parser.add_argument("-o", "--out", type=Path, default=Path("ranker.jsonl"))
    options = parser.parse_args()
    if options.growth:
        ranker_speed.print_growth([float(size) for size in options.growth.split(",")])
        return
    others = set((OTHERS if options.others == "all" else options.others).split(",")) - {""}
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    done = {key: column for line in lines for key, column in json.loads(line).items()}
    for name in options.only.split(","):
        for split in options.split.split(","):
            key = f"{name} {split} {options.on}"
            if options.speed:
                log = read_split(options.data, name, split, options.on).train
                ranker_speed.print_speed(name, log, parts=options.parts)
                continue
            if key not in done or others - done[key]["hidden"].keys():
                held_out = read_split(options.data, name, split, options.on)
                done[key] = done.get(key) or measure(held_out, options.on)
                for other in sorted(others - done[key]["hidden"].keys()):
                    model = tr.MODELS[other]().fit(held_out.train)
                    add_model(done[key], other, model, held_out, options.on)
                with options.out.open("a") as file:  # later lines of a key replace earlier ones
                    file.write(json.dumps({key: done[key]}) + "\n")
            show(key, done[key])


if __name__ == "__main__":
    main()

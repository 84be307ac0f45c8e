"""Accuracy and costs of the ranker beside its parts, log by log: resumable, one column at a time.

    python benchmarks/ranker.py DATA [--on validation] [--only beauty] [--split loo] [-o FILE]
    python benchmarks/ranker.py DATA --speed --only retail

DATA is the folder with the logs. NDCG@10, all items ranked, ties in random order; "loo" is
leave-one-out, "at" a split by time with 80 % of the rows before it. Every finished column is a line
of FILE (JSON), and is not computed again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import talerec as tr
from talerec.data import Histories
from talerec.models.core import rank_top, rank_with_reasons
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
    begun = time.perf_counter()
    model = tr.Ranker().fit(split.train)
    column: dict[str, Any] = {"fit_s": time.perf_counter() - begun, "seconds": model.fitted.seconds}
    column |= {"peak_mb": peak_rss_mb(), "described": model.describe_learned()}
    for hide_seen in (False, True):
        mine = gains(tr.evaluate(model, split, on=on, hide_seen=hide_seen), hide_seen=hide_seen)
        mode = "hidden" if hide_seen else "allowed"
        column[mode] = {"ranker": mine.mean(), "cases": len(mine)}
        for part in model._state.first.parts:
            result = tr.evaluate(part, split, on=on, hide_seen=hide_seen)
            theirs = gains(result, hide_seen=hide_seen)
            difference = mine - theirs
            error = float(difference.std() / np.sqrt(len(difference)))
            ahead = float(difference.mean() / error) if error else 0.0
            column[mode][part.name] = [theirs.mean(), ahead]
    return column


def measure_speed(split: tr.Split) -> dict[str, Any]:
    """Return milliseconds per answer, with reasons and without, and users a second in lists."""
    log = split.train
    model = tr.Ranker().fit(log)
    histories = Histories.of_users(log)
    rank_top(model, histories.slice(0, 1), 10)
    rank_with_reasons(model, histories.slice(0, 1), 10)
    times: dict[str, list[float]] = {"answer_ms": [], "reasons_ms": []}
    for user in range(min(300, len(histories))):
        history = histories.slice(user, user + 1)
        for name, ask in (("answer_ms", rank_top), ("reasons_ms", rank_with_reasons)):
            begun = time.perf_counter()
            ask(model, history, 10)
            times[name].append(1e3 * (time.perf_counter() - begun))
    begun = time.perf_counter()
    rank_top(model, histories, 10)
    speed: dict[str, Any] = {name: float(np.median(values)) for name, values in times.items()}
    return speed | {"users_per_s": len(histories) / (time.perf_counter() - begun)}


def show(key: str, column: dict[str, Any]) -> None:
    """Print one column."""
    name = key.split()[0]
    mode = "allowed" if LOGS[name][2] else "hidden"
    for shown in ("allowed", "hidden"):
        values = dict(column[shown])
        figures = [f"ranker {values.pop('ranker'):.4f}"]
        values.pop("cases")
        figures += [
            f"{part} {gain:.4f} ({ahead:+.1f} se)" for part, (gain, ahead) in values.items()
        ]
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
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("-o", "--out", type=Path, default=Path("ranker.jsonl"))
    options = parser.parse_args()
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    done = {key: column for line in lines for key, column in json.loads(line).items()}
    for name in options.only.split(","):
        for split in options.split.split(","):
            key = f"{name} {split} {options.on}"
            if options.speed:
                print(name, measure_speed(read_split(options.data, name, split, options.on)))
                continue
            if key not in done:
                done[key] = measure(read_split(options.data, name, split, options.on), options.on)
                with options.out.open("a") as file:
                    file.write(json.dumps({key: done[key]}) + "\n")
            show(key, done[key])


if __name__ == "__main__":
    main()

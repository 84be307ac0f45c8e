"""Tempo and every other linear and counting model on all columns of an evaluation.

A column is a log, an order of ties, a split, and seen items allowed or hidden.

    python benchmarks/columns.py DATA --out columns.jsonl [--on validation]
                                 [--logs beauty,ml-1m] [--models tempo,ease]
    python benchmarks/columns.py --show columns.jsonl

A line of the file is one fit: NDCG@10 of both kinds of lists, and the difference to tempo with its
standard error, case by case. Existing lines are not computed again. `at` is the time after which
20 % of the rows lie. TALE has the settings of docs/lab/tempo.md, or its defaults on logs that the
page does not name; other models have their defaults; `tempo-off` is tempo without learned weights,
`tempo+slist` a blend of its parts. Look at the test rows only once.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import talerec as tr

LOGS = {
    "beauty": "amazon-beauty.inter.gz",
    "ml-1m": "ml-1m.inter.gz",
    "yelp": "yelp-2019.inter.gz",
    "ml-100k": "ml-100k.inter.gz",
    "online-retail": "online-retail.csv.gz",
    "ifdb-games": "ifdb-games.csv.gz",
    "dunnhumby-sample": "dunnhumby-sample.csv.gz",
}
CORES = {"dunnhumby-sample": 2}  # 5 for all others
ORDERS = {
    "beauty": ("random:0", "file"),
    "ml-1m": ("random:0", "file"),
    "yelp": ("file",),
    "ml-100k": ("random:0", "file"),
    "online-retail": ("random:0", "file"),
    "ifdb-games": ("file",),
    "dunnhumby-sample": ("random:0", "file"),
}
TALE = {
    "beauty": {"reg": 200, "decay": 32, "floor": 0.6, "trend": 0, "recency": 4},
    "ml-1m": {"reg": 200, "decay": 1 / 256, "floor": 0.1, "trend": 0.1, "recency": 6},
    "yelp": {
        "alpha": 0.7,
        "reg": 400,
        "decay": 1 / 32,
        "floor": 0.4,
        "trend": 0,
        "recency": 2,
        "solver": "local",
    },
    "ml-100k": {"reg": 200, "decay": 1 / 128, "floor": 0.2, "trend": 0.2, "recency": 8},
}
MODELS = (
    "tempo",
    "tempo-off",
    "tale",
    "tale-defaults",
    "slis",
    "slit",
    "slist",
    "ease",
    "edlae",
    "rdlae",
    "swalk",
    "sknn",
    "stan",
    "markov",
    "rules",
    "association",
    "popular",
    "trending",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="?", type=Path)
    parser.add_argument("--out", type=Path, default=Path("columns.jsonl"))
    parser.add_argument("--on", default="test")
    parser.add_argument("--logs", default=",".join(LOGS))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--show", type=Path)
    args = parser.parse_args()
    if args.show:
        show([json.loads(line) for line in args.show.read_text().splitlines()])
        return
    computed = (
        {key(json.loads(line)) for line in args.out.read_text().splitlines()}
        if args.out.exists()
        else set()
    )
    for name in args.logs.split(","):
        log = tr.k_core(tr.read_log(args.data / LOGS[name]), CORES.get(name, 5))
        for ties in ORDERS[name]:
            ordered = log if ties == "file" else tr.order_ties(log, ties)
            for split_name in ("leave-one-out", "at"):
                column = (name, ties, split_name, args.on)
                missing = [m for m in args.models.split(",") if (*column, m) not in computed]
                if missing:
                    run(column, split_of(ordered, split_name, args.on), missing, args.out)


def split_of(log: tr.Log, name: str, on: str) -> tr.Split:
    if name == "leave-one-out":
        return tr.leave_one_out(log)
    return tr.time_split(log, int(np.sort(log.time)[int(0.8 * log.rows)]), on=on)


def key(line: dict[str, Any]) -> tuple[str, ...]:
    return tuple(line[field] for field in ("log", "ties", "split", "on", "model"))


def run(column: tuple[str, ...], split: tr.Split, models: list[str], out: Path) -> None:
    name, ties, split_name, on = column
    of_tempo: list[np.ndarray] = []
    for model in dict.fromkeys(["tempo", *models]):
        start = time.perf_counter()
        fitted = build(model, name).fit(split.train)
        seconds = time.perf_counter() - start
        metrics = values(fitted, split, on)
        of_tempo = of_tempo or metrics
        if model not in models:
            continue
        line = {
            "log": name,
            "ties": ties,
            "split": split_name,
            "on": on,
            "model": model,
            "fit": round(seconds, 2),
        }
        for shown, metric, other in zip(("allowed", "hidden"), metrics, of_tempo, strict=True):
            gap = metric - other
            line[shown] = [
                round(float(metric.mean()), 5),
                round(float(gap.mean()), 5),
                round(float(gap.std() / np.sqrt(len(gap))), 5),
            ]
        with out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(line, flush=True)


def build(model: str, log: str) -> tr.Model:
    if model == "tempo-off":
        return tr.Tempo(learn="off")
    if model == "tale":
        return tr.TALE(**TALE.get(log, {}))
    if "+" in model:
        return tr.Blend(parts=model.replace("+", ","))
    return tr.MODELS[model.removesuffix("-defaults")]()


def values(model: tr.Model, split: tr.Split, on: str) -> list[np.ndarray]:
    """Return NDCG@10 of every case, with seen items allowed and hidden."""
    frame = tr.evaluate(model, split, on=on, k=[10]).frame
    metrics = []
    for ranks in ("rank", "rank_hidden"):
        rank = frame[ranks].fill_null(0).to_numpy()
        metrics.append(
            np.where((rank >= 1) & (rank <= 10), 1 / np.log2(np.maximum(rank, 1) + 1), 0.0)
        )
    return metrics


def show(lines: list[dict[str, Any]]) -> None:
    """Print a line per column: tempo, tempo without learning, and the best other model.

    Differences are in standard errors.
    """
    for on, log, ties, split in dict.fromkeys(
        (x["on"], x["log"], x["ties"], x["split"]) for x in lines
    ):
        by_model = {
            x["model"]: x
            for x in lines
            if (x["on"], x["log"], x["ties"], x["split"]) == (on, log, ties, split)
        }
        for kind in ("allowed", "hidden"):
            tempo, off = (
                by_model["tempo"][kind][0],
                by_model.get("tempo-off", by_model["tempo"])[kind],
            )
            others = {m: x[kind] for m, x in by_model.items() if m not in ("tempo", "tempo-off")}
            best = max(others, key=lambda m: others[m][0], default=None)
            rival = (
                f"{best} {others[best][0]:.4f} "
                f"({others[best][1] / max(others[best][2], 1e-9):+.1f} se)"
                if best
                else ""
            )
            print(
                f"| {log}, {ties}, {split}, {kind} | {tempo:.4f} | {off[0]:.4f} "
                f"({-off[1] / off[0]:+.1%}, {-off[1] / max(off[2], 1e-9):+.1f} se) | {rival} |"
            )


if __name__ == "__main__":
    main()

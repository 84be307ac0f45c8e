"""Every model on real logs: accuracy, seconds and memory, each in a process of its own.

    python benchmarks/family.py amazon-beauty.inter.gz --ties item [--models tale rules]

Settings are a sensible set per log size, not tuned ones; `--set MODEL.NAME=VALUE` changes one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

import talerec as tr
from talerec.models.core import param_fields, parse_settings
from talerec.runtime import memory


def settings(assignments: list[str], model: str) -> dict[str, Any]:
    texts = [
        text.partition(".")[2] for text in assignments if text.partition(".")[0] in (model, "all")
    ]
    names = {field.name for field in param_fields(tr.MODELS[model])}
    return parse_settings(
        tr.MODELS[model], [text for text in texts if text.partition("=")[0] in names]
    )


def run(args: argparse.Namespace, model: str) -> dict[str, Any]:
    log = tr.read_log(args.log)
    if args.core:
        log = tr.k_core(log, args.core)
    if args.ties != "file":
        log = tr.order_ties(log, args.ties)
    split = tr.leave_one_out(log)
    kind = tr.MODELS[model]
    small = tr.leave_one_out(tr.synthetic_log(5_000, items=4_100, titles=False))
    tr.evaluate(kind(**settings(args.set, model)).fit(small.train), small)  # compile
    start = time.perf_counter()
    fitted = kind(**settings(args.set, model)).fit(split.train)
    seconds = time.perf_counter() - start
    shown = {
        hidden: tr.evaluate(fitted, split, on=args.on, hide_seen=hidden).metrics
        for hidden in (False, True)
    }
    return {
        "solver": fitted.fitted.solver,
        "seconds": seconds,
        "memory": memory.peak_rss_mb(),
        "metrics": [shown[hidden][name] for hidden in shown for name in ("HR@10", "NDCG@10")],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log")
    parser.add_argument("--ties", default="file")
    parser.add_argument("--core", type=int)
    parser.add_argument("--on", default="test", choices=["test", "validation"])
    parser.add_argument("--models", nargs="+", default=list(tr.MODELS))
    parser.add_argument(
        "--set", action="append", default=[], help="MODEL.NAME=VALUE; MODEL may be all"
    )
    parser.add_argument("--json", action="store_true", help="fit seconds as JSON on the last line")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        print(json.dumps(run(args, args.run)))
        return
    print("| model | solver | HR@10 | NDCG@10 | hidden HR@10 | NDCG@10 | fit s | peak MB |")
    print("|---|---|---|---|---|---|---|---|")
    costs = {}
    for model in args.models:
        command = [sys.executable, __file__, *sys.argv[1:], "--run", model]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        result = json.loads(answer)
        figures = " | ".join(f"{value:.4f}"[1:] for value in result["metrics"])
        print(
            f"| {model} | {result['solver'] or '-'} | {figures} | "
            f"{result['seconds']:.2f} | {result['memory']:.0f} |",
            flush=True,
        )
        costs[f"{model} fit s"] = result["seconds"]
    if args.json:
        print(json.dumps(costs))


if __name__ == "__main__":
    main()

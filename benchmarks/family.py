"""Every model on real logs: accuracy, seconds and memory, each in a process of its own.

    python benchmarks/family.py D/amazon-beauty.inter.gz --ties item [--models tale rules] [--on test]

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
from talerec.models.core import params
from talerec.runtime import memory


def settings(given: list[str], model: str) -> dict[str, Any]:
    mine = [text.partition(".")[2] for text in given if text.partition(".")[0] in (model, "all")]
    known = {field.name for field in params.fields(tr.MODELS[model])}
    return params.parse(
        tr.MODELS[model], [text for text in mine if text.partition("=")[0] in known]
    )


def run(given: argparse.Namespace, model: str) -> dict[str, Any]:
    log = tr.read_log(given.log)
    if given.core:
        log = tr.k_core(log, given.core)
    if given.ties != "file":
        log = tr.order_ties(log, given.ties)
    split = tr.leave_one_out(log)
    kind = tr.MODELS[model]
    small = tr.leave_one_out(tr.synthetic_log(5_000, items=4_100, titles=False))
    tr.evaluate(kind(**settings(given.set, model)).fit(small.train), small)  # compile
    start = time.perf_counter()
    made = kind(**settings(given.set, model)).fit(split.train)
    seconds = time.perf_counter() - start
    shown = {
        hidden: tr.evaluate(made, split, on=given.on, hide_seen=hidden).metrics
        for hidden in (False, True)
    }
    return {
        "solver": made.fitted.solver,
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
    given = parser.parse_args()
    if given.run:
        print(json.dumps(run(given, given.run)))
        return
    print("| model | solver | HR@10 | NDCG@10 | hidden HR@10 | NDCG@10 | fit s | peak MB |")
    print("|---|---|---|---|---|---|---|---|")
    costs = {}
    for model in given.models:
        command = [sys.executable, __file__, *sys.argv[1:], "--run", model]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found = json.loads(answer)
        figures = " | ".join(f"{value:.4f}"[1:] for value in found["metrics"])
        print(
            f"| {model} | {found['solver'] or '-'} | {figures} | "
            f"{found['seconds']:.2f} | {found['memory']:.0f} |",
            flush=True,
        )
        costs[f"{model} fit s"] = found["seconds"]
    if given.json:
        print(json.dumps(costs))


if __name__ == "__main__":
    main()

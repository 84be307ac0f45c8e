"""Networks on short sessions: every neural model at its defaults, compared with sasrec.

    python benchmarks/neural_sessions.py run DATA OUT.jsonl [--models sasrec gru4rec] [--logs NAME]
    python benchmarks/neural_sessions.py table OUT.jsonl

`run` appends one line of JSON per log and network to OUT.jsonl, and leaves out those that it has
already, so it can be stopped and started again. DATA is the folder with ifdb-games.csv.gz. `table`
prints NDCG@10 and its ratio to that of sasrec. `--set NAME=VALUE` changes a parameter of all
networks; such lines name it, and are rows of their own in the table.
"""

from __future__ import annotations

import argparse
import json
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl

import talerec as tr
from talerec.models.core import parse_settings

SYNTHETIC, GAMES = LOGS = ("synthetic", "ifdb")
NETWORKS = [name for name, kind in tr.MODELS.items() if kind.extra == "torch"]

_GAP = timedelta(hours=1)  # a longer pause begins a session
_SHORTEST, _LONGEST = 3, 20  # rows of a session
_LEAST = 5  # rows of an item, at least


def session_log(data: Path, name: str) -> tr.Log:
    """Return a log of sessions, each of them a user id.

    name : "synthetic" (generated), or "ifdb": ratings of games, cut where a user pauses for more
    than an hour, as sessions of 3 to 20 rows; data : the folder with ifdb-games.csv.gz
    """
    if name == SYNTHETIC:
        return tr.synthetic_sessions(10_000, items=300)
    pause = pl.col("timestamp").diff().over("user_id")
    rows = tr.read_log(data / "ifdb-games.csv.gz").to_frame()
    rows = rows.with_columns(user_id=(pause.is_null() | (pause > _GAP)).cum_sum())
    length = pl.len().over("user_id")
    rows = rows.filter(length.is_between(_SHORTEST, _LONGEST))
    rows = rows.filter(pl.len().over("item_id") >= _LEAST).filter(length >= _SHORTEST)
    return tr.Log.from_frame(rows)


def evaluate_network(split: tr.Split, model: str, settings: list[str]) -> dict[str, Any]:
    """Train a network on a split's training rows; return its metrics on the test rows and facts.

    settings : NAME=VALUE texts that replace defaults of the model
    """
    from talerec.models.networks.base import log_rows
    from talerec.neural.training import train

    kind = tr.MODELS[model]
    start = time.process_time()
    trained = train(log_rows(split.train), kind(**parse_settings(kind, settings)).settings())
    assert trained is not None  # there is no time limit
    seconds = time.process_time() - start
    result = tr.evaluate(kind.from_training(split.train, trained), split).to_dict()
    return {
        "ndcg": result["metrics"]["NDCG@10"],
        "hidden": result["metrics_hidden"]["NDCG@10"],
        "epochs": trained.facts["epochs"],
        "validation": trained.facts["values"],
        "processor_seconds": round(seconds, 1),
    }


def run(args: argparse.Namespace) -> None:
    """Train the networks that the results do not have yet, and append a line for each."""
    args.out.touch()
    lines = [json.loads(line) for line in args.out.read_text().splitlines()]
    complete = {(line["log"], line["model"], line["set"]) for line in lines}
    for name in args.logs:
        split = tr.leave_one_out(session_log(args.data, name))
        for model in args.models:
            key = (name, model, " ".join(args.set))
            if key in complete:
                continue
            facts = dict(zip(("log", "model", "set"), key, strict=True))
            line = json.dumps(facts | evaluate_network(split, model, args.set))
            with args.out.open("a") as out:
                out.write(line + "\n")
            print(line, flush=True)


def table(args: argparse.Namespace) -> None:
    """Print the results as a Markdown table: each log's NDCG@10 and its ratio to sasrec's."""
    results: dict[str, dict[str, dict[str, Any]]] = {}
    for text in args.out.read_text().splitlines():
        line = json.loads(text)
        label = f"{line['model']} {line['set']}".strip()
        results.setdefault(label, {})[line["log"]] = line
    titles = [f"{log}, {how}" for log in LOGS for how in ("seen allowed", "hidden", "epochs")]
    print("| network | " + " | ".join(titles) + " |")
    print("|---" * (len(titles) + 1) + "|")
    for label, by_log in results.items():
        cells = []
        for log in LOGS:
            line = by_log.get(log)
            for metric in ("ndcg", "hidden"):
                best = results["sasrec"][log][metric]
                cells.append(f"{line[metric]:.4f} ({line[metric] / best:.0%})" if line else "")
            cells.append(str(line["epochs"]) if line else "")
        print(f"| {label} | " + " | ".join(cells) + " |")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("run")
    command.set_defaults(action=run)
    command.add_argument("data", type=Path)
    command.add_argument("out", type=Path)
    command.add_argument("--models", nargs="+", default=NETWORKS)
    command.add_argument("--logs", nargs="+", default=list(LOGS), choices=LOGS)
    command.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    command = commands.add_parser("table")
    command.set_defaults(action=table)
    command.add_argument("out", type=Path)
    args = parser.parse_args()
    args.action(args)


if __name__ == "__main__":
    main()

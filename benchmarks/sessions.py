"""Queries as production asks them: next baskets, every row, sessions; all models but networks.

    python benchmarks/sessions.py DATA -o FILE [--only retail,dunnhumby] [--on validation]
        [--models tempo,ranker] [--minutes 9]

DATA is the folder with the logs. online-retail and dunnhumby-sample are asked for next baskets
(leave-one-out, recall@10), ifdb-games and Yelp for every row of the last tenth (NDCG@10), and
sessions of `synthetic_sessions` for every click of the last fifth (MRR@20); seen items are allowed,
except on ifdb-games and Yelp. Every finished model is a line of FILE (JSON) and is not evaluated
again; after --minutes no further model is begun. `--table` prints FILE as Markdown tables.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import talerec as tr
from talerec.evaluation import MODEL_LISTS
from talerec.evaluation.model_lists import single_model

COUNTING = ("rules", "markov", "association", "popular", "trending", "personal", "lastbasket")
MODELS = (*MODEL_LISTS["linear"], *COUNTING, "sknn", "stan", "tifuknn", "ranker")


class Question(NamedTuple):
    """How one log is asked: its file, the protocol, the metric of the table, and seen items."""

    file: str
    plan: str
    metric: str
    hide_seen: bool
    baskets: bool = False

    def read(self, folder: Path) -> tr.Log:
        """Return the log: of baskets, of sessions, or of rows."""
        if not self.file:
            return tr.synthetic_sessions(60_000)
        path = str(folder / self.file)
        return (
            tr.join_baskets(tr.read_log(path, group="basket_id"))
            if self.baskets
            else tr.read_log(path)
        )

    def evaluate(self, name: str, log: tr.Log, on: str) -> dict[str, Any]:
        """Return metrics and intervals of one model, processor seconds, and what it learned."""
        model, begun = single_model(name), time.process_time()
        options: dict[str, Any] = {"on": on, "k": [10, 20], "hide_seen": self.hide_seen}
        result: tr.Evaluation | tr.BasketEvaluation
        if self.baskets:
            result = tr.evaluate_baskets(model, log, self.plan, **options)
        else:
            result = tr.evaluate_log(model, log, self.plan, **options)
        seconds = time.process_time() - begun
        shown = result.to_dict()
        intervals = shown["intervals"]
        figures = {"metrics": shown["metrics"], "interval": intervals[self.metric]}
        figures |= {part: shown[part]["metrics"] for part in ("repeat", "new") if part in shown}
        figures |= {"cases": shown["cases"], "users": result.users, "seconds": round(seconds, 1)}
        return figures | {"learned": model.describe_learned()}


QUESTIONS = {
    "retail": Question("online-retail.csv.gz", "leave-one-out", "recall@10", False, baskets=True),
    "dunnhumby": Question(
        "dunnhumby-sample.csv.gz", "leave-one-out", "recall@10", False, baskets=True
    ),
    "ifdb": Question("ifdb-games.csv.gz", "every:last:10%", "NDCG@10", True),
    "yelp": Question("yelp-2019.inter.gz", "every:last:10%", "NDCG@10", True),
    "sessions": Question("", "every:last:20%", "MRR@20", False),
}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the finished models of a results file, each once; none if there is no file."""
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return list({(line["log"], line["on"], line["model"]): line for line in lines}.values())


def print_tables(lines: list[dict[str, Any]]) -> None:
    """Print a Markdown table for each log and kind of held-out rows, the best model first."""
    for name, question in QUESTIONS.items():
        for on in ("validation", "test"):
            rows = [line for line in lines if (line["log"], line["on"]) == (name, on)]
            if not rows:
                continue
            first = rows[0]
            print(f"\n{name}, {on}: {first['cases']:,} cases of {first['users']:,} users")
            print(f"\n| model | {question.metric} | 95 % | repeats | new | s |")
            print("|---|---|---|---|---|---|")
            rows.sort(key=lambda line: -line["metrics"][question.metric])
            for line in rows:
                value, (low, high) = line["metrics"][question.metric], line["interval"]
                parts = [
                    f"{line[part][question.metric]:.4f}" if part in line else ""
                    for part in ("repeat", "new")
                ]
                text = f"| {line['model']} | {value:.4f} | {low:.4f} to {high:.4f} | "
                print(f"{text}{parts[0]} | {parts[1]} | {line['seconds']:.0f} |")


def main() -> None:
    """Evaluate what the results file lacks, log by log; or print its tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--only", default=",".join(QUESTIONS))
    parser.add_argument("--on", default="test", choices=("validation", "test"))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    begun = time.monotonic()
    for name in options.only.split(",") if not options.table else ():
        log = None
        for model in options.models.split(","):
            done = {(line["log"], line["on"], line["model"]) for line in read_lines(options.out)}
            if (name, options.on, model) in done or time.monotonic() - begun > 60 * options.minutes:
                continue
            log = QUESTIONS[name].read(options.data) if log is None else log
            figures = QUESTIONS[name].evaluate(model, log, options.on)
            line = {"log": name, "on": options.on, "model": model, **figures}
            with options.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(name, options.on, model, figures["metrics"], flush=True)
    if options.table:
        print_tables(read_lines(options.out))


if __name__ == "__main__":
    main()

"""Seconds of ranking in an evaluation: target ranks and top ten lists, without the fit.

    python benchmarks/ranking.py                                          # the news log alone
    python benchmarks/ranking.py D/amazon-beauty.inter.gz D/ml-1m.inter.gz --skip-news

News: 40,000 items of which few are very popular, 200,000 cases. Sequential rules learn it in
seconds; the weights of a popular item then lead to thousands of others, so ranking is all that
takes time. Each log given is evaluated with TALE and tempo. Only names that `talerec` exports are
used, so that the script runs on other checkouts too (`sides.py`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import polars as pl

import talerec as tr

ITEMS, CASES = 40_000, 200_000
START = 1_600_000_000


def news(users: int, seed: int = 0) -> tr.Log:
    """Return a log of 5 to 14 rows a user, with few very popular items and no unread one."""
    rng = np.random.default_rng(seed)
    length = rng.integers(5, 15, users)
    rows = int(length.sum())
    chance = 1.0 / np.arange(10, ITEMS + 10)
    item = rng.choice(ITEMS, rows, p=chance / chance.sum())
    first = np.concatenate([[0], np.cumsum(length)[:-1]])
    item[rng.permutation(first)[:ITEMS]] = np.arange(
        min(users, ITEMS)
    )  # first rows are training rows
    seconds = START + np.arange(rows)
    frame = {"user_id": np.repeat(np.arange(users), length), "item_id": item, "timestamp": seconds}
    return tr.Log.from_frame(pl.DataFrame(frame))


def ranking_seconds(name: str, model: tr.Model, split: tr.Split, repeat: int) -> dict[str, float]:
    """Return median seconds of evaluation without reading and fitting: wall and processor.

    The processor's time has the tables of cases in it too, which are a small share; it is steadier
    on a busy machine.
    """
    fitting = {"load", "gram", "solve", *model.fitted.seconds}
    clock, cores = [], []
    for _ in range(repeat):
        before = time.process_time()
        seconds = tr.evaluate(model, split).seconds
        cores.append(time.process_time() - before)
        clock.append(sum(value for step, value in seconds.items() if step not in fitting))
    return {f"{name} s": statistics.median(clock), f"{name} cpu s": statistics.median(cores)}


def measure_news(cases: int, repeat: int) -> dict[str, float]:
    small = tr.leave_one_out(news(3_000))
    ranking_seconds("news", tr.Rules().fit(small.train), small, 1)  # compile
    split = tr.leave_one_out(news(cases))
    model = tr.Rules().fit(split.train)
    fan = np.sort(np.diff(model.weights.indptr))[::-1]
    print(
        f"news: {len(split.train.items):,} items, {cases:,} cases; "
        f"targets of the first 100 sources: {fan[:100].mean():,.0f}"
    )
    return ranking_seconds("news", model, split, repeat)


def measure_log(path: Path, repeat: int) -> dict[str, float]:
    split = tr.leave_one_out(tr.read_log(path))
    seconds_by_name: dict[str, float] = {}
    for model in (tr.TALE(), tr.Tempo()):
        model.fit(split.train)
        name = f"{path.name.split('.')[0]} {model.name}"
        ranking_seconds(name, model, split, 1)  # compile
        seconds_by_name |= ranking_seconds(name, model, split, repeat)
    return seconds_by_name


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("logs", nargs="*", type=Path)
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument(
        "--repeat", type=int, default=1, help="evaluations, of which the median is taken"
    )
    parser.add_argument("--skip-news", action="store_true")
    parser.add_argument("--json", action="store_true", help="figures as JSON on the last line")
    args = parser.parse_args()
    seconds_by_name = {} if args.skip_news else measure_news(args.cases, args.repeat)
    for path in args.logs:
        seconds_by_name |= measure_log(path, args.repeat)
    for name, seconds in seconds_by_name.items():
        print(f"{name[:-2]}: {seconds:.3f} s")
    if args.json:
        print(json.dumps(seconds_by_name))


if __name__ == "__main__":
    main()

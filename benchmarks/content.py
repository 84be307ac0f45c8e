"""Items by their content, by the training rows of the target: content, cosine, tempo, popular.

    python benchmarks/content.py DATA [--logs ifdb-games,dunnhumby-sample] [--models content,...]
    python benchmarks/content.py --items 1000000

Logs are split at the times before which 50, 60, 70 and 80 % of their rows lie; no core, seen items
hidden, all items of log and table ranked, cases of the four splits pooled, and the user is the unit
of standard errors. Content has the setting that is best on the validation rows of the same four
splits, of the grid below; the test rows are ranked once. `defaults` is content without any choice,
`cosine` content with similarity alone.
With `--items`, a generated catalogue of that many items with texts is fitted instead: seconds, peak
memory, and milliseconds of a query.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import talerec as tr
from talerec.evaluation import join_results
from talerec.models.core import FitCache
from talerec.runtime import memory

SHARES = (0.5, 0.6, 0.7, 0.8)
PENALTIES = ((10, 10), (100, 10), (1000, 100))  # reg, mu
GRID = [
    {"reg": reg, "mu": mu, "similarity": similarity}
    for (reg, mu), similarity in itertools.product(PENALTIES, (0.0, 1.0))
]
COSINE = {"similarity": 1e6}


def split_at_shares(log: tr.Log, on: str) -> list[tr.Split]:
    """Return the splits at the shares of the log's rows; `on` is test or validation."""
    times = np.sort(log.time)
    return [tr.time_split(log, int(times[int(s * log.rows)]), on=on) for s in SHARES]


def evaluate(
    kind: Any, splits: list[tr.Split], on: str, caches: list[FitCache], **settings: Any
) -> tr.Evaluation:
    """Return one result over all splits of a model with these settings."""
    results = [
        tr.evaluate(
            kind(**settings).fit(split.train, cache=cache), split, on=on, k=[10], hide_seen=True
        )
        for split, cache in zip(splits, caches, strict=True)
    ]
    return join_results(results)


def show(name: str, result: tr.Evaluation) -> None:
    """Print NDCG@10 of all cases with its interval, and by training rows of the target."""
    low, high = result.intervals["NDCG@10"]
    parts = result.groups["item_rows"]
    groups = ", ".join(
        f"{part} {values['NDCG@10'] or 0:.4f} ({values['cases']})" for part, values in parts.items()
    )
    head = f"{name:32s} NDCG@10 {result.metrics['NDCG@10']:.4f} ({low:.4f} to {high:.4f})"
    print(f"{head}  {groups}", flush=True)


def compare_models(data: Path, name: str, models: list[str]) -> None:
    """Choose content's setting on validation rows, and print the results of all models."""
    log = tr.read_log(data / f"{name}.csv.gz", items=data / f"{name}.items.csv.gz")
    print(f"== {name}: {log}")
    validation = split_at_shares(log, "validation")
    caches = [FitCache() for _ in validation]
    scores = []
    for setting in GRID:
        result = evaluate(tr.Content, validation, "validation", caches, **setting)
        show(f"validation {' '.join(f'{v:g}' for v in setting.values())}", result)
        scores.append(result.metrics["NDCG@10"] or 0.0)
    best = GRID[int(np.argmax(scores))]
    print(f"chosen on validation rows: {best}", flush=True)
    kinds = {"content": (tr.Content, best), "defaults": (tr.Content, {})}
    kinds["cosine"] = (tr.Content, COSINE)
    kinds |= {"tempo": (tr.Tempo, {}), "popular": (tr.Popular, {})}
    test = split_at_shares(log, "test")
    for model in models:
        kind, settings = kinds[model]
        no_caches = [FitCache() for _ in test]
        show(f"test {model}", evaluate(kind, test, "test", no_caches, **settings))


def fit_catalogue(n_items: int) -> None:
    """Fit a generated log and catalogue of texts; print seconds, memory and a query's time."""
    draw = np.random.default_rng(0)
    n_rows = n_items * 2
    rows = {
        "user_id": np.sort(draw.integers(0, n_rows // 10, n_rows)),
        "item_id": (n_items * draw.random(n_rows) ** 2).astype(np.int64),
        "timestamp": draw.integers(1_600_000_000, 1_700_000_000, n_rows),
    }
    words = np.array([f"word{i}" for i in range(50_000)])
    picks = (len(words) * draw.random((n_items, 12)) ** 3).astype(np.int64)
    table = pl.DataFrame(
        {
            "item_id": np.arange(n_items),
            "title": pl.Series(words[picks].tolist(), dtype=pl.List(pl.String)).list.join(" "),
            "brand": [f"brand {i}" for i in draw.integers(0, 2000, n_items).tolist()],
            "price": draw.random(n_items),
        }
    )
    log = tr.Log.from_frame(pl.DataFrame(rows)).with_items(table)
    print(f"before the fit: {memory.peak_rss_mb():,.0f} MB", flush=True)
    begin, used = time.perf_counter(), time.process_time()
    model = tr.Content().fit(log)
    seconds, used = time.perf_counter() - begin, time.process_time() - used
    print(f"{n_items:,} items ({len(log.items):,} with rows), {log.rows:,} rows")
    print(f"fit {seconds:.1f} s ({used:.1f} s of processor time) {model.fitted.seconds}")
    print(f"peak {memory.peak_rss_mb():,.0f} MB", flush=True)
    histories = [model.item_ids[draw.integers(0, n_items, 20)].to_list() for _ in range(20)]
    model.recommend_histories(histories[:1], k=10, hide_seen=True)  # compiles
    seconds = []
    for history in histories:
        begin = time.perf_counter()
        model.recommend_histories([history], k=10, hide_seen=True)
        seconds.append(time.perf_counter() - begin)
    print(f"a query {1000 * np.median(seconds):.1f} ms (median), {1000 * min(seconds):.1f} (least)")


def main() -> None:
    """Run the comparison on real logs, or the fit of a large catalogue."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path, nargs="?", help="folder with the logs")
    parser.add_argument("--logs", default="ifdb-games,dunnhumby-sample")
    parser.add_argument("--models", default="content,defaults,cosine,popular,tempo")
    parser.add_argument("--items", type=int, help="items of a generated catalogue")
    options = parser.parse_args()
    if options.items is not None:
        fit_catalogue(options.items)
        return
    if options.data is None:
        parser.error("name the folder with the logs, or --items N")
    for name in options.logs.split(","):
        compare_models(options.data, name, options.models.split(","))


if __name__ == "__main__":
    main()

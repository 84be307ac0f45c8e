"""What content adds to tempo and to the ranker, paired, with the user as the unit.

    python benchmarks/content_tempo.py DATA --on test -o FOLDER     # the table of docs/content.md
    python benchmarks/content_tempo.py DATA [--logs ifdb-games,dunnhumby-sample] [-o FOLDER]
        [--models "tempo:ids;tempo;ranker:ids;ranker"] [--shares 0.5,0.8]

Logs are split at the times before which 50, 60, 70 and 80 % of their rows lie; no core, seen items
hidden, all items of log and table ranked, cases of all splits pooled. Each model is compared with
the first one: the difference in NDCG@10, summed by user, over the standard error of these sums.
The log `bookshop` is synthetic (`bookshop.py`) and needs no file. `MODEL:ids` is the model fitted
to the log without its item table; `ranker-fast` is a ranker of few parts, with a tempo that does
not learn.

The ranks of each model on each split go to a file in FOLDER, so that a run that was ended goes on
where it was; other results than those of the files need another folder.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

import talerec as tr
from bookshop import build_bookshop
from talerec.evaluation.model_lists import single_model

K = 10
SHARES = "0.5,0.6,0.7,0.8"
FILES = {
    "ml-100k": ("ml-100k.inter.gz", "ml-100k.item.gz"),
    "ml-1m": ("ml-1m.inter.gz", "ml-1m.item.gz"),
}


PARTS = "tempo(learn=off),slist,trending"  # of ranker-fast


def build_model(name: str) -> tr.Model:
    """Return the model that a name such as tempo, ranker-fast or ranker(parts=tempo) means."""
    return tr.Ranker(parts=PARTS) if name == "ranker-fast" else single_model(name)


def read_log(data: Path, name: str) -> tr.Log:
    """Return a log with its item table."""
    if name == "bookshop":
        return build_bookshop()
    rows, items = FILES.get(name, (f"{name}.csv.gz", f"{name}.items.csv.gz"))
    return tr.read_log(data / rows, items=data / items)


def rank_cases(log: tr.Log, share: float, text: str, on: str) -> pl.DataFrame:
    """Return the cases of a split with the rank of each target: a row per case.

    text: a model, such as tempo or tempo:ids. on: test or validation. The columns are user_id,
    item_rows, gain (NDCG@10) and seconds (processor time of the fit).
    """
    times = np.sort(log.time)
    split = tr.time_split(log, int(times[int(share * log.rows)]), on=on)
    name, _, mode = text.partition(":")
    model = build_model(name)
    train = split.train
    if mode == "ids":
        train = replace(train, info=None, catalogue=None)
    begin = time.process_time()
    model.fit(train)
    seconds = time.process_time() - begin
    frame = tr.evaluate(model, split, on=on, k=[K], hide_seen=True).frame
    rank = frame["rank"].to_numpy().astype(float)  # NaN: no rank
    gain = np.where(rank <= K, 1 / np.log2(rank + 1), 0.0)
    return frame.select("user_id", "item_rows").with_columns(
        gain=pl.Series(gain), seconds=pl.lit(seconds)
    )


def load_cases(folder: Path, log_name: str, data: Path, options: argparse.Namespace) -> None:
    """Rank the cases of a log by all models, unless the folder has the result; print the table."""
    log, results = None, {}
    for text in options.models:
        parts = []
        for share in options.shares:
            label = "".join(c if c.isalnum() else "_" for c in text)
            path = folder / f"{log_name}.{options.on}.{share:g}.{label}.parquet"
            if not path.exists():
                log = read_log(data, log_name) if log is None else log
                frame = rank_cases(log, share, text, options.on)
                path.parent.mkdir(parents=True, exist_ok=True)
                frame.write_parquet(path.with_suffix(".part"))
                path.with_suffix(".part").rename(path)
            parts.append(pl.read_parquet(path).with_columns(share=pl.lit(share)))
        results[text] = pl.concat(parts)
        show(log_name, text, results[text], results[options.models[0]])


def show(log_name: str, text: str, frame: pl.DataFrame, first: pl.DataFrame) -> None:
    """Print NDCG@10 by training rows of the target, and the difference to the first model."""
    difference = frame["gain"] - first["gain"]
    sums = frame.with_columns(difference=difference).group_by("user_id").agg(
        pl.col("difference").sum(), pl.len()
    )  # fmt: skip
    mean = difference.mean() or 0.0
    deviations = (sums["difference"] - mean * sums["len"]).to_numpy()
    error = float(np.sqrt(deviations @ deviations)) / len(frame)
    z = mean / error if error else 0.0
    groups = frame.group_by("item_rows").agg(pl.col("gain").mean(), pl.len()).sort("item_rows")
    by_rows = "  ".join(f"{name} {gain:.4f} ({n:,})" for name, gain, n in groups.rows())
    seconds = sum(frame.group_by("share").agg(pl.col("seconds").first())["seconds"])
    print(
        f"{log_name:18s} {text:34s} {frame['gain'].mean():.4f} {mean:+.4f} +- {error:.4f}"
        f" z {z:+.2f}  {by_rows}  fit {seconds:.0f} s",
        flush=True,
    )


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path, help="folder with the logs")
    parser.add_argument("--logs", default="ifdb-games,dunnhumby-sample,ml-100k,ml-1m")
    parser.add_argument(
        "--models", default="tempo(content=off);tempo;content", help="separated by semicolons"
    )
    parser.add_argument("--on", default="validation", choices=["test", "validation"])
    parser.add_argument("--shares", default=SHARES)
    parser.add_argument("-o", "--out", type=Path, default=Path("content_tempo"))
    options = parser.parse_args()
    options.models = options.models.split(";")
    options.shares = [float(share) for share in options.shares.split(",")]
    for name in options.logs.split(","):
        load_cases(options.out, name, options.data, options)


if __name__ == "__main__":
    main()

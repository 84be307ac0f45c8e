"""A ranker, content or tempo fitted on Spark beside one machine: equality, and time as a ratio.

    python benchmarks/spark_ranker.py DIR/ml-100k.inter.gz --parts slist,rules,trending
    python benchmarks/spark_ranker.py DIR/ifdb-games.csv.gz --model content --items DIR/games.csv

Both fits read the same rows; parts that are solved have the local solver on one machine, too. Lists
are those of sampled users right after their last event, with seen items allowed and hidden. The
processor time of a fit on Spark is that of the driver, Java and the tasks.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

import talerec as tr
from talerec.models.core import NO_FILTER, rank_top
from talerec.runtime import csr_rows

_SOLVED = ("tempo", "tale", "slit", "slist")  # parts that Spark fits with the local solver
_CONF = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
}


def processor_seconds() -> float:
    """Return the processor time of this process and of its ended children."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def build_model(args: argparse.Namespace, *, is_local: bool) -> tr.Model:
    """Return the model to fit, whose solved parts have the local solver on one machine."""
    if args.model == "content":
        return tr.Content()
    if args.model == "tempo":
        return tr.Tempo(solver="local" if is_local else "auto", content="off")
    parts = args.parts.split(",")
    if is_local:
        parts = [f"{part}(solver=local)" if part in _SOLVED else part for part in parts]
    return tr.Ranker(parts=",".join(parts), content="off")


def compare_lists(model: tr.Model, expected: tr.Model, log: tr.Log, n_users: int) -> None:
    """Print how many lists are equal, and the largest difference of scores."""
    users = np.unique(np.linspace(0, len(log.users) - 1, n_users).astype(np.int64))
    histories = tr.Histories.of_users(log, users)
    histories = replace(histories, now=log.time[log.ptr[users + 1] - 1])
    for hides in (False, True):
        options = replace(NO_FILTER, hide_seen=hides)
        ours, theirs = (rank_top(each, histories, 10, options) for each in (model, expected))
        same = (ours.items == theirs.items).all(axis=1)
        difference = np.nanmax(np.abs(ours.scores - theirs.scores)[same], initial=0.0)
        scale = np.nanmax(np.abs(theirs.scores))
        seen = "hidden" if hides else "allowed"
        print(
            f"seen {seen}: {same.sum():,} of {len(users):,} lists are equal; scores of equal "
            f"lists differ by {difference / scale:.1e} of the largest at most",
            flush=True,
        )


def compare_weights(model: tr.Model, expected: tr.Model) -> None:
    """Print how many weights of tempo differ, and which learned arrays."""
    ours, theirs = (csr_rows(each.weights) for each in (model, expected))
    if not np.array_equal(ours.indices, theirs.indices):
        print("weights lead between other items")
        return
    n_differing = np.count_nonzero(ours.values != theirs.values)
    print(f"weights that differ: {n_differing:,} of {len(ours.values):,}")
    learned, reference = (each.fitted.weights.query_arrays for each in (model, expected))
    names = [name for name in reference if not np.array_equal(learned[name], reference[name])]
    print(f"learned arrays that differ: {', '.join(names) or 'none'} (of {len(reference)})")


def compare_learned(model: tr.Model, expected: tr.Model) -> None:
    """Print which of the ranker's arrays differ: trees, verdicts, times of rows."""
    ours, theirs = (each.fitted.weights.query_arrays for each in (model, expected))
    names = [name for name in theirs if name.startswith("ranker_") and name != "ranker_parts"]
    differing = [name for name in names if not np.array_equal(ours[name], theirs[name])]
    print(f"arrays that differ: {', '.join(differing) or 'none'} (of {len(names)})")


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("log", type=Path)
    parser.add_argument("--model", choices=["ranker", "content", "tempo"], default="ranker")
    parser.add_argument("--parts", default="tempo,sknn,rules,markov,trending")
    parser.add_argument("--items", type=Path, help="the item table (content)")
    parser.add_argument("--users", type=int, default=10_000, help="whose lists are compared")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--task-rows", type=int, default=100_000)
    args = parser.parse_args()
    log = tr.read_log(args.log)
    items = None if args.items is None else tr.read_items(args.items)
    whole = log if items is None else log.with_items(items)
    start = processor_seconds()
    expected = build_model(args, is_local=True).fit(whole)
    local = processor_seconds() - start
    with tempfile.TemporaryDirectory() as temporary:
        model, cluster = fit_on_spark(args, log, items, Path(temporary))
        print(f"{args.model}, {log.rows:,} rows, {len(log.items):,} items")
        print(f"processor time of Spark over that of one machine: {cluster / local:.1f}")
        if args.model == "ranker":
            compare_learned(model, expected)
        if args.model == "tempo":
            compare_weights(model, expected)
        compare_lists(model, expected, whole, args.users)


def fit_on_spark(
    args: argparse.Namespace, log: tr.Log, items: object, folder: Path
) -> tuple[tr.Model, float]:
    """Return the model fitted on Spark, and the processor time of the whole session."""
    from talerec import spark

    log.to_frame().write_parquet(folder / "log.parquet", row_group_size=50_000)
    before = processor_seconds()
    with spark.connected(args.master, _CONF) as session:
        session.sparkContext.setLogLevel("OFF")
        model = spark.fit(
            build_model(args, is_local=False), folder / "log.parquet", folder / "model.tale",
            session=session, items=items, task_rows=args.task_rows,
        )  # fmt: skip
        java = session.sparkContext._gateway.proc
    java.stdin.close()
    java.wait()
    return model, processor_seconds() - before


if __name__ == "__main__":
    main()

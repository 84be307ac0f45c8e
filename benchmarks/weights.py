"""The accuracy of models with and without weights of rows, on the same test events.

    python benchmarks/weights.py D/ml-1m.inter.gz --weight rating [--models tempo,tale]

Leave-one-out with default parameters; `--weight` is the column of weights. Prints HR@10 and NDCG@10
with the 95 % interval of NDCG@10.
"""

from __future__ import annotations

import argparse

import talerec as tr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log")
    parser.add_argument("--weight", default="rating")
    parser.add_argument("--models", default="tempo,tale")
    args = parser.parse_args()
    print(f"{'model':<10} {'weight':<10} {'HR@10':>7} {'NDCG@10':>8}  95 % interval")
    for name in args.models.split(","):
        for weight in (None, args.weight):
            split = tr.leave_one_out(tr.read_log(args.log, weight=weight))
            result = tr.evaluate(tr.MODELS[name]().fit(split.train), split)
            hit_rate, ndcg = result.metrics["HR@10"], result.metrics["NDCG@10"]
            low, high = result.intervals["NDCG@10"]
            line = f"{name:<10} {weight or '-':<10} {hit_rate:7.4f} {ndcg:8.4f}"
            print(f"{line}  {low:.4f} to {high:.4f}")


if __name__ == "__main__":
    main()

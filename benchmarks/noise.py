"""How often tempo changes its default weights on logs of noise, where no change can help.

    python benchmarks/noise.py [--logs 200] [--seed 0]

Three kinds of noise take turns; users, times and items are independent in each:

    uniform     items are drawn uniformly
    popular     items are drawn by Zipf's law, none twice by one user
    repeating   every user draws uniformly from six items of their own

Items drawn by Zipf's law with repetition are no noise in this sense: the log counts repeats of
popular items, and less weight for repeats then truly ranks better.
"""

from __future__ import annotations

import argparse

import numpy as np
import polars as pl

import talerec as tr

KINDS = ("uniform", "popular", "repeating")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    changed = dict.fromkeys(KINDS, 0)
    for number in range(args.logs):
        kind = KINDS[number % len(KINDS)]
        changed[kind] += changes_defaults(noise_log(kind, args.seed + number))
    print(f"{sum(changed.values())} of {args.logs} logs change the defaults: {changed}")


def noise_log(
    kind: str, seed: int, *, users: int = 600, items: int = 300, length: int = 15
) -> tr.Log:
    """Return a log of one kind of noise, `length` rows per user at random times in 116 days."""
    draw = np.random.default_rng(seed)
    shape = (users, length)
    if kind == "uniform":
        item = draw.integers(0, items, shape)
    elif kind == "popular":  # the smallest of exponential times with rates 1, 1/2, 1/3, ...
        arrival = draw.exponential(np.arange(1, items + 1), (users, items))
        item = draw.permuted(np.argsort(arrival, axis=1)[:, :length], axis=1)
    else:
        user_items = draw.integers(0, items, (users, 6))
        item = np.take_along_axis(user_items, draw.integers(0, 6, shape), axis=1)
    frame = pl.DataFrame(
        {
            "user_id": np.repeat(np.arange(users), length),
            "item_id": item.ravel(),
            "timestamp": 10**9 + draw.integers(0, 10**7, users * length),
        }
    )
    return tr.Log.from_frame(frame, time_unit="s")


def changes_defaults(log: tr.Log) -> bool:
    """Return whether a fit of tempo learns other weights than its defaults."""
    return tr.Tempo().fit(log).describe_learned() != ["Validation kept every default weight."]


if __name__ == "__main__":
    main()

"""Do intervals cover, and do tests of equal models reject one in twenty?

    python benchmarks/interval_coverage.py means         # coverage of the intervals of metrics
    python benchmarks/interval_coverage.py differences   # coverage of the intervals of differences
    python benchmarks/interval_coverage.py null   # how often `compare` finds equal models different
    python benchmarks/interval_coverage.py widths A.parquet ...   # results of `evaluate -o`

The coverage of the hit rate with one case per user is exact; all else is drawn, with a seed.
`widths` compares the intervals of saved results with those that count every case as a user.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
import polars as pl
from scipy import stats

import talerec as tr
from talerec.evaluation import Evaluation, difference_intervals, sum_users
from talerec.evaluation.intervals import mean_intervals

N_USERS = (50, 100, 200, 500, 1000, 2000)
RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
RANKS = np.arange(1, 11)
GAINS = {"HR@10": np.ones(10), "NDCG@10": 1 / np.log2(RANKS + 1), "MRR@10": 1 / RANKS}
MOST_WINDOWS = 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["means", "differences", "null", "widths"])
    parser.add_argument("results", nargs="*")
    parser.add_argument("--draws", type=int, default=1000)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    if args.what == "means":
        show_exact_coverage()
        show_mean_coverage(rng, args.draws)
    elif args.what == "differences":
        show_difference_coverage(rng, args.draws)
    elif args.what == "null":
        show_null_rates(rng, args.draws)
    else:
        show_widths(args.results)


# -- coverage --------------------------------------------------------------------------------------


def show_exact_coverage() -> None:
    """Print the exact coverage for the hit rate with one case per user, by number of users.

    Also that of a percentile bootstrap, whose draws of n users are binomial.
    """
    rates = np.unique([*RATES, *np.geomspace(0.01, 0.5, 200)])
    for name, interval in (("ours", adjusted_interval), ("bootstrap", bootstrap_interval)):
        table = []
        print(f"| {name}: users | " + " | ".join(map(str, RATES)) + " | lowest | mean |")
        for n in N_USERS:
            hits = np.arange(n + 1)
            low, high = interval(n)
            row = [stats.binom.pmf(hits[(low <= p) & (p <= high)], n, p).sum() for p in rates]
            table.append(row)
            cells = [row[int(np.searchsorted(rates, rate))] for rate in RATES]
            print(f"| {n} | {join(cells)} | {min(row):.3f} | {np.mean(row):.3f} |")
        print(f"lowest {np.min(table):.3f}, mean {np.mean(table):.3f}")


def adjusted_interval(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of our intervals for 0 to n hits of n users."""
    return mean_intervals(sum_users((np.arange(n)[:, None] < np.arange(n + 1)).astype(float)))


def bootstrap_interval(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of percentile bootstrap intervals for 0 to n hits of n users."""
    low, high = (stats.binom.ppf(q, n, np.arange(n + 1) / n) / n for q in (0.025, 0.975))
    return low, high


def show_mean_coverage(rng: np.random.Generator, draws: int) -> None:
    """Print the coverage of each metric with one case and with several cases per user.

    The windows of a user are alike to the degree `alike`: that share of them has one outcome.
    """
    print("| metric, windows, alike, users | " + " | ".join(map(str, RATES)) + " | mean |")
    for metric, gains in GAINS.items():
        for windows, alike in ((1, 0.0), (MOST_WINDOWS, 0.0), (MOST_WINDOWS, 0.3)):
            for n in (50, 200, 1000):
                row = []
                for rate in RATES:
                    inside = 0
                    for _ in range(draws):
                        sums, cases = draw_users(rng, n, rate, gains, windows, alike)
                        low, high = mean_intervals(sum_users(sums[:, None], cases))
                        inside += bool(low[0] <= rate * gains.mean() <= high[0])
                    row.append(inside / draws)
                name = f"{metric}, {'1' if windows == 1 else f'1 to {windows}'}, {alike:g}, {n}"
                print(f"| {name} | {join(row)} | {np.mean(row):.3f} |", flush=True)


def draw_users(
    rng: np.random.Generator,
    n_users: int,
    rate: float,
    gains: np.ndarray,
    windows: int,
    alike: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of a metric over each user's cases, and the number of these cases.

    A case is a hit with probability `rate`, at one of the ranks 1 to 10, which count as `gains`
    says. With several windows, users have 1 to `windows` cases, 4 on average; each case has the
    user's own outcome with probability sqrt(alike), else one of its own.
    """
    cases = np.minimum(rng.geometric(0.25, n_users), windows)
    common, sums = rng.random(n_users), np.zeros(n_users)
    for case in range(windows):
        same = rng.random(n_users) < np.sqrt(alike)
        is_hit = np.where(same, common, rng.random(n_users)) < rate
        sums += np.where(is_hit & (case < cases), rng.choice(gains, n_users), 0.0)
    return sums, cases


def show_difference_coverage(rng: np.random.Generator, draws: int) -> None:
    """Print the coverage of intervals of differences, by the shares of users who differ."""
    shares = ((0.005, 0.005), (0.02, 0.01), (0.05, 0.02), (0.05, 0.05), (0.2, 0.1), (0.3, 0.3))
    print("| metric, windows, users: better, worse | " + " | ".join(map(str, shares)) + " |")
    for metric in ("HR@10", "NDCG@10"):
        gains = GAINS[metric]
        for windows in (1, MOST_WINDOWS):
            for n in (50, 200, 1000):
                row = []
                for up, down in shares:
                    inside = 0
                    for _ in range(draws):
                        sums, cases = draw_differences(rng, n, (up, down), gains, windows)
                        low, high = difference_intervals(sum_users(sums[:, None], cases))
                        inside += bool(low[0] <= (up - down) * gains.mean() <= high[0])
                    row.append(inside / draws)
                print(f"| {metric}, {windows}, {n} | {join(row)} |", flush=True)


def draw_differences(
    rng: np.random.Generator,
    n_users: int,
    shares: tuple[float, float],
    gains: np.ndarray,
    windows: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of differences over each user's cases, and the number of these cases.

    `shares` are the probabilities that B, and that A, is better in a case; half of a user's cases
    have one outcome.
    """
    cases = np.minimum(rng.geometric(0.25, n_users), windows)
    common, sums = rng.random(n_users), np.zeros(n_users)
    for case in range(windows):
        number = np.where(rng.random(n_users) < 0.5, common, rng.random(n_users))
        sign = (number < shares[0]) * 1.0 - (number > 1 - shares[1])
        sums += np.where(case < cases, sign * rng.choice(gains, n_users), 0.0)
    return sums, cases


def join(cells: list[float]) -> str:
    return " | ".join(f"{cell:.3f}" for cell in cells)


# -- equal models ----------------------------------------------------------------------------------


def show_null_rates(rng: np.random.Generator, draws: int) -> None:
    """Print how often p is below 5 %, and the interval excludes 0, for pairs of equal models.

    A coin decides for each of 100 users which model all cases of the user favour. One case per user
    (leave-one-out, and a split by time with users absent), 15 windows with users in half of them,
    and 5 orders of ties.
    """
    split = tr.leave_one_out(tr.synthetic_log(2000, items=50))
    base = tr.evaluate(tr.Popular().fit(split.train), split, k=[10])
    designs = {
        "leave-one-out": ("window", 1, 0.0),
        "time": ("window", 1, 0.3),
        "rolling, 15 windows": ("window", 15, 0.5),
        "5 orders of ties": ("ties", 5, 0.0),
    }
    print("| cases of a user | p < .05 | interval excludes 0 | p < .05 if cases were users |")
    for name, (several, n_cases, absent) in designs.items():
        rejected = []
        for seed in range(draws):
            ranks = draw_equal_models(rng, 100, n_cases)
            is_case = rng.random(ranks[0].shape) >= absent
            frames = (frame_of(values, several, is_case) for values in ranks)
            outcome = tr.compare(*(replace(base, frame=frame) for frame in frames), seed=seed)
            pair = outcome.metrics["NDCG@10"]
            is_far = pair.interval[0] > 0 or pair.interval[1] < 0
            rejected.append([pair.p < 0.05, is_far, by_cases(ranks, is_case)])
        print(f"| {name} | {join(np.mean(rejected, axis=0).tolist())} |", flush=True)


def draw_equal_models(
    rng: np.random.Generator, n_users: int, n_cases: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return ranks (users x cases, 0 for a miss) of two models that are equally good.

    In four of five cases the model that the user's coin does not favour misses.
    """
    ranks = rng.integers(0, 16, (n_users, n_cases))
    worse = np.where(rng.random(ranks.shape) < 0.8, 0, ranks)
    is_first = rng.random((n_users, 1)) < 0.5
    return np.where(is_first, ranks, worse), np.where(is_first, worse, ranks)


def frame_of(ranks: np.ndarray, several: str, is_case: np.ndarray) -> pl.DataFrame:
    """Return a frame of cases with these ranks; `several`: what a user's cases differ in."""
    n_users, n_cases = ranks.shape
    number = np.tile([str(c) for c in range(n_cases)], n_users)
    rank = pl.Series(ranks.ravel()).replace(0, None)
    frame = pl.DataFrame(
        {
            "user_id": np.repeat(np.arange(n_users), n_cases),
            "ties": number if several == "ties" else np.repeat("file", ranks.size),
            "window": number if several == "window" else np.repeat("", ranks.size),
            "time": np.zeros(ranks.size, "datetime64[us]"),
            "rank": rank,
            "rank_hidden": rank,
        }
    )
    return frame.filter(pl.Series(is_case.ravel()))


def by_cases(ranks: tuple[np.ndarray, np.ndarray], is_case: np.ndarray) -> bool:
    """Return whether a t-test that counts every case as a user rejects."""
    a, b = (np.where((r > 0) & (r <= 10), 1 / np.log2(np.maximum(r, 1) + 1), 0.0) for r in ranks)
    return bool(stats.ttest_1samp((b - a)[is_case], 0.0).pvalue < 0.05)


# -- widths ----------------------------------------------------------------------------------------


def show_widths(results: list[str]) -> None:
    """Print intervals of saved results, clustered by user, and with every case as a user."""
    print("| result | cases | users | NDCG@k | by user | by case | ratio of widths |")
    for path in results:
        result = Evaluation.load(path)
        single = result.frame.with_columns(user_id=pl.int_range(pl.len()))
        for metric in (f"HR@{max(result.ks)}", f"NDCG@{max(result.ks)}"):
            ours, theirs = (r[metric] for r in (result.intervals, result.intervals_of(single)))
            ratio = (ours[1] - ours[0]) / (theirs[1] - theirs[0])
            spans = (f"{low:.4f} to {high:.4f}" for low, high in (ours, theirs))
            print(
                f"| {path.rsplit('/', 1)[-1]}, {metric} | {result.cases:,} | {result.users:,} |"
                f" {result.metrics[metric]:.4f} | {' | '.join(spans)} | {ratio:.2f} |"
            )


if __name__ == "__main__":
    main()

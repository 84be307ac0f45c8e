"""Impressions: durability, their price per request, and what their statistics are worth.

    python benchmarks/impressions.py kill --answers 200000   # workers are killed with kill -9
    python benchmarks/impressions.py cost                    # processor time with and without
    python benchmarks/impressions.py cost --other PATH       # against the code of another folder
    python benchmarks/impressions.py shop                    # simulations; no service is started
    python benchmarks/impressions.py explore                 # exploration of planted new items

*kill*: clients ask for lists and click on half of them, with and without ids, while workers are
killed. Then the durable impressions and events are compared with what was answered and
acknowledged, the counters with what is missing, and the figures of `/v1/stats` with a slow count in
Python. *cost*: two services with a store, one with `--impressions 1`, get the same requests by user
in turns A B B A; the processor time of the thread that answers, and apart from it that of the
thread that writes impressions. With `--other`, a third service runs the code of that folder, such
as a checkout of a commit from before impressions. *shop*: 200 simulated shops, 1,000 comparisons of
equal models that are looked at after every user, and how many users a real difference needs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from events import ROOT, Connection, Service, make_model, stats_of

WINDOW_US = 1_800_000_000
USERS = 5000


# -- kill ------------------------------------------------------------------------------------------


async def visit(
    port: int, count: int, seed: int, answered: list[str], clicks: dict[str, dict[str, Any]],
    end: float,
) -> None:  # fmt: skip
    """Ask for `count` lists; click on an item of half of them until the click is acknowledged.

    end: value of `time.monotonic` after which no further list is asked for.
    """
    chance, connection = random.Random(seed), Connection(port)
    n_done = 0
    while n_done < count and time.monotonic() < end:
        user = str(10**6 + chance.randrange(USERS))
        try:
            body = {"user_id": user, "k": 10}
            status, answer = await connection.ask("POST", "/v1/recommend", body)
        except (OSError, asyncio.IncompleteReadError, KeyError):
            await connection.close()
            await asyncio.sleep(0.02)
            continue
        if status != 200:
            await asyncio.sleep(0.02)
            continue
        n_done += 1
        answered.append(answer["recommendation_id"])
        if chance.random() < 0.5:
            item = str(chance.choice(answer["items"])["item_id"])
            event = {"user_id": user, "item_id": item, "event_id": f"{seed}-{n_done}"}
            if chance.random() < 0.5:
                event["recommendation_id"] = answer["recommendation_id"]
            await click(connection, event)
            clicks[event["event_id"]] = event
    await connection.close()


async def click(connection: Connection, event: dict[str, Any]) -> None:
    while True:
        with suppress(OSError, asyncio.IncompleteReadError, KeyError):
            if (await connection.ask("POST", "/v1/events", {"events": [event]}))[0] == 202:
                return
        await connection.close()
        await asyncio.sleep(0.02)


async def kill_workers(
    service: Service, kills: int, total: int, answered: list[str], killed: list[float], end: float
) -> None:
    for n in range(kills):
        while len(answered) < total * (n + 1) / (kills + 1) and time.monotonic() < end:
            await asyncio.sleep(0.02)
        if time.monotonic() >= end:
            return
        print(f"{len(answered):,} answers", file=sys.stderr, flush=True)
        with suppress(OSError, IndexError):
            os.kill(random.choice(service.workers()), signal.SIGKILL)
            killed.append(time.time())


async def load_and_kill(service: Service, args: argparse.Namespace) -> dict[str, Any]:
    answered: list[str] = []
    clicks: dict[str, dict[str, Any]] = {}
    killed: list[float] = []
    count, end = args.answers // args.clients, time.monotonic() + args.seconds
    visits = [visit(service.port, count, n, answered, clicks, end) for n in range(args.clients)]
    kills = kill_workers(service, args.kills, count * args.clients, answered, killed, end)
    await asyncio.gather(*visits, kills)
    written_at = math.inf  # when all were written, or lost
    while True:  # until the figures are newer than that
        figures = (await stats_of(service.port))["impressions"]
        queue = figures["queue"]
        if queue["queued"] == queue["written"] + queue["lost"]:
            written_at = min(written_at, time.time())
        if figures.get("counted_at", 0) > written_at:
            break
        await asyncio.sleep(1)
    return {"answered": answered, "clicks": clicks, "killed": killed, "figures": figures}


def count_slowly(store: Any, since: int) -> tuple[int, int, int]:
    """Return answers, shown items and clicks of the durable rows, counted in plain Python.

    since: microseconds; the service counts the latest 100,000 answers, those from then on.
    """
    answers: dict[str, tuple[str, int, list[str]]] = {}
    times: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for rows in store.read_impressions(since):
        for row in rows:
            answers[row.id] = (row.user, row.time, json.loads(row.items))
            for item in answers[row.id][2]:
                times[row.user, item].append((row.time, row.id))
    for listed in times.values():
        listed.sort()
    clicked: set[tuple[str, str]] = set()
    for rows in store.read_possible_clicks(since):
        for event in rows:
            shown_id = event.recommendation_id
            if shown_id is not None:
                if shown_id in answers:
                    user, shown_at, items = answers[shown_id]
                    is_timely = -60e6 <= event.time - shown_at <= WINDOW_US
                    if user == event.user and event.item in items and is_timely:
                        clicked.add((shown_id, event.item))
                continue
            listed = times.get((event.user, event.item), [])
            n = bisect_right(listed, (event.time, "~"))
            if n and event.time - listed[n - 1][0] <= WINDOW_US:
                clicked.add((listed[n - 1][1], event.item))
    return len(answers), sum(len(items) for _, _, items in answers.values()), len(clicked)


def kill(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from talerec.store import ImpressionStore

    address = f"sqlite:///{folder}/shop.db"
    service = Service(make_model(folder, 5000), address, 2, "--impressions", "1")
    try:
        load = asyncio.run(load_and_kill(service, args))
    finally:
        service.stop()
    with ImpressionStore(address) as store:
        durable = {row.id for rows in store.read_impressions(0) for row in rows}
        slow = count_slowly(store, round(1e6 * load["figures"]["since"]))
        stored, last = set[str](), 0
        while rows := store.read_after(last, 50_000):
            stored |= {str(row.event_id) for row in rows}
            last = rows[-1].seq
    missing = [shown_id for shown_id in load["answered"] if shown_id not in durable]
    ages = []  # seconds before the next kill of each answer that is not durable
    for shown_id in missing:
        shown_at = int(shown_id[:14], 16) / 1e6
        ages.append(min((t - shown_at for t in load["killed"] if t >= shown_at), default=math.inf))
    figures, queue = load["figures"], load["figures"]["queue"]
    counted = (figures["answers"], figures["impressions"], figures["clicks"])
    facts = {
        "answers": len(load["answered"]), "clicks sent": len(load["clicks"]),
        "killed": len(load["killed"]), "queue": queue, "durable": len(durable),
        "missing answers": len(missing), "oldest at its kill, s": max(ages, default=0.0),
        "figures": counted, "slow twin": slow,
        "lost events": len(load["clicks"].keys() - stored),
    }  # fmt: skip
    assert counted == slow, facts
    assert len(missing) <= queue["lost"], facts
    assert len(durable) + queue["lost"] >= queue["queued"], facts
    assert max(ages, default=0.0) <= 1.0, facts
    assert facts["lost events"] == 0, facts
    return facts


# -- cost ------------------------------------------------------------------------------------------


def thread_seconds(service: Service) -> tuple[float, float]:
    """Return the processor seconds of the only worker: of the thread that answers, of the rest."""
    (pid,) = service.workers()
    seconds = {
        thread.name: int((thread / "schedstat").read_text().split()[0]) / 1e9
        for thread in Path(f"/proc/{pid}/task").iterdir()
    }
    answering = seconds.pop(str(pid))
    return answering, sum(seconds.values())


async def ask_slice(connection: Connection, users: list[str]) -> None:
    await connection.close()  # an idle one may have been closed on a busy machine
    for user in users:
        status, _ = await connection.ask("POST", "/v1/recommend", {"user_id": user, "k": 10})
        assert status == 200


async def writer_seconds(port: int) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
    lines = (await reader.read()).decode().splitlines()
    writer.close()
    name = "talerec_impression_writer_seconds_total "
    (line,) = [line for line in lines if line.startswith(name)]
    return float(line.split()[1])


async def measure_cost(
    services: dict[str, Service], args: argparse.Namespace
) -> dict[str, list[float]]:
    """Return processor seconds of turns by service, in the order A B C C B A of each turn.

    All get the same requests; seconds are those of the thread that answers. "writer" has the
    seconds of the thread that writes, in all turns.
    """
    chance, names = random.Random(1), list(services)
    connections = {name: Connection(services[name].port) for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    wrote = 0.0
    for turn in range(-3, args.turns):  # the first three are not counted
        users = [str(chance.randrange(1, 250)) for _ in range(args.requests)]
        if turn == 0:
            wrote = -await writer_seconds(services["with"].port)
        sums = dict.fromkeys(names, 0.0)
        for name in (*names, *names[::-1]):
            begin = thread_seconds(services[name])[0]
            await ask_slice(connections[name], users)
            sums[name] += thread_seconds(services[name])[0] - begin
        if turn >= 0:
            for name in names:
                seconds[name].append(sums[name])
    await asyncio.sleep(1)  # what waits is written
    wrote += await writer_seconds(services["with"].port)
    for connection in connections.values():
        await connection.close()
    return {**seconds, "writer": [wrote / args.turns]}


def start_services(folder: Path, path: Path, args: argparse.Namespace) -> dict[str, Service]:
    services = {}
    for name in ("before", "without", "with"):
        if name == "before" and args.other is None:
            continue
        (folder / name).mkdir(parents=True)
        options = ("--impressions", "1") if name == "with" else ()
        source = args.other / "src" if name == "before" else ROOT / "src"
        address = f"sqlite:///{folder}/{name}/shop.db"
        services[name] = Service(path, address, 1, *options, source=source)
    return services


def cost(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return medians over starts: equal processes differ by some percent, by chance."""
    path = make_model(folder, 5000)
    per_request: dict[str, list[float]] = defaultdict(list)
    ratios: dict[str, list[float]] = defaultdict(list)
    for start in range(args.starts):
        services = start_services(folder / str(start), path, args)
        try:
            seconds = asyncio.run(measure_cost(services, args))
        finally:
            for service in services.values():
                service.stop()
        first = seconds[next(iter(services))]
        for name, values in seconds.items():
            per_request[name].append(1e6 * statistics.median(values) / (2 * args.requests))
        for name in services:
            quotients = [a / b for a, b in zip(seconds[name], first, strict=True)]
            ratios[name].append(statistics.median(quotients))
        print(start, {name: round(values[-1], 3) for name, values in ratios.items()}, flush=True)
    return {
        name: {
            "us per request": statistics.median(values),
            **({"ratio": statistics.median(ratios[name]), "ratios": sorted(ratios[name])}
               if name in ratios else {}),
        }
        for name, values in per_request.items()
    }  # fmt: skip


# -- statistics ------------------------------------------------------------------------------------


def simulate_shop(seed: int, n_users: int) -> pl.DataFrame:
    """Return shown items with clicks: users differ in how much they see and in how they like it."""
    chance = np.random.default_rng(seed)
    n_answers = chance.geometric(0.3, n_users)
    liking = chance.beta(1, 3, n_users)  # 1/4 in the mean, independent of the number of answers
    user = np.repeat(np.arange(n_users), 10 * n_answers)
    rank = np.tile(np.arange(1, 11), n_answers.sum())
    clicked = chance.random(len(user)) < liking[user] * RANK_RATES[rank - 1]
    ids = np.repeat(np.arange(n_answers.sum()), 10)
    columns = {"user_id": user.astype(str), "recommendation_id": ids.astype(str)}
    return pl.DataFrame({**columns, "rank": rank, "clicked": clicked})


RANK_RATES = 0.4 / np.arange(1, 11)


def cover_truth(runs: int) -> dict[str, float]:
    """Return how often the intervals of rates cover the truth, over all ranks and in all."""
    from talerec.evaluation import count_rates

    covered: Counter[str] = Counter()
    for seed in range(runs):
        frame = simulate_shop(seed, 300)
        (whole,) = count_rates(frame)
        covered["all"] += whole["interval"][0] <= 0.25 * RANK_RATES.mean() <= whole["interval"][1]
        for row in count_rates(frame, "rank"):
            truth = 0.25 * RANK_RATES[row["rank"] - 1]
            name = "rank 1" if row["rank"] == 1 else "rank 10" if row["rank"] == 10 else "between"
            covered[name] += row["interval"][0] <= truth <= row["interval"][1]
    shares = {name: covered[name] / runs for name in ("all", "rank 1", "rank 10")}
    return {**shares, "ranks 2 to 9": covered["between"] / runs / 8}


def user_outcomes(chance: Any, shape: tuple[int, int], rate: float) -> Any:
    """Return clicks per shown item of users who see 10 to 50 items and like them differently."""
    shown = 10 * chance.integers(1, 6, shape)
    return chance.binomial(shown, chance.beta(2, 2 / rate - 2, shape)) / shown


def find_decisions(first: Any, second: Any) -> tuple[Any, Any]:
    """Return at which user each run's interval first excludes 0 (-1: at none), and its sign.

    A run is a row. The intervals are looked at after every pair of users, from the 50th on; the
    formula is checked against `difference_sequence` at some places.
    """
    from talerec.evaluation import OutcomeSums, difference_sequence
    from talerec.evaluation.sequences import _RHO_SQUARED

    n = np.arange(1, first.shape[1] + 1)
    sums = [(group.cumsum(1), (group**2).cumsum(1)) for group in (first, second)]
    variance = sum((squares - total**2 / n + 1) / n**2 for total, squares in sums)
    scaled = 2 * n * _RHO_SQUARED
    boundary = 2 * (scaled + 1) / scaled * np.log(np.sqrt(scaled + 1) / 0.05)
    difference, distance = (sums[1][0] - sums[0][0]) / n, np.sqrt(variance * boundary)
    for at in (49, first.shape[1] // 2, first.shape[1] - 1):
        groups = [OutcomeSums(at + 1, float(t[0, at]), float(s[0, at])) for t, s in sums]
        low, high = difference_sequence(*groups) or (math.nan, math.nan)
        expected = difference[0, at] - distance[0, at], difference[0, at] + distance[0, at]
        assert np.allclose((low, high), expected), (low, high, expected)
    excludes = np.abs(difference) > distance
    excludes[:, :49] = False
    at = np.where(excludes.any(1), excludes.argmax(1) + 1, -1)
    return at, np.sign(difference[np.arange(len(at)), np.maximum(at - 1, 0)])


def null_errors(runs: int, rate: float) -> dict[str, float]:
    """Return the share of comparisons of equal models that ever show a difference."""
    chance, wrong, usual = np.random.default_rng(7), 0, 0
    for _ in range(0, runs, 50):
        first, second = (user_outcomes(chance, (50, 10_000), rate) for _ in range(2))
        wrong += int((find_decisions(first, second)[0] > 0).sum())
        n = np.arange(1, 10_001)
        variance = sum((g**2).cumsum(1) - g.cumsum(1) ** 2 / n for g in (first, second))
        difference = np.abs((second - first).cumsum(1))
        usual += int((difference > 1.96 * np.sqrt(np.maximum(variance, 0)))[:, 49:].any(1).sum())
    return {"sequence": wrong / runs, "usual interval, looked at as often": usual / runs}


def users_needed(rate: float, lift: float, runs: int) -> dict[str, float]:
    """Return the users of each model until the sequence decides, and those of a fixed test."""
    chance, stops, signs = np.random.default_rng(8), list[int](), list[float]()
    for _ in range(0, runs, 20):
        first = user_outcomes(chance, (20, 60_000), rate)
        second = user_outcomes(chance, (20, 60_000), rate * (1 + lift))
        at, sign = find_decisions(first, second)
        stops += at.tolist()
        signs += sign[at > 0].tolist()
    variance = sum(float(group.var()) for group in (first, second))
    fixed = (1.96 + 0.8416) ** 2 * variance / (rate * lift) ** 2  # 80 % power
    decided = sorted(stop if stop > 0 else 10**9 for stop in stops)
    return {
        "fixed test, 80 % power": fixed, "sequence, median": decided[len(decided) // 2],
        "sequence, 80 %": decided[int(0.8 * len(decided)) - 1],
        "wrong sign": sum(sign < 0 for sign in signs) / runs,
    }  # fmt: skip


def shop(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    return {
        "covered": cover_truth(200),
        "null, rate .05": null_errors(args.runs, 0.05),
        "null, rate .01": null_errors(args.runs, 0.01),
        "users, .05 against .055": users_needed(0.05, 0.1, 200),
        "users, .05 against .06": users_needed(0.05, 0.2, 200),
    }


# -- exploration -----------------------------------------------------------------------------------


def explore(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Show lists of a model with 60 known and 60 new items; of the new ones, five are good."""
    import talerec as tr
    from talerec.serve import Settings, schemas
    from talerec.serve.http import App
    from talerec.serve.model import Explorer
    from talerec.serve.model.queries import build_query

    log = tr.synthetic_log(3000, users=300, items=120, seed=3)
    path = tr.TALE(reg=20).fit(log).save(folder / "shop.tale")
    app = App(Settings(path=path), folder / "run")
    app.holder.refresh()
    model = app.holder.current
    ids, chance = model.model.item_ids, random.Random(4)
    popular = [item for item in ids if item <= 60]
    good = chance.sample([item for item in ids if item > 60], 5)
    rate = dict.fromkeys(popular, 0.06) | {item: 0.01 for item in ids if item > 60}
    rate |= dict.fromkeys(good, 0.15)
    explorer, counts = Explorer(args.share, 1.0, random.Random(5)), Counter[str]()
    clicks, rows, lost = Counter[Any](), list[tuple[Any, ...]](), 0.0
    for n in range(args.answers):
        if n % 500 == 0:
            explorer.set_counts({**{str(item): 1000 for item in popular}, **counts})
        history = [schemas.HistoryRow(item) for item in chance.sample(popular, 3)]
        query = build_query(schemas.RecommendRequest(history=history, k=10, hide_seen=True,
                                                     allow=None))  # fmt: skip
        answer = model.recommend(query)
        before = [rate[item.item_id] for item in answer.items]
        explorer.explore(model, query, answer)
        lost += sum(before) - sum(rate[item.item_id] for item in answer.items)
        for place, item in enumerate(answer.items):
            is_explored = item.explored is True
            p = 1.0 if item.probability is schemas.ABSENT else item.probability
            is_clicked = chance.random() < rate[item.item_id]
            if is_explored:
                counts[str(item.item_id)] += 1
                clicks[item.item_id] += is_clicked
            target = 1.0 if p == 1 else (0.0 if is_explored else 1.0)
            more = (
                p if p == 1 else p * (4 if is_explored else (1 - 4 * args.share) / (1 - args.share))
            )
            rows.append((f"u{n}", str(n), p, is_clicked, target, more, before[place],
                         rate[item.item_id]))  # fmt: skip
    return {**describe_exploration(counts, clicks, good, lost, args),
            **describe_policies(rows, args)}  # fmt: skip


def describe_exploration(
    counts: Counter[str], clicks: Counter[Any], good: list[Any], lost: float, args: Any
) -> dict[str, Any]:
    rates = {int(item): clicks[int(item)] / n for item, n in counts.items()}
    best = sorted(rates, key=lambda item: -rates[item])[:5]
    return {
        "share": args.share, "answers": args.answers, "items explored": len(counts),
        "explored impressions": sum(counts.values()),
        "planted items among the five best rates": len(set(best) & set(good)),
        "clicks given up per 1,000 answers": 1000 * lost / args.answers,
    }  # fmt: skip


def describe_policies(rows: list[tuple[Any, ...]], args: Any) -> dict[str, Any]:
    """Return estimated rates of two other policies beside the truth."""
    from talerec.evaluation import estimate_policy_rate

    names = ["user_id", "recommendation_id", "probability", "clicked", "none", "fourfold"]
    frame = pl.DataFrame(rows, [*names, "rate_of_model", "rate"], orient="row")
    factor = pl.col("fourfold") / pl.col("probability")
    truth = {"none": frame["rate_of_model"].mean()}
    truth["fourfold"] = frame.select((factor * pl.col("rate")).mean()).item()
    return {
        f"exploration {name}": {"truth": truth[name], **estimate_policy_rate(frame, name)}
        for name in ("none", "fourfold")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["kill", "cost", "shop", "explore"])
    parser.add_argument("--answers", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=3600, help="of answers, at most: kill")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--starts", type=int, default=9, help="of the services: cost")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--requests", type=int, default=150, help="of a turn: cost")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--other", type=Path, help="a checkout to compare the cost with")
    parser.add_argument("--share", type=float, default=0.05)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "run").mkdir()
        facts = globals()[args.what](args, folder)
    print(json.dumps(facts, indent=1))


if __name__ == "__main__":
    sys.exit(main())

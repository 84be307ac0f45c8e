"""Features against slow twins, and that they know nothing of the future."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import polars as pl
import pytest

import talerec as tr
from logs import DAY, log_of
from talerec.data import UNTIMED, ContextColumn, Histories, take_context
from talerec.features import (
    FAMILIES,
    NO_DATE,
    ContentColumns,
    ContextRows,
    ContextState,
    FeatureInputs,
    FeatureSources,
    ItemContent,
    ItemTimes,
    PartScores,
    build_features,
    empty_content,
    empty_context,
    feature_groups,
    feature_names,
)

HOUR = DAY // 24
CONTENT = ContentColumns(("author", "tags"), ("price",), True)
SOURCES = FeatureSources(["a", "b"], [("device", False), ("age", True)], CONTENT)
START = 1_600_000_000 * 10**6
WINDOWS = {
    "share_6h": 6 * HOUR, "share_day": DAY, "share_week": 7 * DAY, "share_month": 30 * DAY,
    "share_half_year": 180 * DAY, "share_ever": 10**18,
}  # fmt: skip


def random_log(seed: int = 0, users: int = 30, items: int = 25, rows: int = 600) -> tr.Log:
    rng = np.random.default_rng(seed)
    times = START + rng.integers(0, 300, rows) * DAY // 7  # many rows at equal times
    columns = (rng.integers(0, users, rows), rng.integers(0, items, rows), times)
    log = log_of([(int(u), int(i), int(t)) for u, i, t in zip(*columns, strict=True)])
    return add_context(log)


def add_context(log: tr.Log, seed: int = 2) -> tr.Log:
    """The log with a device per row, sometimes missing, and the age of each user, for some."""
    rng = np.random.default_rng(seed)
    device = pl.Series(rng.choice(["phone", "desk", "tv", ""], log.rows, p=[0.5, 0.3, 0.1, 0.1]))
    ages = pl.DataFrame({"user_id": log.users.ids[5:], "age": rng.permutation(len(log.users) - 5)})
    columns = (ContextColumn.from_series("device", device),)
    return replace(log, context=columns).with_users(ages)


def make_inputs(log: tr.Log, counted: tr.Log, seed: int = 1) -> FeatureInputs:
    """Requests of all users, at a time within their rows, with random candidates and scores."""
    rng = np.random.default_rng(seed)
    n, n_items, width = len(log.users), len(log.items), 9
    stop = log.ptr[:-1] + (np.diff(log.ptr) * rng.random(n)).astype(np.int64)
    now = log.time[stop]
    candidates = np.stack([rng.permutation(n_items)[:width] for _ in range(n)]).astype(np.int32)
    counts = rng.integers(0, width + 1, n)
    scores = rng.normal(size=(2, n, width))
    scores[rng.random(scores.shape) < 0.2] = np.nan
    ranks = rng.integers(0, 50, scores.shape).astype(np.float32)
    ranks[rng.random(scores.shape) < 0.3] = np.nan
    tops = rng.normal(size=(2, n, 2))
    known_until = np.where(rng.random(n) < 0.3, now - 20 * DAY, now + DAY)
    return FeatureInputs(
        log.ptr[:-1], stop, log.item, log.time, now, known_until, candidates, counts,
        PartScores(scores, ranks, tops), ItemTimes.from_log(counted),
        ContextState.learn(counted).build_inputs(requests_of(log, stop)), make_content(n_items),
    )  # fmt: skip


def make_content(n_items: int, seed: int = 4) -> ItemContent:
    """Random vectors, two columns of categories, prices and dates; some items lack each."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n_items, 3)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[rng.random(n_items) < 0.2] = 0.0
    cells = [
        [sorted(rng.choice(6, rng.integers(0, most + 1), replace=False)) for _ in range(n_items)]
        for most in (1, 4)
    ]
    ends = np.cumsum([len(cell) for column in cells for cell in column])
    indptr = np.concatenate([[0], ends])[: 2 * n_items + 1]
    indptr = np.stack([indptr[: n_items + 1], indptr[n_items:]]).astype(np.int64)
    codes = np.array([code for column in cells for cell in column for code in cell], np.int32)
    prices = np.where(rng.random(n_items) < 0.3, np.nan, rng.integers(-2, 9, n_items))
    dates = START + rng.integers(-100, 300, n_items) * DAY // 7
    dates[rng.random(n_items) < 0.2] = NO_DATE
    return ItemContent(vectors, indptr, codes, prices[None, :].astype(float), dates)


def slow_content(inputs: FeatureInputs, item: int, newest: list[int], now: int) -> dict[str, float]:
    """The features of content of one candidate; newest: the user's last 20 items, oldest first."""
    content, out = inputs.content, {}
    vectors = content.vectors.astype(float)
    lags = [(i, len(newest) - 1 - n) for n, i in enumerate(newest) if i not in (item, -1)]
    described = [(vectors[i] @ vectors[item], math.exp(-lag / 6)) for i, lag in lags
                 if vectors[i].any() and vectors[item].any()]  # fmt: skip
    nearest = max((similarity for similarity, _ in described), default=math.nan)
    total = sum(weight for _, weight in described)
    mean = sum(s * w for s, w in described) / total if described else math.nan
    out |= {"content_nearest": nearest, "content_mean": mean}
    for j in range(2):
        cells = [
            set(content.codes[content.indptr[j, i] : content.indptr[j, i + 1]].tolist())
            for i in range(len(vectors))
        ]
        others = [cells[i] for i, _ in lags if cells[i]]
        known = bool(others and cells[item])
        shared = sum(bool(cell & cells[item]) for cell in others)
        out[f"category{j + 1}_share"] = shared / len(others) if known else math.nan
    prices = [content.quantities[0, i] for i in newest if i >= 0 and content.quantities[0, i] > 0]
    price = content.quantities[0, item]
    is_known = bool(prices) and price > 0
    out["number1_ratio"] = math.log(price / np.mean(prices)) if is_known else math.nan
    date = int(content.dates[item])
    out["item_days"] = (now - date) / DAY if NO_DATE < date <= now else math.nan
    return out


def requests_of(log: tr.Log, stop: np.ndarray) -> Histories:
    """Requests in the context of the rows `stop`."""
    return replace(Histories.of_users(log), context=take_context(log.context, stop))


@cache
def context_values(log: tr.Log) -> list[list[Any]]:
    """The value of each context column in each row: text, the bin of an age, or None."""
    device, age = (
        [None if code < 0 else column.values[int(code)] for code in column.codes]
        for column in log.context
    )
    known = [value for value in age if value is not None]
    edges = {float(np.quantile(known, n / 16)) for n in range(1, 16)}
    bins = [None if value is None else sum(value >= edge for edge in edges) for value in age]
    return [device, bins]


def slow_features(inputs: FeatureInputs, counted: tr.Log, q: int, c: int) -> dict[str, float]:
    """Every feature of one candidate, by loops over rows."""
    item, now = int(inputs.candidates[q, c]), int(inputs.now[q])
    end = min(now, int(inputs.known_until[q]))
    history = [
        (int(i), int(t))
        for i, t in zip(
            inputs.item[inputs.start[q] : inputs.stop[q]],
            inputs.time[inputs.start[q] : inputs.stop[q]],
            strict=True,
        )
    ]
    out: dict[str, float] = {}
    is_seen = any(i == item for i, _ in history)
    joined, n_lists = 0.0, 0
    for p, part in enumerate(("a", "b")):
        score, rank = inputs.parts.scores[p, q, c], inputs.parts.ranks[p, q, c]
        top = inputs.parts.tops[p, q, 0 if is_seen else 1]
        out |= {f"{part}_score": score, f"{part}_rank": rank}
        out[f"{part}_ratio"] = score / top if top > 0 else math.nan
        if not math.isnan(rank):
            joined, n_lists = joined + 1 / (rank + 10), n_lists + 1
    out |= {"joined_rank": joined, "n_lists": n_lists}
    before = [(int(i), int(t)) for i, t in zip(counted.item, counted.time, strict=True) if t < end]
    times = sorted(t for i, t in before if i == item)
    for name, window in WINDOWS.items():
        total = sum(t >= end - window for _, t in before)
        out[name] = sum(t >= end - window for t in times) / max(total, 1)
    out["log_count"] = math.log1p(len(times))
    out["age_days"] = (end - times[0]) / DAY if times else math.nan
    out["idle_days"] = (end - times[-1]) / DAY if times else math.nan
    out["n_rows"] = len(history)
    is_timed = bool(history) and history[-1][1] > UNTIMED
    span = max((history[-1][1] - history[0][1]) / DAY, 1.0) if is_timed else math.nan
    out["inactive_days"] = max(now - history[-1][1], 0) / DAY if is_timed else math.nan
    out["rows_per_day"] = len(history) / span
    out["stale_days"] = max(now - int(inputs.known_until[q]), 0) / DAY
    newest = [i for i, _ in history[-20:]]
    out["distinct_share"] = len(set(newest)) / max(len(newest), 1)
    logs = [math.log1p(sum(j == i for j, _ in before)) for i in newest]
    out["taste_popularity"] = sum(logs) / len(logs) if logs else 0.0
    out["popularity_gap"] = out["log_count"] - out["taste_popularity"]
    rows = [(len(history) - n, t, n) for n, (i, t) in enumerate(history) if i == item]
    out["seen_count"] = len(rows)
    out["seen_lag"] = rows[-1][0] if rows else math.nan
    hours = [max(now - t, HOUR / 60) / HOUR for _, t, _ in rows]
    out["seen_hours"] = hours[-1] if rows else math.nan
    out["seen_by_lag"] = sum(lag**-0.5 for lag, _, _ in rows)
    out["seen_by_age"] = sum((h + 1) ** -0.5 for h in hours)
    for name, period, width in (("seen_at_hour", 24, 1.5), ("seen_at_weekday", 168, 3.0)):
        out[name] = 0.0
        for lag, t, _ in rows:
            gap = abs((t / HOUR) % period - (now / HOUR) % period)
            out[name] += lag**-0.5 * math.exp(-((min(gap, period - gap) / width) ** 2))
    out["seen_after_last"] = sum(
        lag**-0.5 for lag, _, n in rows if n and history[n - 1][0] == history[-1][0]
    )
    out["seen_due"] = math.nan
    if len(rows) > 1 and rows[-1][1] > rows[0][1]:
        interval = (rows[-1][1] - rows[0][1]) / (len(rows) - 1)
        out["seen_due"] = (now - rows[-1][1]) / interval
    request = int(inputs.stop[q])
    by_column = context_values(counted)
    values = [column[request] for column in by_column]
    old = [r for r in range(counted.rows) if counted.time[r] < end]
    for column, value in enumerate(values):
        alike = [r for r in old if by_column[column][r] == value]
        n_item = sum(counted.item[r] == item for r in old)
        n_alike = sum(counted.item[r] == item for r in alike)
        expected = n_item * len(alike) / max(len(old), 1)
        out[f"context{column + 1}_lift"] = math.log((n_alike + 2) / (expected + 2))
    mine = [r for r in range(int(inputs.start[q]), request) if counted.item[r] == item]
    own = [by_column[0][r] for r in mine]
    out["context1_own"] = own.count(values[0])
    out |= slow_content(inputs, item, newest, now)
    out["is_new"] = float(not times)
    if values[0] is None or (None in own and not any(own)):
        out["context1_own"] = math.nan
    return out


def test_every_feature_equals_its_slow_twin():
    log = random_log()
    inputs = make_inputs(log, log)
    indptr, rows = build_features(inputs, SOURCES)
    names = feature_names(SOURCES)
    for q in range(len(inputs.counts)):
        for c in range(inputs.counts[q]):
            slow = slow_features(inputs, log, q, c)
            expected = np.array([slow[name] for name in names], np.float32)
            np.testing.assert_allclose(rows[indptr[q] + c], expected, rtol=1e-5, atol=1e-6)


def test_names_are_different_and_every_family_has_some():
    names = feature_names(SOURCES)
    assert len(set(names)) == len(names)
    groups = feature_groups(SOURCES)
    assert set(groups.family) == set(range(len(FAMILIES)))
    assert all(family.description for family in FAMILIES)
    subjects = [group.subject for group in groups.groups]
    assert len(set(subjects)) == len(subjects)


def test_contributions_are_summed_over_the_columns_of_each_group():
    names, groups = feature_names(SOURCES), feature_groups(SOURCES)
    contributions = np.random.default_rng(0).normal(size=(3, len(names)))
    sums = groups.sum_columns(contributions)
    for g, group in enumerate(groups.groups):
        columns = [names.index(name) for name in group.features]
        np.testing.assert_allclose(sums[:, g], contributions[:, columns].sum(axis=1))


def test_one_request_gets_the_same_bits_as_a_batch():
    log = random_log()
    inputs = make_inputs(log, log)
    indptr, rows = build_features(inputs, SOURCES)
    for q in range(len(inputs.counts)):
        parts = PartScores(*(array[:, q : q + 1] for array in inputs.parts))
        per_request = ("start", "stop", "now", "known_until", "candidates", "counts")
        single = {name: getattr(inputs, name)[q : q + 1] for name in per_request}
        context = inputs.context._replace(codes=inputs.context.codes[q : q + 1])
        request = inputs._replace(**single, parts=parts, context=context)
        alone = build_features(request, SOURCES)[1]
        assert alone.tobytes() == rows[indptr[q] : indptr[q + 1]].tobytes()


def add_planted_context(log: tr.Log, other: tr.Log) -> tr.Log:
    """A log with more rows, in the context of the same rows of `log`; of new ones, any."""
    rng = np.random.default_rng(3)
    rows: dict[tuple[int, int, int], list[int]] = {}
    for r, key in enumerate(zip(log.user_codes(), log.item, log.time, strict=True)):
        rows.setdefault(tuple(map(int, key)), []).append(r)
    keys = zip(other.user_codes(), other.item, other.time, strict=True)
    old = [(rows.get(tuple(map(int, key))) or [-1]).pop(0) for key in keys]
    columns = []
    for column in log.context:
        drawn = rng.integers(-1, len(column.values), other.rows)
        codes = [column.codes[r] if r >= 0 else d for r, d in zip(old, drawn, strict=True)]
        columns.append(replace(column, codes=np.array(codes, np.int32)))
    return replace(other, context=tuple(columns))


@pytest.mark.parametrize("shift", [0, 1, DAY])
def test_planted_rows_of_the_future_change_no_counted_feature(shift: int):
    """Rows at the time of a request, of others or of the user's own target, and later ones."""
    log = random_log()
    inputs = make_inputs(log, log)
    _, rows = build_features(inputs, SOURCES)
    latest = int(max(inputs.now.max(), inputs.known_until.max()))
    encoders = ContextState.learn(log).encoders
    plain: list[Any] = [
        (int(u), int(i), int(t))
        for u, i, t in zip(log.user_codes(), log.item, log.time, strict=True)
    ]
    for q in range(len(inputs.now)):
        end = int(min(inputs.now[q], inputs.known_until[q]))
        planted = [(u, i, end + shift) for u in (0, q) for i in range(len(log.items))]
        other = add_planted_context(log, log_of(plain + planted + [(1, 1, latest + 1)]))
        assert other.items.ids.equals(log.items.ids)
        context = inputs.context._replace(rows=ContextRows.from_log(other, encoders))
        again = build_features(
            inputs._replace(log=ItemTimes.from_log(other), context=context), SOURCES
        )
        part = slice(again[0][q], again[0][q + 1])
        assert again[1][part].tobytes() == rows[part].tobytes()


def test_histories_without_times_or_rows_and_unknown_items_have_features():
    log = random_log()
    histories = Histories.untimed([[1, 999, 2, 1], []], log.items, "skip")
    now = np.full(2, int(log.time.max()) + 1)
    scores = PartScores(np.zeros((1, 2, 2)), np.zeros((1, 2, 2), np.float32), np.ones((1, 2, 2)))
    inputs = FeatureInputs(
        histories.start, histories.stop, histories.item, histories.time, now, now,
        np.array([[0, 1], [2, 3]], np.int32), np.array([2, 2]), scores, ItemTimes.from_log(log),
        empty_context().build_inputs(histories), empty_content(),
    )  # fmt: skip
    rows = dict(
        zip(
            feature_names(FeatureSources(["a"])),
            build_features(inputs, FeatureSources(["a"]))[1].T,
            strict=True,
        )
    )
    assert np.isnan(rows["inactive_days"]).all()
    assert np.isnan(rows["seen_hours"]).all()
    first = log.items.positions([1], "item", "error")[0]
    assert rows["seen_count"].tolist() == [2.0 * (i == first) for i in range(2)] + [0.0, 0.0]

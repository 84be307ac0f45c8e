"""Slow and obvious twins: every row of S and T is built by hand, every rank by sorting."""

from __future__ import annotations

import math

import numpy as np

DAY = 86_400_000_000


def weight(interval_us: int, decay: float, floor: float) -> float:
    """Eq. 13."""
    return max(math.exp(-interval_us / (decay * DAY)), floor)


def trend_counts(item, time, window, side):
    """Eq. 14, by looking at every other row."""
    span = window * DAY
    counts = []
    for i, t in zip(item, time, strict=True):
        after = span if side == "both" else 0
        counts.append(
            sum(
                1
                for j, u in zip(item, time, strict=True)
                if j == i and -span <= int(u) - int(t) <= after
            )
        )
    return np.array(counts)


def tale_rows(
    log, *, decay, floor, window=180.0, trend=0.0, trend_side="both", same_time="ordered"
):
    """S and T, dense, one row per target."""
    n = len(log.items)
    counts = trend_counts(log.item, log.time, window, trend_side)
    p = counts.astype(float) ** -trend
    S, T = [], []
    for u in range(len(log.users)):
        rows = range(log.ptr[u], log.ptr[u + 1])
        for target in rows:
            source, goal = np.zeros(n), np.zeros(n)
            found = False
            for s in rows:
                together = same_time == "joint" and log.time[s] == log.time[target]
                if s == target or (s > target and not together):
                    continue
                found = True
                interval = int(log.time[target]) - int(log.time[s])
                source[log.item[s]] += weight(interval, decay, floor) * p[s]
            goal[log.item[target]] = p[target]
            if found:
                S.append(source)
                T.append(goal)
    shape = (len(S), n)
    return np.array(S).reshape(shape), np.array(T).reshape(shape)


def gram(S, T):
    """G = S'S and K = S'T, each entry summed without rounding on the way."""
    n = S.shape[1]
    G, K = np.zeros((n, n)), np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            G[i, j] = math.fsum(S[:, i] * S[:, j])
            K[i, j] = math.fsum(S[:, i] * T[:, j])
    return G, K


def ridge(S, T, reg):
    """Each column of B by least squares on the augmented system: no normal equations."""
    n = S.shape[1]
    A = np.vstack([S, math.sqrt(reg) * np.eye(n)])
    columns = []
    for j in range(n):
        b = np.concatenate([T[:, j], np.zeros(n)])
        columns.append(np.linalg.lstsq(A, b, rcond=None)[0])
    return np.array(columns).T


def history_weights(items, times, recency, *, joint):
    """x by item: exp(-place / recency) of its last row."""
    x = {}
    for r, item in enumerate(items):
        later = sum(1 for s in range(len(items)) if (times[s] > times[r] if joint else s > r))
        x[item] = math.exp(-later / recency)
    x.pop(-1, None)
    return x


def ranking(x, B, *, base=None, hidden=(), allowed=None):
    """All items with a score, best first, as (item, score)."""
    B = np.asarray(B, dtype=np.float64)
    scored = []
    for j in range(B.shape[1]):
        stored = any(B[i, j] != 0 for i in x)
        if base is not None and not math.isnan(base[j]):
            stored = True
        if not stored or j in hidden or (allowed is not None and j not in allowed):
            continue
        score = 0.0 if base is None or math.isnan(base[j]) else base[j]
        score += sum(w * B[i, j] for i, w in x.items())
        scored.append((j, score))
    return sorted(scored, key=lambda pair: (-pair[1], pair[0]))

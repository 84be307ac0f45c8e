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
            total = False
            for s in rows:
                together = same_time == "joint" and log.time[s] == log.time[target]
                if s == target or (s > target and not together):
                    continue
                total = True
                interval = int(log.time[target]) - int(log.time[s])
                source[log.item[s]] += weight(interval, decay, floor) * p[s]
            goal[log.item[target]] = p[target]
            if total:
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
    """x by item: exp(-lag / recency) of its last row."""
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


# -- the linear family -----------------------------------------------------------------------------


def user_rows(log):
    """The row numbers of each user."""
    return [list(range(a, b)) for a, b in zip(log.ptr[:-1], log.ptr[1:], strict=True)]


def user_weight(log, rows, decay_user):
    """W: exp(-(t_max - t_user) / decay_user), t_user the last time; 0 days: all weigh 1."""
    if decay_user == 0:
        return 1.0
    age = max(int(t) for t in log.time) - max(int(log.time[r]) for r in rows)
    return math.exp(-age / (decay_user * DAY))


def normalised(M, norm):
    """Each row divided by its sum (l1), or Eq. 4: by the roots of the sums of row and column."""
    M = np.array(M)
    rows, columns = M.sum(axis=1), M.sum(axis=0)
    for a in range(M.shape[0]):
        for i in range(M.shape[1]):
            if norm == "l1" and M[a, i]:
                M[a, i] /= rows[a]
            elif norm == "symmetric" and M[a, i]:
                M[a, i] /= math.sqrt(rows[a]) * math.sqrt(columns[i])
    return M


def _augmented(log, source_weight, target_weight, trend, norm="none", decay_user=0.0):
    """S and T with one row for each l = 1..L-1: rows up to l are sources, later ones targets.

    A source weighs source_weight(s, l), a target target_weight(h, l), each times p ** -trend. The
    roots of W are in the rows, so that S'S is S'WS.
    """
    n = len(log.items)
    power, window, side = trend
    p = trend_counts(log.item, log.time, window, side).astype(float) ** -power
    S, T, W = [], [], []
    for rows in user_rows(log):
        for l in rows[:-1]:  # noqa: E741 (the paper's l)
            source, goal = np.zeros(n), np.zeros(n)
            for r in rows:
                if r <= l:
                    source[log.item[r]] += source_weight(r, l) * p[r]
                else:
                    goal[log.item[r]] += target_weight(r, l) * p[r]
            S.append(source)
            T.append(goal)
            W.append(math.sqrt(user_weight(log, rows, decay_user)))
    shape = (len(S), n)
    root = np.array(W)[:, None]
    S, T = (normalised(np.array(rows).reshape(shape), norm) for rows in (S, T))
    return root * S, root * T


def slit_rows(
    log,
    *,
    position,
    targets="multi",
    norm="none",
    decay_user=0.0,
    window=0.0,
    trend=0.0,
    trend_side="both",
):
    """S and T of SLIT: sources exp(-(l - s)/position), targets exp(-(h - l - 1)/position)."""

    def source(s, l):  # noqa: E741
        return math.exp(-(l - s) / position)

    def target(h, l):  # noqa: E741
        if targets == "single":
            return float(h == l + 1)
        return math.exp(-(h - l - 1) / position)

    return _augmented(log, source, target, (trend, window, trend_side), norm, decay_user)


def tale_multi_rows(log, *, decay, floor, window=180.0, trend=0.0, trend_side="both"):
    """TALE's S and T with all later targets: both sides by their interval to the first target."""

    def source(s, l):  # noqa: E741
        return weight(int(log.time[l + 1]) - int(log.time[s]), decay, floor)

    def target(h, l):  # noqa: E741
        return weight(int(log.time[h]) - int(log.time[l + 1]), decay, floor)

    return _augmented(log, source, target, (trend, window, trend_side))


def slis_rows(log, *, norm="none", decay_user=0.0):
    """X, one row per user, each item once; the roots of W are in the rows."""
    users = [rows for rows in user_rows(log) if rows]
    X = np.zeros((len(users), len(log.items)))
    for u, rows in enumerate(users):
        for r in rows:
            X[u, log.item[r]] = 1.0
    root = np.array([math.sqrt(user_weight(log, rows, decay_user)) for rows in users])
    return root[:, None] * normalised(X, norm)


def blend(alpha, X, S, T):
    """Rows whose Gram is alpha X'X + (1 - alpha) S'S, and likewise for the targets."""
    a, b = math.sqrt(alpha), math.sqrt(1 - alpha)
    return np.vstack([a * X, b * S]), np.vstack([a * X, b * T])


def later_counts(log, weight):
    """Source x target: weight(d) for every row and every row of the same user d rows later."""
    counts = np.zeros((len(log.items), len(log.items)))
    for rows in user_rows(log):
        for s in rows:
            for h in rows:
                if h > s:
                    counts[log.item[s], log.item[h]] += weight(h - s)
    return counts


def together_counts(log):
    """How many users have both of two different items."""
    counts = np.zeros((len(log.items), len(log.items)))
    for rows in user_rows(log):
        own_rows = {int(log.item[r]) for r in rows}
        for i in own_rows:
            for j in own_rows - {i}:
                counts[i, j] += 1
    return counts


def bounded(X, penalty, most):
    """Column j minimises |X_j - X b|^2 + sum_i penalty_i b_i^2 subject to b_j <= most.

    By least squares on the augmented system: where the free answer breaks the bound, b_j is the
    bound, since what is minimised is convex.
    """
    n = X.shape[1]
    A = np.vstack([X, np.diag(np.sqrt(penalty))])
    columns = []
    for j in range(n):
        goal = np.concatenate([X[:, j], np.zeros(n)])
        b = np.linalg.lstsq(A, goal, rcond=None)[0]
        if b[j] > most:
            others = np.arange(n) != j
            b[others] = np.linalg.lstsq(A[:, others], goal - most * A[:, j], rcond=None)[0]
            b[j] = most
        columns.append(b)
    return np.array(columns).T

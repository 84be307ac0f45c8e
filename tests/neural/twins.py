"""Slow and obvious twins of the networks: float64 NumPy, one history, loops over rows and heads.

Each takes the network's arrays by name, its settings, the items of one history (oldest first),
their times in microseconds and the request time, and returns the state that scores the items.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]


def layer_norm(x: np.ndarray, p: Arrays, name: str, eps: float) -> np.ndarray:
    mean, spread = x.mean(), ((x - x.mean()) ** 2).mean()
    return (x - mean) / math.sqrt(spread + eps) * p[f"{name}.weight"] + p[f"{name}.bias"]


def linear(x: np.ndarray, p: Arrays, name: str) -> np.ndarray:
    return p[f"{name}.weight"] @ x + p.get(f"{name}.bias", 0.0)


def gelu(x: np.ndarray) -> np.ndarray:
    return np.array([v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x])


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def silu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)


def feed(x: np.ndarray, p: Arrays, name: str, act: Any = gelu) -> np.ndarray:
    return linear(act(linear(x, p, f"{name}.first")), p, f"{name}.second")


def softmax(scores: list[float]) -> np.ndarray:
    e = np.exp(np.array(scores) - max(scores))
    return e / e.sum()


def attention(
    looks: list[np.ndarray],
    source: list[np.ndarray],
    p: Arrays,
    name: str,
    heads: int,
    causal: bool,
) -> list[np.ndarray]:
    """What each row gets: per head, the values of the rows that it may look at, weighted."""
    q = [linear(x, p, f"{name}.query") for x in looks]
    k = [linear(x, p, f"{name}.key") for x in source]
    v = [linear(x, p, f"{name}.value") for x in source]
    size = len(q[0]) // heads
    out = []
    for t in range(len(q)):
        row = np.zeros_like(q[0])
        seen = range(t + 1) if causal else range(len(q))
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            weights = softmax([q[t][part] @ k[s][part] / math.sqrt(size) for s in seen])
            row[part] = sum(w * v[s][part] for w, s in zip(weights, seen, strict=True))
        out.append(linear(row, p, f"{name}.out") if f"{name}.out.weight" in p else row)
    return out


def post_block(
    x: list[np.ndarray], p: Arrays, name: str, heads: int, causal: bool = True
) -> list[np.ndarray]:
    got = attention(x, x, p, f"{name}.attention", heads, causal)
    y = [layer_norm(a + b, p, f"{name}.norm", 1e-12) for a, b in zip(x, got, strict=True)]
    return [layer_norm(a + feed(a, p, f"{name}.feed"), p, f"{name}.feed_norm", 1e-12) for a in y]


def pre_block(x: list[np.ndarray], p: Arrays, name: str, heads: int) -> list[np.ndarray]:
    rows = [layer_norm(a, p, f"{name}.norm", 1e-5) for a in x]
    got = attention(rows, rows, p, f"{name}.attention", heads, True)
    y = [a + b for a, b in zip(x, got, strict=True)]
    return [a + feed(layer_norm(a, p, f"{name}.feed_norm", 1e-5), p, f"{name}.feed") for a in y]


def original_block(x: list[np.ndarray], p: Arrays, name: str, heads: int) -> list[np.ndarray]:
    rows = [layer_norm(a, p, f"{name}.norm", 1e-8) for a in x]
    got = attention(rows, x, p, f"{name}.attention", heads, True)
    y = [layer_norm(a + b, p, f"{name}.feed_norm", 1e-8) for a, b in zip(rows, got, strict=True)]
    return [a + feed(a, p, f"{name}.feed", relu) for a in y]


def gated_block(x: list[np.ndarray], p: Arrays, name: str, heads: int) -> list[np.ndarray]:
    rows = [layer_norm(a, p, f"{name}.norm", 1e-5) for a in x]
    got = attention(rows, rows, p, f"{name}.attention", heads, True)
    y = [a + sigmoid(linear(a, p, f"{name}.gate")) * b for a, b in zip(x, got, strict=True)]
    out = []
    for a in y:
        u = layer_norm(a, p, f"{name}.feed_norm", 1e-5)
        inner = silu(linear(u, p, f"{name}.first")) * linear(u, p, f"{name}.third")
        out.append(
            a + sigmoid(linear(a, p, f"{name}.feed_gate")) * linear(inner, p, f"{name}.second")
        )
    return out


BLOCKS = {"post": post_block, "pre": pre_block, "original": original_block, "gated": gated_block}
EPS = {"post": 1e-12, "original": 1e-8, "pre": 1e-5}


def sasrec(
    p: Arrays, s: Any, items: list[int], times: list[int], now: int, norm: str | None = None
) -> np.ndarray:
    norm = norm or s.specific.get("norm", "post")
    items = items[-s.max_history :]
    scale = math.sqrt(s.dim) if norm == "original" else 1.0
    x = [scale * p["items"][item] + p["places"][t] for t, item in enumerate(items)]
    if norm == "post":
        x = [layer_norm(a, p, "edge", 1e-12) for a in x]
    for number in range(s.layers):
        x = BLOCKS[norm](x, p, f"blocks.{number}", s.heads)
    return layer_norm(x[-1], p, "edge", EPS[norm]) if norm in ("pre", "original") else x[-1]


def esasrec(p: Arrays, s: Any, items: list[int], times: list[int], now: int) -> np.ndarray:
    return sasrec(p, s, items, times, now, "gated")


def gru4rec(p: Arrays, s: Any, items: list[int], times: list[int], now: int) -> np.ndarray:
    """r, z, n gates: h = (1 - z) n + z h."""
    rows, d = [p["items"][item] for item in items[-s.max_history :]], s.dim
    for layer in range(s.layers):
        W, U = p[f"gru.weight_ih_l{layer}"], p[f"gru.weight_hh_l{layer}"]
        b, c = p[f"gru.bias_ih_l{layer}"], p[f"gru.bias_hh_l{layer}"]
        h, out = np.zeros(d), []
        for x in rows:
            one, two = W @ x + b, U @ h + c
            r, z = sigmoid(one[:d] + two[:d]), sigmoid(one[d : 2 * d] + two[d : 2 * d])
            n = np.tanh(one[2 * d :] + r * two[2 * d :])
            h = (1 - z) * n + z * h
            out.append(h)
        rows = out
    return rows[-1]


def bert4rec(p: Arrays, s: Any, items: list[int], times: list[int], now: int) -> np.ndarray:
    read = [p["items"][item] for item in items[-(s.max_history - 1) :]] + [p["hidden"][0]]
    x = [layer_norm(a + p["places"][t], p, "edge", 1e-12) for t, a in enumerate(read)]
    for number in range(s.layers):
        x = post_block(x, p, f"blocks.{number}", s.heads, causal=False)
    return layer_norm(gelu(linear(x[-1], p, "last")), p, "last_norm", 1e-12)


def lrurec(p: Arrays, s: Any, items: list[int], times: list[int], now: int) -> np.ndarray:
    x = [layer_norm(p["items"][item], p, "edge", 1e-5) for item in items[-s.max_history :]]
    for number in range(s.layers):
        name = f"blocks.{number}"
        unit = f"{name}.unit"
        factor = np.exp(-np.exp(p[f"{unit}.nu"]) + 1j * np.exp(p[f"{unit}.theta"]))
        h, out = np.zeros(2 * s.dim, complex), []
        for a in x:
            u = linear(a, p, f"{unit}.enter") + 1j * linear(a, p, f"{unit}.enter_turned")
            h = factor * h + np.exp(p[f"{unit}.gamma"]) * u
            C = p[f"{unit}.leave.weight"] + 1j * p[f"{unit}.leave_turned.weight"]
            y = layer_norm((C @ h).real + p[f"{unit}.leave.bias"] + a, p, f"{name}.norm", 1e-5)
            out.append(layer_norm(y + feed(y, p, f"{name}.feed"), p, f"{name}.feed_norm", 1e-5))
        x = out
    return x[-1]


def linrec(p: Arrays, s: Any, items: list[int], times: list[int], now: int) -> np.ndarray:
    """(phi(Q) phi(K)^T) V / sqrt(e), pair by pair."""
    items = items[-s.max_history :]
    x = [layer_norm(p["items"][i] + p["places"][t], p, "edge", 1e-12) for t, i in enumerate(items)]
    size = s.dim // s.heads

    def phi(row: np.ndarray) -> np.ndarray:
        bent = np.where(row > 0, row, np.exp(row) - 1)
        return bent / math.sqrt(bent @ bent + 1e-12)

    for number in range(s.layers):
        name = f"blocks.{number}"
        q, k, v = (
            [linear(a, p, f"{name}.attention.{part}") for a in x]
            for part in ("query", "key", "value")
        )
        y = []
        for t in range(len(x)):
            row = np.zeros(s.dim)
            for head in range(s.heads):
                part = slice(head * size, (head + 1) * size)
                for r in range(t + 1 if s.specific["causal"] == "yes" else len(x)):
                    row[part] += phi(q[t][part]) @ phi(k[r][part]) * v[r][part] / math.sqrt(size)
            y.append(
                layer_norm(x[t] + linear(row, p, f"{name}.attention.out"), p, f"{name}.norm", 1e-12)
            )
        x = [layer_norm(a + feed(a, p, f"{name}.feed"), p, f"{name}.feed_norm", 1e-12) for a in y]
    return x[-1]


def dft_filter(x: list[np.ndarray], keep: Any) -> list[np.ndarray]:
    """Return rows filtered by a discrete Fourier transform with all sums written out."""
    M = len(x)
    coefficients = [
        sum(a * np.exp(-2j * math.pi * k * t / M) for t, a in enumerate(x)) for k in range(M)
    ]
    kept = [c if keep(min(k, M - k)) else 0 * c for k, c in enumerate(coefficients)]
    return [
        (sum(c * np.exp(2j * math.pi * k * t / M) for k, c in enumerate(kept)) / M).real
        for t in range(M)
    ]


def padded_attention(
    x: list[np.ndarray], p: Arrays, name: str, heads: int, there: list[bool], band: Any = None
) -> list[np.ndarray]:
    """Causal attention with padding masked; a cell whose mask is empty gets the mean of all."""
    q, k, v = ([linear(a, p, f"{name}.{part}") for a in x] for part in ("query", "key", "value"))
    if band is not None:
        q, k, v = (dft_filter(part, band) for part in (q, k, v))
    size, out = len(q[0]) // heads, []
    for t in range(len(x)):
        row = np.zeros_like(q[0])
        seen = [r for r in range(t + 1) if there[r]]
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            weights = softmax(
                [q[t][part] @ k[r][part] / math.sqrt(size) for r in seen] or [0.0] * len(x)
            )
            row[part] = sum(
                w * v[r][part] for w, r in zip(weights, seen or range(len(x)), strict=True)
            )
        out.append(row)
    return out


def bsarec(p: Arrays, s: Any, items: list[int], times: list[int], now: int) -> np.ndarray:
    items = items[-s.max_history :]
    empty = s.max_history - len(items)
    read = [np.zeros(s.dim)] * empty + [p["items"][item] for item in items]
    there = [False] * empty + [True] * len(items)
    x = [layer_norm(a + p["places"][t], p, "edge", 1e-12) for t, a in enumerate(read)]
    for number in range(s.layers):
        name = f"blocks.{number}"
        low = dft_filter(x, lambda k: k < s.specific["bins"] // 2 + 1)
        beta = p[f"{name}.beta"][0]
        F = [
            layer_norm(a + beta**2 * (b - a) + b, p, f"{name}.filter_norm", 1e-12)
            for a, b in zip(low, x, strict=True)
        ]
        got = padded_attention(x, p, f"{name}.attention", s.heads, there)
        A = [
            layer_norm(b + linear(a, p, f"{name}.attention.out"), p, f"{name}.norm", 1e-12)
            for a, b in zip(got, x, strict=True)
        ]
        share = s.specific["share"]
        y = [share * a + (1 - share) * b for a, b in zip(F, A, strict=True)]
        x = [layer_norm(a + feed(a, p, f"{name}.feed"), p, f"{name}.feed_norm", 1e-12) for a in y]
    return x[-1]


def fearec(p: Arrays, s: Any, items: list[int], times: list[int], now: int) -> np.ndarray:
    items, M = items[-s.max_history :], s.max_history
    read = [p["items"][item] for item in items] + [np.zeros(s.dim)] * (M - len(items))
    there = [t < len(items) for t in range(M)]
    x = [layer_norm(a + p["places"][t], p, "edge", 1e-12) for t, a in enumerate(read)]
    m, N, a = M // 2 + 1, s.layers, s.specific["band"]
    for i in range(N):
        name = f"blocks.{i}"
        if a > 1 / N:
            slide = math.floor(m * (1 - a) / (N - 1)) if N > 1 else 0
            left, right = int(m * (1 - a) - i * slide), int(m - i * slide)
        else:
            left, right = int(m * (1 - 1 / N) - i * m / N), int(m - i * m / N)
        band = lambda k, left=left, right=right: left <= k < right  # noqa: E731
        q, k, v = (
            [linear(row, p, f"{name}.attention.{part}") for row in x]
            for part in ("query", "key", "value")
        )
        # by Fourier transforms: R(lag) = mean over channels of irfft(band(rfft q) * conj(rfft k))
        Q, K = np.fft.rfft(np.array(q), axis=0), np.fft.rfft(np.array(k), axis=0)
        Q[[f for f in range(m) if not band(f)]] = 0
        R = np.fft.irfft(Q * np.conj(K), M, axis=0).mean(1)
        n_lags = min(M, max(1, int(s.specific["lags"] * math.log(M))))
        lags = np.argsort(-R, kind="stable")[:n_lags]
        weights = softmax(R[lags].tolist())
        freq = [
            sum(w * v[(t + lag) % M] for w, lag in zip(weights, lags, strict=True))
            for t in range(M)
        ]
        time = padded_attention(x, p, f"{name}.attention", s.heads, there, band)
        g = s.specific["time_share"]
        got = [
            linear((1 - g) * b + g * c, p, f"{name}.attention.out")
            for b, c in zip(freq, time, strict=True)
        ]
        y = [layer_norm(b + c, p, f"{name}.norm", 1e-12) for b, c in zip(x, got, strict=True)]
        x = [layer_norm(b + feed(b, p, f"{name}.feed"), p, f"{name}.feed_norm", 1e-12) for b in y]
    return x[len(items) - 1]


def tisasrec(p: Arrays, s: Any, items: list[int], times: list[int], now: int) -> np.ndarray:
    items, times = items[-s.max_history :], times[-s.max_history :]
    x = [math.sqrt(s.dim) * p["items"][item] for item in items]
    size = s.dim // s.heads

    def interval(i: int, j: int) -> int:
        apart = abs(times[i] - times[j])
        if s.specific["unit"] == "log":
            exponent = math.floor(math.log2(1 + apart / float(p["median"][0])))
            return min(s.specific["units"], exponent)
        gaps = [times[r] - times[r - 1] for r in range(1, i + 1) if times[r] > times[r - 1]]
        return min(s.specific["units"], apart // min(gaps, default=1_000_000))

    for number in range(s.layers):
        name = f"blocks.{number}"
        rows = [layer_norm(a, p, f"{name}.norm", 1e-8) for a in x]
        q = [linear(a, p, f"{name}.attention.query") for a in rows]
        k, v = ([linear(a, p, f"{name}.attention.{part}") for a in x] for part in ("key", "value"))
        out = []
        for i in range(len(x)):
            got = np.zeros(s.dim)
            for head in range(s.heads):
                part = slice(head * size, (head + 1) * size)
                scores = [
                    q[i][part]
                    @ (k[j] + p["place_key"][j] + p["time_key"][interval(i, j)])[part]
                    / math.sqrt(size)
                    for j in range(i + 1)
                ]
                for j, w in enumerate(softmax(scores)):
                    got[part] += (
                        w * (v[j] + p["place_value"][j] + p["time_value"][interval(i, j)])[part]
                    )
            y = layer_norm(rows[i] + got, p, f"{name}.feed_norm", 1e-8)
            out.append(y + feed(y, p, f"{name}.feed", relu))
        x = out
    return layer_norm(x[-1], p, "edge", 1e-8)


def hstu(p: Arrays, s: Any, items: list[int], times: list[int], now: int) -> np.ndarray:
    items, times = items[-s.max_history :], times[-s.max_history :]
    nows = [*times[1:], now]
    x = [math.sqrt(s.dim) * p["items"][item] + p["places"][t] for t, item in enumerate(items)]
    size, d = s.dim // s.heads, s.dim

    def plain_norm(a: np.ndarray) -> np.ndarray:
        return (a - a.mean()) / math.sqrt(a.var() + 1e-6)

    def bucket(i: int, j: int) -> int:
        seconds = max(1.0, (nows[i] - times[j]) / 1e6)
        return min(s.specific["buckets"], max(0, math.floor(math.log(seconds) / 0.301)))

    for number in range(s.layers):
        name = f"blocks.{number}"
        made = [silu(p[f"{name}.enter.weight"] @ plain_norm(a)) for a in x]
        u, v, q, k = ([a[n * d : (n + 1) * d] for a in made] for n in range(4))
        out = []
        for i in range(len(x)):
            got = np.zeros(d)
            for head in range(s.heads):
                part = slice(head * size, (head + 1) * size)
                for j in range(i + 1):
                    near = p[f"{name}.by_place"][i - j, 0] + p[f"{name}.by_time"][bucket(i, j), 0]
                    got[part] += silu(q[i][part] @ k[j][part] + near) / s.max_history * v[j][part]
            out.append(linear(plain_norm(got) * u[i], p, f"{name}.leave") + x[i])
        x = out
    return x[-1] / np.linalg.norm(x[-1]) / s.specific["temperature"]


#: The twin of every kind.
TWINS: dict[str, Any] = {
    "sasrec": sasrec,
    "gsasrec": sasrec,
    "esasrec": esasrec,
    "gru4rec": gru4rec,
    "bert4rec": bert4rec,
    "duorec": sasrec,
    "tcpsrec": sasrec,
    "ticoserec": sasrec,
    "lrurec": lrurec,
    "linrec": linrec,
    "bsarec": bsarec,
    "fearec": fearec,
    "tisasrec": tisasrec,
    "hstu": hstu,
}

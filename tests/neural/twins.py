"""Slow and obvious twins of the networks: float64 NumPy, one history, loops over rows and heads.

Each takes the network's arrays by name, its settings, the items of one history (oldest first), their times in microseconds
and the moment of asking, and gives the state that is compared with the items' vectors.
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
    norm = norm or s.own.get("norm", "post")
    items = items[-s.max_history :]
    scale = math.sqrt(s.dim) if norm == "original" else 1.0
    x = [scale * p["items"][item] + p["places"][t] for t, item in enumerate(items)]
    if norm == "post":
        x = [layer_norm(a, p, "edge", 1e-12) for a in x]
    for number in range(s.layers):
        x = BLOCKS[norm](x, p, f"blocks.{number}", s.heads)
    return layer_norm(x[-1], p, "edge", EPS[norm]) if norm in ("pre", "original") else x[-1]


#: The twin of every kind.
TWINS: dict[str, Any] = {"sasrec": sasrec}

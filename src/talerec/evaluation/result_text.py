"""Texts about the result of an evaluation: its cases, its ties, and a table for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import NamedTuple


class RandomOrders(NamedTuple):
    """A metric of one model over several random orders of rows with equal times.

    metric: its name, such as NDCG@10. mean, spread: mean and standard deviation over the orders.
    """

    metric: str
    mean: float
    spread: float
    n_orders: int


def describe_ties(model: str, tied: float, values: RandomOrders, fixed: Mapping[str, float]) -> str:
    """Return a sentence on how a metric in random orders of ties compares with fixed orders.

    Ties are neighbouring rows of a user with equal times; `tied` is their share. fixed: the metric
    by the name of a fixed order ("file", "item"). model: its name.
    """
    metric, mean, spread, n_orders = values
    best = max(fixed.values())
    orders = ", ".join(f"{value:.4f} in {order} order" for order, value in fixed.items())
    share = ""
    if best > mean:
        share = f": {1 - mean / best:.0%} of the better figure rests on the order of equal times"
    return (
        f"{tied:.0%} of neighbouring rows have the same time. {model} with these in "
        f"random order: {metric} is {mean:.4f} ± {spread:.4f} ({n_orders} orders); "
        f"but {orders}{share}"
    )


def describe_cases(n_cases: int, on: str, n_users: int, counts: Mapping[str, int]) -> str:
    """Return the number of cases and, if users have several, the number of users and why.

    A case is one evaluated query: "300 test cases of 100 users in 3 orders of ties". on: "test" or
    "validation". counts: how many a user may have cases in, by name: {"orders of ties": 3}.
    """
    text = f"{n_cases:,} {on} cases"
    if n_users == n_cases:
        return text
    several = " and ".join(f"{count} {name}" for name, count in counts.items() if count > 1)
    return f"{text} of {n_users:,} users" + (f" in {several}" if several else "")


def metrics_table(caption: str, rows: Iterable[tuple[str, str, str]]) -> str:
    """Return an HTML table of metrics; rows: name, mean and 95 % interval of each, as text."""
    body = "".join(
        f"<tr><th>{name}</th><td>{mean}</td><td>{interval}</td></tr>"
        for name, mean, interval in rows
    )
    head = "<tr><th>metric</th><th>mean</th><th>95 % interval</th></tr>"
    title = f"<caption>{escape(caption)}</caption>"
    return f"<table>{title}<thead>{head}</thead><tbody>{body}</tbody></table>"


def format_metric(value: float | None) -> str:
    """Return a metric with four decimals; "-" for None (no cases)."""
    return "-" if value is None else f"{value:.4f}"

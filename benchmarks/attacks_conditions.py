"""Attacks by conditions on the item table (`where`): texts that cost time or memory to evaluate."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

from attacked import PATIENCE, Attack, Outcome, Service, Shop

HELPFUL = 2.0  # seconds within which a request beside an attack is answered
GROWTH = 150.0  # megabytes


def send_conditions(shop: Shop, *conditions: str) -> Outcome:
    """Send conditions, then a plain request; report statuses, time, memory and lost workers."""
    service = shop.ready("--workers", "1", "--timeout", "60")
    workers, memory = service.workers(), service.memory()
    for pid in workers:
        limit_memory(pid)
    start = time.monotonic()
    statuses = [ask_where(service, where) for where in conditions]
    seconds = (time.monotonic() - start) / len(conditions)
    growth = service.memory() - memory
    start = time.monotonic()
    is_answered = bool(service.recommend())
    waited = time.monotonic() - start
    is_lost = service.workers() != workers
    said = ", ".join(f"{status}" if status else "no response" for status in sorted({*statuses}))
    parts = [f"{said} after {seconds:.2f} s", f"memory grows by {growth:,.0f} MB"]
    parts += ["the worker ends"] if is_lost else []
    parts += [] if is_answered else ["no other request is answered"]
    is_slow = not is_answered or waited > HELPFUL or seconds > HELPFUL
    return Outcome(is_lost or is_slow or growth > GROWTH or 0 in statuses, ", ".join(parts))


def limit_memory(pid: int) -> None:
    """Let a process take 2 GB more than now, so that the attack spares the machine."""
    status = Path(f"/proc/{pid}/status").read_text()
    size = 1024 * int(status.split("VmSize:")[1].split()[0]) + 2 * 2**30
    resource.prlimit(pid, resource.RLIMIT_AS, (size, size))


def ask_where(service: Service, where: str) -> int:
    """Return the status of a request with a condition; 0 without a response in time."""
    body: dict[str, Any] = {"history": [{"item_id": 3}], "k": 5, "where": where}
    return service.ask("POST", "/v1/recommend", body, PATIENCE)[0]


def unfinished_cases(shop: Shop) -> Outcome:
    """Thirty `case when` without an end: a parser that tries both readings doubles per level."""
    return send_conditions(shop, "case when title = 1 then " * 30)


def long_padding(shop: Shop) -> Outcome:
    return send_conditions(shop, "lpad(title, 2000000000, 'x') = 'x'")


def many_terms(shop: Shop) -> Outcome:
    return send_conditions(shop, "+".join(["1"] * 999) + ">0")


def many_wildcards(shop: Shop) -> Outcome:
    """A pattern whose automaton has a state per set of places, in as many tests as fit."""
    return send_conditions(shop, " or ".join([f"title like '%a{'_' * 40}%b'"] * 30))


def many_values(shop: Shop) -> Outcome:
    return send_conditions(shop, "item_id in (" + ",".join(["1"] * 480_000) + ")")


def deep_brackets(shop: Shop) -> Outcome:
    return send_conditions(shop, "(" * 990 + "item_id = 1" + ")" * 990)


def dearest_accepted(shop: Shop) -> Outcome:
    """Two hundred tests and as many patterns as are allowed, different in every request."""
    patterns = " or ".join(["title like '%a________%b'"] + ["title like 'b%z%'"] * 14)
    tests = " or ".join(["title<'a'"] * 120)
    return send_conditions(shop, *(f"item_id = {n} or {patterns} or {tests}" for n in range(20)))


ATTACKS: dict[str, Attack] = {
    "cases": ("a condition of thirty unfinished `case when`", unfinished_cases),
    "lpad": ("a condition that pads titles to 2 GB", long_padding),
    "terms": ("a condition of 999 terms", many_terms),
    "like": ("a condition of thirty patterns with forty `_` after a `%`", many_wildcards),
    "values": ("a condition with a list of 1 MB", many_values),
    "brackets": ("a condition of 990 brackets inside each other", deep_brackets),
    "dearest": ("twenty requests with the dearest condition that is accepted", dearest_accepted),
}  # fmt: skip

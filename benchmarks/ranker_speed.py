"""Where the time of the ranker goes: fits, single answers, lists, and growth with the rows.

    python benchmarks/ranker.py DATA --speed --only beauty
    python benchmarks/ranker.py DATA --growth 0.1,1,5

Stages are timed by calling the library's own functions one after the other. Medians are over single
requests, in turn with each other, so that a busy machine slows all of them alike; the load of the
machine is printed with them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from typing import Any

import numpy as np

import talerec as tr
from talerec.data import Histories
from talerec.models.blend import fit_part
from talerec.models.core import rank_top, rank_with_reasons
from talerec.models.ranker.candidates import Requests
from talerec.models.ranker.parts import build_parts, default_parts
from talerec.models.ranker.queries import current_round, default_rows_back
from talerec.models.ranker.second_stage import SecondStage, score_rows
from talerec.ranking import Mask
from talerec.runtime import peak_rss_mb

_SINGLE = 300  # requests that are answered one by one
_BLOCK = 256  # requests of a block of lists


class Stages:
    """Seconds of the processor by stage, of successive steps."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self._begun = time.process_time()

    def start(self) -> None:
        """Begin a step."""
        self._begun = time.process_time()

    def end(self, name: str) -> None:
        """End a step, and begin the next one."""
        self.seconds[name].append(time.process_time() - self._begun)
        self._begun = time.process_time()


def measure_fit(log: tr.Log) -> tuple[tr.Ranker, dict[str, Any]]:
    """Return a fitted ranker, with the seconds of its stages and the peak memory."""
    begun, processor = time.perf_counter(), time.process_time()
    model = tr.Ranker().fit(log)
    seconds = {name: round(value, 1) for name, value in model.fitted.seconds.items()}
    facts = {"fit_s": round(time.perf_counter() - begun, 1), "stages_s": seconds}
    facts["processor_s"] = round(time.process_time() - processor, 1)  # of all threads
    return model, facts | {"peak_mb": round(peak_rss_mb() or 0), "load": os.getloadavg()[0]}


def measure_parts(log: tr.Log) -> dict[str, float]:
    """Return the seconds in which each part is fitted once, to the rows of current queries."""
    train = current_round(log, default_rows_back(log)).train
    seconds = {}
    for part in build_parts(default_parts(log)):
        begun = time.perf_counter()
        fit_part(part, train, "ranker")
        seconds[part.name] = round(time.perf_counter() - begun, 2)
    return seconds


def profile_answers(model: tr.Ranker, histories: Histories, block: int) -> dict[str, float]:
    """Return the median milliseconds (of the processor) of each stage of answers, per request.

    block: requests that are answered together, by one thread.
    """
    state = model._state
    first = state.first
    second = next((stage for stage in state.second if stage is not None), None)
    hide_seen = not first.joins_history
    stages = Stages()
    for a in range(0, min(_SINGLE * block, len(histories)) - block + 1, block):
        some = histories.slice(a, a + block)
        requests: Requests = model._requests(some)[0]
        mask = Mask.make(some, hide_seen=hide_seen)
        stages.start()
        for part in first.parts:
            part.query(some)
            stages.end(f"query {part.name}")
        candidates = first.find_candidates(some, mask)
        stages.end("candidates (with queries)")
        rows = first.build_features(requests, candidates)[1]
        stages.end("features")
        if isinstance(second, SecondStage):
            score_rows(second.trees, second.linear, rows)
            stages.end("trees")
            second.sum_by_group(rows[:10])
            stages.end("SHAP of 10 items")
    scale = 1e3 / block
    return {name: round(scale * float(np.median(x)), 4) for name, x in stages.seconds.items()}


def measure_answers(model: tr.Ranker, log: tr.Log) -> dict[str, Any]:
    """Return milliseconds per answer, with reasons and without, and users a second in lists."""
    histories = Histories.of_users(log)
    times: dict[str, list[float]] = defaultdict(list)
    for user in [0, *range(min(_SINGLE, len(histories)))]:  # the first one compiles kernels
        history = histories.slice(user, user + 1)
        for name, ask in (("answer_ms", rank_top), ("reasons_ms", rank_with_reasons)):
            begun, processor = time.perf_counter(), time.process_time()
            ask(model, history, 10)
            times[name].append(1e3 * (time.perf_counter() - begun))
            times[f"{name}_processor"].append(1e3 * (time.process_time() - processor))
    speed: dict[str, Any] = {name: round(float(np.median(x[1:])), 3) for name, x in times.items()}
    chosen = histories.slice(0, min(20_000, len(histories)))
    begun, processor = time.perf_counter(), time.process_time()
    rank_top(model, chosen, 10)
    speed["users_per_s"] = round(len(chosen) / (time.perf_counter() - begun))
    speed["users_per_processor_s"] = round(len(chosen) / (time.process_time() - processor))
    trees = [stage.trees.n_trees for stage in model._state.second if stage is not None]
    return speed | {"trees": trees, "load": os.getloadavg()[0]}


def print_speed(name: str, log: tr.Log, *, parts: bool = False) -> None:
    """Fit a ranker to a log, and print its profile; parts: also that of each part's fit."""
    model, fit = measure_fit(log)
    print(name, json.dumps(fit), flush=True)
    if parts:
        print(name, "seconds of one fit of each part", json.dumps(measure_parts(log)))
    print(name, json.dumps(measure_answers(model, log)), flush=True)
    histories = Histories.of_users(log)
    for block in (1, _BLOCK):
        profile = profile_answers(model, histories, block)
        print(name, f"ms per request in blocks of {block}:", json.dumps(profile), flush=True)


def print_growth(millions: list[float]) -> None:
    """Fit a ranker to synthetic logs of some million rows, each in a process of its own."""
    for size in millions:
        code = f"import ranker_speed; ranker_speed.print_grown({int(size * 1e6)})"
        folder = os.path.dirname(os.path.abspath(__file__))
        subprocess.run([sys.executable, "-c", code], check=True, cwd=folder)


def print_grown(n_rows: int) -> None:
    """Fit a ranker to a synthetic log, and print seconds and peak memory."""
    log = tr.synthetic_log(n_rows, titles=False)
    before = peak_rss_mb() or 0
    model, fit = measure_fit(log)
    fit |= {"log_mb": round(before), "items": len(log.items), "users": len(log.users)}
    fit |= {"parts": model._state.parts_text}
    print(f"{n_rows:,} rows", json.dumps(fit | measure_answers(model, log)), flush=True)

"""The command that compiles all kernels ahead of time, so that the first request is fast."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from talerec.cli.app import Panel, command
from talerec.cli.options import Json
from talerec.cli.terminal import print_json, print_line, reporting

if TYPE_CHECKING:
    from talerec.data import Log
    from talerec.models.core import Model

_ROWS, _ITEMS = 1_000, 100  # of a log with a dense Gram
_SPARSE_ITEMS = 4_500  # enough for a sparse Gram
_MANY_ITEMS = 150_000  # too many for dense scores
#: Rows and items of logs large enough for held-out queries, with a dense and a sparse Gram.
_LEARNABLE = ((6_000, 100), (20_000, 6_000))


@command(Panel.MODELS, "talerec warm")
def warm(json: Json = False) -> None:
    """Compile everything that any command may need, once after an installation."""
    # kernels are functions that Numba compiles on their first call and caches on disk
    from talerec.runtime import compilation_stats

    start, kernels_before = time.perf_counter(), compilation_stats().kernels
    with reporting(json):
        compile_all()
    seconds, kernels = time.perf_counter() - start, compilation_stats().kernels - kernels_before
    if json:
        print_json({"kernels": kernels, "seconds": seconds})
    elif kernels:
        print_line(f"{kernels:,} kernels compiled in {seconds:,.0f} s")
    else:
        print_line("nothing to do: every kernel is compiled already")


def compile_all() -> None:
    """Fit, query, evaluate and save all models on small logs, to compile every kernel.

    Kernels are compiled on their first call and cached on disk. The logs differ in size so that
    dense and sparse matrices and scores, and the learning of parameters, are all reached.
    """
    from talerec.data import synthetic_log
    from talerec.models import MODELS
    from talerec.models.core import build_model, is_ready
    from talerec.runtime import always_compile, stage

    always_compile()
    log, sparse_log = synthetic_log(_ROWS, items=_ITEMS), _build_distinct_items_log(_SPARSE_ITEMS)
    kinds = [kind for kind in MODELS.values() if kind.extra is None]
    tick = stage("warm", float(len(kinds)))
    with tempfile.TemporaryDirectory() as folder:
        _clean_log(log)
        for kind in kinds:
            for number, settings in enumerate(_iterate_settings(kind)):
                kind(**settings).fit(sparse_log)
                model = kind(**settings).fit(log)
                _query_model(model, log)
                if number == 0:
                    _evaluate_and_save(model, log, Path(folder))
            tick(1.0)
        _evaluate_and_save(MODELS["markov"](), _build_distinct_items_log(_MANY_ITEMS), Path(folder))
        for rows, items in _LEARNABLE:
            learnable_log = synthetic_log(rows, items=items)
            for name in ("tempo", "blend"):
                _query_model(MODELS[name]().fit(learnable_log), learnable_log)
        ranker = build_model(MODELS["ranker"], {"parts": "tempo,rules,trending"})
        if is_ready(ranker):
            ranked_log = synthetic_log(_LEARNABLE[0][0], items=_LEARNABLE[0][1])
            _evaluate_and_save(ranker, ranked_log, Path(folder))


def _build_distinct_items_log(items: int) -> Log:
    """Return a log of `items` rows, each with another item: eight rows per user, two per time.

    Each pair of items comes at most once, so that its item x item matrices are sparse.
    """
    import numpy as np
    import polars as pl

    from talerec.data import Log

    row = np.arange(items)
    frame = {"user_id": row // 8, "item_id": row, "timestamp": 10**9 + 86_400 * (row % 8 // 2)}
    return Log.from_frame(pl.DataFrame(frame), time_unit="s")


def _iterate_settings(kind: type[Model]) -> Iterator[dict[str, Any]]:
    """Yield parameters of a model class, by name, that together reach all its code.

    First none (the defaults); then each parameter alone, set to each of its other choices or, if
    its default is 0, to a positive number.
    """
    from talerec.models.core import param_fields

    yield {}
    for field in param_fields(kind):
        for choice in field.metadata["choices"]:
            if choice not in (field.default, "torch"):
                yield {field.name: choice}
        if field.default == 0 and field.name != "seed":
            yield {field.name: 1 if isinstance(field.default, int) else 0.5}


def _clean_log(log: Log) -> None:
    """Describe, clean, order and split a log, to compile the kernels; results are discarded.

    Kernels are functions that Numba compiles on their first call.
    """
    from talerec.data import describe, drop_duplicates, k_core, order_ties
    from talerec.data.split import time_split

    describe(log)
    core = k_core(drop_duplicates(log), 2)
    for ties in ("item", "random:0"):
        order_ties(core, ties)
    time_split(log, "2024-01-01")


def _evaluate_and_save(model: Model, log: Log, folder: Path) -> None:
    """Evaluate a model, fit and save it to `folder`, and query the saved one.

    This compiles the kernels; results are discarded.
    """
    from talerec.data.split import leave_one_out
    from talerec.evaluation import evaluate
    from talerec.models import load

    split = leave_one_out(log)
    evaluate(model.fit(split.train), split)
    _query_model(load(model.fit(log).save(folder / f"{model.name}.tale")), log)


def _query_model(model: Model, log: Log) -> None:
    """Query a fitted model in every way that commands and the service do, to compile kernels.

    `log` gives the users and items to ask for; results are discarded.
    """
    from talerec.data import Histories
    from talerec.models.core import rank_with_reasons

    users, items = log.users.ids.head(3), log.items.ids.head(3).to_list()
    model.recommend(users, 5)
    model.recommend(users, 5, hide_seen=True, deny=items[:1])
    model.recommend_histories([items], 5)
    if log.info is not None:
        model.recommend_histories([items], 5, per={"item_id": 1}, boost={"item_id": {"1": 0.1}})
    model.similar_items(items[0], 5)
    model.explain(items, items[0])
    for build in (Histories.from_ids, Histories.untimed):
        rank_with_reasons(model, build([items], model.fitted.items, "error"), 5)

"""The command that compiles ahead of time, so that the first answer comes as fast as the second."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from talerec.cli.app import Panel, command, reporting
from talerec.cli.options import Json

if TYPE_CHECKING:
    from talerec.data.log import Log
    from talerec.models.core.base import Model


@command(Panel.MODELS, "talerec warm")
def warm(json: Json = False) -> None:
    """Compile everything that any command may need, once after an installation."""
    from talerec.cli import tables, terminal
    from talerec.runtime.compiling import compiled

    start, before = time.perf_counter(), compiled().kernels
    with reporting(json):
        warm_up()
    seconds, kernels = time.perf_counter() - start, compiled().kernels - before
    if json:
        terminal.as_json({"kernels": kernels, "seconds": seconds})
    elif kernels:
        tables.line(f"{kernels:,} kernels compiled in {seconds:,.0f} s")
    else:
        tables.line("nothing to do: every kernel was compiled before")


def warm_up() -> None:
    """Use every model in every way on small logs, so that each kernel is compiled for all types that it meets."""
    from talerec.data.synthetic import synthetic_log
    from talerec.models import MODELS
    from talerec.runtime.progress import stage

    log, sparse = synthetic_log(_ROWS, items=_ITEMS), _log_of(_SPARSE_ITEMS)
    kinds = [kind for kind in MODELS.values() if kind.extra is None]  # others have no kernels
    tick = stage("warm", float(len(kinds)))
    with tempfile.TemporaryDirectory() as folder:
        _clean(log)
        for kind in kinds:
            for number, settings in enumerate(_settings(kind)):
                kind(**settings).fit(sparse)
                model = kind(**settings).fit(log)
                _ask(model, log)
                if number == 0:
                    _keep(model, log, Path(folder))
            tick(1.0)
        _keep(MODELS["markov"](), _log_of(_MANY_ITEMS), Path(folder))
        for rows, items in _ASKING:
            asks = synthetic_log(rows, items=items)  # enough for questions of its own
            for name in ("tempo", "blend"):
                _ask(MODELS[name]().fit(asks), asks)


#: Rows and items of logs that are large enough to learn from, one with a dense Gram and one with a sparse one.
_ASKING = ((6_000, 100), (20_000, 6_000))
_ROWS, _ITEMS = 1_000, 100  # of a log whose Gram is dense
_SPARSE_ITEMS = 4_500  # enough for a sparse Gram
_MANY_ITEMS = 150_000  # more than there is one sum for


def _log_of(items: int) -> Log:
    """Users with eight rows each, every row another item, two of them at one time."""
    import numpy as np
    import polars as pl

    from talerec.data.log import Log

    row = np.arange(items)
    frame = {"user_id": row // 8, "item_id": row, "timestamp": 10**9 + 86_400 * (row % 8 // 2)}
    return Log.from_frame(pl.DataFrame(frame), time_unit="s")


def _settings(kind: type[Model]) -> Iterator[dict[str, Any]]:
    """The defaults, and for each parameter its other choices; a number chooses by being 0 or not."""
    from talerec.models.core import params

    yield {}
    for field in params.fields(kind):
        for choice in field.metadata["choices"]:
            if choice not in (field.default, "torch"):
                yield {field.name: choice}
        if field.default == 0 and field.name != "seed":
            yield {field.name: 1 if isinstance(field.default, int) else 0.5}


def _clean(log: Log) -> None:
    """What becomes of rows before a fit."""
    from talerec.data import preprocessing, summary
    from talerec.data.split import splits

    summary.describe(log)
    core = preprocessing.k_core(preprocessing.drop_duplicates(log), 2)
    for ties in ("item", "random:0"):
        preprocessing.order_ties(core, ties)
    splits.time_split(log, "2024-01-01")


def _keep(model: Model, log: Log, folder: Path) -> None:
    """Judge a model, save it, and ask the one that was saved."""
    from talerec.data.split.splits import leave_one_out
    from talerec.evaluation.evaluator import evaluate
    from talerec.models import load

    split = leave_one_out(log)
    evaluate(model.fit(split.train), split)
    _ask(load(model.fit(log).save(folder / f"{model.name}.tale")), log)


def _ask(model: Model, log: Log) -> None:
    """Ask as the command and the service do."""
    from talerec.data.histories import Histories
    from talerec.models.core import inference as asking

    users, items = log.users.ids.head(3), log.items.ids.head(3).to_list()
    model.recommend(users, 5)
    model.recommend(users, 5, hide_seen=True, deny=items[:1])
    model.recommend_histories([items], 5)
    if log.info is not None:
        model.recommend_histories([items], 5, per={"item_id": 1}, boost={"item_id": {"1": 0.1}})
    model.similar_items(items[0], 5)
    model.explain(items, items[0])
    for made in (Histories.from_ids, Histories.untimed):
        asking.answer(model, made([items], model.fitted.items, "error"), 5)

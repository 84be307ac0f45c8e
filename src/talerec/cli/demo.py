"""`talerec demo`: compare, recommend, explain and save on a synthetic shop."""

from __future__ import annotations

import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from talerec import columns
from talerec.artifact import format as artifact
from talerec.cli import items, tables, terminal
from talerec.data.log import Log
from talerec.data.split.splits import Split, leave_one_out
from talerec.data.synthetic import synthetic_log
from talerec.errors import TalerecError
from talerec.evaluation.evaluator import evaluate
from talerec.evaluation.result import Evaluation
from talerec.models import DEFAULT
from talerec.models.core.base import Model
from talerec.models.counting.popular import Popular
from talerec.models.counting.rules import Rules
from talerec.models.linear.tale import TALE
from talerec.models.tempo.model import Tempo
from talerec.reports import report
from talerec.runtime.files import write_text

#: Each chosen on the validation rows of two other seeds.
TIMED: dict[str, Any] = {"reg": 50, "decay": 0.25, "floor": 0.1}
UNTIMED: dict[str, Any] = {"reg": 500, "floor": 1.0, "trend": 0.0}
TEMPO: dict[str, Any] = {
    "pace": 4, "floor": 0.0, "even": 0.3, "reg": 20, "dropout": 0.2, "recency": 1, "now": 0.1,
    "learn": "off",
}  # fmt: skip
_WARM_UP = 200  # rows
_SHOPPERS = 2
_SHOWN = 5
_ROWS = 3  # of a history, that are named

Card = tuple[str, list[list[str]]]  # what is known of a shopper, and the recommendations


def run(rows: int, seed: int, out: Path) -> Path:
    """Make a shop, hide each shopper's last row, compare models, explain, save and report."""
    target = _target(out)
    with terminal.progress():
        log = synthetic_log(rows, seed=seed)
    split = leave_one_out(log)
    tables.out.print(
        f"A made-up shop: {log.rows:,} rows of {len(log.users):,} shoppers and {len(log.items):,} "
        "items. Each shopper's last row is hidden: which model predicts it?\n"
    )
    models, results = _compare(split)
    comparison = _comparison(models, results)
    tables.table("Every item ranked for every shopper", _HEADER, comparison)
    tables.note(f"{_METRICS}\n{_ABOUT}\n")
    best = _closest(results[DEFAULT])
    cards = [_card(models[DEFAULT], split, case) for case in best]
    tables.line(_CHOSEN)
    for title, lines in cards:
        tables.table(title, _CARD, lines)
    models[DEFAULT].save(target, metrics=results[DEFAULT].metrics)
    write_text(out / "report.md", _report(log.rows, comparison, cards))
    write_text(out / "report.html", report.evaluation(results[DEFAULT], "a made-up shop"))
    tables.line(f"Saved: {target}, {out / 'report.md'}, and a page for your browser:")
    tables.line(f"  {(out / 'report.html').resolve().as_uri()}")
    tables.line("Next, with this model:")
    known = [_history(models[DEFAULT], split, case)[-_ROWS:] for case in best]
    called = _called()
    for command in _next_steps(models[DEFAULT], split.train, known, target):
        tables.line(f"  {called} {command}")
    tables.line(
        "And with a log of your own (columns user_id, item_id, timestamp, or say --user, --item, --time):"
    )
    for command in _OWN:
        tables.line(f"  {called} {command}")
    return target


def _compare(split: Split) -> tuple[dict[str, Model], dict[str, Evaluation]]:
    """Every model, fitted and evaluated. Bars are drawn here alone: they would overwrite tables."""
    models: dict[str, Model] = {
        "what is popular": Popular(),
        "sequential rules": Rules(),
        "TALE without time": TALE(**UNTIMED),
        "TALE": TALE(**TIMED),
        DEFAULT: Tempo(**TEMPO),
    }
    few = split.train.keep(np.arange(split.train.rows) < _WARM_UP)
    with terminal.progress():
        for model in models.values():
            model.fit(few)  # compiles kernels on the first run, before the clock starts
        results = {name: evaluate(m.fit(split.train), split) for name, m in models.items()}
    return models, results


def _target(out: Path) -> Path:
    if out.exists() and not out.is_dir():
        raise TalerecError(f"{out} is a file; the demo writes to a folder")
    return artifact.check_target(out / "shop.tale")


def _next_steps(model: Model, log: Log, histories: list[list[int]], target: Path) -> list[str]:
    users = ",".join(str(user) for user in log.users.ids[:2])
    why = [
        f"explain {target} --history {','.join(map(str, history))} --item {item}"
        for history in histories
        for item in model.recommend_histories([history], k=1)[columns.ITEM]
    ]
    return [
        f"recommend {target} --users {users} --hide-seen",
        *why[:1],
        f"similar {target} {log.items.ids[0]}",
        f"serve {target}          # an HTTP service, and a page to try it{_serve_needs()}",
    ]


_OWN = [
    "describe YOUR_LOG.csv          # is it what you think it is?",
    "evaluate YOUR_LOG.csv --report how-good.html",
    "fit YOUR_LOG.csv -o shop.tale",
]


def _called() -> str:
    """What to type for this command: `talerec` where the shell finds it, else the file that was started."""
    started, found = Path(sys.argv[0]), shutil.which("talerec")
    if started.stem == "__main__":
        return "python -m talerec"
    if started.stem != "talerec" or (found and started.exists() and started.samefile(found)):
        return "talerec"
    return shlex.quote(str(started))


def _serve_needs() -> str:
    return "" if find_spec("uvicorn") else " (pip install 'talerec[serve]')"


_HEADER = ["model", "HR@1", "HR@10", "NDCG@10", "seconds to fit"]
_METRICS = "HR@10: share of shoppers whose hidden row was among the first ten items"
_ABOUT = (
    "tempo, the default, is TALE at the log's own pace, with repeats and what is popular at the time; "
    "parameters of both were chosen on other made-up shops"
)
_CHOSEN = f"The shoppers whose hidden row {DEFAULT} ranked best (it is not always that good):"
_CARD = [f"{DEFAULT} recommends", "score", "because of"]


def _comparison(models: dict[str, Model], results: dict[str, Evaluation]) -> list[list[str]]:
    rows = []
    for name, result in results.items():
        metrics, seconds = result.metrics, sum(models[name].fitted.seconds.values())
        scores = [tables.number(metrics[metric]) for metric in _HEADER[1:4]]
        rows.append([name, *scores, f"{seconds:.2f}"])
    return rows


def _closest(result: Evaluation) -> list[int]:
    """The cases whose hidden row was ranked best."""
    ranked = result.frame.with_row_index("case").filter(pl.col("rank") > 0)
    return ranked.sort("rank", maintain_order=True)["case"].head(_SHOPPERS).to_list()


def _history(model: Model, split: Split, case: int) -> list[Any]:
    """The items of the rows that are known of a shopper."""
    histories = split.cases("test").histories
    rows = histories.item[histories.start[case] : histories.stop[case]]
    return model.item_ids.gather(rows[rows >= 0]).to_list()


def _card(model: Model, split: Split, case: int) -> Card:
    """One shopper: the last rows known, the recommendations, and the row that added most to each."""
    ids, cases, history = model.item_ids, split.cases("test"), _history(model, split, case)
    best = model.recommend_histories([history], k=min(_SHOWN, len(ids)))
    answer = ids[int(cases.target[case])]
    names = items.titles(model, [*history, *best[columns.ITEM], answer])
    lines = [
        [names[str(item)], f"{score:.3f}", _reason(model, history, item, names)]
        for item, score in best.select(columns.ITEM, columns.SCORE).iter_rows()
    ]
    shopper = split.users.ids[int(cases.user[case])]
    last = ", ".join(names[str(item)] for item in history[-_ROWS:])
    return f"Shopper {shopper} had: ... {last}. Next was: {names[str(answer)]}", lines


def _reason(model: Model, history: list[int], item: int, names: items.Titles) -> str:
    """What added most to an item's score: a row of the history, or what is popular."""
    source, share = model.explain(history, item).sort(columns.SHARE, descending=True).row(0)
    return f"{'popular now' if source is None else names[str(source)]} ({share:+.3f})"


def _report(rows: int, comparison: list[list[str]], cards: list[Card]) -> str:
    """The comparison and the recommendations as Markdown."""
    parts = [f"# talerec demo\n\n{rows:,} rows of a synthetic shop, leave-one-out, full ranking.\n"]
    parts += [_markdown(_HEADER, comparison), f"\n{_METRICS}.\n\n{_ABOUT}.\n\n{_CHOSEN}"]
    for title, lines in cards:
        parts.append(f"\n## {title}\n\n{_markdown(_CARD, lines)}")
    return "\n".join(parts) + "\n"


def _markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)

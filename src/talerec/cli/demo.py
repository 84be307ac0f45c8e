"""`talerec demo`: the main job on an embedded synthetic shop, as a newcomer should see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from talerec import artifact, columns
from talerec.cli import terminal
from talerec.data.log import Log
from talerec.data.splits import Split, leave_one_out
from talerec.data.synthetic import synthetic_log
from talerec.errors import TalerecError
from talerec.evaluation.evaluation import evaluate
from talerec.evaluation.result import Evaluation
from talerec.models.base import Model
from talerec.models.popular import Popular
from talerec.models.rules import Rules
from talerec.models.tale import TALE
from talerec.runtime.files import write_text

#: Each chosen on the validation rows of two other seeds.
TIMED: dict[str, Any] = {"reg": 50, "decay": 0.25, "floor": 0.1}
UNTIMED: dict[str, Any] = {"reg": 500, "floor": 1.0, "trend": 0.0}
_REHEARSAL = 200  # rows
_SHOPPERS = 2
_SHOWN = 5


def run(rows: int, seed: int, out: Path) -> Path:
    """Make a shop, hold back each shopper's last row, compare three models, explain, save, report; where the model is."""
    target = _target(out)
    with terminal.bars():
        log = synthetic_log(rows, seed=seed)
    split = leave_one_out(log)
    terminal.out.print(
        f"A made-up shop: {log.rows:,} rows of {len(log.users):,} shoppers and {len(log.items):,} "
        "items. Each shopper's last row is hidden; who foresees it?\n"
    )
    models, results = _contest(split)
    comparison = _comparison(results)
    terminal.table("Full ranking of every item, test rows", _HEADER, comparison)
    terminal.aside("HR@10: in how many cases the hidden row was among the first ten items\n")
    cards = [_card(models["TALE"], split, case) for case in _hits(results["TALE"])]
    terminal.line(_CHOSEN)
    for title, lines in cards:
        terminal.table(title, _CARD, lines)
    models["TALE"].save(target, metrics=results["TALE"].metrics)
    write_text(out / "report.md", _report(log.rows, comparison, cards))
    terminal.line(f"Saved: {target} and {out / 'report.md'}. Next:")
    for command in _next_steps(split.train, target):
        terminal.line(f"  {command}")
    return target


def _contest(split: Split) -> tuple[dict[str, Model], dict[str, Evaluation]]:
    """Every contender, fitted and judged. Bars are drawn here alone: they would overwrite tables."""
    contenders: dict[str, Model] = {
        "what is popular": Popular(),
        "sequential rules": Rules(),
        "TALE without time": TALE(**UNTIMED),
        "TALE": TALE(**TIMED),
    }
    few = split.train.keep(np.arange(split.train.rows) < _REHEARSAL)
    with terminal.bars():
        for model in contenders.values():
            model.fit(
                few
            )  # kernels are compiled here, on the first run, and not while a clock runs
        results = {name: evaluate(m.fit(split.train), split) for name, m in contenders.items()}
    return contenders, results


def _target(out: Path) -> Path:
    if out.exists() and not out.is_dir():
        raise TalerecError(f"{out} is a file; the demo writes to a folder")
    return artifact.check_target(out / "shop.tale")


def _next_steps(log: Log, target: Path) -> list[str]:
    users = ",".join(str(user) for user in log.users.ids[:2])
    return [
        f"talerec recommend {target} --users {users} --hide-seen",
        f"talerec similar {target} {log.items.ids[0]}",
        f"talerec serve {target}          # an HTTP service, and a page to try it",
        "talerec evaluate YOUR_LOG.csv          # user_id, item_id, timestamp",
    ]


_HEADER = ["model", "HR@1", "HR@10", "NDCG@10", "seconds to fit"]
_CHOSEN = "The shoppers for whom TALE came closest (it is not always that good):"
_CARD = ["TALE recommends", "score", "because of"]


def _comparison(results: dict[str, Evaluation]) -> list[list[str]]:
    rows = []
    for name, result in results.items():
        spent = sum(result.seconds[part] for part in ("gram", "solve"))
        scores = [terminal.number(result.metrics[metric]) for metric in _HEADER[1:4]]
        rows.append([name, *scores, f"{spent:.2f}"])
    return rows


def _hits(result: Evaluation) -> list[int]:
    """The cases that TALE got right at once, or else came closest to."""
    ranked = result.frame.with_row_index("case").filter(pl.col("rank") > 0)
    return ranked.sort("rank", maintain_order=True)["case"].head(_SHOPPERS).to_list()


def _card(model: Model, split: Split, case: int) -> tuple[str, list[list[str]]]:
    """One shopper: the last rows known, the recommendations, and the row that spoke most for each."""
    names, ids = terminal.titles(model), model.item_ids
    cases = split.cases("test")
    histories = cases.histories
    rows = histories.item[histories.start[case] : histories.stop[case]]
    history = ids.gather(rows[rows >= 0]).to_list()
    best = model.recommend_histories([history], k=min(_SHOWN, len(ids)))
    lines = [
        [names[str(item)], f"{score:.3f}", _reason(model, history, item)]
        for item, score in best.select(columns.ITEM, columns.SCORE).iter_rows()
    ]
    shopper = split.users.ids[int(cases.user[case])]
    last = ", ".join(names[str(item)] for item in history[-3:])
    answer = names[str(ids[int(cases.target[case])])]
    return f"Shopper {shopper} had: ... {last}. Next was: {answer}", lines


def _reason(model: Model, history: list[int], item: int) -> str:
    given = model.explain(history, item).sort(columns.SHARE, descending=True)
    source, share = given.row(0)
    return f"{terminal.titles(model)[str(source)]} ({share:+.3f})"


def _report(
    rows: int, comparison: list[list[str]], cards: list[tuple[str, list[list[str]]]]
) -> str:
    """The same as Markdown."""
    parts = [f"# talerec demo\n\n{rows:,} rows of a synthetic shop, leave-one-out, full ranking.\n"]
    parts += [_markdown(_HEADER, comparison), f"\n{_CHOSEN}"]
    for title, lines in cards:
        parts.append(f"\n## {title}\n\n{_markdown(_CARD, lines)}")
    return "\n".join(parts) + "\n"


def _markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)

"""The demo: compare models on a synthetic shop, recommend, explain and save."""

from __future__ import annotations

import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from talerec import columns
from talerec.artifact import check_target
from talerec.cli.items import Titles, find_titles
from talerec.cli.progress import show_progress
from talerec.cli.terminal import console, format_number, print_line, print_note, print_table
from talerec.data import Log, synthetic_log
from talerec.data.split import Split, leave_one_out
from talerec.errors import TalerecError
from talerec.evaluation import Evaluation, evaluate
from talerec.models import DEFAULT, MODELS
from talerec.models.core import Model, build_model, is_ready
from talerec.models.counting import Popular, Rules
from talerec.models.linear import TALE
from talerec.models.tempo import Tempo
from talerec.reports import report
from talerec.runtime import write_text

#: Parameters chosen on the validation rows of shops with two other seeds.
TIMED: dict[str, Any] = {"reg": 50, "decay": 0.25, "floor": 0.1}
UNTIMED: dict[str, Any] = {"reg": 500, "floor": 1.0, "trend": 0.0}
TEMPO: dict[str, Any] = {
    "pace": 4, "floor": 0.0, "shrinkage": 0.3, "reg": 20, "dropout": 0.2, "recency": 1,
    "popularity_weight": 0.1, "learn": "off",
}  # fmt: skip
_TEMPO_SETTINGS = "; ".join(f"{name}={value}" for name, value in TEMPO.items())
_RANKER_PARAMS: dict[str, Any] = {
    "parts": f"tempo({_TEMPO_SETTINGS}),rules,trending", "candidates": 60, "rows_back": 2,
}  # fmt: skip
_WARM_UP = 200  # rows
_N_SHOPPERS = 2
_N_ITEMS = 5  # recommended to each
_N_HISTORY = 3  # last items of a history that are named
_N_FAMILIES = 2  # families of features that a reason of the ranker names
_RANKER = "ranker"


DatedItem = tuple[Any, np.datetime64]  # an item's id and the time of its row


class Card(NamedTuple):
    """The recommendations for a shopper, as a table of text below the shopper's history."""

    title: str
    header: list[str]  # column names
    rows: list[list[str]]


def run_demo(rows: int, seed: int, folder: Path) -> Path:
    """Compare models on a synthetic shop, print results, and return the saved model's path.

    `rows` and `seed` are those of the synthetic log; the default model (shop.tale), report.md and
    report.html are written to `folder`.
    """
    target = _find_model_folder(folder)
    with show_progress():
        log = synthetic_log(rows, seed=seed)
    split = leave_one_out(log)
    console().print(
        f"A synthetic shop: {log.rows:,} rows of {len(log.users):,} shoppers and "
        f"{len(log.items):,} items. Each shopper's last row is held out: "
        "which model predicts it?\n"
    )
    models, results = _fit_and_evaluate(split)
    comparison = _build_comparison_rows(models, results)
    print_table("All items ranked for every shopper", _HEADER, comparison)
    about = _ABOUT if _RANKER not in models else f"{_ABOUT}\n{_describe_ranker(models[_RANKER])}"
    print_note(f"{_METRICS}\n{about}\n")
    best_cases = _find_best_cases(results[DEFAULT])
    shown = [models[name] for name in (DEFAULT, _RANKER) if name in models]
    cards = [_build_card(model, split, case) for case in best_cases for model in shown]
    print_line(_CARDS_TITLE)
    for card in cards:
        print_table(*card)
    models[DEFAULT].save(target, metrics=results[DEFAULT].metrics, updatable=True)
    write_text(folder / "report.md", _render_report(log.rows, comparison, about, cards))
    page = report.render_evaluation(results[DEFAULT], "a synthetic shop")
    write_text(folder / "report.html", page)
    print_line(f"Saved: {target}, {folder / 'report.md'}, and a page for your browser:")
    print_line(f"  {(folder / 'report.html').resolve().as_uri()}")
    histories = [
        [item for item, _ in _list_dated_history(models[DEFAULT], split, case)[-_N_HISTORY:]]
        for case in best_cases
    ]
    _print_next_steps(_list_next_commands(models[DEFAULT], split.train, histories, target))
    return target


def _fit_and_evaluate(split: Split) -> tuple[dict[str, Model], dict[str, Evaluation]]:
    """Return the models of the demo, fitted on the training rows, and their evaluations.

    Both dicts are keyed by the name that the tables show; evaluations are on the test rows. Each
    model is first fitted on 200 rows, which compiles its kernels before the clock starts.
    """
    models: dict[str, Model] = {
        "popularity": Popular(),
        "sequential rules": Rules(),
        "TALE without time": TALE(**UNTIMED),
        "TALE": TALE(**TIMED),
        DEFAULT: Tempo(**TEMPO),
    }
    ranker = build_model(MODELS[_RANKER], _RANKER_PARAMS)
    if is_ready(ranker):
        models[_RANKER] = ranker
    first_rows = split.train.keep(np.arange(split.train.rows) < _WARM_UP)
    with show_progress():
        for model in models.values():
            model.fit(first_rows)  # compiles kernels on the first run, before the clock starts
        results = {name: evaluate(m.fit(split.train), split) for name, m in models.items()}
    return models, results


def _find_model_folder(folder: Path) -> Path:
    """Return the folder of the demo's model, `folder`/shop.tale, where a model can be saved.

    TalerecError if `folder` is a file, or no model can be written to the result.
    """
    if folder.exists() and not folder.is_dir():
        raise TalerecError(f"{folder} is a file; the demo writes to a folder")
    return check_target(folder / "shop.tale")


def _print_next_steps(commands: list[str]) -> None:
    """Print `commands` to try with the demo's model, and commands for the reader's own log.

    Each of `commands` is printed after the program's name: `recommend ...`.
    """
    program = _find_program_name()
    print_line("Next, with this model:")
    for command in commands:
        print_line(f"  {program} {command}")
    print_line(
        "And with your own log (columns user_id, item_id, timestamp; or --user, --item, --time):"
    )
    for command in _OWN_LOG:
        print_line(f"  {program} {command}")


def _list_next_commands(
    model: Model, log: Log, histories: list[list[int]], target: Path
) -> list[str]:
    """Return commands, without the program's name, that query the model saved at `target`.

    `log` gives example users and an item; `histories` are item ids for an example of explain.
    """
    users = ",".join(str(user) for user in log.users.ids[:2])
    explanations = [
        f"explain {target} --history {','.join(map(str, history))} --item {item}"
        for history in histories
        for item in model.recommend_histories([history], k=1)[columns.ITEM]
    ]
    return [
        f"recommend {target} --users {users} --hide-seen",
        *explanations[:1],
        f"similar {target} {log.items.ids[0]}",
        f"serve {target}          # an HTTP service, and a page to try it{_hint_at_extra()}",
    ]


_OWN_LOG = [
    "describe YOUR_LOG.csv          # check the data",
    "evaluate YOUR_LOG.csv --report how-good.html",
    "fit YOUR_LOG.csv -o shop.tale",
]


def _find_program_name() -> str:
    """Return how to call this program in a shell, from how it was started.

    `python -m talerec`, `talerec`, or the path of the script talerec if it is not on the PATH.
    """
    started, on_path = Path(sys.argv[0]), shutil.which("talerec")
    if started.stem == "__main__":
        return "python -m talerec"
    if started.stem != "talerec" or (on_path and started.exists() and started.samefile(on_path)):
        return "talerec"
    return shlex.quote(str(started))


def _hint_at_extra() -> str:
    """Return a hint how to install the extra `serve`, or an empty text if it is installed."""
    return "" if find_spec("uvicorn") else " (pip install 'talerec[serve]')"


_HEADER = ["model", "HR@1", "HR@10", "NDCG@10", "seconds to fit"]
_METRICS = "HR@10: share of shoppers whose held-out item was among the first ten"
_ABOUT = (
    "tempo, the default, is TALE with time scaled to the log's pace, plus repeats and current "
    "popularity; the parameters of both were tuned on other synthetic shops"
)
_CARDS_TITLE = f"The shoppers whose held-out item {DEFAULT} ranked best (not typical cases):"


def _describe_ranker(model: Model) -> str:
    """Return what the ranker is, and what ranks in it: its trees, or its best part."""
    ranking_line = next(line for line in model.describe_learned() if line.startswith("Current"))
    decides = [line for line in model.describe_learned() if line.startswith("For current")]
    text = "ranker orders the items that tempo, rules and trending propose, by trees that it learns"
    return "\n".join([text, ranking_line, *decides])


def _build_comparison_rows(
    models: dict[str, Model], results: dict[str, Evaluation]
) -> list[list[str]]:
    """Return a table row per model, as text: name, HR@1, HR@10, NDCG@10, and seconds to fit.

    `models` (fitted) and `results` (on the test rows) are keyed by the name to show.
    """
    rows = []
    for name, result in results.items():
        metrics, seconds = result.metrics, sum(models[name].fitted.seconds.values())
        scores = [format_number(metrics[metric]) for metric in _HEADER[1:4]]
        rows.append([name, *scores, f"{seconds:.2f}"])
    return rows


def _find_best_cases(result: Evaluation) -> list[int]:
    """Return the indices of the two test cases whose held-out item the model ranks best.

    A case is a held-out row of a shopper; a rank of 0 means that the item has no rank.
    """
    ranked = result.frame.with_row_index("case").drop_nulls("rank")
    return ranked.sort("rank", maintain_order=True)["case"].head(_N_SHOPPERS).to_list()


def _list_dated_history(model: Model, split: Split, case: int) -> list[DatedItem]:
    """Return a shopper's items before the held-out row, oldest first, each with its time.

    `case` is the index of the held-out row among the test cases of `split`; items unknown to the
    model are left out.
    """
    histories = split.cases("test").histories
    span = slice(histories.start[case], histories.stop[case])
    items, times = histories.item[span], histories.time[span].astype("datetime64[us]")
    is_known = items >= 0
    ids = model.item_ids.gather(items[is_known]).to_list()
    return list(zip(ids, times[is_known], strict=True))


def _build_card(model: Model, split: Split, case: int) -> Card:
    """Return a model's recommendations for a shopper: a title and a table of text.

    `case` is the index of the shopper's held-out row among the test cases. The title names the last
    items before that row and its item; a row has an item, its score, and the main reason for it.
    The request has the time of the held-out row.
    """
    ids, cases, history = (
        model.item_ids,
        split.cases("test"),
        _list_dated_history(model, split, case),
    )
    now = np.datetime64(int(cases.target_time[case]), "us")
    best = model.recommend_histories([history], k=min(_N_ITEMS, len(ids)), as_of=now)
    target, items = ids[int(cases.target[case])], [item for item, _ in history]
    titles = find_titles(model, [*items, *best[columns.ITEM], target])
    rows = [
        [
            titles[str(item)],
            f"{score:.3f}",
            _describe_main_reason(model, history, now, item, titles),
        ]
        for item, score in best.select(columns.ITEM, columns.SCORE).iter_rows()
    ]
    shopper = split.users.ids[int(cases.user[case])]
    last = ", ".join(titles[str(item)] for item in items[-_N_HISTORY:])
    title = f"Shopper {shopper} had: ... {last}. Next was: {titles[str(target)]}"
    return Card(title, [f"{model.name} recommends", "score", "because of"], rows)


def _describe_main_reason(
    model: Model, history: list[DatedItem], now: np.datetime64, item: int, titles: Titles
) -> str:
    """Return what adds most to an item's score, a history item or popularity, as text.

    `history` has item ids with times, oldest first, and `now` is the time of the request; the
    contribution follows in brackets: `Tent (+0.120)`. Of a model with families of features, the two
    that add most: `popular lately 25 %`.
    """
    families = model.explain(history, item, by="families", as_of=now).filter(pl.col("share") > 0)
    if len(families):
        strongest = families.sort("share", descending=True).head(_N_FAMILIES)
        pairs = strongest.select("reason", "share").iter_rows()
        return ", ".join(f"{reason} {100 * share:.0f} %" for reason, share in pairs)
    explained = model.explain(history, item, as_of=now).sort(columns.SHARE, descending=True)
    source, share = explained.select(columns.ITEM, columns.SHARE).row(0)
    return f"{'popular now' if source is None else titles[str(source)]} ({share:+.3f})"


def _render_report(rows: int, comparison: list[list[str]], about: str, cards: list[Card]) -> str:
    """Return the comparison of models and the shoppers' recommendations as Markdown.

    `rows` is the size of the log; `comparison` has a table row per model, as text; `about` says
    what the models are, a sentence per line; `cards` have the shoppers' recommendations.
    """
    parts = [f"# talerec demo\n\n{rows:,} rows of a synthetic shop, leave-one-out, full ranking.\n"]
    table = _render_markdown_table(_HEADER, comparison)
    sentences = "\n\n".join(f"{line.rstrip('.')}." for line in [_METRICS, *about.split("\n")])
    parts += [table, f"\n{sentences}\n\n{_CARDS_TITLE}"]
    for card in cards:
        parts.append(f"\n## {card.title}\n\n{_render_markdown_table(card.header, card.rows)}")
    return "\n".join(parts) + "\n"


def _render_markdown_table(header: list[str], rows: list[list[str]]) -> str:
    """Return a table as Markdown text; `header` and each of `rows` have a text per column."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)

"""What was reproduced, chapter by chapter: the paper's tables and figures, and what it does not show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from talerec.reports.charts.plots import Series, bars, lines
from talerec.reports.charts.row_charts import Dot, dots
from talerec.reports.markup import Html
from talerec.repro import paper
from talerec.repro.experiments import ORDERS, SWEEPS, TABLE_ROWS, Facts, Study
from talerec.repro.measures import SPANS

_METRIC = "NDCG@10"
_NEURAL_NOTE = "neural models: the paper's figures; `talerec reproduce --neural` computes them too"
_GAPS = ("short", "mid", "long")
_SUMMARY_METRICS = ("HR@5", "NDCG@5", "NDCG@10")


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str
    important: bool = False


@dataclass(frozen=True)
class Grid:
    """A table of text."""

    caption: str
    header: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Plot:
    """A chart; RESULTS.md leaves it out."""

    chart: Html
    caption: str = ""


Block = Text | Grid | Plot
Chapter = tuple[str, list[Block]]


def chapters(studies: Sequence[Study]) -> list[Chapter]:
    """All chapters, each a heading and its blocks."""
    return [*_from_the_paper(studies), *_beyond_the_paper(studies)]


# -- the paper's tables and figures ----------------------------------------------------------------


def _from_the_paper(studies: Sequence[Study]) -> Iterable[Chapter]:
    yield "Summary", [_summary(studies), *_tie_warnings(studies)]
    yield "Table 1: the data", [_grid(1, s, {"log": _statistics(s)}) for s in studies]
    yield "Table 2: accuracy", [_grid(2, s, _accuracy(s)) for s in studies] + [Text(_NEURAL_NOTE)]
    yield (
        "Table 3: efficient models",
        [_grid(3, s, _efficiency(s)) for s in studies] + [Text(_NEURAL_NOTE)],
    )
    yield "Tables 4 and 10: head and tail", _head_and_tail(studies)
    yield "Table 5: ablation", list(_ablation(studies))
    yield (
        "Table 8: weights and intervals",
        [
            Text(
                "Pearson's r of the weights and 1 / (1 + mean days between), over pairs of items that ever followed"
                " each other; the paper does not say how it treats the others, or an interval of 0."
            ),
            *(
                _grid(8, s, {r: {"pearson": s.row(r)["correlation"]} for r in ("SLIST", "TALE")})
                for s in studies
            ),
        ],
    )
    yield "Figures: what the data are like", list(_data_figures(studies))
    yield "Figures: accuracy by interval", [_by_gap(s) for s in studies]
    yield "Figures: sensitivity", [_sweep(s, name) for s in studies for name in SWEEPS]
    yield "Figures: weight by popularity", [_weights(s) for s in studies]


def _summary(studies: Sequence[Study]) -> Block:
    rows = []
    for study in studies:
        for name in ("SLIST", "TALE"):
            found, printed = study.row(name)["metrics"], paper.table(2)
            for metric in _SUMMARY_METRICS:
                known = printed.figure(study.dataset.key, name, metric)
                rows.append([study.dataset.name, name, metric, *_compared(found[metric], known)])
    header = ["data", "model", "metric", "ours", "paper", "difference"]
    return Grid("Linear rows of Table 2, exact solver", header, rows)


def _tie_warnings(studies: Sequence[Study]) -> Iterable[Block]:
    """How much of the accuracy rests on the order of simultaneous rows."""
    for study in filter(lambda study: study.has_ties, studies):
        found = study.random_ties_chosen()
        mean, spread = found["metrics"][_METRIC], found["spread"][_METRIC]
        published = study.random_ties("TALE")["beside"][study.dataset.ties][_METRIC]
        yield Text(
            f"{study.dataset.name}: {found['tied']:.0%} of neighbouring rows have the same time. In"
            f" {study.dataset.ties} order, as published, TALE has {_METRIC} {published:.4f}; with these rows in"
            f" random order it has {mean:.4f} ± {spread:.4f} ({ORDERS}, {_setting_in_words(study.chosen_for_ties)}).",
            important=True,
        )


def _setting_in_words(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in settings.items()) or "same settings"


def _compared(ours: float | None, known: float | None) -> list[str]:
    """Our figure, the paper's, and the difference in per cent."""
    if ours is None or known is None:
        return [_number(ours), _number(known), "–"]
    return [_number(ours), _number(known), f"{ours / known - 1:+.1%}" if known else "–"]


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:,.1f}".removesuffix(".0")


def _grid(number: int, study: Study, ours: dict[str, dict[str, float | None]]) -> Block:
    """A table of the paper for one data set: rows that are quoted, and rows that were computed, with the difference."""
    table = paper.table(number)
    rows: list[list[str]] = []
    for name, printed in table.figures.get(study.dataset.key, {}).items():
        if name not in ours:
            rows.append([f"{name} (paper)", *map(_number, printed)])
            continue
        found = [ours[name].get(column) for column in table.columns]
        both = [_compared(a, b) for a, b in zip(found, printed, strict=True)]
        label = _label(name)
        rows.append([label, *(cells[0] for cells in both)])
        rows.append(
            [f"{label} (paper)" if name != "log" else "paper", *(cells[1] for cells in both)]
        )
        rows.append(["difference", *(cells[2] for cells in both)])
    return Grid(study.dataset.name, ["", *table.columns], rows)


def _label(row: str) -> str:
    """A row's name in words, where it is the code of an ablation (12-, ---)."""
    if row == "log":
        return "here"
    if len(row) == 3 and set(row) <= set("123-"):
        parts = {"1": "single target", "2": "time weights", "3": "trend"}
        return " + ".join(parts[sign] for sign in row if sign != "-") or "none (SLIT)"
    return row


def _statistics(study: Study) -> dict[str, float | None]:
    found = study.statistics()
    return {
        "users": found["users"],
        "items": found["items"],
        "rows": found["rows"],
        "density_percent": 100 * found["density"],
        "length": found["rows_per_user"]["mean"],
        "interval_days": found["interval_days"]["mean"],
    }


def _accuracy(study: Study) -> dict[str, dict[str, float | None]]:
    linear = {row: study.row(row)["metrics"] for row in ("SLIST", "TALE")}
    return linear | {row: study.neural_row(row)["metrics"] for row in study.neural_rows}


def _efficiency(study: Study) -> dict[str, dict[str, float | None]]:
    found = {}
    runs = {row: study.row(row) for row in ("SLIST", "TALE")}
    runs |= {row: study.neural_row(row) for row in study.neural_rows}
    for row, facts in runs.items():
        seconds = facts["seconds"]
        train = seconds["gram"] + seconds["solve"]
        found[row] = {**facts["metrics"], "train": train, "eval": seconds["score"]}
    return found


def _split_by_popularity(facts: Facts) -> dict[str, float | None]:
    groups = facts["groups"]["popularity"]
    found = {part: groups[part]["NDCG@5"] for part in ("tail", "head")}
    return {"all": facts["metrics"]["NDCG@5"], **found}


def _head_and_tail(studies: Sequence[Study]) -> list[Block]:
    found: list[Block] = [Text("NDCG@5; head: the fifth of the items with most training rows.")]
    for study in studies:
        number = 4 if study.dataset.key in paper.table(4).figures else 10
        rows = {row: _split_by_popularity(study.row(row)) for row in TABLE_ROWS}
        found.append(_grid(number, study, rows))
    return found


def _ablation(studies: Sequence[Study]) -> Iterable[Block]:
    for study in studies:
        printed = paper.table(5).figures.get(study.dataset.key)
        if printed is None:
            continue
        ours = {row: _split_by_popularity(study.row(row)) for row in printed}
        yield _grid(5, study, ours)
        by_us = sorted(ours, key=lambda row: -(ours[row]["all"] or 0.0))
        by_them = sorted(printed, key=lambda row: -printed[row][0])
        yield Text(f"Best to worst here: {_names(by_us)}. In the paper: {_names(by_them)}.")


def _names(rows: Iterable[str]) -> str:
    return ", ".join(_label(row) for row in rows)


def _data_figures(studies: Sequence[Study]) -> Iterable[Block]:
    spans = list(SPANS)
    shares = [
        Series(s.dataset.name, spans, [s.co_occurrence()[span] for span in spans]) for s in studies
    ]
    caption = "Pairs of consecutive items by the mean time between them."
    yield Plot(
        bars(spans, shares, title="Co-occurrence over intervals", y_label="share of pairs"), caption
    )
    for study in studies:
        found = study.transitions()
        if found is not None:
            change = Series("", spans, [found[span] for span in spans])
            title = f"{study.dataset.name}: the genre changes"
            yield Plot(
                bars(spans, [change], title=title, y_label="probability"),
                "How often the first genre of an item is not that of the item before, by time between.",
            )


def _by_gap(study: Study) -> Block:
    series = [
        Series(row, list(_GAPS), [study.row(row)["groups"]["gap"][g]["NDCG@5"] for g in _GAPS])
        for row in ("SLIST", "TALE")
    ]
    return Plot(
        bars(list(_GAPS), series, title=f"{study.dataset.name}: NDCG@5", y_label="NDCG@5"),
        "By the time between the test row and the one before, in thirds.",
    )


def _sweep(study: Study, name: str) -> Block:
    values = list(SWEEPS[name])
    chosen = paper.settings(study.dataset.key, "TALE").params.get(name)
    return Plot(
        lines(
            [Series("", values, study.sensitivity(name))],
            title=f"{study.dataset.name}: {name}",
            x_label=name,
            y_label=_METRIC,
            log_x=name != "floor",
            mark_x=chosen,
            mark_label="Table 7" if chosen is not None else "",
        )
    )


def _weights(study: Study) -> Block:
    series = []
    for row in TABLE_ROWS:
        found = study.row(row)["weights"]
        series.append(Series(row, found["rank"], found["weight"]))
    return Plot(
        lines(
            series,
            title=f"{study.dataset.name}: mean weight of items",
            x_label="items, most popular first",
            y_label="mean weight",
            log_x=True,
        )
    )


# -- what the paper does not show ------------------------------------------------------------------


def _beyond_the_paper(studies: Sequence[Study]) -> Iterable[Chapter]:
    yield "Beyond the paper: random ties", list(_ties(studies))
    yield "Beyond the paper: seen items hidden", [_hidden(studies)]
    if any(study.neural_rows for study in studies):
        yield "Beyond the paper: neural rows", [_neural(studies)]
    yield "Beyond the paper: a split of time", list(_time_split(studies))


def _ties(studies: Sequence[Study]) -> Iterable[Block]:
    yield from _tie_warnings(studies)
    rows = []
    for study in filter(lambda study: study.has_ties, studies):
        runs: list[tuple[str, Callable[[], Facts]]] = [
            ("SLIST", lambda study=study: study.random_ties("SLIST")),  # type: ignore[misc]
            ("TALE", lambda study=study: study.random_ties("TALE")),  # type: ignore[misc]
            (f"TALE, {_setting_in_words(study.chosen_for_ties)}", study.random_ties_chosen),
        ]
        for name, run in runs:
            found = run()
            fixed = [_number(found["beside"].get(o, {}).get(_METRIC)) for o in ("file", "item")]
            mean, spread = found["metrics"][_METRIC], found["spread"][_METRIC]
            rows.append([study.dataset.name, name, f"{mean:.4f} ± {spread:.4f}", *fixed])
    if not rows:
        yield Text("No neighbouring rows of these data have the same time.")
        return
    header = ["data", "model", f"{_METRIC}, {ORDERS}", "file order", "item order"]
    yield Grid("Simultaneous rows in random order (local solver above 4,000 items)", header, rows)


def _hidden(studies: Sequence[Study]) -> Block:
    rows = []
    for study in studies:
        for name in TABLE_ROWS:
            found = study.row(name)
            shown, hidden = found["metrics"][_METRIC], found["metrics_hidden"][_METRIC]
            rows.append(
                [
                    study.dataset.name,
                    name,
                    _number(shown),
                    _number(hidden),
                    f"{hidden / shown - 1:+.1%}",
                ]
            )
    header = ["data", "model", _METRIC, "seen items hidden", "change"]
    return Grid("What a history holds already is not recommended", header, rows)


def _neural(studies: Sequence[Study]) -> Block:
    """Neural rows beside TALE: the paper's cell, ours as in the paper, and with seen items hidden."""
    rows = []
    for study in studies:
        runs = {row: study.neural_row(row) for row in study.neural_rows}
        for name, found in {**runs, "TALE": study.row("TALE")}.items():
            printed = paper.table(2).figure(study.dataset.key, name, _METRIC)
            low, high = found["intervals"][_METRIC]
            hidden, seconds = found["metrics_hidden"][_METRIC], found["seconds"]["solve"]
            cells = _compared(found["metrics"][_METRIC], printed)
            rows.append(
                [
                    study.dataset.name,
                    name,
                    *cells,
                    f"{low:.4f} to {high:.4f}",
                    _number(hidden),
                    f"{seconds:,.0f}",
                ]
            )
    header = ["data", "model", "ours", "paper", "difference", "95 %", "seen hidden", "fit seconds"]
    return Grid(f"{_METRIC}, stopped on validation rows as in the paper", header, rows)


def _time_split(studies: Sequence[Study]) -> Iterable[Block]:
    yield Text(
        "Training: the rows before the moment after which a fifth of them lie. Question: each user's next row."
    )
    for study in studies:
        found = {row: study.time_split(row) for row in study.time_split_rows}
        grid = [
            [
                row,
                f"{facts['cases']:,}",
                *(_number(facts["metrics"][m]) for m in ("HR@10", _METRIC)),
            ]
            for row, facts in found.items()
        ]
        yield Grid(study.dataset.name, ["model", "cases", "HR@10", _METRIC], grid)
        points = [Dot(r, f["metrics"][_METRIC], *f["intervals"][_METRIC]) for r, f in found.items()]
        yield Plot(dots(points, title=f"{study.dataset.name}: after the moment", x_label=_METRIC))

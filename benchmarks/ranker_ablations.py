"""What the ranker's features, queries, candidates and parts are worth: resumable, log by log.

    python benchmarks/ranker_ablations.py DATA [--only ifdb,retail] [--variants TEXT] [-o FILE]

Leave-one-out, validation rows, NDCG@10. The training examples of a log (current queries) are built
once, and an order is learned from them anew for each variant: four fifths of the users to learn,
the last fifth to choose shape and number of trees. Candidates are ordered by it even where the
ranker's guard would let a part answer. A feature that is left out is NaN in all rows. Differences
are from the trees with everything, per user, with their standard errors. Every finished variant is
a line of FILE (JSON), and is not computed again. --variants: the beginnings of names of variants to
compute, such as "without,linear".
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import talerec as tr
from ranker import LOGS, read_split
from talerec.features import FAMILIES, FeatureSources, ItemTimes, feature_groups, feature_names
from talerec.models.blend import fit_part
from talerec.models.core import HoldoutQueries, Model
from talerec.models.ranker import learning
from talerec.models.ranker.candidates import FirstStage
from talerec.models.ranker.examples import Examples, build_examples, has_seen_target
from talerec.models.ranker.learning import Shape
from talerec.models.ranker.parts import build_parts, default_parts
from talerec.models.ranker.queries import QueryRound, current_round, default_rows_back
from talerec.models.ranker.second_stage import start_scores
from talerec.models.tempo import allows_repeats, measure_repeat_rates

_DEFAULT_LOGS = "ml-100k,ifdb,dunnhumby,retail"
_OTHER_MODE = 4  # as in a fit: one query in four is asked in the less usual mode
_CANDIDATES = 150


class Sets(NamedTuple):
    """Examples to learn from (seen items allowed, and hidden), and those of validation rows."""

    learn: list[Examples]
    validation: Examples
    names: FeatureSources  # of the parts, views and context columns


class Rounds(NamedTuple):
    """Fitted parts of a log, and the queries that they are asked."""

    held_parts: list[Model]
    parts: list[Model]
    held_out: QueryRound
    validation: QueryRound
    times: ItemTimes
    repeats: bool
    hide_seen: bool


def fit_rounds(split: tr.Split, *, hide_seen: bool) -> Rounds:
    """Fit the default parts without the current queries' rows, and to all training rows."""
    train = split.train
    held_out = current_round(train, default_rows_back(train))
    text = default_parts(train)
    fits = [[fit_part(part, log, "ranker") for part in build_parts(text)]
            for log in (held_out.train, train)]  # fmt: skip
    cases = split.cases("validation")
    end = int(train.time.max()) + 1
    queries = HoldoutQueries(cases.histories, cases.target, np.arange(len(cases.target)))
    repeats = bool(allows_repeats(measure_repeat_rates(train)))
    validation = QueryRound(train, queries, end)
    return Rounds(*fits, held_out, validation, ItemTimes.from_log(train), repeats, hide_seen)


def build_sets(rounds: Rounds, n_parts: int) -> Sets:
    """Return the examples of the first parts."""
    held = FirstStage(rounds.held_parts[:n_parts], rounds.times, rounds.repeats, _CANDIDATES)
    stage = FirstStage(rounds.parts[:n_parts], rounds.times, rounds.repeats, _CANDIDATES)
    every = np.arange(len(rounds.held_out.queries))
    hidden = every[~has_seen_target(rounds.held_out.queries)]
    allowed = every if rounds.repeats else every[::_OTHER_MODE]
    learn = [
        build_examples(held, rounds.held_out, allowed, hide_seen=False),
        build_examples(held, rounds.held_out, hidden, hide_seen=True),
    ]
    asked = np.arange(len(rounds.validation.queries))
    validation = build_examples(stage, rounds.validation, asked, hide_seen=rounds.hide_seen)
    return Sets(learn, validation, held.sources)


# -- variants --


def without_columns(sets: Sets, columns: list[int]) -> Sets:
    """Return the examples with NaN in some columns, each query's candidates in random order.

    Without ranks of parts, all candidates begin with equal scores, and LightGBM measures equal
    scores in the order of the rows, which is the parts'.
    """
    rng = np.random.default_rng(0)

    def blank(examples: Examples) -> Examples:
        query = np.repeat(np.arange(len(examples)), np.diff(examples.row_ptr))
        order = np.lexsort([rng.random(len(query)), query])
        rows = examples.rows[order]
        rows[:, columns] = np.nan
        same = (
            examples.user,
            examples.part_gain,
            examples.row_ptr,
        )  # len() is of queries: no _replace
        return Examples(*same, rows, examples.is_target[order])

    return sets._replace(learn=[*map(blank, sets.learn)], validation=blank(sets.validation))


def with_queries(sets: Sets, share: float) -> Sets:
    """Return the examples of a random share of the users to learn from."""
    n_users = 1 + max(int(each.user.max()) for each in sets.learn)
    chosen = np.random.default_rng(1).random(n_users) < share
    return sets._replace(learn=[take_rows(each, chosen[each.user], None) for each in sets.learn])


def with_candidates(sets: Sets, size: int) -> Sets:
    """Return the examples with the first candidates of each query alone."""

    def cut(examples: Examples) -> Examples:
        return take_rows(examples, np.ones(len(examples), bool), size)

    return sets._replace(learn=[*map(cut, sets.learn)], validation=cut(sets.validation))


def take_rows(examples: Examples, queries: np.ndarray, size: int | None) -> Examples:
    """Return some queries (flags), with their first `size` candidates; no rows without target."""
    counts = np.diff(examples.row_ptr)
    query = np.repeat(np.arange(len(examples)), counts)
    lag = np.arange(len(query)) - examples.row_ptr[query]
    is_chosen = queries[query] & (lag < (size or np.inf))
    hits = np.bincount(query, is_chosen & (examples.is_target > 0), len(examples)) > 0
    is_chosen &= hits[query]
    sizes = np.bincount(query, is_chosen, len(examples)).astype(np.int64)[queries]
    return Examples(
        examples.user[queries], examples.part_gain[queries],
        np.concatenate([[0], np.cumsum(sizes)]), examples.rows[is_chosen],
        examples.is_target[is_chosen],
    )  # fmt: skip


def family_columns(names: FeatureSources) -> dict[str, list[int]]:
    """Return the columns of each family of features, and those of views of tempo."""
    groups = feature_groups(names)
    ends = [*groups.first_column[1:], len(feature_names(names))]
    columns: dict[str, list[int]] = {family.name: [] for family in FAMILIES}
    columns["views of tempo"] = []
    for group, number, a, b in zip(*groups, ends, strict=True):
        columns[FAMILIES[number].name] += range(a, b)
        if "_recency_" in group.subject:
            columns["views of tempo"] += range(a, b)
    return columns


def learn_gains(sets: Sets, shapes: Sequence[Shape] = ()) -> np.ndarray:
    """Return NDCG@10 of each validation query, by an order that four fifths of users taught.

    shapes: of which the last fifth chooses one; none: the ranker's for as many queries.
    """
    names = feature_names(sets.names)
    data = learning._TrainingRows.of(sets.learn)
    is_check = learning._assign_folds(sets.learn, 0)[data.user] == 0
    split = learning._Split(~is_check, is_check)
    shapes = shapes or learning._list_shapes(len(data.sizes))
    bins = data.to_bins(names, learning._params(shapes[0].n_leaves))
    runs = [learning._grow_trees(data, bins, [split], shape) for shape in shapes]
    run, n_trees = learning._choose_shape(runs, [split], [0])
    return sets.validation.gains(run.score(0, n_trees, sets.validation.rows, names))


def learn_linear(sets: Sets) -> np.ndarray:
    """Return NDCG@10 of each validation query, by a linear combination of the same features."""
    data = learning._TrainingRows.of(sets.learn)
    score = learning._fit_linear(data, np.ones(len(data.sizes), bool))
    rows = sets.validation.rows
    return sets.validation.gains(start_scores(rows) + score.predict(rows))


def list_variants(rounds: Rounds, sets: Sets) -> Iterator[tuple[str, Callable[[], np.ndarray]]]:
    """Yield the name of each variant, and what computes its gains."""
    yield "everything", lambda: learn_gains(sets)
    for name, columns in family_columns(sets.names).items():
        if columns:
            yield f"without {name}", lambda c=columns: learn_gains(without_columns(sets, c))
    yield "linear combination", lambda: learn_linear(sets)
    for shape in (Shape(True, 4), Shape(False, 7), Shape(False, 15), Shape(True, 15)):
        start = "a linear score" if shape.is_linear else "ranks"
        name = f"trees of {shape.n_leaves} leaves from {start}"
        yield name, lambda s=shape: learn_gains(sets, [s])
    for size in (50, 100):
        yield f"{size} candidates", lambda s=size: learn_gains(with_candidates(sets, s))
    for share in (0.1, 0.5):
        yield f"{share:.0%} of the users", lambda s=share: learn_gains(with_queries(sets, s))
    for n in (1, 2, 4):
        if n < len(rounds.parts):
            names = ",".join(part.name for part in rounds.parts[:n])
            yield f"parts {names}", lambda n=n: learn_gains(build_sets(rounds, n))


def measure(
    folder: Path, name: str, file: Path, done: dict[str, Any], chosen: tuple[str, ...]
) -> None:
    """Measure the variants of a log that the file does not have, and print all.

    chosen: beginnings of names of variants; "everything" is always measured.
    """
    rounds = fit_rounds(read_split(folder, name, "loo", "validation"), hide_seen=not LOGS[name][2])
    sets = build_sets(rounds, len(rounds.parts))
    for number, part in enumerate(rounds.parts):
        key = f"{name}|part {part.name}"
        done.setdefault(key, {"gains": sets.validation.part_gain[:, number].tolist()})
    n_queries = [len(each) for each in sets.learn]
    print(f"{name}: {n_queries} queries, {len(sets.validation)} validation users", flush=True)
    for variant, compute in list_variants(rounds, sets):
        key = f"{name}|{variant}"
        if not variant.startswith(("everything", *chosen)):
            continue
        if key not in done:
            begun = time.process_time()
            done[key] = {"gains": compute().tolist(), "s": time.process_time() - begun}
            with file.open("a") as out:
                out.write(json.dumps({key: done[key]}) + "\n")
        show(done, name, key)
    for key in [key for key in done if key.startswith(f"{name}|part ")]:
        show(done, name, key)


def show(done: dict[str, Any], name: str, key: str) -> None:
    """Print a variant: NDCG@10, and the difference from everything with its standard error."""
    gains, full = (np.array(done[each]["gains"]) for each in (key, f"{name}|everything"))
    difference = gains - full
    error = difference.std() / np.sqrt(len(difference))
    cost = done[key].get("s", 0.0)
    print(f"{key:40s} {gains.mean():.4f}  {difference.mean():+.4f} ± {error:.4f}  {cost:.0f} s",
          flush=True)  # fmt: skip


def main() -> None:
    """Measure the variants of some logs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", default=_DEFAULT_LOGS)
    parser.add_argument("-o", "--out", type=Path, default=Path("ranker_ablations.jsonl"))
    parser.add_argument("--variants", default="")
    options = parser.parse_args()
    chosen = tuple(options.variants.split(","))
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    done = {key: column for line in lines for key, column in json.loads(line).items()}
    for name in options.only.split(","):
        measure(options.data, name, options.out, done, chosen)


if __name__ == "__main__":
    main()

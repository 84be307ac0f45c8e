"""Updates: an updated model equals a fit to all rows with what the first fit fixed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import talerec as tr
from command import PYTHONPATH, RUN, refusal, talerec, works, write_log
from logs import DAY, Row, log_of, quick, rows, rows_of
from talerec.artifact import read_manifest
from talerec.data import merge_logs
from talerec.errors import TalerecError
from talerec.runtime import dense


def by_id(model: tr.Model) -> dict[tuple[Any, Any], float]:
    """Weights by external ids: items have other places in an updated model."""
    ids, B = model.item_ids.to_list(), dense(model.weights)
    return {(ids[i], ids[j]): float(B[i, j]) for i, j in zip(*np.nonzero(B), strict=True)}


def assert_same(first: tr.Model, other: tr.Model, tolerance: float = 1e-5) -> None:
    a, b = by_id(first), by_id(other)
    for pair in a.keys() | b.keys():
        assert a.get(pair, 0.0) == pytest.approx(b.get(pair, 0.0), abs=tolerance), pair


@st.composite
def two_parts(draw: st.DrawFn) -> tuple[list[Row], list[Row]]:
    """Rows, any of which may come later: late rows, new users and items, none of them twice."""
    every = list(dict.fromkeys(draw(rows(max_rows=30))))
    later = draw(st.lists(st.booleans(), min_size=len(every), max_size=len(every)))
    old = [row for row, is_later in zip(every, later, strict=True) if not is_later]
    new = [row for row, is_later in zip(every, later, strict=True) if is_later]
    return (old or every[:1]), (new or every[-1:])


def all_rows(old: list[Row], new: list[Row]) -> list[Row]:
    return [*old, *(row for row in new if row not in old)]


def settled_by_hand(log: tr.Log, steps: list[list[Row]], window: float) -> np.ndarray:
    """Each row's trend count at the time it came: among the rows that were there then."""
    seen: list[Row] = []
    counts: dict[Row, int] = {}
    for step in steps:
        seen = all_rows(seen, step)
        for row in seen:
            if row not in counts:
                counts[row] = sum(
                    r[1] == row[1] and abs(r[2] - row[2]) <= window * DAY for r in seen
                )
    return np.array([counts[row] for row in rows_of(log)])


@quick
@given(
    two_parts(),
    st.sampled_from(["exact", "local"]),
    st.sampled_from(["ordered", "joint"]),
    st.sampled_from([0.0, 0.4]),
)
def test_an_update_equals_a_fit_of_all_rows_with_the_same_settled_counts(
    parts: tuple[list[Row], list[Row]], solver: str, same_time: str, trend: float
) -> None:
    old, new = parts
    options: dict[str, Any] = {
        "reg": 2.0,
        "solver": solver,
        "neighbors": 100,
        "same_time": same_time,
        "trend": trend,
        "window": 1.0,
    }
    model = tr.TALE(**options).fit(log_of(old))
    done = tr.update(model, log_of(new), tolerance=0)
    whole = log_of(all_rows(old, new))
    assert done.rows == whole.rows - len(old)
    trends = settled_by_hand(whole, [old, new], 1.0) if trend else None
    expected = tr.TALE(**options).fit(replace(whole, trends=trends))
    assert_same(model, expected)
    assert sorted(rows_of(model.fitted.log)) == sorted(rows_of(whole))
    repeated = tr.update(model, log_of(new), tolerance=0)
    assert (repeated.rows, repeated.solved) == (0, 0)


@quick
@given(two_parts())
def test_old_places_stay_and_new_ones_are_at_the_end(parts: tuple[list[Row], list[Row]]) -> None:
    old, new = (log_of(part) for part in parts)
    result = merge_logs(old, new)
    for before, after in ((old.users, result.log.users), (old.items, result.log.items)):
        assert after.ids[: len(before)].equals(before.ids)
    expected_log = log_of(all_rows(*parts))
    assert sorted(rows_of(result.log)) == sorted(rows_of(expected_log))
    by_user = {
        user: [row for row in rows_of(result.log) if row[0] == user]
        for user in result.log.users.ids
    }
    for updated in by_user.values():
        assert [row[2] for row in updated] == sorted(row[2] for row in updated)
    assert result.is_new.sum() == result.log.rows - old.rows


def test_a_row_that_comes_more_often_than_before_is_new_as_often() -> None:
    first, other = (1, "a", 5 * DAY), (1, "b", 6 * DAY)
    log = log_of([first, other])
    assert merge_logs(log, log_of([first, first, first, other])).is_new.sum() == 2
    twice = merge_logs(log, log_of([first, first])).log
    assert merge_logs(twice, log_of([first, first])).is_new.sum() == 0


@pytest.mark.parametrize(
    "name",
    [
        "markov",
        "rules",
        "association",
        "popular",
        "trending",
        "ease",
        "slis",
        "slit",
        "slist",
        "swalk",
        "sknn",
        "stan",
    ],
)
def test_other_models_are_what_a_fit_of_all_rows_gives(name: str) -> None:
    log = tr.synthetic_log(1500, seed=3)
    cut = np.sort(log.time)[-60]
    model = tr.MODELS[name]().fit(log.keep(log.time < cut).compact())
    tr.update(model, log)
    expected = tr.MODELS[name]().fit(log)
    users = log.users.ids[:40].to_list()
    updated, theirs = model.recommend(users, 5), expected.recommend(users, 5)
    np.testing.assert_allclose(updated["score"], theirs["score"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("solver", ["exact", "local"])
def test_many_updates_equal_one_fit_with_the_same_settled_counts(solver: str) -> None:
    log = tr.synthetic_log(1200, seed=5)
    every = sorted(rows_of(log), key=lambda row: row[2])
    every = list(dict.fromkeys(every))
    steps = [every[:900], *(every[a : a + 3] for a in range(900, len(every), 3))]
    options: dict[str, Any] = {
        "reg": 2.0, "solver": solver, "neighbors": 1000, "trend": 0.3, "window": 30.0,
    }  # fmt: skip
    model = tr.TALE(**options).fit(log_of(steps[0]))
    for step in steps[1:]:
        tr.update(model, log_of(step), tolerance=0)
    assert len(steps) >= 100
    assert model.fitted.training["updates"] == len(steps) - 1
    whole = log_of(every)
    expected = tr.TALE(**options).fit(replace(whole, trends=settled_by_hand(whole, steps, 30.0)))
    assert_same(model, expected)
    if solver == "local":
        triangle, G = (
            model.fitted.update_state.triangle,
            dense(expected.gram(expected.fitted.log).G),
        )
        place = model.fitted.items.positions(expected.item_ids, "item", "error")
        assert triangle.diagonal[place] == pytest.approx(np.diag(G), rel=1e-12)


def test_few_targets_are_solved_again_and_the_others_keep_weights_that_are_hardly_off() -> None:
    log = tr.synthetic_log(60_000, items=3000, seed=2).compact()
    cut = np.sort(log.time)[-300]
    options: dict[str, Any] = {"solver": "local", "trend": 0.0}
    old = tr.TALE(**options).fit(log.keep(log.time < cut).compact())
    some, every = old.with_params(), old.with_params()
    done = tr.update(some, log, tolerance=0.1)
    assert 0 < done.solved < done.targets / 2
    assert tr.update(every, log, tolerance=0).solved == len(log.items)
    updated, right = dense(some.weights), dense(every.weights)
    before = np.zeros_like(updated)
    n = len(old.item_ids)
    before[:n, :n] = dense(old.weights)
    fresh = (updated == right).all(axis=0)
    unchanged = (updated == before).all(axis=0)
    assert (fresh | unchanged).all()
    assert (fresh & ~unchanged).sum() <= done.solved
    off = np.abs(updated - right).max(axis=0) / np.maximum(np.abs(right).max(axis=0), 1e-12)
    stale = np.abs(before - right).max(axis=0) / np.maximum(np.abs(right).max(axis=0), 1e-12)
    assert off.mean() < 0.03
    assert off.mean() < stale.mean() / 2


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (tr.FPMC(), "fpmc cannot be updated"),
        (tr.Blend(parts="markov,ease"), "blend cannot be updated"),
        (tr.SLIS(decay_user=3.0), "decay_user changes every row"),
        (tr.SLIT(norm="symmetric"), "norm=symmetric changes every row"),
    ],
)
def test_what_cannot_be_updated_is_refused_by_name(model: tr.Model, said: str) -> None:
    log = tr.synthetic_log(300)
    model.fit(log)
    with pytest.raises(TalerecError, match=said):
        tr.update(model, log)


def test_other_things_are_refused_in_words() -> None:
    log = tr.synthetic_log(300)
    model = tr.TALE().fit(log)
    with pytest.raises(TalerecError, match="`tolerance` is -1"):
        tr.update(model, log, tolerance=-1)
    frame = log.to_frame().with_columns(item_id=pl.lit("tent"))
    with pytest.raises(
        TalerecError, match="item 'tent' is not a whole number, as all item ids of the model are"
    ):
        tr.update(model, frame)
    with pytest.raises(TalerecError, match="the model has ties random:3"):
        tr.update(tr.TALE().fit(tr.order_ties(log, "random:3")), log)


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def items(tmp_path: Path) -> Path:
    table = pl.DataFrame(
        {"item_id": [f"i{n}" for n in range(12)], "title": [f"T{n}" for n in range(12)]}
    )
    table.write_csv(tmp_path / "items.csv")
    return tmp_path / "items.csv"


@pytest.fixture
def days(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A log, and the same in two parts, the second with late rows."""
    whole = write_log(tmp_path / "all.csv", users=30, rows=400)
    table = pl.read_csv(whole)
    old, new = table.head(380), table.tail(25)
    old.write_csv(tmp_path / "old.csv")
    new.write_csv(tmp_path / "new.csv")
    return whole, tmp_path / "old.csv", tmp_path / "new.csv"


def test_the_command_updates_an_artifact(
    days: tuple[Path, Path, Path], items: Path, tmp_path: Path
) -> None:
    whole, old, new = days
    model, other = tmp_path / "m.tale", tmp_path / "all.tale"
    settings = ("--model", "tale", "--set", "reg=2", "--set", "trend=0", "--items", items)
    works("fit", old, "-o", model, *settings, "--updatable")
    works("fit", whole, "-o", other, *settings)
    said = " ".join(works("update", model, new).split())
    assert "20 new rows" in said
    assert "12 of 12 targets solved," in said
    works("verify", model)
    users = list(range(1, 31))
    updated, theirs = (tr.load(path).recommend(users, 5) for path in (model, other))
    assert updated["item_id"].equals(theirs["item_id"])
    np.testing.assert_allclose(updated["score"], theirs["score"], rtol=1e-5)
    version = read_manifest(model)["version"]
    assert "no new rows" in works("update", model, new)
    result = talerec("update", model, old, "--json").json
    assert (result["rows"], result["version"]) == (0, version)
    assert result["training"]["rows"] == 400


def test_trend_counts_survive_saving(days: tuple[Path, Path, Path], tmp_path: Path) -> None:
    _, old, new = days
    model = tmp_path / "m.tale"
    works(
        "fit",
        old,
        "-o",
        model,
        "--model",
        "tale",
        "--set",
        "reg=2",
        "--set",
        "trend=0.4",
        "--updatable",
    )
    unchanged = tr.TALE(reg=2.0, trend=0.4).fit(tr.read_log(old))
    for part in (pl.read_csv(new).head(10), pl.read_csv(new).tail(15)):
        part.write_csv(tmp_path / "part.csv")
        works("update", model, tmp_path / "part.csv", "--tolerance", 0)
        tr.update(unchanged, part, tolerance=0)
    assert np.array_equal(tr.load(model).weights, unchanged.weights)
    assert tr.load(model).fitted.training["updates"] == 2


def test_the_command_refuses_by_name(days: tuple[Path, Path, Path], tmp_path: Path) -> None:
    _, old, new = days
    model = tmp_path / "m.tale"
    works("fit", old, "-o", model, "--model", "tale")
    assert "was fitted without --updatable" in refusal("update", model, new)
    for option in (["--core", "2"], ["--no-histories"]):
        said = refusal("fit", old, "-o", model, "--updatable", *option)
        assert f"--updatable does not work with {option[0]}" in said
    works("fit", old, "-o", model, "--model", "tale", "--updatable")
    assert "--core is for fit" in refusal("update", model, new, "--core", 3)
    assert "does not exist" in refusal("update", model, tmp_path / "no.csv")
    assert "does not exist" in refusal("update", tmp_path / "no.tale", new)


def test_fit_over_the_model_of_a_far_larger_log_warns(
    days: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    whole, _, new = days
    model = tmp_path / "m.tale"
    works("fit", whole, "-o", model, "--model", "popular")
    outcome = talerec("fit", new, "-o", model, "--model", "popular", "--json")
    assert outcome.code == 0
    assert (
        "was fitted on 400 rows and is replaced by a model of 25; to add rows, use talerec update"
        in outcome.err
    )


@pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9")
def test_a_kill_at_any_moment_leaves_the_old_model_or_the_new_one(
    days: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    _, old, new = days
    model, copy = tmp_path / "m.tale", tmp_path / "c.tale"
    works("fit", old, "-o", model, "--model", "tale", "--updatable")
    works("fit", old, "-o", copy, "--model", "tale", "--updatable")
    before = read_manifest(model)["version"]
    works("update", copy, new)
    after = read_manifest(copy)["version"]
    env = {**os.environ, "PYTHONPATH": PYTHONPATH}
    begun = time.monotonic()
    subprocess.run([*RUN, "verify", str(model)], env=env, check=True, capture_output=True)
    start = time.monotonic() - begun
    for share in (0.7, 1.0, 1.3):
        child = subprocess.Popen(
            [*RUN, "update", str(model), str(new)],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(share * start)
        child.send_signal(signal.SIGKILL)
        child.wait(30)
        works("verify", model)
        assert read_manifest(model)["version"] in (before, after)
    works("update", model, new)
    assert read_manifest(model)["version"] == after

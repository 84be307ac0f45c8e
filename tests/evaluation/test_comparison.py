"""Results that are kept, and compared user by user."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import talerec as tr
from logs import tiny_log
from talerec.errors import TalerecError
from talerec.evaluation.comparison import compare
from talerec.evaluation.evaluation import Evaluation, evaluate_log


def walk(users=80, items=15, rows=7, seed=3):
    """Most steps are to the next item; times often tie."""
    rng = np.random.default_rng(seed)
    found = []
    for u in range(users):
        item = int(rng.integers(items))
        for s in range(rows):
            found.append((u, item, 1.6e9 + 1000 * (s // 2)))
            item = (item + 1) % items if rng.random() < 0.8 else int(rng.integers(items))
    return tiny_log(found)


@pytest.fixture(scope="module")
def results():
    log = walk()
    models = {"tale": tr.TALE(reg=1.0), "popular": tr.Popular()}
    return {name: evaluate_log(m, log, ties="random:0..2") for name, m in models.items()}


def test_a_saved_result_is_the_same_when_it_is_read(results, tmp_path):
    for name, result in results.items():
        again = Evaluation.load(result.save(tmp_path / f"{name}.parquet"))
        assert again.frame.equals(result.frame)
        assert {k: v for k, v in again.to_dict().items() if k != "peak_rss_mb"} == {
            k: v for k, v in result.to_dict().items() if k != "peak_rss_mb"
        }


def test_a_clear_difference_is_found_and_its_direction_named(results):
    found = compare(results["popular"], results["tale"])
    assert found.significant
    assert found.verdict.startswith("tale is better than popular by +")
    headline = found.metrics["NDCG@10"]
    assert headline.a == pytest.approx(results["popular"].metrics["NDCG@10"])
    assert headline.b == pytest.approx(results["tale"].metrics["NDCG@10"])
    assert headline.users == 80  # the three orders of one user are one observation
    assert headline.interval[0] <= headline.difference <= headline.interval[1]
    back = compare(results["tale"], results["popular"])
    assert back.metrics["NDCG@10"].difference == pytest.approx(-headline.difference)
    assert back.metrics["NDCG@10"].p == pytest.approx(headline.p, abs=0.01)


def test_a_model_against_itself_shows_no_difference(results):
    found = compare(results["tale"], results["tale"])
    assert not found.significant
    assert found.verdict.startswith("No difference between A and B can be shown")


def test_the_order_of_cases_does_not_matter(results):
    shuffled = replace(
        results["tale"], frame=results["tale"].frame.sample(fraction=1, shuffle=True, seed=1)
    )
    same = compare(results["popular"], results["tale"]).metrics["HR@10"]
    other = compare(results["popular"], shuffled).metrics["HR@10"]
    assert (other.difference, other.p) == (same.difference, same.p)


def test_results_of_different_questions_are_refused(results, tmp_path):
    tale = results["tale"]
    with pytest.raises(TalerecError, match=r"different questions: ties 'random:0\.\.2', 'file'"):
        compare(tale, evaluate_log(tr.TALE(), walk()))
    with pytest.raises(TalerecError, match="different cases: 1 are in one"):
        compare(tale, replace(tale, frame=tale.frame.filter(pl.col("user_id") != 7)))
    with pytest.raises(TalerecError, match="share no k"):
        compare(tale, replace(tale, ks=(3,)))
    words = replace(tale, frame=tale.frame.with_columns(pl.col("user_id").cast(pl.String)))
    with pytest.raises(TalerecError, match="different logs"):
        compare(tale, words)


def test_what_is_no_result_is_refused_by_name(tmp_path):
    with pytest.raises(TalerecError, match="there is no file"):
        Evaluation.load(tmp_path / "none.parquet")
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "other.parquet")
    (tmp_path / "text.parquet").write_text("hello")
    for name in ("other", "text"):
        with pytest.raises(TalerecError, match="is no saved result"):
            Evaluation.load(tmp_path / f"{name}.parquet")


def test_spread_and_orders_are_those_of_single_evaluations(results):
    single = [evaluate_log(tr.TALE(reg=1.0), walk(), ties=f"random:{s}") for s in range(3)]
    found = results["tale"]
    for metric in ("HR@5", "NDCG@10"):
        values = [one.metrics[metric] for one in single]
        assert [order["metrics"][metric] for order in found.orders] == pytest.approx(values)
        assert found.metrics[metric] == pytest.approx(np.mean(values))
        assert found.spread[metric] == pytest.approx(np.std(values, ddof=1))
    assert found.ties == "random:0..2"
    assert set(single[0].spread.values()) == {None}


def test_windows_pool_their_cases():
    log = tiny_log([(u, (u + s) % 9, 86_400 * s + u) for u in range(20) for s in range(9)])
    found = evaluate_log(tr.Markov(), log, "rolling:1970-01-05,2")
    assert len(found.windows) == 3
    assert sum(w["cases"] for w in found.windows) == len(found.frame) == 60
    assert found.metrics["HR@10"] == pytest.approx(
        np.mean([w["metrics"]["HR@10"] for w in found.windows])
    )


def test_intervals_hold_the_figures_that_they_are_about(results):
    """Of all cases and of every group, also where a user is in a group in some orders of ties only."""
    for result in results.values():
        for column, parts in result.groups.items():
            for name, values in parts.items():
                if values["cases"] > 20:
                    low, high = result.intervals_of(result.group(column, name))["NDCG@10"]
                    assert low <= values["NDCG@10"] <= high

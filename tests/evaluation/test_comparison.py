"""Results that are kept, and compared user by user."""

from __future__ import annotations

import copy
import pickle
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import talerec as tr
from logs import tiny_log
from talerec.errors import TalerecError
from talerec.evaluation import Evaluation, evaluate_log
from talerec.evaluation import result as result_module
from talerec.evaluation.comparison import compare
from talerec.reports import report


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
    assert found.verdict.startswith("tale is better than popular by ")
    headline = found.metrics["NDCG@10"]
    assert headline.a == pytest.approx(results["popular"].metrics["NDCG@10"])
    assert headline.b == pytest.approx(results["tale"].metrics["NDCG@10"])
    assert headline.users == 80  # the three orders of one user are one observation
    assert headline.interval[0] <= headline.difference <= headline.interval[1]
    back = compare(results["tale"], results["popular"])
    assert back.metrics["NDCG@10"].difference == pytest.approx(-headline.difference)
    assert back.metrics["NDCG@10"].p == pytest.approx(headline.p, abs=0.01)


def test_a_comparison_prints_as_its_verdict(results):
    found = compare(results["popular"], results["tale"])
    assert repr(found) == f"Comparison({found.verdict[:-1]})"
    assert len(repr(found).splitlines()) == 1


def test_cases_of_several_orders_are_said_to_be_of_fewer_users(results):
    assert results["tale"].description == "240 test cases of 80 users in 3 orders of ties"
    assert results["tale"].description in repr(results["tale"])
    one = evaluate_log(tr.Popular(), walk())
    assert one.description == "80 test cases"


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
    with pytest.raises(
        TalerecError, match=r"not comparable: ties is 'random:0\.\.2' in A and 'file' in B"
    ):
        compare(tale, evaluate_log(tr.TALE(), walk()))
    with pytest.raises(TalerecError, match="different cases: 1 in one are not in the other"):
        compare(tale, replace(tale, frame=tale.frame.filter(pl.col("user_id") != 7)))
    with pytest.raises(TalerecError, match="share no k"):
        compare(tale, replace(tale, ks=(3,)))
    words = replace(tale, frame=tale.frame.with_columns(pl.col("user_id").cast(pl.String)))
    with pytest.raises(
        TalerecError, match="different logs: user ids are Int64 in A and String in B"
    ):
        compare(tale, words)


def test_what_is_no_result_is_refused_by_name(tmp_path):
    with pytest.raises(TalerecError, match="there is no file"):
        Evaluation.load(tmp_path / "none.parquet")
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "other.parquet")
    (tmp_path / "text.parquet").write_text("hello")
    for name in ("other", "text"):
        with pytest.raises(TalerecError, match="is not a saved result"):
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
    """Of all cases and of every group, also for users in a group in some orders of ties."""
    for result in results.values():
        for column, parts in result.groups.items():
            for name, values in parts.items():
                if values["cases"] > 20:
                    low, high = result.intervals_of(result.group(column, name))["NDCG@10"]
                    assert low <= values["NDCG@10"] <= high


def test_results_with_other_ks_are_compared_at_those_that_both_have(results):
    shorter = replace(results["tale"], ks=(1, 5))
    found = compare(results["popular"], shorter)
    assert set(found.metrics) == {f"{name}@{k}" for name in ("HR", "NDCG", "MRR") for k in (1, 5)}
    assert found.headline == "NDCG@5"
    whole = compare(results["popular"], results["tale"])
    assert found.metrics["NDCG@5"] == whole.metrics["NDCG@5"]
    assert found.to_dict()["verdict"].startswith("tale is better than popular by ")
    assert "NDCG@5 by popularity" in report.render_comparison(found, "two files")


FIGURES = (
    "metrics metrics_hidden lists intervals intervals_hidden orders windows spread groups notes"
)


def counted(monkeypatch):
    """How often means and intervals are computed from now on."""
    counts = {"means": 0, "intervals": 0}
    means, intervals = result_module.mean_metrics, result_module.mean_intervals

    def counting_means(*arguments):
        counts["means"] += 1
        return means(*arguments)

    def counting_intervals(*arguments):
        counts["intervals"] += 1
        return intervals(*arguments)

    monkeypatch.setattr(result_module, "mean_metrics", counting_means)
    monkeypatch.setattr(result_module, "mean_intervals", counting_intervals)
    return counts


def test_every_figure_is_computed_once(results, monkeypatch):
    """All cases and hidden, thirteen groups, and both for each of three orders and one window."""
    fresh = replace(results["tale"])
    made = counted(monkeypatch)
    first = {name: getattr(fresh, name) for name in FIGURES.split()}
    assert made == {"means": 2 + 13 + 2 * 3 + 2 * 1, "intervals": 2}
    for name, value in first.items():
        assert getattr(fresh, name) is value
    fresh.to_dict()
    repr(fresh), fresh._repr_html_()
    assert made == {"means": 23, "intervals": 2}


def test_a_report_computes_nothing_twice(results, monkeypatch):
    """Means as above; intervals of all cases, hidden, and each of the groups that has cases."""
    fresh = replace(results["tale"])
    groups = sum(bool(part["cases"]) for of in fresh.groups.values() for part in of.values())
    fresh = replace(fresh)
    made = counted(monkeypatch)
    report.render_evaluation(fresh, "events.csv")
    assert made == {"means": 23, "intervals": 2 + groups}


def test_figures_follow_the_fields_that_are_replaced(results):
    whole = results["tale"]
    assert set(whole.metrics) >= {"NDCG@10", "HR@1"}
    some = replace(whole, ks=(3,), frame=whole.frame.filter(pl.col("rank") == 1))
    assert some.metrics == {"HR@3": 1.0, "NDCG@3": 1.0, "MRR@3": 1.0}
    assert some.groups["kind"]["new"]["HR@3"] == 1.0


def test_a_result_survives_pickling_and_copying_with_its_figures(results):
    whole = results["tale"]
    for again in (pickle.loads(pickle.dumps(whole)), copy.copy(whole), copy.deepcopy(whole)):
        assert again.frame.equals(whole.frame)
        assert again.metrics == whole.metrics
        assert again.groups == whole.groups
        assert again != whole  # results are equal to themselves alone


def test_a_result_is_shown_in_one_line_and_as_a_small_table(results):
    result = replace(results["tale"], model="<b>tale</b>")
    hit, gain = (result.metrics[name] for name in ("HR@10", "NDCG@10"))
    assert repr(result) == (
        "Evaluation(<b>tale</b>, leave-one-out, 240 test cases of 80 users in 3 orders of ties: "
        f"HR@10 {hit:.4f}, NDCG@10 {gain:.4f})"
    )
    table = ET.fromstring(result._repr_html_())
    assert (
        table.find("caption").text
        == "<b>tale</b>, leave-one-out, 240 test cases of 80 users in 3 orders of ties"
    )
    cells = [["".join(cell.itertext()) for cell in row] for row in table.find("tbody")]
    assert [row[0] for row in cells] == [
        "HR@1",
        "HR@5",
        "HR@10",
        "NDCG@5",
        "NDCG@10",
        "MRR@5",
        "MRR@10",
    ]
    low, high = result.intervals["HR@10"]
    assert cells[2] == ["HR@10", f"{hit:.4f}", f"{low:.4f} to {high:.4f}"]

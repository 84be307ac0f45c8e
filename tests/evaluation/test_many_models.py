"""Several models on one split: equal to single evaluations, shared steps, resumed runs."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import talerec as tr
from logs import tiny_log
from talerec.errors import TalerecError
from talerec.evaluation import compare, evaluate_log, time_estimates
from talerec.evaluation.intervals import adjust_p_values
from talerec.evaluation.leaderboard import Leaderboard, ModelCost, compare_all
from talerec.evaluation.model_lists import MODEL_LISTS, PROMISING, label_model, list_models
from talerec.evaluation.time_estimates import TimeEstimates
from talerec.gram.terms import GramTerm
from talerec.models.core import SharedFits
from talerec.models.core.params import SOLVE
from talerec.models.core.shared_fits import count_bytes
from talerec.models.linear import ease
from talerec.reports import report
from talerec.runtime import compilation_stats, memory
from talerec.runtime.jit import load_numba
from talerec.solvers import solver

SHARING = "slis,slit,slist,swalk,ease,edlae,rdlae,association"


@pytest.fixture(scope="module")
def log():
    return tr.synthetic_log(2500, items=40, seed=4)


@pytest.fixture(scope="module")
def board(log):
    return tr.evaluate_models(log, SHARING)


# -- the same figures ------------------------------------------------------------------------------


def test_every_figure_is_that_of_a_single_evaluation_to_the_last_bit(log, board):
    for label, result in board.results.items():
        single = evaluate_log(tr.MODELS[label](), log)
        assert result.frame.equals(single.frame), label
        assert (result.metrics, result.lists) == (single.metrics, single.lists)


def test_several_orders_and_windows_are_those_of_a_single_evaluation():
    log = tr.synthetic_log(1500, items=30, seed=2)
    options = {"ties": "random:0..1", "k": [5]}
    board = tr.evaluate_models(log, "ease,slis", "rolling:2024-07-01,60", **options)
    for label, result in board.results.items():
        single = evaluate_log(tr.MODELS[label](), log, "rolling:2024-07-01,60", **options)
        assert result.frame.equals(single.frame)
        assert result.fixed_order_metrics == single.fixed_order_metrics


def test_models_share_grams_and_solutions(log, monkeypatch):
    built = []
    build = GramTerm.build
    monkeypatch.setattr(GramTerm, "build", lambda s, m: built.append(s.key[0]) or build(s, m))
    board = tr.evaluate_models(log, "slis,slist,ease(recency=2),slit,association")
    assert sorted(built) == ["slis", "slit"]
    cost = board.costs["slist"]
    assert set(cost.shared_seconds) == {"gram"}
    assert set(board.costs["slit"].shared_seconds) == {"gram"}  # nobody else needs its solution
    assert set(board.costs["slis"].shared_seconds) == {"gram", "solve"}
    for label, result in board.results.items():
        parts = (board.costs[label].own_seconds, board.costs[label].shared_seconds)
        total = sum(sum(part.values()) for part in parts)
        assert total == pytest.approx(sum(result.seconds.values()))


def test_linear_models_share_solutions_and_choose_one_recency(monkeypatch):
    """Solved are SLIT, SLIST, SLIS (for swalk and ease too), EDLAE (for rdlae too)."""
    solved, chosen = [], []
    solve, choose = solver.solve_exact, ease._best_recency
    monkeypatch.setattr(solver, "solve_exact", lambda *a: solved.append(a[0]) or solve(*a))
    monkeypatch.setattr(ease, "_best_recency", lambda *a: chosen.append(a[0]) or choose(*a))
    tr.evaluate_models(tr.synthetic_log(8000, items=40), "slit,slist,swalk,slis,ease,edlae,rdlae")
    assert len(solved) == 4 + 1  # one in the fit that chooses the recency
    assert [model.name for model in chosen] == ["ease"]


def test_shared_results_are_dropped_when_they_take_too_much_memory(monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 4 * 8 * 250)
    cache, made = SharedFits(), []
    for key in (1, 2, 1, 3, 1):
        cache.shared("gram", key, lambda key=key: made.append(key) or np.zeros(100))
    assert made == [1, 2, 3, 1]  # room for two arrays of 800 bytes
    uses = cache.take_uses()
    assert [use.is_reused for use in uses] == [False, False, True, False, False]
    assert cache.take_uses() == []


def test_bytes_of_nested_records_are_counted():
    gram = tr.slis_gram(tiny_log([(0, 0, 1), (0, 1, 2)]), max_history=9)
    assert count_bytes(("x", [gram], None)) == gram.G.nbytes + gram.K.nbytes


def test_a_model_keeps_what_it_shares_unchanged(log):
    cache = SharedFits()
    first = tr.EASE(recency=2).fit(log, cache=cache).weights.copy()
    tr.SLIS(xi=0.1).fit(log, cache=cache)
    tr.Association().fit(log, cache=cache)
    again = tr.EASE(recency=2, reg=100).fit(log, cache=cache)
    assert np.array_equal(again.weights, first)


# -- statistics ------------------------------------------------------------------------------------


def slow_holm(p_values):
    """Reject the smallest p-values step by step, at every level of a fine grid."""
    adjusted = []
    for p in p_values:
        for level in np.linspace(0, 1, 2001):
            left = sorted(p_values)
            while left and left[0] * len(left) <= level + 1e-12:
                left.pop(0)
            if not left or p < left[0]:
                adjusted.append(level)
                break
        else:
            adjusted.append(1.0)
    return adjusted


def test_p_values_are_corrected_as_holm_does():
    for seed in range(20):
        p_values = np.random.default_rng(seed).random(5) ** 3
        assert adjust_p_values(p_values) == pytest.approx(slow_holm(p_values), abs=6e-4)
    assert adjust_p_values([]) == []
    assert adjust_p_values([0.03]) == [0.03]


def test_differences_are_the_paired_comparisons_with_the_first(board):
    assert list(board.differences) == list(board.results)[1:]
    first = board.results["slis"]
    pairs = {name: compare(first, board.results[name]).metrics for name in board.differences}
    for name, comparison in board.differences.items():
        assert set(comparison.metrics) == {"HR@10", "NDCG@10", "MRR@10"}
        assert comparison.metrics.items() <= pairs[name].items()
        assert comparison.names == ("slis", name)
    expected = adjust_p_values([metrics["HR@10"].p for metrics in pairs.values()])
    assert list(board.adjust("metrics", "HR@10").values()) == expected
    assert (
        board.to_dict()["differences"]["ease"]["metrics"]["HR@10"]["p_holm"]
        == (board.adjust("metrics", "HR@10")["ease"])
    )


def test_any_number_of_results_is_compared_by_name(board):
    compared = compare_all({"old": board.results["slis"], "new": board.results["ease"]})
    assert compared.first == "old"
    assert "new" in compared.differences["new"].verdict
    with pytest.raises(TalerecError, match="two or more"):
        compare_all({"old": board.results["slis"]})


# -- what to take ----------------------------------------------------------------------------------


def fake_board(board, **models):
    """Return a leaderboard with these metrics (a share of cases that rank first) and seconds."""
    frame = board.results["slis"].frame
    results = {}
    for name, (share, seconds) in models.items():
        rank = np.where(np.arange(len(frame)) < share * len(frame), 1, 99)
        results[name] = replace(
            board.results["slis"], model=name, seconds={"load": 9.0, "solve": seconds},
            frame=frame.with_columns(pl.Series("rank", rank)),
        )  # fmt: skip
    return Leaderboard(results)


def test_the_advice_weighs_accuracy_against_time(board):
    close = fake_board(board, tempo=(0.50, 10.0), ranker=(0.54, 5120.0))
    assert close.choice == "tempo"
    assert close.advice.startswith("Take tempo (NDCG@10 0.5")
    assert close.advice.endswith("% better and takes 512 times as long.")
    assert fake_board(board, tempo=(0.50, 10.0), ranker=(0.80, 400.0)).choice == "ranker"
    assert fake_board(board, tempo=(0.50, 0.9), rules=(0.49, 0.01)).choice == "tempo"
    clear = fake_board(board, tempo=(0.80, 0.9), rules=(0.20, 0.9)).advice
    assert "it is the most accurate; rules is 7" in clear
    tied = fake_board(board, tempo=(0.50, 0.9), rules=(0.50, 0.9)).advice
    assert "its NDCG@10 is the highest; rules does not differ measurably" in tied
    assert "no other model" in fake_board(board, tempo=(0.5, 1.0)).advice
    assert fake_board(board, tempo=(0.0, 1.0), rules=(0.0, 1.0)).choice == "tempo"


# -- lists of models -------------------------------------------------------------------------------


def test_models_are_listed_by_text_by_list_and_as_objects():
    listed = list_models(["tempo, ease(reg=500; recency=4)", tr.Rules(steps=3), "popular"])
    assert [entry.label for entry in listed] == [
        "tempo", "ease(recency=4; reg=500)", "rules(steps=3)", "popular"
    ]  # fmt: skip
    assert listed[1].model.reg == 500
    assert [label_model(list_models(entry.label)[0].model) for entry in listed] == [
        entry.label for entry in listed
    ]
    linear = list_models("linear")
    assert [entry.label for entry in linear] == list(MODEL_LISTS["linear"])
    assert not any(entry.is_named for entry in linear)


def test_all_lists_every_model_of_the_library_once():
    assert sorted(PROMISING) == sorted(tr.MODELS)


@pytest.mark.parametrize(
    ("models", "match"),
    [
        ("tempo,tempo", "has tempo twice"),
        ("linear,tempo", "has tempo twice"),
        ("nope", "no model 'nope'"),
        ("ease(reg=x)", "reg is 'x'"),
        ("", "takes names"),
        ([], "is empty"),
        ([3], "has 3"),
        ("tempo;rules", "takes names"),
    ],
)
def test_a_wrong_list_of_models_is_an_error(models, match):
    with pytest.raises(TalerecError, match=match):
        list_models(models)


# -- runs that are interrupted, short of time, or meet models that fail ----------------------------


def test_a_run_goes_on_where_it_was_interrupted(log, tmp_path, monkeypatch, caplog):
    first = tr.evaluate_models(log, "rules,popular", folder=tmp_path)
    files = sorted(tmp_path.iterdir())
    assert [file.name.partition("-")[0] for file in files] == ["popular", "rules"]
    fitted = []
    fit = tr.Model.fit
    monkeypatch.setattr(
        tr.Model, "fit", lambda s, *a, **k: fitted.append(s.name) or fit(s, *a, **k)
    )
    second = tr.evaluate_models(log, "rules,popular,markov", folder=tmp_path)
    assert fitted == ["markov"]
    assert second.results["rules"].frame.equals(first.results["rules"].frame)
    assert second.costs["rules"] == first.costs["rules"]
    # other settings, another split, another log: nothing is taken
    for options in ({"k": [3]}, {"hide_seen": True}, {"plan": "at:2024-07-01"}):
        fitted.clear()
        tr.evaluate_models(log, "rules", folder=tmp_path, **options)
        assert fitted == ["rules"]
    fitted.clear()
    tr.evaluate_models(tr.synthetic_log(2500, items=40, seed=5), "rules", folder=tmp_path)
    tr.evaluate_models(log, "rules(steps=3)", folder=tmp_path)
    assert fitted == ["rules", "rules"]
    for damaged in (b"", b"no Parquet"):
        fitted.clear()
        files[1].write_bytes(damaged)
        tr.evaluate_models(log, "rules,popular", folder=tmp_path)
        assert fitted == ["rules"]
    assert "is evaluated again" in caplog.text


def test_a_folder_that_is_a_file_is_refused(log, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TalerecError, match="takes a folder"):
        tr.evaluate_models(log, "rules", folder=tmp_path / "file")


def test_models_that_cannot_take_the_log_are_skipped_and_others_go_on(tmp_path):
    rows = {"user_id": [1, 1, 1, 2, 2, 2], "item_id": [1, 2, 3, 2, 3, 1]}
    pl.DataFrame(rows).write_csv(tmp_path / "log.csv")
    log = tr.read_log(tmp_path / "log.csv", lacks_time=True)
    board = tr.evaluate_models(log, ["tempo", "rules"])
    assert list(board.results) == ["rules"]
    assert [(s.label, s.is_failure) for s in board.skipped] == [("tempo", True)]
    assert "needs times" in board.skipped[0].reason
    listed = tr.evaluate_models(log, "linear")
    assert not any(entry.is_failure for entry in listed.skipped)
    assert {entry.label for entry in listed.skipped} == {"tempo", "tale"}
    with pytest.raises(TalerecError, match="no model could be evaluated: tempo: "):
        tr.evaluate_models(log, "tempo")


def test_a_log_that_cannot_be_split_is_an_error_and_no_skipped_model():
    with pytest.raises(TalerecError, match="no user has three rows"):
        tr.evaluate_models(tiny_log([(0, 0, 1), (1, 1, 2)]), "rules,popular")


def test_a_model_that_would_exceed_the_time_budget_is_not_started(log, monkeypatch):
    monkeypatch.setattr(
        TimeEstimates, "estimate", lambda s, model: 1e6 if model.name == "rules" else 0.1
    )
    board = tr.evaluate_models(log, "rules,popular", minutes=5)
    assert list(board.results) == ["popular"]
    (skipped,) = board.skipped
    assert not skipped.is_failure
    assert skipped.reason.startswith("not started: it would take about 1,000,000 s of ")
    with pytest.raises(TalerecError, match="`minutes` is 0"):
        tr.evaluate_models(log, "rules", minutes=0)


def test_estimates_grow_with_the_log_and_follow_measured_seconds(log):
    small, large = TimeEstimates(log), TimeEstimates(tr.synthetic_log(20_000, items=400))
    assert small.estimate(tr.Tempo()) < large.estimate(tr.Tempo()) < large.estimate(tr.SWalk())
    counting = [tr.MODELS[name]() for name in ("personal", "lastbasket", "tifuknn")]
    networks = [kind() for kind in tr.MODELS.values() if kind.extra == "torch"]
    ranker = small.estimate(tr.Ranker())
    assert max(map(small.estimate, counting)) < ranker < min(map(small.estimate, networks))
    others = {name for name, kind in tr.MODELS.items() if kind.extra != "torch"}
    assert set(time_estimates._RELATIVE) == others  # a new model needs an estimate of its own
    before = small.estimate(tr.Rules())
    small.add_measured(tr.Tempo(), 3 * small.estimate(tr.Tempo()))
    assert small.estimate(tr.Rules()) == pytest.approx(3 * before)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux resets the mark")
def test_the_high_water_mark_of_memory_can_be_reset():
    block = np.ones(2**25)  # 256 MB
    before = memory.high_water_mb()
    del block
    if not memory.reset_high_water():
        pytest.skip("this system does not let a process reset its mark")
    assert memory.high_water_mb() < before - 200


def test_memory_that_cannot_be_measured_is_said(log, monkeypatch):
    monkeypatch.setattr(memory, "reset_high_water", lambda: False)
    board = tr.evaluate_models(log, "popular")
    assert board.costs["popular"].peak_mb is None
    assert any("memory was not measured" in note for note in board.notes)


# -- shown -----------------------------------------------------------------------------------------


def test_a_leaderboard_has_a_page_a_chart_and_a_table(board, tmp_path):
    page = board.report(tmp_path / "page.html", source="log <1>")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page
    assert "log &lt;1&gt;" in page
    assert board.advice in page
    assert 'srcdoc="&lt;!DOCTYPE' in page._repr_html_()
    chart = board.plot()
    ET.fromstring(chart)
    texts = ET.fromstring(chart).itertext()
    assert set(board.results) <= set(texts)
    assert chart._repr_svg_() == chart.save(tmp_path / "c.svg").read_text(encoding="utf-8")
    assert board.frame["model"].to_list() == board.order
    assert "slist" in board._repr_html_()
    assert repr(board).startswith("Leaderboard(")
    named = Leaderboard(board.results)  # of files: without costs
    assert named.frame["peak MB"].to_list() == [None] * len(board.results)
    assert "Own seconds" not in named.report()


def test_one_result_has_a_page_and_a_chart(board):
    result = board.results["ease"]
    assert result.report(source="log") == report.render_evaluation(result, "log")
    assert "NDCG@10" in set(ET.fromstring(result.plot()).itertext())
    pair = compare(result, board.results["slis"])
    assert pair.report(source="two") == report.render_comparison(pair, "two")


def test_labels_of_the_chart_do_not_overlap():
    from talerec.reports.charts.trade_off import TradePoint, trade_off_chart

    points = [TradePoint(f"model {n}", 1 + n / 50, 0.5 + n / 1e4) for n in range(6)]
    svg = ET.fromstring(trade_off_chart(points, title="t", x_label="x", y_label="y"))
    places = [
        (float(e.get("x")), float(e.get("y")))
        for e in svg.iter()
        if "halo" in (e.get("class") or "")
    ]
    assert len(places) == 6
    for number, (x, y) in enumerate(places):
        for other_x, other_y in places[:number]:
            assert abs(y - other_y) >= 12 or abs(x - other_x) >= 40


def test_labels_stand_clear_of_intervals_and_of_the_line():
    """The name of b would stand on the interval of c, right of it, and on the line to c."""
    from talerec.reports.charts.drawing import SMALL, text_width
    from talerec.reports.charts.trade_off import TradePoint, trade_off_chart

    points = [
        TradePoint("a", 1, 0.1), TradePoint("b", 10, 0.3, 0.28, 0.32),
        TradePoint("c", 10.3, 0.31, 0.1, 0.5), TradePoint("d", 100, 0.35),
    ]  # fmt: skip
    svg = ET.fromstring(trade_off_chart(points, title="t", x_label="x", y_label="y"))
    labels = {e.text: e for e in svg.iter() if "halo" in (e.get("class") or "")}
    left, right = float(labels["b"].get("x")), text_width("b", SMALL)
    whiskers = [float(e.get("x1")) for e in svg.iter() if "whisker" in (e.get("class") or "")]
    assert len(whiskers) == 2
    assert not any(left <= x <= left + right for x in whiskers)
    assert left < whiskers[0]  # at the left, although the right side comes first


def test_a_label_stands_clear_of_the_axis():
    """The name of a model without any hit would be crossed by the axis."""
    from talerec.reports.charts.trade_off import TradePoint, trade_off_chart

    points = [TradePoint("none", 1, 0.0), TradePoint("some", 9, 0.4)]
    svg = ET.fromstring(trade_off_chart(points, title="t", x_label="x", y_label="y"))
    label = next(e for e in svg.iter() if e.text == "none")
    (axis,) = {e.get("y2") for e in svg.iter() if e.get("y2")}  # the foot of the vertical lines
    assert float(label.get("y")) < float(axis) - 3


def test_costs_without_a_mark_are_shown(board):
    costs = {name: ModelCost({"solve": 1.0}, {}, None) for name in board.results}
    assert "Peak memory" in replace(board, costs=costs).report()


def test_seconds_of_shared_steps_leave_compilation_out():
    def compile_kernel():
        def add(a, b):
            return a + b

        add.__module__ = "talerec.somewhere"
        return load_numba().njit(add)(1, 2)

    before, cache = compilation_stats().seconds, SharedFits()
    for _ in range(2):
        cache.shared("solve", "sum", compile_kernel)
        cache.cached(SOLVE, "sum", compile_kernel)
    compiled = compilation_stats().seconds - before
    assert compiled > 0
    uses = cache.take_uses()
    assert [use.is_reused for use in uses] == [False, True, True]
    assert all(use.seconds < compiled / 2 for use in uses)


def test_seconds_and_advice_leave_compilation_out(board):
    label = board.order[-1]
    plain = {name: ModelCost(result.seconds, {}) for name, result in board.results.items()}
    board = replace(board, costs=plain)
    slow = plain[label]._replace(compile_seconds=board.seconds(label))
    compiled = replace(board, costs={**plain, label: slow})
    row = compiled.frame.row(by_predicate=pl.col("model") == label, named=True)
    assert (compiled.seconds(label), row["own seconds"]) == (0.0, 0.0)
    others = [name for name in board.order if name != label]
    assert [compiled.seconds(name) for name in others] == [board.seconds(name) for name in others]

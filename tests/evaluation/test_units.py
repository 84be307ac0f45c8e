"""Users are the units of intervals and tests; misses have no rank; both kinds of lists decide."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import stats

import talerec as tr
from command import works
from talerec.evaluation import BasketEvaluation, Evaluation, Leaderboard, compare
from talerec.evaluation.intervals import compare_pairs, mean_intervals
from talerec.evaluation.user_sums import sum_users
from talerec.reports import report

OF_VERSION_02 = Path(__file__).with_name("result-0.2.parquet")


@pytest.fixture(scope="module")
def base() -> Evaluation:
    """Return a result whose frame the tests replace."""
    split = tr.leave_one_out(tr.synthetic_log(2000, items=50))
    return tr.evaluate(tr.Popular().fit(split.train), split, k=[10])


def result_of(base, ranks, *, several="window", hidden=None, hide_seen=False, model="popular"):
    """Return a result with these ranks (users x cases, 0 for a miss).

    The cases of a user are in several windows, or in several orders of ties.
    """
    n_users, n_cases = ranks.shape
    names = {"window": "", "ties": "random:0"} | {several: None}
    columns = {
        name: pl.Series(np.tile([f"{several} {c:02}" for c in range(n_cases)], n_users))
        if value is None
        else pl.repeat(value, ranks.size, eager=True)
        for name, value in names.items()
    }
    rank, rank_hidden = (
        pl.Series(values.ravel()).replace(0, None)
        for values in (ranks, ranks if hidden is None else hidden)
    )
    frame = pl.DataFrame(
        {
            "user_id": np.repeat(np.arange(n_users), n_cases),
            **columns,
            "time": np.zeros(ranks.size, "datetime64[us]"),
            "rank": rank,
            "rank_hidden": rank_hidden,
        }
    )
    return replace(base, frame=frame, hide_seen=hide_seen, model=model)


def favoured(rng, n_users, n_cases):
    """Return ranks of two models: a coin decides which of them every user's cases favour."""
    common = rng.integers(0, 30, (n_users, n_cases))
    lost = np.where(rng.random((n_users, n_cases)) < 0.3, 0, common)
    is_first = rng.random((n_users, 1)) < 0.5
    return np.where(is_first, common, lost), np.where(is_first, lost, common)


@pytest.mark.parametrize("several", ["window", "ties"])
def test_comparisons_reject_one_in_twenty_where_a_coin_favours_a_model_for_each_user(base, several):
    """Before, windows counted as users, and half of these comparisons were significant."""
    rng, none = np.random.default_rng(29), np.zeros((60, 15), int)
    p = []
    for _ in range(100):
        ranks = favoured(rng, 60, 15)
        results = (result_of(base, r, several=several, hidden=none) for r in ranks)
        pair = compare(*results).metrics["NDCG@10"]
        assert pair.users == 60
        p.append(pair.p)
    assert 0.02 <= np.mean(np.array(p) < 0.05) <= 0.08


def leads_of_users(rng, cases, n_models):
    """Return hits of equally good models (models x cases): each user likes models by lot."""
    user = np.repeat(np.arange(len(cases)), cases)
    rates = rng.uniform(0.1, 0.5, (n_models, len(cases)))
    return user, rng.random((n_models, len(user))) < rates[:, user]


def cases_result(base, user, hit):
    """Return a result of single next items, one case per entry of `user`, a hit at rank 1."""
    rank = pl.Series(np.where(hit, 1, 50)).cast(pl.Int64)
    frame = pl.DataFrame(
        {"user_id": user, "time": np.zeros(len(user), "datetime64[us]"), "rank": rank}
    ).with_columns(rank_hidden="rank", ties=pl.lit("file"), window=pl.lit("w"))
    return replace(base, frame=frame)


def baskets_result(base, user, hit):
    """Return a result of next baskets, one basket per entry of `user`."""
    names = (f"{name}@10" for name in ("recall", "precision", "HR", "NDCG", "F1"))
    columns = {"user_id": user, "time": np.zeros(len(user), "datetime64[us]")}
    frame = pl.DataFrame({**columns, **dict.fromkeys(names, hit.astype(float))})
    frame = frame.with_columns(window=pl.lit("w"))
    facts = (base.model, {}, None, "every:2024", "test", False, (10,), {})
    return BasketEvaluation(*facts, frame)


@pytest.mark.parametrize("build", [cases_result, baskets_result])
def test_several_equal_models_rarely_differ_where_one_user_has_thousands_of_cases(base, build):
    """Of a family of equal models, Holm finds a difference in one run of twenty at most.

    Tests of cases, and tests of users without Holm's correction, find many more.
    """
    rng, cases, runs = np.random.default_rng(31), np.array([1500] + [5] * 60), 60
    n_families = n_single = n_of_cases = 0
    for _ in range(runs):
        user, hits = leads_of_users(rng, cases, 6)
        board = Leaderboard({str(n): build(base, user, hit) for n, hit in enumerate(hits)})
        pairs = [c.metrics["NDCG@10"] for c in board.differences.values()]
        assert {pair.users for pair in pairs} == {len(cases)}
        n_families += any(board.significant.values())
        n_single += any(pair.p < 0.05 for pair in pairs)
        differences = [(hits[0] != hit).sum() for hit in hits[1:]]
        leads = [(hit & ~hits[0]).sum() for hit in hits[1:]]
        n_of_cases += any(
            stats.binomtest(int(a), int(n)).pvalue < 0.05
            for a, n in zip(leads, differences, strict=True)
        )
    assert n_families <= 7  # of 60 at 5 %: more has a probability of 1.5 %
    assert n_families <= n_single
    assert n_of_cases > 50


def test_intervals_and_comparisons_of_windows_sum_the_cases_of_a_user(base):
    rng = np.random.default_rng(1)
    ranks = favoured(rng, 80, 5)
    a, b = results = [result_of(base, r) for r in ranks]
    gains = [np.where((r > 0) & (r <= 10), 1 / np.log2(np.maximum(r, 1) + 1), 0.0) for r in ranks]
    cases = np.full(80, 5)
    for result, gain in zip(results, gains, strict=True):
        low, high = mean_intervals(sum_users(gain.sum(axis=1)[:, None], cases))
        assert result.intervals["NDCG@10"] == pytest.approx([low[0], high[0]], rel=1e-12)
        assert result.users == 80
    expected = compare_pairs(*(gain.sum(axis=1) for gain in gains), cases)
    pair = compare(a, b).metrics["NDCG@10"]
    assert pair.interval == pytest.approx(expected.interval, rel=1e-9)
    assert pair.p == pytest.approx(expected.p, rel=1e-9)
    assert (pair.better, pair.worse, pair.users) == (expected.better, expected.worse, 80)
    assert (pair.a, pair.b) == pytest.approx((a.metrics["NDCG@10"], b.metrics["NDCG@10"]))


def test_rolling_windows_of_the_same_users_do_not_make_an_interval_narrow(base):
    """Fifteen windows in which each user always hits or always misses are worth one window."""
    hit = np.random.default_rng(2).random((200, 1)) < 0.1
    wide, narrow = (result_of(base, hit * np.ones((1, n), int)) for n in (1, 15))
    assert narrow.intervals["HR@10"] == pytest.approx(wide.intervals["HR@10"], rel=1e-12)


# -- ranks of misses -------------------------------------------------------------------------------


def test_a_miss_has_no_rank_and_counts_as_a_miss_in_every_metric():
    log = tr.synthetic_log(2000, items=50, seed=1)
    split = tr.leave_one_out(log)
    result = tr.evaluate(tr.Markov().fit(split.train), split)
    ranks = result.frame["rank"]
    assert ranks.null_count() > 0
    assert ranks.min() == 1
    hits = (ranks <= 10).fill_null(False)
    assert result.metrics["HR@10"] == pytest.approx(hits.mean()) == hits.sum() / len(ranks)
    assert result.metrics["MRR@10"] == pytest.approx((1 / ranks.filter(hits)).sum() / len(ranks))


def test_a_file_of_version_02_is_read_with_its_misses_as_null():
    result = Evaluation.load(OF_VERSION_02)
    assert result.frame["rank"].null_count() == 4
    assert result.frame["rank"].min() == 1
    expected = {"HR@1": 5 / 55, "HR@3": 20 / 55, "NDCG@3": 0.2415559731168863, "MRR@3": 0.2}
    assert {name: result.metrics[name] for name in expected} == pytest.approx(expected)
    assert (result.cases, result.users) == (55, 12)
    assert compare(result, result).metrics["NDCG@3"].users == 12


# -- few users -------------------------------------------------------------------------------------


def test_too_few_users_are_said_in_words(base):
    few = result_of(base, np.ones((1, 1), int))
    assert few.intervals["HR@10"] == pytest.approx([0.0, 1.0], abs=1e-5)
    assert few.describe_interval("HR@10") == "too few users"
    note = "the evaluated users are too few for confidence intervals (1; at least 10 are needed)"
    assert note in few.notes
    assert "too few users" in few._repr_html_()
    enough = result_of(base, np.ones((10, 1), int))
    assert enough.describe_interval("HR@10") == "0.6126 to 1.0000"
    assert not any("too few" in text for text in enough.notes)


def test_the_command_and_its_report_say_that_users_are_too_few(tmp_path):
    log, page = tmp_path / "log.csv", tmp_path / "page.html"
    rows = [f"{u},{i},{1_000_000 * i}" for u in "ab" for i in range(1, 5)]
    log.write_text("\n".join(["user_id,item_id,timestamp", *rows]))
    text = works("evaluate", log, "--model", "markov", "--report", page)
    assert "too few users" in text
    assert "Note: the evaluated users are too few for confidence intervals (2;" in text
    assert "too few users" in page.read_text()


# -- both kinds of lists ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def opposed(base):
    """Return two results: with seen items allowed B is better, with seen items hidden A."""
    rng = np.random.default_rng(3)
    weak, strong = (np.where(rng.random((300, 1)) < p, 1, 0) for p in (0.2, 0.5))
    a = result_of(base, weak, hidden=strong, model="tale")
    return a, result_of(base, strong, hidden=weak, model="tempo")


def test_a_verdict_is_about_both_kinds_of_lists(opposed):
    outcome = compare(*opposed)
    first, second = outcome.verdict.split(". But ")
    assert first.startswith("tempo is better than tale by ")
    assert second.startswith("with seen items hidden, tempo is worse by ")
    assert outcome.significant
    assert outcome.significant_hidden
    assert outcome.to_dict()["significant_hidden"] is True
    shown, hidden = (m["NDCG@10"] for m in (outcome.metrics, outcome.metrics_hidden))
    assert f"{shown.a:.4f} -> {shown.b:.4f}" in first
    assert f"{hidden.a:.4f} -> {hidden.b:.4f}" in second


def test_a_verdict_says_where_only_one_kind_of_list_decides(base, opposed):
    a, b = opposed
    equal = [r.with_columns(rank_hidden=a.frame["rank_hidden"]) for r in (a.frame, b.frame)]
    verdict = compare(*(replace(r, frame=f) for r, f in zip(opposed, equal, strict=True))).verdict
    assert ". But with seen items hidden, no difference can be shown (NDCG@10 " in verdict
    verdict = compare(a, a).verdict
    assert verdict.startswith("No difference between A and B can be shown (NDCG@10 ")
    assert ". With seen items hidden, no difference can be shown (NDCG@10 " in verdict


def test_a_verdict_of_hidden_lists_is_one_sentence(opposed):
    hidden = [
        replace(r, hide_seen=True, frame=r.frame.with_columns(rank=r.frame["rank_hidden"]))
        for r in opposed
    ]
    verdict = compare(*hidden).verdict
    assert verdict.startswith("tempo is worse than tale by ")
    assert verdict.endswith("), with seen items hidden.")
    assert verdict.count("NDCG@10") == 1


def test_a_report_of_a_comparison_says_both(opposed):
    outcome = compare(*opposed)
    groups = {"popularity": "head", "gap": "mid", "length": "mid", "kind": "new"}
    groups["item_rows"] = "many"
    full = [
        replace(r, frame=r.frame.with_columns(pl.lit(v).alias(c) for c, v in groups.items()))
        for r in opposed
    ]
    page = report.render_comparison(compare(*full), "two files")
    assert "But with seen items hidden, tempo is worse by " in page
    assert outcome.verdict.split(" (")[0] in page

"""Figures from cases that are alike, counted, are the figures of the cases."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

import talerec as tr
from figures import assert_same_figures, flat, without_one_machine
from talerec.errors import TalerecError
from talerec.evaluation import merge_sums, merge_user_sums, sum_cases, tabulate_user_sums
from talerec.evaluation.queries import GROUPS


def counted(result, *parts):
    """Return the result that a cluster has, from frames of cases of disjoint sets of users."""
    ks = result.ks
    frame = merge_sums((sum_cases(part, ks) for part in parts), ks)
    return replace(
        result, frame=frame, user_sums=merge_user_sums(tabulate_user_sums(p, ks) for p in parts)
    )


@pytest.mark.parametrize("hide_seen", [False, True])
def test_counted_cases_have_the_figures_of_the_cases(hide_seen):
    log = tr.synthetic_log(3000, items=60, seed=4)
    plan = "rolling:2024-06-01,60"
    result = tr.evaluate_log(tr.SLIST(), log, plan, k=[1, 3, 20], hide_seen=hide_seen)
    assert result.users < len(result.frame)  # users with several windows
    is_early = pl.col("user_id").hash() % 3 == 0
    found = counted(result, result.frame.filter(is_early), result.frame.filter(~is_early))
    assert len(found.frame) < len(result.frame)
    assert found.frame["cases"].sum() == len(result.frame)
    assert_same_figures(found, result, "peak_rss_mb")
    for column, names in GROUPS.items():
        for name in names:
            for rank in ("rank", "rank_hidden"):
                ours = found.group_intervals(column, name, rank)
                expected = result.group_intervals(column, name, rank)
                assert flat(ours) == pytest.approx(flat(expected), rel=1e-9)


def test_sums_are_not_saved_or_compared_as_if_they_were_cases(tmp_path):
    split = tr.leave_one_out(tr.synthetic_log(1000, items=50))
    result = tr.evaluate(tr.Popular().fit(split.train), split)
    found = counted(result, result.frame)
    with pytest.raises(TalerecError, match="sums of cases do not tell users apart"):
        found.intervals_of(found.group("kind", "new"))
    with pytest.raises(TalerecError, match="this result has only sums of cases"):
        found.save(tmp_path / "cases.parquet")
    for pair in ((found, result), (result, found)):
        with pytest.raises(TalerecError, match="one result has only sums of cases"):
            tr.compare(*pair)
    assert repr(found) == repr(result)


def test_cases_without_a_list_take_no_part_in_what_lists_are_like():
    split = tr.leave_one_out(tr.synthetic_log(2000, items=50))
    result = tr.evaluate(tr.Popular().fit(split.train), split)
    lists = [name for name in result.frame.columns if name.startswith(("novelty", "list_rows"))]
    lost = pl.int_range(pl.len()) % 3 == 0
    gone = [pl.when(~lost).then(pl.col(name)).alias(name) for name in (*lists, "history_rows")]
    frame = result.frame.with_columns(gone)
    expected = without_one_machine(replace(result, frame=frame).lists)
    found = counted(result, frame)
    assert without_one_machine(found.lists) == pytest.approx(expected, rel=1e-12)
    none = frame.with_columns(pl.lit(None, pl.Float64).alias(name) for name in lists)
    expected = without_one_machine(replace(result, frame=none).lists)
    assert without_one_machine(counted(result, none).lists) == expected

"""Logs from before 1970, whose times are negative: nothing may depend on where time 0 lies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import talerec as tr
from kinds import maker
from logs import DAY, at
from talerec.models import MODELS

#: Whole weeks, so that a row keeps its weekday and its time of day: from 2024 to the year 1950.
SHIFT = 3860 * 7 * DAY


def early(log: tr.Log) -> tr.Log:
    """The same rows, 74 years before."""
    return replace(log, time=log.time - SHIFT)


@pytest.fixture(scope="module")
def log() -> tr.Log:
    return tr.synthetic_log(1500, items=40, seed=3)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_model_ranks_a_log_of_1950_as_it_ranks_the_same_log_of_2024(name, log):
    make, users = maker(name), log.users.ids.to_list()
    assert early(log).time.max() < 0
    now, before = make().fit(log), make().fit(early(log))
    when = int(log.time.max()) + 3 * DAY
    for late, past in ((None, None), (at(when), at(when - SHIFT))):
        expected = now.recommend(users, k=10, as_of=late)
        assert len(expected)
        assert before.recommend(users, k=10, as_of=past).equals(expected)


@pytest.mark.parametrize("name", ["tempo", "trending"])
@pytest.mark.parametrize("plan", ["leave-one-out", "at:{}", "rolling:{},60"])
def test_an_evaluation_of_a_log_of_1950_has_the_figures_of_2024(name, plan, log):
    results = []
    for rows, shift in ((log, 0), (early(log), SHIFT)):
        cutoff = np.datetime64("2024-07-01", "us") - np.timedelta64(shift, "us")
        results.append(tr.evaluate_log(maker(name)(), rows, plan.format(cutoff)))
    late, past = results
    assert past.metrics == late.metrics
    assert past.groups == late.groups


def test_popular_items_of_the_last_days_are_counted_before_1970(log, tmp_path):
    """What the service shows to unknown users, from an artifact with and without histories."""
    expected = tr.Popular().fit(log).fitted.recent_counts
    model = tr.Popular().fit(early(log))
    assert expected.sum() > 0
    for histories in (True, False):
        saved = tr.load(model.save(tmp_path / f"{histories}.tale", histories=histories))
        np.testing.assert_array_equal(saved.fitted.recent_counts, expected)


def test_an_update_with_rows_of_1950_equals_the_update_with_rows_of_2024(log):
    lists = []
    for rows in (log, early(log)):
        cut = int(np.quantile(rows.time, 0.9))
        model = tr.Tempo(solver="local").fit(rows.keep(rows.time < cut).compact())
        tr.update(model, rows.keep(rows.time >= cut).compact())
        lists.append(model.recommend(rows.users.ids.to_list(), k=10))
    assert lists[0].equals(lists[1])

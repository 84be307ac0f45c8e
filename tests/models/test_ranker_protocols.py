"""The ranker asked for every row, for sessions and for baskets; planted rows change no answer."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import talerec as tr
from logs import DAY, SECOND, hour_log, log_of, rows_of

pytest.importorskip("lightgbm")

CUTOFF = int(np.datetime64("2020-11-13", "us").astype(np.int64))
PLAN = "every:2020-11-13"  # the last tenth of the log
PROTOCOLS = {
    "every": lambda log: log,
    "sessions": lambda log: tr.split_sessions(log, "4d"),
    "baskets": tr.join_baskets,
}


def planted(log):
    """Return the log with rows after each user's last one, and of a new user."""
    rows = rows_of(log)
    last = {}
    for user, _, time in rows:
        last[user] = max(time, last.get(user, 0))
    end = max(last.values())
    later = [(user, 5, max(time, CUTOFF) + 60 * SECOND) for user, time in last.items()]
    later += [(10**6, 3, end + n * DAY) for n in range(9)]
    return log_of([*rows, *later]).with_items(log.info)


def evaluate(log, protocol):
    """Return a frame with the metrics of each case, and whether trees order the candidates."""
    model, log = tr.Ranker(parts="markov,popular", candidates=10), PROTOCOLS[protocol](log)
    if protocol == "baskets":
        frame = tr.evaluate_baskets(model, log, PLAN, k=[3]).frame
    else:
        keys = ["user_id", "time", "target_rows", "rank", "rank_hidden"]
        frame = tr.evaluate_log(model, log, PLAN).frame.select(keys)
    return frame, model._state.find_second(0, hide_seen=False) is not None


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_planted_rows_change_no_answer_of_trees(protocol):
    log = hour_log(users=420)
    assert 0.05 < (log.time >= CUTOFF).mean() < 0.2
    (frame, has_trees), (other, _) = (evaluate(each, protocol) for each in (log, planted(log)))
    assert has_trees
    assert len(frame) > 100
    assert frame.join(other, on=frame.columns, how="anti", nulls_equal=True).is_empty()
    assert isinstance(frame, pl.DataFrame)

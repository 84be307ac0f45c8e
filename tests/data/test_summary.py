"""What `describe` says of a log, against counts by hand."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from statistics import mean, median

import numpy as np
import pytest
from hypothesis import given

from logs import DAY, histories_of, logs, quick, rows_of, tiny_log
from talerec.data import Log, describe
from talerec.errors import InvalidLogError


def test_a_log_counted_by_hand() -> None:
    day = 86_400
    log = tiny_log(
        [
            ("u", "a", 0),
            ("u", "b", day),
            ("u", "a", day),
            ("u", "a", day),
            ("v", "c", 3 * day),
            ("v", "a", 7 * day),
            ("w", "b", 0),
        ]
    )
    assert describe(log) == {
        "users": 3,
        "items": 3,
        "rows": 7,
        "density": 7 / 9,
        "rows_per_user": {"mean": 7 / 3, "median": 2.0, "max": 4},
        "rows_per_item": {"mean": 7 / 3, "median": 2.0, "max": 4},
        "interval_days": {"mean": 5 / 4, "median": 0.5},
        "ties": 0.5,
        "repeats": 2,
        "duplicate_rows": 1,
        "first_time": "1970-01-01T00:00:00.000000",
        "last_time": "1970-01-08T00:00:00.000000",
        "time_read_as": "us",
    }


@quick
@given(logs())
def test_every_statistic_equals_a_count_over_lists(log: Log) -> None:
    rows = rows_of(log)
    histories = histories_of(rows)
    items = Counter(item for _, item, _ in rows)
    gaps = [b[2] - a[2] for h in histories.values() for a, b in pairwise(h)]
    said = describe(log)
    assert said["users"] == len(histories)
    assert said["items"] == len(items)
    assert said["rows"] == len(rows)
    assert said["density"] == pytest.approx(len(rows) / len(histories) / len(items))
    for name, counts in (
        ("rows_per_user", [len(history) for history in histories.values()]),
        ("rows_per_item", list(items.values())),
    ):
        assert said[name]["mean"] == pytest.approx(mean(counts))
        assert said[name]["median"] == median(counts)
        assert said[name]["max"] == max(counts)
    if gaps:
        assert said["interval_days"]["mean"] == pytest.approx(mean(gaps) / DAY)
        assert said["interval_days"]["median"] == pytest.approx(median(gaps) / DAY)
        assert said["ties"] == pytest.approx(sum(gap == 0 for gap in gaps) / len(gaps))
    else:
        assert said["interval_days"] == {"mean": None, "median": None}
        assert said["ties"] == 0
    assert said["repeats"] == len(rows) - len({(user, item) for user, item, _ in rows})
    assert said["duplicate_rows"] == len(rows) - len(set(rows))


def test_users_without_rows_have_no_intervals() -> None:
    log = tiny_log([("u", "a", 0), ("v", "a", 5), ("v", "b", 9), ("w", "b", 7)])
    for gone in (0, 2):
        said = describe(log.keep(log.user_codes() != gone))
        assert said["interval_days"]["mean"] == pytest.approx(4 / 86_400)


def test_a_log_without_rows_is_refused() -> None:
    log = tiny_log([("u", "a", 0)])
    with pytest.raises(InvalidLogError, match="the log is empty"):
        describe(log.keep(np.array([False])))


def test_a_description_can_be_written_as_json() -> None:
    said = describe(tiny_log([("u", "a", 0), ("u", "b", 1.5)]))
    assert json.loads(json.dumps(said)) == said

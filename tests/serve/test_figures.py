"""Summaries of measurements against plain loops, and samples of users."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talerec.evaluation.intervals import compare_pairs
from talerec.serve.online import CANDIDATE, is_in_share, prometheus_lines
from talerec.serve.online.metrics import MEASURED, hash_user, measurement_frame, summarize
from talerec.store import Measurement

NOW = 1_000_000

rows = st.lists(
    st.builds(
        Measurement,
        seq=st.integers(1, 30),
        role=st.sampled_from(["current", "candidate"]),
        version=st.sampled_from(["a", "b"]),
        measured_at=st.sampled_from([NOW - 100_000, NOW - 5000, NOW - 100]),
        user=st.integers(0, 4),
        rank=st.integers(0, 12),
    ),
    max_size=30,
    unique_by=lambda row: (row.seq, row.role),
)


def reciprocal(place: int) -> float:
    return 1 / place if 1 <= place <= 10 else 0.0


@given(rows)
def test_metrics_are_means_over_the_events_of_a_window(measured: list[Measurement]) -> None:
    summary = summarize(measurement_frame(measured), NOW)
    for window, seconds in (("hour", 3600), ("day", 86_400)):
        in_window = [row for row in measured if row.measured_at > NOW - seconds]
        assert sum(model["events"] for model in summary[window]["models"]) == len(in_window)
        for model in summary[window]["models"]:
            of_model = [
                r for r in in_window if (r.role, r.version) == (model["role"], model["version"])
            ]
            assert model["events"] == len(of_model)
            hits = np.mean([1 <= r.rank <= 10 for r in of_model])
            assert model["HR@10"] == pytest.approx(hits)
            assert model["MRR@10"] == pytest.approx(np.mean([reciprocal(r.rank) for r in of_model]))
        for role in ("current", "candidate"):
            of_model = [r for r in in_window if r.role == role]
            assert summary[window].get(role, {"events": 0})["events"] == len(of_model)
        check_difference(summary[window], in_window)


def check_difference(window: dict, rows: list[Measurement]) -> None:
    candidates = sorted((r for r in rows if r.role == "candidate"), key=lambda r: r.seq)
    currents = {r.seq: r for r in rows if r.role == "current"}
    version = candidates[-1].version if candidates else None
    pairs = [(r, currents[r.seq]) for r in candidates if r.version == version and r.seq in currents]
    if not pairs:
        assert "difference" not in window
        return
    difference = window["difference"]
    assert (difference["candidate"], difference["events"]) == (version, len(pairs))
    change = np.mean([reciprocal(a.rank) - reciprocal(b.rank) for a, b in pairs])
    assert difference["MRR@10"]["difference"] == pytest.approx(change)
    low, high = difference["MRR@10"]["interval"]
    assert low - 1e-9 <= change <= high + 1e-9


def test_events_that_are_not_measured_are_counted_by_reason_and_enter_no_mean() -> None:
    ranks = {"current": [1, 0, -1, -1, -2], "candidate": [2, -3, 4, -1, -1]}
    measured = [
        Measurement(seq, role, role, NOW, seq, rank)
        for role, some in ranks.items()
        for seq, rank in enumerate(some)
    ]
    summary = summarize(measurement_frame(measured), NOW)
    for window in ("hour", "day"):
        shown = summary[window]
        assert shown["not_measured"] == {
            "current": {"trained": 2, "outdated": 1, "repeated": 0},
            "candidate": {"trained": 2, "outdated": 0, "repeated": 1},
        }
        assert (shown["current"]["events"], shown["current"]["HR@10"]) == (2, 0.5)
        assert (shown["candidate"]["events"], shown["candidate"]["MRR@10"]) == (2, 0.375)
        assert shown["difference"]["events"] == 1  # the only event that both are measured on
    lines = prometheus_lines({"share": 1.0, "behind": 0, "left_out": 0, **summary})
    name = "talerec_live_not_measured"
    assert f'{name}{{role="candidate",reason="repeated",window="day"}} 1' in lines
    assert sum(line.startswith(f"{name}{{") for line in lines) == 12


def test_with_one_event_a_user_the_interval_is_that_of_a_paired_comparison() -> None:
    rng = np.random.default_rng(3)
    measured, a, b = [], [], []
    for seq in range(400):
        old, new = int(rng.integers(0, 40)), int(rng.integers(0, 25))
        measured += [Measurement(seq, "current", "a", NOW, seq, old)]
        measured += [Measurement(seq, "candidate", "b", NOW, seq, new)]
        a.append(1 <= old <= 10)
        b.append(1 <= new <= 10)
    wanted = compare_pairs(np.array(a, float), np.array(b, float))
    told = summarize(measurement_frame(measured), NOW)["day"]["difference"]["HR@10"]
    assert told["difference"] == pytest.approx(wanted.difference)
    assert told["interval"] == pytest.approx(list(wanted.interval), abs=0.01)
    assert wanted.interval[0] > 0


def test_one_active_user_does_not_narrow_the_interval() -> None:
    """A thousand events of one user do not count as a thousand users."""
    eager = [
        Measurement(seq, role, role, NOW, 1, place)
        for seq in range(1000)
        for role, place in (("current", 0), ("candidate", 1))
    ]
    others = [
        Measurement(seq, role, role, NOW, seq, place)
        for seq in range(2000, 2010)
        for role, place in (("current", 1), ("candidate", 0))
    ]
    difference = summarize(measurement_frame([*eager, *others]), NOW)["hour"]["difference"]
    assert difference["users"] == 11
    assert difference["HR@10"]["difference"] > 0.9
    assert difference["HR@10"]["interval"][0] < 0


def test_samples_have_their_share_and_are_independent() -> None:
    users = [f"user-{n}" for n in range(20_000)]
    for share in (0.0, 0.1, 0.5, 1.0):
        selected = [user for user in users if is_in_share(user, share, MEASURED)]
        assert len(selected) == pytest.approx(share * len(users), abs=400)
        both = [user for user in selected if is_in_share(user, 0.5, CANDIDATE)]
        assert len(both) == pytest.approx(0.5 * len(selected), abs=400)
    few = {user for user in users if is_in_share(user, 0.1, CANDIDATE)}
    assert few <= {user for user in users if is_in_share(user, 0.2, CANDIDATE)}
    assert (
        hash_user("ann", MEASURED) == 2121594814235954615
    )  # must never change: users keep their assignment
    assert 0 <= hash_user("\u00e9\U0001f600", MEASURED) < 2**63

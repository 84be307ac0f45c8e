"""Figures of what was measured, against plain loops; and shares of users."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talerec.evaluation.intervals import paired
from talerec.serve.online.sampling import CANDIDATE, MEASURED, hash_of, is_in_share
from talerec.serve.online.summary import frame_of, summary
from talerec.store.measurements import Measured

NOW = 1_000_000

rows = st.lists(
    st.builds(
        Measured,
        seq=st.integers(1, 30),
        role=st.sampled_from(["current", "candidate"]),
        version=st.sampled_from(["a", "b"]),
        moment=st.sampled_from([NOW - 100_000, NOW - 5000, NOW - 100]),
        user=st.integers(0, 4),
        place=st.integers(0, 12),
    ),
    max_size=30,
    unique_by=lambda row: (row.seq, row.role),
)


def reciprocal(place: int) -> float:
    return 1 / place if 1 <= place <= 10 else 0.0


@given(rows)
def test_figures_are_means_over_the_events_of_a_window(measured: list[Measured]) -> None:
    found = summary(frame_of(measured), NOW)
    for window, seconds in (("hour", 3600), ("day", 86_400)):
        mine = [row for row in measured if row.moment > NOW - seconds]
        assert sum(one["events"] for one in found[window]["models"]) == len(mine)
        for one in found[window]["models"]:
            own = [r for r in mine if (r.role, r.version) == (one["role"], one["version"])]
            assert one["events"] == len(own)
            hits = np.mean([1 <= r.place <= 10 for r in own])
            assert one["HR@10"] == pytest.approx(hits)
            assert one["MRR@10"] == pytest.approx(np.mean([reciprocal(r.place) for r in own]))
        for role in ("current", "candidate"):
            own = [r for r in mine if r.role == role]
            assert found[window].get(role, {"events": 0})["events"] == len(own)
        check_difference(found[window], mine)


def check_difference(found: dict, mine: list[Measured]) -> None:
    candidates = sorted((r for r in mine if r.role == "candidate"), key=lambda r: r.seq)
    currents = {r.seq: r for r in mine if r.role == "current"}
    version = candidates[-1].version if candidates else None
    pairs = [(r, currents[r.seq]) for r in candidates if r.version == version and r.seq in currents]
    if not pairs:
        assert "difference" not in found
        return
    told = found["difference"]
    assert (told["candidate"], told["events"]) == (version, len(pairs))
    change = np.mean([reciprocal(a.place) - reciprocal(b.place) for a, b in pairs])
    assert told["MRR@10"]["difference"] == pytest.approx(change)
    low, high = told["MRR@10"]["interval"]
    assert low - 1e-9 <= change <= high + 1e-9


def test_with_one_event_a_user_the_interval_is_that_of_a_paired_comparison() -> None:
    rng = np.random.default_rng(3)
    measured, a, b = [], [], []
    for seq in range(400):
        old, new = int(rng.integers(0, 40)), int(rng.integers(0, 25))
        measured += [Measured(seq, "current", "a", NOW, seq, old)]
        measured += [Measured(seq, "candidate", "b", NOW, seq, new)]
        a.append(1 <= old <= 10)
        b.append(1 <= new <= 10)
    wanted = paired(np.array(a, float), np.array(b, float))
    told = summary(frame_of(measured), NOW)["day"]["difference"]["HR@10"]
    assert told["difference"] == pytest.approx(wanted.difference)
    assert told["interval"] == pytest.approx(list(wanted.interval), abs=0.01)
    assert wanted.interval[0] > 0


def test_an_eager_user_does_not_make_an_interval_narrow() -> None:
    """A thousand events of one user are not a thousand opinions."""
    eager = [
        Measured(seq, role, role, NOW, 1, place)
        for seq in range(1000)
        for role, place in (("current", 0), ("candidate", 1))
    ]
    others = [
        Measured(seq, role, role, NOW, seq, place)
        for seq in range(2000, 2010)
        for role, place in (("current", 1), ("candidate", 0))
    ]
    told = summary(frame_of([*eager, *others]), NOW)["hour"]["difference"]
    assert told["users"] == 11
    assert told["HR@10"]["difference"] > 0.9
    assert told["HR@10"]["interval"][0] < 0


def test_shares_are_what_they_say_and_drawn_apart() -> None:
    users = [f"user-{n}" for n in range(20_000)]
    for share in (0.0, 0.1, 0.5, 1.0):
        mine = [user for user in users if is_in_share(user, share, MEASURED)]
        assert len(mine) == pytest.approx(share * len(users), abs=400)
        both = [user for user in mine if is_in_share(user, 0.5, CANDIDATE)]
        assert len(both) == pytest.approx(0.5 * len(mine), abs=400)
    few = {user for user in users if is_in_share(user, 0.1, CANDIDATE)}
    assert few <= {user for user in users if is_in_share(user, 0.2, CANDIDATE)}
    assert hash_of("ann", MEASURED) == 2121594814235954615  # for good: users stay where they are
    assert 0 <= hash_of("\u00e9\U0001f600", MEASURED) < 2**63

"""Deleted users do not come back: by import, by sending again, by a clock that was ahead."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from command import talerec
from talerec.store import (
    AppendResult,
    Event,
    IdSigner,
    Impression,
    ImpressionStore,
    Measurement,
    MeasurementProgress,
    MeasurementStore,
)

NOW, DAY, SECOND = 1_790_000_000_000_000, 86_400_000_000, 1_000_000


@pytest.mark.parametrize("ahead", [0, DAY - SECOND])
def test_events_of_before_a_deletion_do_not_come_back(
    address: str, opened: Any, ahead: int
) -> None:
    store = opened(address)
    sent = [
        Event("ann", "tea", NOW - 9 * DAY, event_id="a"),
        Event("ann", "cup", NOW + ahead, event_id="b"),
        Event("bob", "tea", NOW - 9 * DAY, event_id="c"),
    ]
    assert store.append([sent]) == [AppendResult(3, 0)]
    store.delete_user("ann", NOW)
    assert store.append([sent]) == [AppendResult(0, 1, 2)]
    untagged = [event._replace(event_id=None) for event in sent]
    assert store.append([untagged[:2]]) == [AppendResult(0, 0, 2)]
    assert store.append_missing(untagged, NOW + SECOND) == (0, 2)
    later = Event("ann", "pot", NOW + ahead + 1)
    assert store.append([[later]]) == [AppendResult(1, 0)]
    assert [row.item for row in store.read_user("ann", 9)] == ["pot"]


def test_an_imported_event_of_the_far_future_does_not_block_its_user(
    address: str, opened: Any
) -> None:
    store = opened(address)
    far = Event("ann", "tea", NOW + 4000 * DAY)
    store.append_missing([far], NOW)
    store.delete_user("ann", NOW)
    assert store.append_missing([far], NOW + 2 * DAY) == (0, 1)
    assert store.append([[Event("ann", "cup", NOW + DAY + 1)]]) == [AppendResult(1, 0)]


def test_a_second_deletion_does_not_weaken_the_first(address: str, opened: Any) -> None:
    store = opened(address)
    store.append([[Event("ann", "tea", NOW + DAY)]])
    store.delete_user("ann", NOW)
    store.delete_user("ann", NOW - DAY)  # a clock that was set back
    assert store.append([[Event("ann", "tea", NOW + DAY)]]) == [AppendResult(0, 0, 1)]


def test_a_deletion_of_an_unknown_user_is_recorded_only_on_demand(
    address: str, opened: Any
) -> None:
    store = opened(address)
    assert store.delete_user("nobody", NOW, always_record=False) == 0
    assert store.read_deletions() == {}
    assert store.delete_user("nobody", NOW) == 1
    assert store.delete_user("nobody", NOW, always_record=False) == 2  # it is on record


def test_measurements_go_with_their_user_and_do_not_come_back(address: str) -> None:
    def measured(seq: int) -> Measurement:
        return Measurement(seq, "current", "v", NOW // SECOND, seq, 1)

    with MeasurementStore.open(address) as store:
        store.append([[Event("ann", "tea", 1), Event("bob", "tea", 1), Event("ann", "cup", 2)]])
        store.take_lease("me", 0.0, 10.0)
        progress = MeasurementProgress(3, 0)
        assert store.save("me", [measured(1), measured(2)], progress)
        store.delete_user("ann", NOW)
        assert [row.seq for row in store.read_since(0)] == [2]
        assert store.save("me", [measured(3)], progress)  # it was ranked before the deletion
        assert [row.seq for row in store.read_since(0)] == [2]


def test_an_offline_deletion_leaves_no_bytes_of_the_user(tmp_path: Path) -> None:
    address, secret = f"sqlite:///{tmp_path}/shop.db", b"secret-user-of-the-shop"
    with MeasurementStore.open(address) as store:
        events = [Event(secret.decode(), f"tea-{n}", n, "buy", f"id-{n}") for n in range(3000)]
        store.append([events])
        store.append([[Event(f"u{n}", "tea", n) for n in range(3000)]])
    files = [tmp_path / "shop.db", tmp_path / "shop.db-wal"]
    assert any(b"tea-77" in file.read_bytes() for file in files if file.exists())
    assert talerec("events", "delete-user", secret.decode(), "--store", address).code == 0
    for file in files:
        content = file.read_bytes() if file.exists() else b""
        assert b"tea-77" not in content
        assert content.count(secret) <= 2  # the record of the deletion, and its index


@pytest.mark.parametrize("seed", [0, 1])
def test_an_offline_deletion_leaves_no_bytes_of_what_was_shown(tmp_path: Path, seed: int) -> None:
    """Rows of two hundred users lie in pages that were split and filled again."""
    address, secret, chance = f"sqlite:///{tmp_path}/shop.db", "secret-user", random.Random(seed)
    users = [secret, *(f"u{chance.randrange(10**9)}" for _ in range(200))]
    with ImpressionStore.open(address) as store:
        signer = IdSigner(store.read_secret())
        for start in range(NOW, NOW + 4000, 200):
            rows = []
            for time in range(start, start + 200):
                user = chance.choice([*users, None])
                items = [f"{user}-tea-{n}" for n in range(chance.randrange(1, 30))]
                rows.append(
                    Impression(signer.make_id(time), user, time, "v", "current", None, None,
                               json.dumps(items), None, None)
                )  # fmt: skip
            store.write_impressions(rows)
            clicks = [(row, row.user or chance.choice(users)) for row in chance.sample(rows, 100)]
            store.append(
                [[Event(user, "tea", row.time, "buy", None, True, row.id) for row, user in clicks]]
            )
        shown_ids = [row.id.encode() for row in store.read_user_impressions(secret)]
    content = (tmp_path / "shop.db").read_bytes()
    assert shown_ids
    assert all(shown_id in content for shown_id in shown_ids)
    assert content.count(secret.encode()) > 100
    assert talerec("events", "delete-user", secret, "--store", address).code == 0
    content = b"".join(file.read_bytes() for file in tmp_path.glob("shop.db*"))
    assert not any(shown_id in content for shown_id in shown_ids)
    assert content.count(secret.encode()) == 2  # the record of the deletion, and its index

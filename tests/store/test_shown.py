"""Impressions and negative feedback in stores of both kinds."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from talerec.store import (
    NO_FEEDBACK,
    Event,
    IdSigner,
    Impression,
    ImpressionStore,
    NegativeFeedback,
    expand_impressions,
    now_us,
)

START, DAY = now_us(), 86_400_000_000


@pytest.fixture
def store(address: str) -> Iterator[ImpressionStore]:
    with ImpressionStore.open(address) as opened:
        yield opened


def shown(store: ImpressionStore, n: int, user: str | None = "ann") -> Impression:
    """Return an impression of two items, `n` microseconds after the start."""
    shown_id = IdSigner(store.read_secret()).make_id(START + n)
    return Impression(
        shown_id, user, START + n, "v", "current", None, None, '["1", "2"]', None, None
    )


def read_all(store: ImpressionStore, since: int = 0) -> list[Impression]:
    return [row for group in store.read_impressions(since) for row in group]


def test_impressions_are_stored_once_and_read_in_order(store: ImpressionStore) -> None:
    rows = [shown(store, n, "ann" if n % 2 else None) for n in range(10)]
    assert store.write_impressions(rows[5:]) == 5
    assert store.write_impressions(rows) == 10
    assert read_all(store) == rows
    assert read_all(store, START + 7) == rows[7:]
    assert store.find_start_of_latest(0, 3, 100) == START + 7
    assert store.find_start_of_latest(START + 8, 3, 100) == START + 8
    for max_items, first in ((20, 0), (19, START + 1), (5, START + 8), (1, START + 9)):
        assert store.find_start_of_latest(0, 10, max_items) == first  # each has two items
    assert store.count_shown(START, START + 5) == {START // DAY: {"1": 5, "2": 5}}
    assert store.prune_impressions(START + 2) == 2
    assert read_all(store) == rows[2:]


def test_a_deletion_takes_the_user_and_named_anonymous_answers(store: ImpressionStore) -> None:
    rows = [shown(store, n, user) for n, user in enumerate(["ann", "bob", None, None])]
    store.write_impressions(rows)
    store.append([[Event("ann", "1", START + 9, "view", None, True, rows[2].id)]])
    assert store.read_user_impressions("ann") == [rows[0], rows[2]]
    store.delete_user("ann", START + 20)
    assert read_all(store) == [rows[1], rows[3]]
    assert store.write_impressions([rows[0], shown(store, 21)]) == 1
    assert [row.time for row in store.read_user_impressions("ann")] == [START + 21]


def test_events_that_may_be_clicks_are_read_once(store: ImpressionStore) -> None:
    ann, old = shown(store, 5), IdSigner(store.read_secret()).make_id(START - 10**9)
    store.write_impressions([ann])
    events = [
        Event("ann", "1", START + 6, "view", None, True, ann.id),
        Event("ann", "2", START + 7, "hide"),
        Event("ann", "2", START - 10**9, "view"),  # before the period
        Event("bob", "2", START + 8, "view"),  # nothing was shown to bob
        Event("bob", "2", START + 9, "view", None, True, old),
    ]
    store.append([events])
    read = [event for group in store.read_possible_clicks(START) for event in group]
    assert [(event.item, event.event) for event in read] == [("1", "view"), ("2", "hide")]
    assert read[0].recommendation_id == ann.id


def test_feedback_and_other_events_have_limits_of_their_own(store: ImpressionStore) -> None:
    names = ["hide", "view", "return", None, "buy", "view", "view"]
    store.append([[Event("ann", str(n), START + n, name) for n, name in enumerate(names)]])
    feedback = NegativeFeedback()

    def items(limit: int, feedback: NegativeFeedback) -> list[str | None]:
        return [row.item for row in store.read_user("ann", limit, feedback)]

    assert items(3, NO_FEEDBACK) == ["4", "5", "6"]
    assert items(3, feedback) == ["0", "2", "4", "5", "6"]
    assert items(1, feedback) == ["2", "6"]
    assert items(9, feedback) == [*"0123456"]


def test_a_row_per_shown_item_has_its_probability_and_whether_it_was_explored() -> None:
    row = Impression("r", None, 7, "v", "current", "new", "{}", '["a", "é"]', "[1.0, 0.25]", "[2]")
    plain = row._replace(id="s", user="ann", probabilities=None, explored=None)
    empty = row._replace(id="t", items=json.dumps([]), probabilities=None, explored=None)
    frame = expand_impressions([row, plain, empty])
    names = ["recommendation_id", "user_id", "item_id", "rank", "probability", "explored"]
    assert frame.select(names).rows() == [
        ("r", None, "a", 1, 1.0, False), ("r", None, "é", 2, 0.25, True),
        ("s", "ann", "a", 1, 1.0, False), ("s", "ann", "é", 2, 1.0, False),
    ]  # fmt: skip

"""Ids and titles of items, in small catalogues and in large ones."""

from __future__ import annotations

from datetime import date, time

import numpy as np
import polars as pl
import pytest

import talerec as tr

pytest.importorskip("msgspec", reason="needs the extra serve")

from talerec.models.core import matching_items
from talerec.serve import ABSENT
from talerec.serve.model import catalogue
from talerec.serve.model.popular import PopularItems
from talerec.store import StoredRow


@pytest.mark.parametrize("most", [0, 10**9], ids=["looked up", "in lists"])
@pytest.mark.parametrize("number", [0, 1, 10, 65, 300])
@pytest.mark.parametrize(
    "values",
    [[*range(500)], [f"title {n}" for n in range(500)], [None, "b", None, "d", "e"] * 100],
    ids=["numbers", "text", "gaps"],
)
def test_values_equal_the_column_and_nulls_are_absent(most, number, values, monkeypatch):
    monkeypatch.setattr(catalogue, "_MAX_LIST", most)
    column = catalogue.ItemValues(pl.Series(values))
    places = [(7 * n) % 500 for n in range(number)]
    expected = [ABSENT if values[place] is None else values[place] for place in places]
    assert column.take(places) == expected
    assert [column[place] for place in places] == expected
    assert set(map(type, column.take(places))) <= {int, str, type(ABSENT)}


@pytest.mark.parametrize("most", [0, 10**9], ids=["looked up", "in lists"])
def test_titles_and_search_do_not_depend_on_the_size(most, monkeypatch):
    monkeypatch.setattr(catalogue, "_MAX_LIST", most)
    log = tr.synthetic_log(2000, users=200, items=100, seed=3)
    items = catalogue.Catalogue(tr.Popular().fit(log).fitted)
    titles = log.info["title"].to_list()
    assert [items.title(item) for item in range(len(items))] == titles
    assert items.title(-1) is ABSENT
    same = [item for item, title in enumerate(titles) if titles[7].lower() in title.lower()]
    assert sorted(items.search(titles[7], 1000)) == same
    item_id = log.items.ids[20]
    assert (items.position(item_id), items.position("nobody")) == (20, -1)
    assert items.search(str(item_id), 3)[0] == 20
    every = items.search("", 1000)
    assert sorted(every) == list(range(100))
    assert [log.counts()[item] for item in every] == sorted(log.counts(), reverse=True)


def test_a_large_catalogue_is_not_converted_to_lists(monkeypatch):
    monkeypatch.setattr(catalogue, "_MAX_LIST", 100)

    def refuse(*_: object) -> None:
        raise AssertionError("a whole column was converted")

    monkeypatch.setattr(pl.Series, "to_list", refuse)
    column = catalogue.ItemValues(pl.Series(range(1000)))
    assert column.take([3, 5]) == [3, 5]


@pytest.mark.parametrize("k", [1, 3, 8, 50])
def test_popular_items_before_a_time_are_those_of_the_rows_and_events_before_it(k: int) -> None:
    """Without rows and events after the time, the list is the one that the service shows."""
    log = tr.synthetic_log(600, users=40, items=50, seed=2)
    end = int(log.time.max())
    times = [end + n * 3_600_000_000 for n in range(1, 7)]
    events = [StoredRow(n, "ann", str(1 + n % 3), when) for n, when in enumerate(times)]
    popular = PopularItems(tr.Popular().fit(log).fitted)
    nothing = np.empty(0, np.int64)
    assert popular.top_before(end + 1, None, nothing, k) == popular.ranked()[0][:k].tolist()
    popular.events.add(events)
    popular._ranking = None
    codes = popular._fitted.items.text_positions([str(row.item) for row in events])
    since = popular.events.since
    assert popular.top_before(times[-1] + 1, since, codes, k) == popular.ranked()[0][:k].tolist()
    middle = int(np.median(log.time))
    earlier = PopularItems(tr.Popular().fit(log.keep(log.time < middle)).fitted)
    assert popular.top_before(middle, None, nothing, k) == earlier.ranked()[0][:k].tolist()


def test_the_card_offers_values_that_a_condition_can_name():
    log = tr.synthetic_log(2000, users=200, items=100, seed=3)
    n = pl.Series(range(len(log.info)))
    cents = (n % 7).cast(pl.Decimal(10, 2)).alias("cents")
    made = pl.Series("made", [date(2024, 1, 1 + i % 3) for i in n])
    opens = pl.Series("opens", [time(i % 5) for i in n])
    is_new = (n % 2 == 0).alias("is_new")
    model = tr.Popular().fit(log.with_items(log.info.with_columns(cents, made, opens, is_new)))
    columns = catalogue.Catalogue(model.fitted).columns
    assert columns["cents"] == {"min": 0.0, "max": 6.0}
    assert columns["opens"] == {}
    assert columns["is_new"] == {"values": [False, True]}
    assert columns["made"]["values"] == ["2024-01-01", "2024-01-02", "2024-01-03"]
    for text in ("cents <= 3", "is_new <> true", "made <> '2024-01-02'"):
        assert 0 < matching_items(model, text).sum() < len(n)

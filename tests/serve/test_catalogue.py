"""Ids and titles of items, in small catalogues and in large ones."""

from __future__ import annotations

import polars as pl
import pytest

import talerec as tr

pytest.importorskip("msgspec", reason="needs the extra serve")

from talerec.serve import ABSENT
from talerec.serve.model import catalogue


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

"""Items of a store, in SQLite and PostgreSQL: writes, deletions, followers, tables as files."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from command import refusal, talerec, works
from talerec.store import CatalogueFullError, ItemChange, ItemTail, Store


def put(store: Store, item: str, **fields: Any) -> Any:
    return store.write_items([ItemChange(item, fields)], 5)


def state(store: Store) -> dict[str, Any]:
    """Return the values of each item; None for a deleted one."""
    rows = store.read_items(limit=10**6)
    assert [(row.seq, row.item) for row in rows] == sorted((row.seq, row.item) for row in rows)
    return {row.item: None if row.fields is None else row.values() for row in rows}


def test_writes_and_deletions_equal_a_dictionary(address: str, opened: Any) -> None:
    """A follower that polls now and then has the same items as the store and a plain dict."""
    store, draw = opened(address), random.Random(3)
    tail = ItemTail(store.sibling())
    expected: dict[str, Any] = {}
    for n in range(120):
        item = str(draw.randrange(8))
        if draw.random() < 0.2:
            is_known = item in expected
            seq = store.delete_item(item, n, always_record=False)
            assert (seq is not None) == is_known
            expected |= {item: None} if is_known else {}
        else:
            fields = {draw.choice("abc"): draw.choice([1, None, "x", ["y", "ü"]])}
            before = expected.get(item)
            changed = {**(before or {}), **fields}
            written = put(store, item, **fields)
            assert written.accepted + written.unchanged == 1
            assert bool(written.accepted) == (changed != before)
            expected[item] = changed
        if draw.random() < 0.3:
            tail.poll()
    tail.poll()
    assert state(store) == expected
    rows = tail.changes(0).rows
    assert {row.item: row.fields and row.values() for row in rows} == expected
    facts = store.catalogue_facts()
    assert tail.facts == facts
    assert facts.items == sum(values is not None for values in expected.values())
    later = tail.changes(facts.seq - 3).rows
    assert later == [row for row in rows if row.seq > facts.seq - 3]
    tail.close()


def test_an_item_that_is_put_after_its_deletion_is_whole(address: str, opened: Any) -> None:
    store = opened(address)
    put(store, "a", price=1)
    store.delete_item("a", 1)
    put(store, "a", title="x")
    (row,) = store.read_items()
    assert (row.values(), row.is_whole) == ({"title": "x"}, True)
    put(store, "a", price=2)
    assert store.read_items()[0].is_whole


def test_a_full_store_takes_no_new_item(address: str, opened: Any) -> None:
    store = opened(address)
    changes = [ItemChange(str(n), {}) for n in range(3)]
    with pytest.raises(CatalogueFullError, match="there would be 3 items; the limit is 2"):
        store.write_items(changes, 1, max_items=2)
    assert state(store) == {}
    assert store.write_items(changes[:2] * 2, 1, max_items=2).accepted == 2


def test_a_follower_starts_over_when_the_store_has_lost_commits(address: str, opened: Any) -> None:
    store = opened(address)
    put(store, "a", price=1)
    put(store, "b", price=2)
    tail = ItemTail(store.sibling())
    assert tail.poll()
    with store._transaction() as session:  # as a standby without the last commit
        session.execute("delete from talerec_items where item_id = 'b'")
        session.execute("update talerec_meta set item_seq = 1, items = 1")
    assert tail.poll()
    assert ([row.item for row in tail.changes(0).rows], tail.resets) == (["a"], 1)
    tail.close()


def test_a_table_is_imported_and_exported(address: str, tmp_path: Path) -> None:
    table = pl.DataFrame(
        {
            "sku": [1, 2, 3],
            "name": ["a", None, "c"],
            "tags": [["x", "y"], [], None],
            "price": [1.5, float("nan"), 3.0],
            "since": pl.Series(["2024-05-01", None, "2024-05-03"]).str.to_date(),
        }
    )
    table.write_parquet(tmp_path / "items.parquet")
    command = ("items", "import", tmp_path / "items.parquet", "--item-key", "sku")
    assert "3 rows, 3 items changed, 0 unchanged" in works(*command, "--store", address)
    again = talerec(*command, "--store", address, "--json")
    assert again.json == {"rows": 3, "changed": 0, "unchanged": 3}
    works("items", "delete", "2", "--store", address)
    for suffix in ("parquet", "ndjson", "csv"):
        path = tmp_path / f"out.{suffix}"
        assert "2 items" in works("items", "export", "--store", address, "-o", path)
    out = pl.read_parquet(tmp_path / "out.parquet")
    assert out["item_id"].to_list() == [1, 3]
    assert out["title"].to_list() == ["a", "c"]
    assert out["tags"].to_list() == [["x", "y"], None]
    since = pl.read_ndjson(tmp_path / "out.ndjson")["since"].to_list()
    assert since == ["2024-05-01", "2024-05-03"]
    assert pl.read_csv(tmp_path / "out.csv")["tags"].to_list() == ['["x", "y"]', None]
    works("items", "import", tmp_path / "out.ndjson", "--store", address)
    assert talerec("items", "delete", "x", "--store", address).code == 2


def test_a_table_with_an_invalid_row_is_refused_as_a_whole(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/shop.db"
    rows = [{"item_id": "a", "title": "x"}, {"item_id": "b", "title": "y" * 100_001}]
    (tmp_path / "t.ndjson").write_text("\n".join(json.dumps(row) for row in rows))
    command = ("items", "import", tmp_path / "t.ndjson", "--store", address)
    assert "item 'b': title: it has 100,001 characters" in refusal(*command)
    with Store.open(address) as store:
        assert state(store) == {}
    (tmp_path / "twice.csv").write_text("item_id,title\n1,a\n1,b\n,c\n")
    command = ("items", "import", tmp_path / "twice.csv", "--store", address)
    assert "item None: item_id is empty" in refusal(*command)


def test_an_import_is_checked_by_a_models_table(tmp_path: Path) -> None:
    import talerec as tr

    model = tr.Popular().fit(tr.synthetic_log(200, users=20, items=10, seed=1))
    path = model.save(tmp_path / "shop.tale")
    (tmp_path / "t.csv").write_text("item_id,title,prise\n1,a,2\n")
    address = f"sqlite:///{tmp_path}/shop.db"
    command = ("items", "import", tmp_path / "t.csv", "--store", address)
    assert "there is no column 'prise'" in refusal(*command, "--artifact", path)
    assert "1 items changed" in works(*command)


def test_a_deletion_during_an_import_holds_unless_the_item_is_put_later(tmp_path, monkeypatch):
    """Items are committed in parts: of a deletion and an import, the later commit counts."""
    from talerec.store import import_items, item_transfer

    store = Store.open(f"sqlite:///{tmp_path}/shop.db")
    monkeypatch.setattr(item_transfer, "_COMMIT_ITEMS", 5)
    write, n_commits = Store.write_items, []

    def write_and_delete(self: Store, *arguments: Any) -> Any:
        written = write(self, *arguments)
        n_commits.append(written.accepted)
        if len(n_commits) == 1:
            self.delete_item("0", 1)  # was imported before
            self.delete_item("11", 1)  # is imported later
        return written

    monkeypatch.setattr(Store, "write_items", write_and_delete)
    import_items(store, pl.DataFrame({"item_id": range(12), "title": ["x"] * 12}))
    assert n_commits == [5, 5, 2]
    assert [item for item, values in state(store).items() if values is None] == ["0"]
    assert store.catalogue_facts().items == 11
    store.close()

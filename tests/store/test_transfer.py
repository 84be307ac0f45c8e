"""Logs into a store and out of it, by the commands that people use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import talerec as tr
from command import refusal, talerec, works, write_log
from talerec.store import transfer
from talerec.store.events import Event
from talerec.store.store import Store


def frame(rows: list[tuple[Any, ...]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")


def test_a_log_goes_in_once_and_comes_out_as_it_was(address: str, tmp_path: Path) -> None:
    path = write_log(tmp_path / "log.csv")
    out = works("events", "import", path, "--store", address)
    assert "200 of 200 rows are new, 0 were there" in out
    again = talerec("events", "import", path, "--store", address, "--json")
    assert again.json == {"rows": 200, "added": 0, "there": 200, "deleted": 0}
    assert works("events", "export", "--store", address, "-o", tmp_path / "e.parquet")
    before, after = tr.read_log(path), tr.read_log(tmp_path / "e.parquet")
    names = ["user_id", "item_id", "timestamp"]
    rows = [
        log.to_frame().select(pl.col(names[:2]).cast(pl.String), names[2]).sort(names).rows()
        for log in (before, after)
    ]
    assert rows[0] == rows[1]
    kept = pl.read_parquet(tmp_path / "e.parquet")
    assert kept["timestamp"].is_sorted()
    assert kept.columns == [*names, "event", "event_id"]


def test_events_keep_their_names(address: str, tmp_path: Path) -> None:
    rows = frame([("ann", "tea", 5), ("ann", "cup", 6)]).with_columns(
        action=pl.Series(["view", "buy"])
    )
    rows.write_parquet(tmp_path / "log.parquet")
    works(
        "events", "import", tmp_path / "log.parquet", "--event", "action", "--time-unit", "s", "--store", address,
    )  # fmt: skip
    with Store.open(address) as store:
        assert [(row.item, row.event) for row in store.of_user("ann", 9)] == [("tea", "view"), ("cup", "buy")]  # fmt: skip


few = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.integers(0, 2)), max_size=9
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(first=few, second=few, batch=st.integers(1, 4))
def test_what_is_there_after_imports_is_the_larger_number_of_every_row(
    first: list[Any], second: list[Any], batch: int, tmp_path_factory: Any
) -> None:
    from collections import Counter

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "_BATCH", batch)
        with Store.open(f"sqlite:///{tmp_path_factory.mktemp('s')}/shop.db") as store:
            for rows in (first, second, first):
                if rows:
                    transfer.import_log(store, tr.Log.from_frame(frame(rows), time_unit="us"))
            found = Counter((row.user, row.item, row.time) for row in store.tail(0))
    assert found == Counter(first) | Counter(second)


def test_rows_of_a_deleted_user_are_left_out_unless_they_are_later(
    address: str,
    tmp_path: Path,
) -> None:
    with Store.open(address) as store:
        store.append([[Event("ann", "old", 5)]])
        store.forget("ann", 7_000_000)
        log = tr.Log.from_frame(
            frame([("ann", "x", 6), ("ann", "y", 8), ("bob", "x", 1)]), time_unit="s"
        )
        assert transfer.import_log(store, log) == transfer.Imported(3, 2, 0, 1)
        assert [row.item for row in store.of_user("ann", 9)] == ["y"]
    assert works("events", "delete-user", "bob", "--store", address).endswith(
        "user bob is deleted\n"
    )
    with Store.open(address) as store:
        assert store.of_user("bob", 9) == []
    path = tmp_path / "log.csv"
    frame([("bob", "z", 1_500_000_000)]).write_csv(path)
    assert "0 of 1 rows are new, 0 were there, 1 of deleted users" in works(
        "events", "import", path, "--store", address
    )


def test_who_is_deleted_during_an_import_stays_deleted(
    address: str, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = opened(address), opened(address)
    monkeypatch.setattr(transfer, "_BATCH", 2)
    log = tr.Log.from_frame(frame([("ann", "x", n) for n in range(6)]), time_unit="s")
    add, calls = store.add_missing, []

    def with_a_deletion(events: list[Event]) -> Any:
        calls.append(events)
        found = add(events)
        if len(calls) == 1:
            other.forget("ann", 4_000_000)
        return found

    monkeypatch.setattr(store, "add_missing", with_a_deletion)
    assert transfer.import_log(store, log) == transfer.Imported(6, 3, 0, 3)
    assert [row.time for row in store.of_user("ann", 9)] == [5_000_000]


def test_an_empty_store_is_exported_with_its_columns(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/shop.db"
    Store.open(address).close()
    works("events", "export", "--store", address, "-o", tmp_path / "e.parquet")
    assert pl.read_parquet(tmp_path / "e.parquet").shape == (0, 5)


def test_a_model_is_fitted_from_a_store_by_a_query(tmp_path: Path) -> None:
    path, address = write_log(tmp_path / "log.csv"), f"sqlite:///{tmp_path}/shop.db"
    works("events", "import", path, "--store", address)
    query = "select user_id, item_id, time as timestamp from talerec_events order by seq"
    works("fit", address, "--query", query, "--time-unit", "us", "-o", tmp_path / "m.tale")
    assert tr.load(tmp_path / "m.tale").fitted.training["rows"] == 200


def test_mistakes_are_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_log(tmp_path / "log.csv")
    monkeypatch.delenv("TALEREC_STORE", raising=False)
    assert "which store?" in refusal("events", "import", path)
    missing = f"sqlite:///{tmp_path}/none.db"
    assert "there is no such file" in refusal("events", "export", "--store", missing, "-o", tmp_path / "e.parquet")  # fmt: skip
    assert "there is no such file" in refusal("events", "delete-user", "ann", "--store", missing)
    assert not (tmp_path / "none.db").exists()
    assert "must end in" in refusal(
        "events", "export", "--store", missing, "-o", tmp_path / "e.txt"
    )
    assert "is not a store" in refusal("events", "import", path, "--store", "duckdb:///x.duckdb")
    assert "is for fit" in refusal("events", "import", path, "--weight", "w", "--store", missing).replace("are for", "is for")  # fmt: skip
    frame([("x" * 600, "tea", 5)]).write_csv(tmp_path / "long.csv")
    assert "600 characters" in refusal(
        "events", "import", tmp_path / "long.csv", "--store", missing
    )
    monkeypatch.setenv("TALEREC_STORE", f"sqlite:///{tmp_path}/shop.db")
    works("events", "import", path)
    assert (tmp_path / "shop.db").exists()

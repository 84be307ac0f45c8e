"""Import and export of logs by the commands of the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import talerec as tr
from command import refusal, talerec, works, write_log
from talerec.store import Event, Store, transfer


def frame(rows: list[tuple[Any, ...]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")


def test_a_log_is_imported_once_and_exported_unchanged(address: str, tmp_path: Path) -> None:
    path = write_log(tmp_path / "log.csv")
    out = works("events", "import", path, "--store", address)
    assert "200 of 200 rows added, 0 already there" in out
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
    stored = pl.read_parquet(tmp_path / "e.parquet")
    assert stored["timestamp"].is_sorted()
    assert stored.columns == [*names, "event", "event_id"]


def test_events_keep_their_names(address: str, tmp_path: Path) -> None:
    rows = frame([("ann", "tea", 5), ("ann", "cup", 6)]).with_columns(
        action=pl.Series(["view", "buy"])
    )
    rows.write_parquet(tmp_path / "log.parquet")
    works(
        *("events", "import", tmp_path / "log.parquet", "--event", "action", "--time-unit", "s"),
        *("--store", address),
    )
    with Store.open(address) as store:
        stored = [(row.item, row.event) for row in store.read_user("ann", 9)]
    assert stored == [("tea", "view"), ("cup", "buy")]


few = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.integers(0, 2)), max_size=9
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(first=few, second=few, batch=st.integers(1, 4))
def test_repeated_imports_store_the_larger_count_of_every_row(
    first: list[Any], second: list[Any], batch: int, tmp_path_factory: Any
) -> None:
    from collections import Counter

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "_COMMIT_ROWS", batch)
        with Store.open(f"sqlite:///{tmp_path_factory.mktemp('s')}/shop.db") as store:
            for rows in (first, second, first):
                if rows:
                    transfer.import_log(store, tr.Log.from_frame(frame(rows), time_unit="us"))
            counts = Counter((row.user, row.item, row.time) for row in store.read_after(0))
    assert counts == Counter(first) | Counter(second)


def test_rows_before_a_deletion_are_skipped(address: str, tmp_path: Path) -> None:
    with Store.open(address) as store:
        store.append([[Event("ann", "old", 5)]])
        store.delete_user("ann", 7_000_000)
        log = tr.Log.from_frame(
            frame([("ann", "x", 6), ("ann", "y", 8), ("bob", "x", 1)]), time_unit="s"
        )
        assert transfer.import_log(store, log) == transfer.ImportResult(3, 2, 0, 1)
        assert [row.item for row in store.read_user("ann", 9)] == ["y"]
    assert works("events", "delete-user", "bob", "--store", address).endswith("deleted user bob\n")
    with Store.open(address) as store:
        assert store.read_user("bob", 9) == []
    path = tmp_path / "log.csv"
    frame([("bob", "z", 1_500_000_000)]).write_csv(path)
    assert "0 of 1 rows added, 0 already there, 1 of deleted users" in works(
        "events", "import", path, "--store", address
    )


def test_a_user_deleted_during_an_import_stays_deleted(
    address: str, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = opened(address), opened(address)
    monkeypatch.setattr(transfer, "_COMMIT_ROWS", 2)
    log = tr.Log.from_frame(frame([("ann", "x", n) for n in range(6)]), time_unit="s")
    add, calls = store.append_missing, []

    def with_a_deletion(events: list[Event], now: int) -> Any:
        calls.append(events)
        result = add(events, now)
        if len(calls) == 1:
            other.delete_user("ann", 4_000_000)
        return result

    monkeypatch.setattr(store, "append_missing", with_a_deletion)
    assert transfer.import_log(store, log) == transfer.ImportResult(6, 3, 0, 3)
    assert [row.time for row in store.read_user("ann", 9)] == [5_000_000]


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


def test_mistakes_are_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_log(tmp_path / "log.csv")
    monkeypatch.delenv("TALEREC_STORE", raising=False)
    assert "no store; set --store" in refusal("events", "import", path)
    missing = f"sqlite:///{tmp_path}/none.db"
    export = ("events", "export", "--store", missing, "-o", tmp_path / "e.parquet")
    assert "there is no such file" in refusal(*export)
    assert "there is no such file" in refusal("events", "delete-user", "ann", "--store", missing)
    assert not (tmp_path / "none.db").exists()
    assert "must end in" in refusal(
        "events", "export", "--store", missing, "-o", tmp_path / "e.txt"
    )
    assert "is not a store" in refusal("events", "import", path, "--store", "duckdb:///x.duckdb")
    weighted = ("events", "import", path, "--weight", "w", "--store", missing)
    assert "--event-weights are for fit" in refusal(*weighted)
    frame([("x" * 600, "tea", 5)]).write_csv(tmp_path / "long.csv")
    assert f"'{'x' * 40}' has 600 characters" in refusal(
        "events", "import", tmp_path / "long.csv", "--store", missing
    )
    monkeypatch.setenv("TALEREC_STORE", f"sqlite:///{tmp_path}/shop.db")
    works("events", "import", path)
    assert (tmp_path / "shop.db").exists()

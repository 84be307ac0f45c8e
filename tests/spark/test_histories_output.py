"""Tasks write users' rows to a folder, and to a store that a service reads."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import postgres
import talerec as tr
from cluster import fit, inject, killed, skewed, write
from talerec.errors import TalerecError
from talerec.serve.model import ServedModel
from talerec.serve.users import UserHistories
from talerec.store import EventTail, Store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning"),
]


def with_one_item_in_every_history(rows: pl.DataFrame) -> pl.DataFrame:
    users = rows.group_by("user_id", maintain_order=True).agg(pl.col("timestamp").max())
    every = users.select("user_id", pl.lit("in all").alias("item_id"), "timestamp")
    return pl.concat([rows, every])


def test_rows_go_from_tasks_to_a_folder_and_a_store_once(session, tmp_path, monkeypatch):
    """A task is killed on the way, and all is done twice: no row is lost, and none is doubled."""
    from talerec import spark

    rows = with_one_item_in_every_history(skewed(1_500, "item {}"))
    source, log = write(rows, tmp_path / "log"), tr.Log.from_frame(rows)
    folder, out = tmp_path / "rows", tmp_path / "m.tale"
    options = {"task_rows": 800}
    model = fit(tr.SLIST(), source, out, session, histories=folder, **options)
    local = tr.SLIST(solver="local").fit(log)
    np.testing.assert_allclose(model.weights.toarray(), local.weights.toarray(), atol=1e-6)
    written = tr.read_log(folder)
    assert written.to_frame().equals(log.to_frame())
    assert tr.load(out).fitted.log is None
    with postgres.postgres() as server:
        inject(monkeypatch, killed)
        fit(tr.SLIST(), source, out, session, histories=server.address, **options)
        monkeypatch.undo()
        with Store.open(server.address) as store:
            assert store.meta().seq == log.rows
        recent = EventTail(server.address, 2_500)
        users, model = UserHistories(recent, 2_500), ServedModel(out, verify=False)
        for user in (7, 8, 9):  # a service has them, with the order of rows of equal times
            user_rows = log.to_frame().filter(pl.col("user_id") == user)
            rows = users.load(model, str(user))
            assert model.items.ids.gather(rows.item).to_list() == user_rows["item_id"].to_list()
            assert rows.time.tolist() == user_rows["timestamp"].cast(int).to_list()
        recent.close()
        names = spark.Columns(weight="user_id")
        with pytest.raises(TalerecError, match="a store keeps events without weights"):
            fit(tr.TALE(), source, out, session, histories=server.address, names=names)
    for address, message in (
        ("sqlite:///x.db", "users' rows go from Spark to a folder or to postgresql://HOST/NAME"),
        (server.address, "postgresql://shop:.*@127.0.0.1"),  # it has stopped
        (source, "is where the log is read from, and would be overwritten"),
    ):
        with pytest.raises(TalerecError, match=message) as raised:
            fit(tr.SLIST(), source, out, session, histories=address)
        assert postgres.PASSWORD not in str(raised.value)
    left = ["log", "m.tale", "m.weights.parquet", "rows"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left

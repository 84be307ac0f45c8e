"""Users' rows from tasks: in a folder, and in a store that a service answers from; and tables that fail leave nothing."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import postgres
import talerec as tr
from cluster import fit, harmed, killed, skewed, write
from talerec.errors import TalerecError
from talerec.serve.model.served import ServedModel
from talerec.serve.users.histories import Users
from talerec.store.store import Store
from talerec.store.tail import Recent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning"),
]


def with_one_item_in_every_history(rows: pl.DataFrame) -> pl.DataFrame:
    users = rows.group_by("user_id", maintain_order=True).agg(pl.col("timestamp").max())
    every = users.select("user_id", pl.lit("in all").alias("item_id"), "timestamp")
    return pl.concat([rows, every])


def test_rows_go_from_tasks_to_a_folder_and_a_store_once(session, tmp_path, monkeypatch):
    """A task is killed on the way, and all is done twice: no row is lost, and none is there twice."""
    from talerec import spark

    rows = with_one_item_in_every_history(skewed(1_500, "item {}"))
    source, log = write(rows, tmp_path / "log"), tr.Log.from_frame(rows)
    folder, out = tmp_path / "rows", tmp_path / "m.tale"
    how = {"task_rows": 800}
    model = fit(tr.SLIST(), source, out, session, histories=folder, **how)
    alone = tr.SLIST(solver="local").fit(log)
    np.testing.assert_allclose(model.weights.toarray(), alone.weights.toarray(), atol=1e-6)
    found = tr.read_log(folder)
    assert found.to_frame().equals(log.to_frame())
    assert tr.load(out).fitted.log is None
    with postgres.postgres() as server:
        harmed(monkeypatch, killed)
        fit(tr.SLIST(), source, out, session, histories=server.address, **how)
        monkeypatch.undo()
        with Store.open(server.address) as store:
            assert store.meta().seq == log.rows
        recent = Recent(server.address, 2_500)
        users, model = Users(recent, 2_500), ServedModel.open(out, verify=False)
        for user in (7, 8, 9):  # a service knows them, and the order of their simultaneous rows
            mine = log.to_frame().filter(pl.col("user_id") == user)
            rows = users.find(model, str(user))
            assert model.items.ids.gather(rows.item).to_list() == mine["item_id"].to_list()
            assert rows.time.tolist() == mine["timestamp"].cast(int).to_list()
        recent.close()
        names = spark.Columns(weight="user_id")
        with pytest.raises(TalerecError, match="a store keeps events as they are, without weights"):
            fit(tr.TALE(), source, out, session, histories=server.address, names=names)
    for place, said in (
        ("sqlite:///x.db", "users' rows go from Spark to a folder or to postgresql://HOST/NAME"),
        (server.address, "postgresql://shop:.*@127.0.0.1"),  # nobody answers there any more
        (source, "is where the log is read from, and would be overwritten"),
    ):
        with pytest.raises(TalerecError, match=said) as told:
            fit(tr.SLIST(), source, out, session, histories=place)
        assert postgres.PASSWORD not in str(told.value)
    left = ["log", "m.tale", "m.weights.parquet", "rows"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left

"""Whether ids of events are integers or text is settled once; the other kind is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import talerec as tr
from command import talerec
from talerec.errors import InvalidLogError, TalerecError

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from service import send, service_with_store
from talerec.serve import Settings
from talerec.serve.process import learner
from talerec.store import Event, IdKinds, Store, import_log

DAY = 86_400_000_000


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"user_id": "ann", "item_id": 1}, "events[1]: user_id 'ann' is not an integer"),
        ({"user_id": 1, "item_id": "tea"}, "events[1]: item_id 'tea' is not an integer"),
        ({"user_id": "07", "item_id": 1}, "events[1]: user_id '07' is not an integer"),
        ({"user_id": "1.0", "item_id": 1}, "events[1]: user_id '1.0' is not an integer"),
        ({"user_id": "", "item_id": 1}, "events[1]: user_id '' is not an integer"),
        ({"user_id": 2**63, "item_id": 1}, "events[1]: user_id '9223372036854775808' is not"),
        ({"user_id": "x" * 9000, "item_id": 1}, "events[1]: user_id 'xxxxx"),
    ],
)
def test_text_among_integers_is_refused_and_nothing_is_stored(
    saved: Path, tmp_path: Path, bad: dict[str, Any], said: str
) -> None:
    address = f"sqlite:///{tmp_path}/shop.db"
    with service_with_store(saved, tmp_path / "run", address, ids=None) as local:
        answer = send(local, {"user_id": 1, "item_id": "2"}, bad)
        assert (answer.status, answer.code) == (422, "invalid_event")
        assert said in answer.json["error"]["message"]
        assert len(answer.body) < 600
        assert local.get("/v1/stats").json["store"]["seq"] == 0
        assert send(local, {"user_id": "1", "item_id": "2"}).status == 202


def test_a_fit_after_a_refused_event_keeps_integer_ids(
    log: tr.Log, saved: Path, tmp_path: Path
) -> None:
    address = f"sqlite:///{tmp_path}/shop.db"
    path = tr.load(saved).save(tmp_path / "shop.tale")
    late = (int(log.time.max()) + DAY) // 10**6
    with service_with_store(path, tmp_path / "run", address, ids=None) as local:
        assert send(local, {"user_id": "x", "item_id": 1, "timestamp": late}).status == 422
        assert send(local, {"user_id": 1, "item_id": 999, "timestamp": late}).status == 202
    with Store(address) as store:  # as an older version of the service stored it
        store.append([[Event("x", "tea", late * 10**6)]])
    report = learner.learn(path, address)
    assert report is not None
    assert report["rows"] == 1
    assert tr.load(path).fitted.items.ids.dtype == pl.Int64
    assert 999 in tr.load(path).fitted.items.ids.to_list()


def test_the_option_settles_the_kind(saved: Path, tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/shop.db"
    with service_with_store(saved, tmp_path / "a", address, ids="text") as local:
        assert send(local, {"user_id": "ann", "item_id": 1}).status == 202
    with service_with_store(saved, tmp_path / "b", address, ids=None) as local:
        assert send(local, {"user_id": "bob", "item_id": 1}).status == 202  # as recorded
    with service_with_store(saved, tmp_path / "c", address, ids="integer") as local:
        assert send(local, {"user_id": "cid", "item_id": 1}).status == 422
    with pytest.raises(TalerecError, match="`ids` is 'float'; it takes integer or text"):
        Settings(path=saved, ids="float")


@pytest.mark.parametrize(("first", "kind"), [(5, "integer"), ("ann", "text"), ("5", "text")])
def test_without_users_in_the_model_the_first_event_settles_their_kind(
    saved: Path, tmp_path: Path, first: Any, kind: str
) -> None:
    path = tr.load(saved).save(tmp_path / "bare.tale", histories=False)
    address = f"sqlite:///{tmp_path}/shop.db"
    for run, status in (("a", 202), ("b", 422 if kind == "integer" else 202)):
        with service_with_store(path, tmp_path / run, address, ids=None) as local:
            user = first if run == "a" else "zoe"
            assert send(local, {"user_id": user, "item_id": 1}).status == status
    with Store(address) as store:
        assert store.id_kinds() == IdKinds(kind, "integer")


def test_a_model_with_text_ids_accepts_integers_as_text(log: tr.Log, tmp_path: Path) -> None:
    frame = log.to_frame().with_columns(pl.col("user_id").cast(pl.String) + "x")
    path = tr.Popular().fit(tr.Log.from_frame(frame)).save(tmp_path / "text.tale")
    address = f"sqlite:///{tmp_path}/shop.db"
    with service_with_store(path, tmp_path / "run", address, ids=None) as local:
        assert send(local, {"user_id": 5, "item_id": 1}).status == 202
        assert send(local, {"user_id": "5", "item_id": "one"}).status == 422


def log_of(users: list[Any]) -> tr.Log:
    frame = pl.DataFrame({"user_id": users, "item_id": [1] * len(users)})
    return tr.Log.from_frame(frame.with_columns(timestamp=pl.int_range(1, len(users) + 1)))


def test_an_import_settles_the_kind_and_refuses_the_other(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/shop.db") as store:
        assert import_log(store, log_of([1, 2])).added == 2
        assert import_log(store, log_of(["1", "2", "3"])).added == 1
        with pytest.raises(InvalidLogError, match="user_id 'ann' is not an integer"):
            import_log(store, log_of(["4", "ann"]))
        assert store.meta().seq == 3
        assert import_log(store, log_of(["4", "ann"]), ids="text").added == 2
        assert store.id_kinds() == IdKinds("text", "text")


def test_the_import_command_names_its_option(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("user_id,item_id,timestamp\n1,1,5\n2,2,6\n")
    command = ("events", "import", path, "--store", f"sqlite:///{tmp_path}/shop.db")
    assert talerec(*command).code == 0
    path.write_text("user_id,item_id,timestamp\nann,1,5\n")
    failed = talerec(*command)
    assert failed.code == 2
    assert "user_id 'ann' is not an integer" in failed.err
    assert "--ids text" in failed.err
    assert talerec(*command, "--ids", "text").code == 0
    assert talerec(*command, "--ids", "words").code == 2

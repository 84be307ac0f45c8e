"""A new model replaces the one in use, unless it is damaged."""

from __future__ import annotations

import json
import shutil
import weakref
from pathlib import Path
from typing import Any

import pytest

import talerec as tr
from talerec.artifact import read_manifest

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from service import Local, rows

TOKEN = "a-token-for-tests-alone"


@pytest.fixture
def changing(model, tmp_path):
    return Local(model.save(tmp_path / "m.tale"), tmp_path, token=TOKEN)


def reload(local: Local) -> Any:
    return local.ask("POST", "/v1/reload", None, {"authorization": f"Bearer {TOKEN}"})


def ask(local: Local, model: tr.Model) -> Any:
    request = {"history": rows(model.item_ids[:3]), "k": 5}
    return local.post("/v1/recommend", request, authorization=f"Bearer {TOKEN}").json


def test_a_new_model_replaces_the_old_one_and_is_named(changing, log, tmp_path):
    before = reload(changing).json
    assert before["reloaded"] is False
    other = tr.TALE(reg=500).fit(log)
    other.save(tmp_path / "m.tale")
    after = reload(changing).json
    assert after["reloaded"] is True
    assert after["model"] == read_manifest(tmp_path / "m.tale")["version"] != before["model"]
    answer = ask(changing, other)
    expected = other.recommend_histories([other.item_ids[:3].to_list()], k=5)
    assert answer["model"] == after["model"]
    assert [item["score"] for item in answer["items"]] == expected["score"].to_list()


def test_a_replaced_model_is_freed_at_once(changing, log, tmp_path):
    """Its memory must not wait for the garbage collector, which ignores frozen models."""
    ask(changing, changing.app.holder.current.model)
    before = weakref.ref(changing.app.holder.current)
    tr.TALE(reg=500).fit(log).save(tmp_path / "m.tale")
    assert reload(changing).json["reloaded"] is True
    assert before() is None


def install_damaged(target: Path, log: Any, tmp_path: Path, part: str) -> None:
    """Replace the artifact by a model with one wrong byte in the file of `part`."""
    other = tr.TALE(reg=500).fit(log).save(tmp_path / "other.tale")
    manifest = json.loads((other / "manifest.json").read_text())
    file = other / manifest["files"][part]["file"]
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    for file_path in sorted(other.iterdir()):
        if file_path.suffix in (".npy", ".parquet"):
            shutil.copy(file_path, target)
    shutil.copy(other / "manifest.json", target)


@pytest.mark.parametrize("part", ["weights", "items", "time"])
def test_a_damaged_model_is_refused_and_the_old_one_stays(changing, model, log, tmp_path, part):
    before = ask(changing, model)
    install_damaged(tmp_path / "m.tale", log, tmp_path, part)
    answer = reload(changing)
    assert (answer.status, answer.code) == (409, "artifact_refused")
    assert "hash does not match" in answer.json["error"]["message"]
    assert ask(changing, model) == before
    assert changing.get("/health/ready").status == 200


def test_deleting_the_artifact_does_not_affect_the_model_in_use(changing, model, tmp_path):
    before = ask(changing, model)
    shutil.rmtree(tmp_path / "m.tale")
    assert reload(changing).status == 409
    assert ask(changing, model) == before

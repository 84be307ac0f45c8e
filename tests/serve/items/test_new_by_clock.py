"""Items dated after the end of the log are new by the clock of the service."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import talerec as tr

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("sklearn", reason="the extra content is not installed")

from service import rows, service_with_store
from talerec.models.tempo.content import ContentWeights
from talerec.models.tempo.content_learning import LearnedContent

WEIGHTS = ContentWeights((0.03, 0.02, 0.01), 4.0, 90.0)
NEW = {"title": "tent number 900", "tags": ["red", "size 1"], "since": "2026-11-18"}
HISTORY = [0, 4, 8]


def microseconds(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 10**6)


@pytest.fixture
def tempo(shop: tr.Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    name = "talerec.models.tempo.content_learning.learn_content_weights"
    monkeypatch.setattr(
        name, lambda fit, rows, tempo: LearnedContent(WEIGHTS, None, 0.01, 0.002, 99)
    )
    table = shop.info.vstack(shop.info[:1].with_columns(item_id=100 + shop.info["item_id"][:1]))
    model = tr.Tempo(learn="off").fit(shop.with_items(table))
    assert model.scores_catalogue
    return model.save(tmp_path / "tempo.tale")


def test_an_item_put_today_is_new_today(
    tempo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service_with_store(
        tempo, tmp_path / "run", f"sqlite:///{tmp_path}/shop.db", ids="integer"
    ) as local:

        def scores(path: str = "/v1/recommend", **more: Any) -> dict[int, float]:
            body = {"history": rows(HISTORY), "k": 26, **more}
            return {each["item_id"]: each["score"] for each in local.post(path, body).json["items"]}

        def set_clock(text: str) -> None:
            monkeypatch.setattr("talerec.store.clock.time_ns", lambda: 1000 * microseconds(text))

        assert local.ask("PUT", "/v1/items/900", NEW).status == 200
        set_clock("2026-11-17T23:59:59")
        before = scores()
        late = "2026-11-19T12:00:00Z"
        explicit = scores(as_of=late)
        early = "2020-09-20T00:00:00Z"
        unpublished = scores(as_of=early)
        taste = (explicit[900] - before[900]) / (0.03 * 4 * np.exp(-1.5 / 90))
        for text, age in (("2026-11-18T00:00:00", 0), ("2026-11-28T06:00:00", 10.25)):
            set_clock(text)
            after = scores()
            assert before.keys() == after.keys()
            gain = after.pop(900) - before[900]
            assert after == {item: score for item, score in before.items() if item != 900}
            # untimed histories have no taste of their own
            np.testing.assert_allclose(gain, 0.03 * 4 * np.exp(-age / 90), rtol=1e-5)
            assert scores(as_of=late) == explicit
            assert scores(as_of=early) == unpublished
        set_clock("2026-11-18T00:00:00")
        found = local.post("/v1/explain", {"history": rows(HISTORY), "item_id": 900}).json
        assert abs(found["score"] - scores()[900]) < 1e-6
        assert abs(sum(each["contribution"] for each in found["families"]) - found["score"]) < 1e-6
        named = {each["family"]: each["reason"] for each in found["families"]}
        assert named["newness"] == "new: 2026-11-18"
        assert named["content"].startswith("tags: red")
        list_ = local.post("/v1/recommend", {"history": rows(HISTORY), "k": 26}).json["items"]
        because = next(each["because"] for each in list_ if each["item_id"] == 900)
        assert {each["item_id"] for each in because} <= set(HISTORY)
        assert because
        assert taste > 0

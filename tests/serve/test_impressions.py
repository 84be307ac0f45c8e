"""What was shown: ids of answers, impressions in the store, clicks, deletion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service import Local
from talerec.store import IdSigner, Impression, ImpressionStore, now_us
from waiting import until


@pytest.fixture
def shop(saved: Path, tmp_path: Path) -> Any:
    """A service that keeps all impressions; its threads run."""
    address = f"sqlite:///{tmp_path}/shop.db"
    ImpressionStore.open(address).close()
    local = Local(saved, tmp_path / "run", store=address, impressions=1.0, ids="text")
    local.app.start()
    yield local
    local.app.stop()


def show(local: Local, user: str) -> dict[str, Any]:
    answer: dict[str, Any] = local.post("/v1/recommend", {"user_id": user, "k": 5}).json
    return answer


def figures(local: Local, n_answers: int, n_clicks: int) -> dict[str, Any]:
    """Return the figures of /v1/stats once they count so many answers and clicks."""

    def read() -> Any:
        counts = local.get("/v1/stats").json["impressions"]
        is_there = counts.get("answers") == n_answers and counts.get("clicks") == n_clicks
        return counts if is_there else None

    return until(read)


def test_clicks_by_id_and_by_window_are_counted_once(shop: Local) -> None:
    first, second = show(shop, "ann"), show(shop, "bob")
    item = str(first["items"][1]["item_id"])
    named = {"user_id": "ann", "item_id": item, "recommendation_id": first["recommendation_id"]}
    plain = {"user_id": "bob", "item_id": str(second["items"][0]["item_id"])}
    assert shop.post("/v1/events", {"events": [named, named, plain]}).json["accepted"] == 3
    counts = figures(shop, 2, 2)
    assert counts["impressions"] == 10
    assert counts["by_model"][first["model"]]["clicks"] == 2
    assert [counts["by_rank"][str(rank)]["clicks"] for rank in range(1, 6)] == [1, 1, 0, 0, 0]
    assert counts["not_clicks"]["repeated"] == 1


def test_forged_and_malformed_ids_have_their_answers(shop: Local) -> None:
    event = {"user_id": "ann", "item_id": "1"}
    forged = {**event, "recommendation_id": IdSigner(b"another").make_id(now_us())}
    answer = shop.post("/v1/events", {"events": [forged]})
    assert answer.json["accepted"] == answer.json["unknown_recommendations"] == 1
    malformed = shop.post("/v1/events", {"events": [{**event, "recommendation_id": "x"}]})
    assert (malformed.status, malformed.code) == (422, "invalid_event")


def test_a_deleted_user_leaves_no_impression_not_even_a_late_one(shop: Local) -> None:
    show(shop, "ann")
    figures(shop, 1, 0)
    late = Impression("0" * 38, "ann", now_us(), "v", "current", None, None, '["1"]', None, None)
    assert shop.ask("DELETE", "/v1/users/ann").status == 200
    with ImpressionStore(shop.app.settings.store or "") as store:
        assert store.write_impressions([late]) == 0
        assert store.read_user_impressions("ann") == []

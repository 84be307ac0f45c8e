"""Details of requests and error messages; the OpenAPI document agrees with the service."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

import talerec as tr
from talerec.errors import TalerecError

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

import msgspec

from service import Local
from talerec.models.core import RecommendOptions
from talerec.serve import Settings, schemas
from talerec.serve.decoding import parse_validation_error
from talerec.serve.http.user_routes import UserRoutes
from talerec.serve.model.learnable import write_learning_state
from talerec.serve.model.queries import FilterCache

TOKEN = "a-token-for-tests-alone"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    log = tr.synthetic_log(800, users=60, items=40, seed=3)
    return tr.TALE(reg=20).fit(log).save(tmp_path_factory.mktemp("models") / "shop.tale")


@pytest.fixture(scope="module")
def service(saved, tmp_path_factory):
    return Local(saved, tmp_path_factory.mktemp("run"))


LONG = "x" * 900_000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/similar", {"item_id": LONG}),
        ("/v1/explain", {"history": [], "item_id": LONG}),
        ("/v1/recommend", {"history": [{"item_id": 1, "timestamp": LONG}]}),
        ("/v1/recommend", {"history": [], "as_of": LONG}),
        ("/v1/recommend", {"history": [], "as_of": "9" * 900_000}),
        ("/v1/recommend", {"history": [], LONG: 1}),
        ("/v1/recommend", {"history": [], "k": LONG}),
    ],
)
def test_an_error_does_not_repeat_a_long_value(service, path, body):
    answer = service.post(path, body)
    assert answer.status in (404, 422)
    assert answer.code in ("invalid", "unknown_item")
    assert len(answer.body) < 1000


@pytest.mark.parametrize("junk", ["yesterday", "2024-13-01", "", "2024-01-01T25:00:00Z", "nan"])
def test_invalid_times_are_named_as_such(service, junk):
    for body in ({"history": [{"item_id": 1, "timestamp": junk}]}, {"history": [], "as_of": junk}):
        message = service.post("/v1/recommend", body).json["error"]["message"]
        assert "is not a time" in message
        assert "beyond any date" not in message


@pytest.mark.parametrize("late", ["1e300", "99999999999999999999"])
def test_times_beyond_any_date_are_named_as_such(service, late):
    message = service.post("/v1/recommend", {"history": [], "as_of": late}).json["error"]["message"]
    assert "is beyond any date" in message


def test_whole_numbers_may_be_written_as_decimals(service):
    """JSON Schema calls 28.0 an integer, and so do clients generated from it."""
    plain = {"history": [{"item_id": 3}, {"item_id": 5}], "k": 7, "deny": [2]}
    expected = service.post("/v1/recommend", plain).body
    decimal = b'{"history": [{"item_id": 3.0}, {"item_id": 5.0}], "k": 7.0, "deny": [2.0]}'
    assert service.post("/v1/recommend", decimal).body == expected
    assert service.post("/v1/recommend", b'{"history": [], "k": 7.5}').code == "invalid"
    assert service.post("/v1/recommend", b'{"history": [{"item_id": 3.5}]}').code == "invalid"
    assert service.post("/v1/recommend", b'{"history": [], "k": 1e30}').code == "invalid"


@pytest.mark.parametrize(
    ("body", "violation"),
    [
        ('{"item_id": 1, "k": "x"}', ("k", "expected int, got str", False)),
        ('{"item_id": 1, "k": 2.5}', ("k", "expected int, got float", True)),
        ('{"k": 1}', ("", "item_id is missing", False)),
        ('{"item_id": 1, "z": 1}', ("", "there is no field z", False)),
        ('{"item_id": [1]}', ("item_id", "expected int | str, got array", False)),
    ],
)
def test_errors_of_msgspec_are_parsed(body, violation):
    """msgspec reports the place and kind of an error only in its message."""
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.json.decode(body, type=schemas.SimilarRequest)
    assert parse_validation_error(raised.value) == violation


def test_rows_may_have_null_timestamps(service):
    plain = {"history": [{"item_id": 3}, {"item_id": 5}], "k": 7}
    nulls = {**plain, "history": [{"item_id": 3, "timestamp": None}, {"item_id": 5}]}
    assert service.post("/v1/recommend", nulls).body == service.post("/v1/recommend", plain).body
    history = service.get("/openapi.json").json["components"]["schemas"]["RecommendRequest"][
        "properties"
    ]["history"]
    forms = [form["items"]["properties"]["timestamp"] for form in history["anyOf"]]
    assert forms[0] == {"type": "null"}
    assert "anyOf" in forms[1]
    mixed = {"history": [{"item_id": 3, "timestamp": 1}, {"item_id": 5}]}
    assert service.post("/v1/recommend", mixed).code == "invalid"


def test_allowing_every_origin_needs_a_token(saved, tmp_path):
    with pytest.raises(TalerecError, match="set a token"):
        Settings(path=saved, cors=("*",))
    for wrong in ("shop.example", "https://shop.example/", "https://*.example", ""):
        with pytest.raises(TalerecError, match="is not an origin"):
            Settings(path=saved, cors=(wrong,))
    for wrong in ("*", "https://cdn.example; script-src *", "https://cdn.example/x"):
        with pytest.raises(TalerecError, match="is not an origin"):
            Settings(path=saved, images=(wrong,), token=TOKEN)
    local = Local(saved, tmp_path, cors=("*",), token=TOKEN)
    allowed = {"origin": "https://any.example", "authorization": f"Bearer {TOKEN}"}
    answer = local.get("/v1/model", **allowed)
    assert answer.headers["access-control-allow-origin"] == "https://any.example"
    early = local.ask("OPTIONS", "/v1/recommend", None, {"origin": "https://any.example"})
    assert early.status == 204
    assert "access-control-allow-origin" not in local.get("/v1/model").headers


def test_the_ids_of_the_answers_are_exact(tmp_path):
    """JSON numbers have any size; clients that read numbers as floats may send text."""
    import polars as pl

    big = 2**60
    rows = pl.DataFrame(
        {
            "user_id": [n // 4 for n in range(80)],
            "item_id": [big + n % 7 for n in range(80)],
            "timestamp": [1_600_000_000 + 86_400 * n for n in range(80)],
        }
    )
    model = tr.Markov().fit(tr.Log.from_frame(rows))
    local = Local(model.save(tmp_path / "m.tale"), tmp_path)
    body = {"history": [{"item_id": str(big + 1)}], "k": 3}
    answer = local.post("/v1/recommend", body)
    assert {item["item_id"] for item in json.loads(answer.body)["items"]} <= {
        big + n for n in range(7)
    }
    assert (
        answer.body == local.post("/v1/recommend", {**body, "history": [{"item_id": big + 1}]}).body
    )


@pytest.mark.parametrize("learned", [None, {"at": 9.5, "rows": 70, "seconds": 1.5}])
def test_metrics_of_background_fits_are_zero_before_the_first(tmp_path, learned):
    routes = SimpleNamespace(_shared=SimpleNamespace(folder=tmp_path))
    assert UserRoutes._learning_metrics(routes) == {}
    state = {"state": "waiting"} if learned is None else {"learned": learned, "failures": 3}
    write_learning_state(tmp_path, state)
    assert list(UserRoutes._learning_metrics(routes).values()) == (
        [0, 0, 0, 0] if learned is None else [9.5, 70, 1.5, 3]
    )


@pytest.mark.parametrize(
    ("options", "is_slow"),
    [
        ({}, False),
        ({"allow": range(600), "deny": range(400)}, False),
        ({"allow": range(600), "deny": range(401)}, True),
        ({"deny": range(1001)}, True),
        ({"allow": range(1001)}, True),
        ({"per": {"genre": 1}}, True),
    ],
)
def test_long_lists_of_ids_and_limits_are_slow_filters(options, is_slow):
    model = SimpleNamespace(fitted=SimpleNamespace(items=range(100)))
    assert FilterCache(model).is_slow(RecommendOptions(**options)) is is_slow

"""The page, the OpenAPI document and the metrics of the service."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from service import Local
from talerec.serve import SharedState
from talerec.serve import page as static
from talerec.serve.http.routes import COUNTED_PATHS, OTHER

TOKEN = "a-token-for-tests-alone"


def test_the_page_has_a_strict_policy_and_names_no_other_host(service):
    page = service.get("/")
    policy = dict(
        part.split(" ", 1) for part in page.headers["content-security-policy"].split("; ")
    )
    assert policy.pop("default-src") == "'none'"
    assert set(policy.values()) == {"'self'", "'none'"}
    assert service.ask("GET", "/", None, {"if-none-match": page.headers["etag"]}).status == 304
    assert {"/", "/page.js", "/style.css"} <= set(static.FILES)
    for path, (body, _) in static.FILES.items():
        hosts = re.findall(rb"https?://[^\"' ]+", body)
        assert set(hosts) <= {b"http://www.w3.org/2000/svg"}, path
        assert b"innerHTML" not in body


def test_every_example_in_the_openapi_document_is_answered(service):
    document = service.get("/openapi.json").json
    n_examples = 0
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {})
            for example in content.get("application/json", {}).get("examples", {}).values():
                answer = service.post(path, example["value"])
                assert answer.status == 200, (path, answer)
                n_examples += 1
            if method == "get":
                one = path.replace("{user_id}", "1").replace("{item_id}", "1")
                assert service.get(one).status == 200
    assert n_examples == 5


def test_the_openapi_document_has_the_limits_of_this_service(saved, tmp_path):
    local = Local(saved, tmp_path, max_history=7, token=TOKEN)
    document = local.get("/openapi.json", authorization=f"Bearer {TOKEN}").json
    schema = document["components"]["schemas"]["RecommendRequest"]["properties"]
    assert [form["maxItems"] for form in schema["history"]["anyOf"]] == [7, 7]
    assert schema["k"]["maximum"] == 150
    assert document["paths"]["/v1/model"]["get"]["security"] == [{"token": []}]
    assert "401" in document["paths"]["/v1/model"]["get"]["responses"]


def test_metrics_are_the_sum_of_all_workers(tmp_path):
    states = [SharedState(tmp_path, 2, worker, ("/a", "/b")) for worker in range(2)]
    states[0].record("/a", 200, 0.002)
    states[1].record("/a", 200, 0.2)
    states[1].record("/b", 503, 99.0)
    states[1].increment("fallbacks", 3)
    states[0].set_version("00000000000000ab")
    texts = [state.prometheus_text().decode() for state in states]
    for text in texts:
        assert 'talerec_requests_total{route="/a",status="200"} 2\n' in text
        assert 'talerec_requests_total{route="/b",status="503"} 1\n' in text
        assert 'talerec_request_seconds_bucket{route="/a",le="0.0025"} 1\n' in text
        assert 'talerec_request_seconds_bucket{route="/a",le="+Inf"} 2\n' in text
        assert 'talerec_request_seconds_sum{route="/a"} 0.202\n' in text
        assert "talerec_fallbacks_total 3\n" in text
        assert 'talerec_model_workers{version="00000000000000ab"} 1\n' in text
    restarted = SharedState(tmp_path, 2, 1, ("/a", "/b"))
    assert "talerec_fallbacks_total 3\n" in restarted.prometheus_text().decode()


def test_every_route_is_counted_by_its_own_name(service):
    assert set(service.app.api.routes) | {OTHER} == set(COUNTED_PATHS)


def test_prometheus_can_parse_the_metrics(service):
    parser = pytest.importorskip("prometheus_client.parser", reason="needs prometheus_client")
    service.post("/v1/recommend", {"history": []})
    text = service.get("/metrics").body.decode()
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    assert families["talerec_requests"].type == "counter"
    counts = {
        sample.labels["route"]: sample.value
        for sample in families["talerec_request_seconds"].samples
        if sample.name.endswith("_count")
    }
    samples = [
        s for s in families["talerec_requests"].samples if s.labels["route"] == "/v1/recommend"
    ]
    assert counts["/v1/recommend"] == sum(sample.value for sample in samples)

"""Operating the service: ids, logs, traces, compression, tags, sockets, metrics."""

from __future__ import annotations

import gzip
import http.client
import json
import logging
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import talerec as tr
from talerec.errors import TalerecError

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from service import START, Local, Remote, leave_out_id
from talerec.serve import Settings, shared
from talerec.serve.http import app as http_app
from talerec.serve.http import tracing
from talerec.serve.process.logs import JsonLines
from waiting import LONG_S

TOKEN = "a-token-for-tests-alone"
ASK = {"history": [{"item_id": 3}], "k": 5}
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def models(log, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return [tr.TALE(reg=reg).fit(log).save(folder / f"shop-{reg}.tale") for reg in (20, 500)]


@pytest.fixture(scope="module")
def service(models, tmp_path_factory):
    return Local(models[0], tmp_path_factory.mktemp("run"))


# -- ids, logs, traces -----------------------------------------------------------------------------


def test_every_answer_has_the_id_of_its_request(service):
    assert (
        service.get("/health/live", **{"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    )
    new_ids = [service.post("/v1/recommend", ASK).headers["x-request-id"] for _ in range(3)]
    assert len(set(new_ids)) == 3
    for bad in ("", "a b", "x" * 65, "ä"):
        assert service.get("/nowhere", **{"x-request-id": bad}).headers["x-request-id"] != bad


def test_debug_logs_every_request(models, tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "talerec")
    local = Local(models[0], tmp_path)
    local.post("/v1/recommend", ASK, **{"x-request-id": "abc-1"})
    record = caplog.records[-1]
    assert record.fields["request_id"] == "abc-1"
    assert (record.fields["path"], record.fields["status"]) == ("/v1/recommend", 200)
    line = json.loads(JsonLines().format(record))
    assert {"time", "level", "message", "request_id", "seconds", "model", "bytes"} <= set(line)
    assert line["level"] == "debug"


def test_a_failure_is_logged_with_its_request_and_its_cause(models, tmp_path, caplog, monkeypatch):
    local = Local(models[0], tmp_path)
    monkeypatch.setattr(local.app.holder.current, "search", lambda *_: 1 / 0)
    local.get("/v1/items", **{"x-request-id": "abc-2"})
    line = json.loads(JsonLines().format(caplog.records[-1]))
    assert (line["level"], line["request_id"]) == ("error", "abc-2")
    assert "ZeroDivisionError" in line["exception"]


def test_the_command_logs_json_lines(models, tmp_path):
    options = ["--port", "0", "--log-format", "json", "--log-level", "debug"]
    command = [sys.executable, "-c", START, "serve", str(models[0]), *options]
    errors = tmp_path / "errors"
    with errors.open("w") as out:
        started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=out, text=True)
        try:
            address = started.stdout.readline().split(" at ")[1].split()[0]
            urllib.request.urlopen(f"{address}health/live", timeout=LONG_S).close()
        finally:
            started.terminate()
            started.communicate(timeout=LONG_S)
    lines = [json.loads(line) for line in errors.read_text().splitlines()]
    assert [line for line in lines if line.get("path") == "/health/live"]
    assert {line["level"] for line in lines} <= {"debug", "info"}


def test_there_are_no_traces_without_environment_variables_or_packages(monkeypatch, caplog):
    assert tracing.build_tracer({}) is None
    assert tracing.build_tracer({"OTEL_TRACES_EXPORTER": "none"}) is None
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    assert tracing.build_tracer({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}) is None
    assert "is not installed" in caplog.text


def test_a_request_is_a_span_of_the_trace_in_its_header(models, tmp_path, monkeypatch):
    trace = pytest.importorskip("opentelemetry.sdk.trace", reason="needs the extra trace")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    spans, provider = InMemorySpanExporter(), trace.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(http_app, "build_tracer", lambda: tracing.Tracer(provider))
    local = Local(models[0], tmp_path)
    parent = f"00-{'ab' * 16}-{'cd' * 8}-01"
    local.post("/v1/recommend", ASK, traceparent=parent)
    local.get("/v1/users/nobody")
    first, second = spans.get_finished_spans()
    assert first.name == "POST /v1/recommend"
    assert first.context.trace_id == int("ab" * 16, 16)
    assert first.parent.span_id == int("cd" * 8, 16)
    assert first.attributes["http.response.status_code"] == 200
    assert first.attributes["talerec.model"] == local.app.holder.current.version
    assert second.name == "GET /v1/users/{user_id}"
    assert second.attributes["http.response.status_code"] == 404


# -- compression and tags --------------------------------------------------------------------------


def test_large_responses_are_compressed_for_clients_that_accept_gzip(service):
    large, small = {**ASK, "k": 100}, {**ASK, "k": 1}
    plain = service.post("/v1/recommend", large)
    assert "content-encoding" not in plain.headers
    for accepted in ("gzip", "br, gzip;q=0.8", "*"):
        packed = service.post("/v1/recommend", large, **{"accept-encoding": accepted})
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.headers["vary"] == "accept-encoding"
        assert int(packed.headers["content-length"]) == len(packed.body) < len(plain.body) / 2
        assert leave_out_id(gzip.decompress(packed.body)) == plain.body
    for refused in ("gzip;q=0", "identity", "br"):
        answer = service.post("/v1/recommend", large, **{"accept-encoding": refused})
        assert "content-encoding" not in answer.headers
    answer = service.post("/v1/recommend", small, **{"accept-encoding": "gzip"})
    assert "content-encoding" not in answer.headers
    page = service.get("/page.js", **{"accept-encoding": "gzip"})
    assert gzip.decompress(page.body) == service.get("/page.js").body


@pytest.mark.parametrize(
    "path", ["/v1/model", "/v1/items?q=3", "/v1/items?id=3&id=5", "/openapi.json", "/"]
)
def test_unchanged_responses_are_not_sent_twice(service, path):
    first = service.get(path)
    tag = first.headers["etag"]
    repeated = service.get(path, **{"if-none-match": f'"other", {tag}'})
    assert (repeated.status, repeated.body, repeated.headers["etag"]) == (304, b"", tag)
    assert service.get(path, **{"if-none-match": '"other"'}).body == first.body


def test_a_new_model_has_other_tags(models, tmp_path):
    tags = [
        Local(path, tmp_path / str(n)).get("/v1/model").headers["etag"]
        for n, path in enumerate(models)
    ]
    assert tags[0] != tags[1]


# -- names, clients, sockets -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200), ("localhost", 200), ("LOCALHOST:80", 200), ("[::1]:8080", 200),
        ("10.1.2.3", 200), ("shop.example:8080", 200), ("evil.example", 421), ("", 421),
        ("localhost.evil.example", 421), ("127.0.0.1.evil", 421), ("shop.example.", 421),
        ("user@localhost", 421),
    ],
)  # fmt: skip
def test_only_host_names_of_this_service_are_accepted(models, tmp_path, host, status):
    """A page whose host name resolves to 127.0.0.1 sends that name (DNS rebinding)."""
    local = Local(models[0], tmp_path, host_names=("shop.example",))
    for path in ("/v1/model", "/", "/health/live", "/metrics"):
        answer = local.get(path, host=host)
        assert answer.status == status
        assert status == 200 or answer.code == "wrong_host"


def test_public_addresses_accept_any_host_name_unless_names_are_set(models, tmp_path):
    anybody = Local(models[0], tmp_path / "a", host="0.0.0.0", token=TOKEN)
    assert anybody.get("/health/live", host="any.example").status == 200
    named = Local(
        models[0], tmp_path / "b", host="0.0.0.0", token=TOKEN, host_names=("shop.example",)
    )
    assert named.get("/health/live", host="any.example").status == 421
    assert named.get("/health/live", host="shop.example").status == 200


def test_requests_of_one_client_are_limited(models, tmp_path):
    local = Local(models[0], tmp_path, per_client=2)
    answers = local.ask_all(
        [("POST", "/v1/similar", {"item_id": 3})] * 5, {"content-type": "application/json"}
    )
    assert sorted(answer.status for answer in answers) == [200, 200, 429, 429, 429]
    refused = next(answer for answer in answers if answer.status == 429)
    assert (refused.code, refused.headers["retry-after"]) == ("too_many", "1")
    assert local.post("/v1/similar", {"item_id": 3}).status == 200  # the others have ended
    assert not local.app._access._clients


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=LONG_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(LONG_S)
        self.sock.connect(str(self._path))


def start_service(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    """Return the process of `talerec serve` and the first line that it prints."""
    command = [sys.executable, "-c", START, "serve", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    return process, process.stdout.readline()


def run_service(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `talerec serve` until it ends."""
    command = [sys.executable, "-c", START, "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LONG_S)


def test_it_listens_on_a_unix_socket(models, tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))  # left by a service that was killed
    process, line = start_service(str(models[0]), "--unix", str(path), "--workers", "2")
    try:
        assert f"unix:{path}" in line
        for _ in range(5):
            connection = UnixConnection(path)
            connection.request(
                "POST", "/v1/recommend", json.dumps(ASK), {"content-type": "application/json"}
            )
            assert connection.getresponse().status == 200
            connection.close()
        second = run_service(str(models[0]), "--unix", str(path))
        assert (second.returncode, "cannot listen on" in second.stderr) == (2, True)
    finally:
        process.terminate()
        assert process.wait(LONG_S) == 0
    assert not path.exists()
    process.stdout.close()


def test_an_invalid_choice_lists_the_valid_ones(models):
    with pytest.raises(TalerecError, match="`log_level` is 'loud'; it takes debug or info"):
        Settings(path=models[0], log_level="loud")
    with pytest.raises(TalerecError, match="same name"):
        Settings(path=models[0], beside=(Path("a/m.tale"), Path("b/m.tale")))


# -- users, items, further models ------------------------------------------------------------------


def test_a_user_of_the_log_is_found_with_its_history(service, log):
    users = service.get("/v1/users?q=2&limit=5").json["users"]
    assert users == [2, 20, 21, 22, 23]
    user = service.get("/v1/users/20").json
    place = log.users.ids.to_list().index(20)
    rows = slice(log.ptr[place], log.ptr[place + 1])
    assert user["user_id"] == 20
    assert [row["item_id"] for row in user["history"]] == log.items.ids.gather(
        log.item[rows]
    ).to_list()
    assert service.post("/v1/recommend", {"history": user["history"]}).status == 200
    for unknown in ("nobody", "-1", "20x", "%20", "1/2"):
        answer = service.get(f"/v1/users/{unknown}")
        assert (answer.status, answer.code) == (404, "unknown_user")
    assert service.get("/v1/users?id=3").status == 422


def test_users_histories_need_a_token_beyond_this_machine(models, log, tmp_path):
    local = Local(models[0], tmp_path / "open", host="0.0.0.0", open=True)
    for path in ("/v1/users", "/v1/users/20"):
        assert local.get(path).code == "no_token"
    bare = tr.TALE().fit(log).save(tmp_path / "bare.tale", histories=False)
    assert Local(bare, tmp_path / "bare").get("/v1/users/20").code == "no_histories"


def test_items_are_found_by_id_with_their_columns(service, log):
    items = service.get("/v1/items?id=5&id=nothing&id=3").json["items"]
    assert [item["item_id"] for item in items] == [5, 3]
    rows = {row["item_id"]: row for row in log.info.to_dicts()}
    for item in items:
        assert item["title"] == rows[item["item_id"]]["title"]
        assert item["info"] == {"category": rows[item["item_id"]]["category"]}
    values = service.get("/v1/model").json["columns"]["category"]["values"]
    assert values == sorted(set(log.info["category"]))
    many = "&".join(f"id={n}" for n in range(101))
    assert service.get(f"/v1/items?{many}").code == "list_too_long"


def test_the_parameter_beside_chooses_another_model(models, tmp_path):
    local = Local(models[0], tmp_path, beside=(models[1],))
    local.app.load()
    name = models[1].stem
    assert local.get("/v1/model").json["beside"] == [name]
    first, second = (
        local.post("/v1/recommend", ASK).json,
        local.post(f"/v1/recommend?beside={name}", ASK).json,
    )
    assert first["model"] == local.app.holder.current.version != second["model"]
    expected = tr.load(models[1]).recommend_histories([[3]], 5)["score"].to_list()
    assert [item["score"] for item in second["items"]] == expected
    assert local.get(f"/v1/items?q=3&beside={name}").json["model"] == second["model"]
    assert local.post("/v1/recommend?beside=none", ASK).code == "unknown_model"
    described = local.get("/openapi.json").json["paths"]["/v1/recommend"]["post"]["parameters"]
    assert described[0]["schema"] == {"enum": [name]}


def test_a_service_of_one_model_refuses_the_parameter_beside(service):
    for path in ("/v1/recommend?beside=nonsense", "/v1/recommend?k=1&beside="):
        answer = service.post(path, ASK)
        assert (answer.status, answer.code) == (422, "unknown_model")
        assert "this service has one model" in answer.json["error"]["message"]
    assert service.get("/v1/items?q=3&beside=nonsense").code == "unknown_model"


# -- metrics and their readers ---------------------------------------------------------------------


def test_every_metric_has_a_line_of_help(service):
    text = service.get("/metrics").body.decode()
    named = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    helped = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP")}
    others = ("talerec_learn", "talerec_catalogue")  # with --learn, and with a store
    learning = {name for name in shared.HELP if name.startswith(others)}
    assert named == helped == set(shared.HELP) - learning


def test_the_dashboard_uses_only_existing_metrics(service):
    board = json.loads((ROOT / "deploy" / "grafana.json").read_text())
    expressions = [
        target["expr"] for panel in board["panels"] for target in panel.get("targets", ())
    ]
    assert len(expressions) >= 8
    text = service.get("/metrics").body.decode()
    import re

    for expression in expressions:
        for name in re.findall(r"talerec_\w+", expression):
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            assert f"# TYPE {name} " in text or f"# TYPE {base} histogram" in text, name


def test_operation_ids_are_unique(service):
    paths = service.get("/openapi.json").json["paths"]
    names = [
        operation["operationId"] for methods in paths.values() for operation in methods.values()
    ]
    assert len(names) == len(set(names)) == 16


def test_a_service_of_two_workers_serves_two_models(models):
    service = Remote(models[0], "--workers", "2", "--beside", str(models[1]))
    versions = {
        service.ask("POST", f"/v1/recommend?beside={models[1].stem}", ASK).json["model"]
        for _ in range(8)
    }
    assert len(versions) == 1
    assert service.ask("POST", "/v1/recommend", ASK).json["model"] not in versions
    assert service.stop() == 0

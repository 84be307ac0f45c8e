"""The running service: hostile clients, several workers, reloads, and its shutdown."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import talerec as tr
from talerec.artifact import read_manifest

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from processes import workers_of
from service import START, Answer, Remote, read_answer
from waiting import LONG_S, until

TOKEN = "a-token-for-tests-alone"
HEAD = b"POST /v1/recommend HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def service(saved):
    remote = Remote(saved, "--timeout", "60", "--max-body", "40000000")
    yield remote
    assert remote.stop() == 0


@pytest.fixture(scope="module")
def hasty(saved):
    """A service with short timeouts, for tests of the timeouts alone."""
    remote = Remote(saved, "--timeout", "2")
    yield remote
    assert remote.stop() == 0


@pytest.fixture
def with_store(saved, tmp_path):
    """A service with a store."""
    remote = Remote(saved, "--store", f"sqlite:///{tmp_path}/shop.db")
    yield remote
    assert remote.stop() == 0


@contextmanager
def check_same_answers(service: Remote) -> Iterator[Remote]:
    request = {"history": [{"item_id": 1}], "k": 3}
    before = service.ask("POST", "/v1/recommend", request).json
    yield service
    assert service.ask("POST", "/v1/recommend", request).json == before
    assert service.metric('talerec_requests_total{route="/v1/recommend",status="500"}') == 0


@pytest.fixture
def alive(service):
    """A service that must answer after the test as before it."""
    with check_same_answers(service) as remote:
        yield remote


@pytest.fixture
def alive_hasty(hasty):
    with check_same_answers(hasty) as remote:
        yield remote


def refuse_raw(service: Remote, raw: bytes) -> tuple[int, str]:
    with service.connect() as connection:
        connection.sendall(raw)
        answer = read_answer(connection)
        return answer.status, answer.code


# -- hostile clients -------------------------------------------------------------------------------


def test_slow_headers_get_408(alive_hasty):
    """Slow-loris: a little at a time, and never the end."""
    end = time.monotonic() + LONG_S
    with alive_hasty.connect() as connection:
        connection.sendall(b"POST /v1/recommend HTTP/1.1\r\n")
        answer = None
        while answer is None and time.monotonic() < end:
            try:
                connection.sendall(b"x-slow: 1\r\n")
                connection.settimeout(0.2)
                answer = read_answer(connection)
            except TimeoutError:
                continue
    assert answer is not None
    assert (answer.status, answer.code) == (408, "too_slow")


def test_a_silent_client_gets_408(alive_hasty):
    with alive_hasty.connect() as connection:
        answer = read_answer(connection)
    assert (answer.status, answer.code) == (408, "too_slow")


def test_a_slow_body_gets_408(alive_hasty):
    head = HEAD + b"content-length: 50\r\n\r\n{"
    assert refuse_raw(alive_hasty, head) == (408, "too_slow")


def test_many_slow_clients_do_not_block_others(alive):
    slow = [alive.connect() for _ in range(200)]
    try:
        for connection in slow:
            connection.sendall(b"GET /v1/model HTTP/1.1\r\nx: ")
        assert alive.ask("GET", "/v1/model").status == 200
    finally:
        for connection in slow:
            connection.close()


def test_a_body_of_100_mb_is_refused_before_it_is_read(alive):
    before = alive.metric("talerec_resident_bytes")
    answer = alive.ask("POST", "/v1/recommend", b" " * 100_000_000)
    assert (answer.status, answer.code) == (413, "body_too_large")
    assert alive.metric("talerec_resident_bytes") < before + 60e6


def test_a_body_of_unknown_length_is_read_up_to_the_limit(alive):
    head = HEAD + b"transfer-encoding: chunked\r\n\r\n"
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    with alive.connect() as connection:
        connection.sendall(head)
        with suppress(ConnectionError):
            for _ in range(60):
                connection.sendall(chunk)
        answer = read_answer(connection)
    assert (answer.status, answer.code) == (413, "body_too_large")


def test_a_history_of_a_million_items_is_refused(alive):
    history = b",".join(b'{"item_id": %d}' % n for n in range(1_000_000))
    answer = alive.ask("POST", "/v1/recommend", b'{"history": [' + history + b"]}")
    assert (answer.status, answer.code) == (422, "history_too_long")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"history": [{"item_id": "\xff\xfe"}]}', "malformed_json"),
        (b'{"history": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}", "invalid"),
        (b'{"history": [{"item_id": NaN}]}', "malformed_json"),
        (b'{"history": [{"item_id": 1, "timestamp": 1e400}]}', "invalid"),
        (b'{"history": [], "k": ' + b"9" * 100_000 + b"}", "invalid"),
    ],
)
def test_invalid_json_values_are_refused(alive, body, code):
    answer = alive.ask("POST", "/v1/recommend", body)
    assert (answer.status in (400, 422), answer.code) == (True, code)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", (400, "malformed_http")),
        (
            b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: -5\r\n\r\n",
            (400, "malformed_http"),
        ),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 100_000, (431, "headers_too_large")),
        (b"GET /" + b"y" * 100_000, (431, "headers_too_large")),
        (
            b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: " + b"y" * 40_000 + b"\r\n\r\n",
            (431, "headers_too_large"),
        ),
        (
            b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n" + b"x: y\r\n" * 9_000 + b"\r\n",
            (431, "headers_too_large"),
        ),
        (b"GET /%00%ff HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", (404, "not_found")),
        (b"BREW /v1/model HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", (400, "malformed_http")),
    ],
)
def test_malformed_http_is_refused(alive, raw, expected):
    assert refuse_raw(alive, raw) == expected


def test_the_header_limit_ignores_bodies(alive):
    """A large body after small headers is accepted; large headers after a request are not."""
    body = b'{"history": [], "k": 1}' + b" " * 100_000
    whole = HEAD + b"content-length: %d\r\n\r\n" % len(body) + body
    with alive.connect() as connection:
        connection.sendall(whole)
        assert read_answer(connection).status == 200
        connection.sendall(
            whole + b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: " + b"y" * 40_000 + b"\r\n\r\n"
        )
        got = b""
        with suppress(ConnectionError):
            while part := connection.recv(65536):
                got += part
    assert b"headers_too_large" in got


def test_headers_may_arrive_in_pieces(alive):
    """On a connection in use, and right after a large body."""
    body = b'{"history": [], "k": 1}' + b" " * 100_000
    whole = HEAD + b"content-length: %d\r\n\r\n" % len(body) + body
    live = b"GET /health/live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    with alive.connect() as connection:
        for first, second in ((live, live[:20]), (whole, live[:20]), (live, HEAD[:30])):
            connection.sendall(first + second)
            assert read_answer(connection).status == 200
            time.sleep(0.05)
            rest = whole[30:] if second == HEAD[:30] else live[20:]
            connection.sendall(rest)
            assert read_answer(connection).status == 200


def test_pipelined_requests_are_answered_in_order(alive):
    body = json.dumps({"history": [{"item_id": 1}], "k": 1}).encode()
    head = HEAD + b"content-length: %d\r\n\r\n" % len(body)
    with alive.connect() as connection:
        connection.sendall(head + body + b"GET /health/live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        got = b""
        while got.count(b"HTTP/1.1 200") < 2:
            part = connection.recv(65536)
            assert part
            got += part
    assert got.index(b'"items"') < got.index(b'"status":"ok"')


# -- the document ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "examples"), [("service", 10), ("with_store", 30)])
def test_the_service_conforms_to_its_openapi_document(kind, examples, request):
    """Schemathesis makes valid and invalid requests from the document and checks answers.

    The operations of a service without a store are among those of one with a store.
    """
    service = request.getfixturevalue(kind)
    schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis (EXTRAS=all)")
    assert schemathesis
    program = CHECK.format(url=service.url, examples=examples)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-6000:]
    assert int(ran.stdout.split()[-1]) >= (15 if kind == "with_store" else 10)  # operations called


#: Runs in its own process because of its warnings. JSON Schema cannot express which text is a valid
#: condition on the item table, which time is in the future, or that a slot is not beyond k.
CHECK = """
import hypothesis, schemathesis
from schemathesis import GenerationMode
from schemathesis.core.errors import SerializationNotPossible
from schemathesis.specs.openapi.checks import positive_data_acceptance

calm = hypothesis.settings(max_examples={examples}, deadline=None, database=None, derandomize=True,
                           suppress_health_check=list(hypothesis.HealthCheck))
called = set()

def check(operation, mode):
    @calm
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def run(case):
        answer = case.call()
        called.add(operation.label)
        assert answer.status_code < 500, answer.text
        finer_rules = ('message":"`where` ', "`slots` has the place ", "is in the future",
                       "is before 1970")
        finer = any(rule in answer.text for rule in finer_rules)
        case.validate_response(answer, excluded_checks=[positive_data_acceptance] if finer else [])
    run()

for operation in schemathesis.openapi.from_url("{url}/openapi.json").get_all_operations():
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
        try:
            check(operation.ok(), mode)
        except hypothesis.errors.Unsatisfiable:
            pass  # a request without parameters cannot be invalid
        except SerializationNotPossible:
            pass  # Schemathesis does not write lines of JSON
print(len(called))
"""


# -- several workers -------------------------------------------------------------------------------


@pytest.fixture
def workers(log, tmp_path):
    path = tr.TALE(reg=20).fit(log).save(tmp_path / "shop.tale")
    remote = Remote(path, "--workers", "2", "--watch", "0.2", token=TOKEN)
    yield remote
    remote.stop()


def test_a_new_model_reaches_every_worker_and_metrics_are_their_sum(workers, log, tmp_path):
    first = read_manifest(tmp_path / "shop.tale")["version"]
    assert workers.metric(f'talerec_model_workers{{version="{first}"}}') == 2
    tr.TALE(reg=500).fit(log).save(tmp_path / "shop.tale")
    reload = workers.ask("POST", "/v1/reload").json
    second = read_manifest(tmp_path / "shop.tale")["version"]
    assert (reload["model"], reload["workers"]) == (second, 2)
    assert workers.metric(f'talerec_model_workers{{version="{second}"}}') == 2
    tr.TALE(reg=20).fit(log).save(tmp_path / "shop.tale")
    workers.until(f'talerec_model_workers{{version="{first}"}}', 2)  # found by the watch
    for _ in range(30):
        workers.ask("POST", "/v1/recommend", {"history": [], "k": 1})
    counted = 'talerec_requests_total{route="/v1/recommend",status="200"}'
    assert {workers.metric(counted) for _ in range(10)} == {30.0}
    assert {workers.metric("talerec_fallbacks_total") for _ in range(10)} == {30.0}


def test_a_worker_that_dies_is_replaced(workers):
    if not Path("/proc/self/task").exists():
        pytest.skip("needs /proc to find a worker")
    parent = workers.process.pid
    dead, other = workers_of(parent)
    os.kill(dead, signal.SIGKILL)
    until(lambda: dead not in (now := workers_of(parent)) and other in now and len(now) == 2)
    workers.until("talerec_workers_ready", 2)
    for _ in range(20):
        assert workers.ask("POST", "/v1/recommend", {"history": [], "k": 1}).status == 200


def test_reloads_and_shutdown_under_load_drop_nothing():
    """A short run of the benchmark, which checks every answer against the library's."""
    script = ROOT / "benchmarks" / "steady.py"
    small = ["--rows", "3000", "--items", "300", "--reloads", "5", "--seconds", "1"]
    small += ["--within", str(LONG_S)]
    ran = subprocess.run([sys.executable, str(script), *small], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]
    assert "damaged, refused" in ran.stdout
    assert " 0 failed, 0 mixed, 0 dropped" in ran.stdout


def test_two_checkouts_are_compared_by_processor_time():
    """A short comparison of this checkout with itself: the interval contains the ratio."""
    script = ROOT / "benchmarks" / "serve.py"
    small = ["--turns", "1", "--requests", "500", "--items", "300", "--workers", "1"]
    command = [sys.executable, str(script), "--other", str(ROOT), *small]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]
    match = re.search(r"ours / other: ([\d.]+) \(95 % interval ([\d.]+) to ([\d.]+)\)", ran.stdout)
    ratio, low, high = map(float, match.groups())
    assert 0.2 < low <= ratio <= high < 5


def test_requests_in_progress_finish_on_sigterm(saved):
    service = Remote(saved, "--drain", "2")
    body = json.dumps({"history": [{"item_id": 1}], "k": 1}).encode()
    head = HEAD + b"content-length: %d\r\n\r\n" % len(body)
    with service.connect() as connection, service.connect() as idle:
        connection.sendall(head + body[:5])
        service.until("talerec_in_flight", 2)  # this one, and the request for the metric
        service.process.send_signal(signal.SIGTERM)
        refused = until(lambda: read_unready(service))
        assert (refused.status, refused.code) == (503, "stopping")
        until(lambda: refuses_connections(service))
        connection.sendall(body[5:])
        answer = read_answer(connection)
        assert answer.status == 200
        assert answer.headers["connection"] == "close"
        assert idle.recv(100) == b""
    assert service.process.wait(LONG_S) == 0
    assert refuses_connections(service)
    service.stop()


def read_unready(service: Remote) -> Answer | None:
    answer = service.ask("GET", "/health/ready")
    return None if answer.status == 200 else answer


def refuses_connections(service: Remote) -> bool:
    try:
        service.connect().close()
    except OSError:  # refused; the error depends on the system
        return True
    return False


# -- the command -----------------------------------------------------------------------------------


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TALEREC_TOKEN"}
    command = [sys.executable, "-c", START, "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LONG_S)


def test_startup_errors_are_one_line(saved, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as busy_socket:
        port = busy_socket.getsockname()[1]
        cases = [
            ([str(tmp_path / "nothing.tale")], "does not exist"),
            ([str(saved), "--host", "0.0.0.0"], "can be reached from other machines"),
            ([str(saved), "--port", str(port)], "cannot listen on 127.0.0.1"),
            ([str(saved), "--workers", "0"], "workers is 0"),
            ([str(saved), "--token-file", str(tmp_path / "none")], "cannot be read"),
        ]
        for arguments, message in cases:
            ran = run(*arguments)
            assert ran.returncode == 2
            assert message in ran.stderr
            assert len(ran.stderr.splitlines()) == 1

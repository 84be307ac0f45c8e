"""The service as people run it: hostile clients, several workers, replaced models, and its end."""

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
from talerec.artifact import format as artifact

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from processes import workers_of
from service import START, Answer, Remote, read_answer
from waiting import LONG_S, until

TOKEN = "a-token-for-tests-alone"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def service(saved):
    one = Remote(saved, "--timeout", "60", "--max-body", "40000000")
    yield one
    assert one.stop() == 0


@pytest.fixture(scope="module")
def hasty(saved):
    """A service that waits for nobody; what takes as long on a busy machine is asked of the other one."""
    one = Remote(saved, "--timeout", "2")
    yield one
    assert one.stop() == 0


@pytest.fixture
def remembering(saved, tmp_path):
    """A service with a store."""
    one = Remote(saved, "--store", f"sqlite:///{tmp_path}/shop.db")
    yield one
    assert one.stop() == 0


@contextmanager
def answering_as_before(service: Remote) -> Iterator[Remote]:
    wish = {"history": [{"item_id": 1}], "k": 3}
    before = service.ask("POST", "/v1/recommend", wish).json
    yield service
    assert service.ask("POST", "/v1/recommend", wish).json == before
    assert service.metric('talerec_requests_total{route="/v1/recommend",status="500"}') == 0


@pytest.fixture
def alive(service):
    """After whatever was done to it, the service answers as before."""
    with answering_as_before(service) as one:
        yield one


@pytest.fixture
def alive_in_haste(hasty):
    with answering_as_before(hasty) as one:
        yield one


def says(service: Remote, raw: bytes) -> tuple[int, str]:
    with service.connect() as one:
        one.sendall(raw)
        answer = read_answer(one)
        return answer.status, answer.code


# -- hostile clients -------------------------------------------------------------------------------


def test_who_sends_headers_slowly_is_told_so(alive_in_haste):
    """Slow-loris: a little at a time, and never the end."""
    end = time.monotonic() + LONG_S
    with alive_in_haste.connect() as one:
        one.sendall(b"POST /v1/recommend HTTP/1.1\r\n")
        answer = None
        while answer is None and time.monotonic() < end:
            try:
                one.sendall(b"x-slow: 1\r\n")
                one.settimeout(0.2)
                answer = read_answer(one)
            except TimeoutError:
                continue
    assert answer is not None
    assert (answer.status, answer.code) == (408, "too_slow")


def test_who_sends_nothing_is_told_so(alive_in_haste):
    with alive_in_haste.connect() as one:
        answer = read_answer(one)
    assert (answer.status, answer.code) == (408, "too_slow")


def test_who_sends_the_body_slowly_is_told_so(alive_in_haste):
    head = b"POST /v1/recommend HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{"
    assert says(alive_in_haste, head) == (408, "too_slow")


def test_many_slow_clients_do_not_keep_others_out(alive):
    slow = [alive.connect() for _ in range(200)]
    try:
        for one in slow:
            one.sendall(b"GET /v1/model HTTP/1.1\r\nx: ")
        assert alive.ask("GET", "/v1/model").status == 200
    finally:
        for one in slow:
            one.close()


def test_a_body_of_100_mb_is_refused_before_it_is_read(alive):
    before = alive.metric("talerec_resident_bytes")
    answer = alive.ask("POST", "/v1/recommend", b" " * 100_000_000)
    assert (answer.status, answer.code) == (413, "body_too_large")
    assert alive.metric("talerec_resident_bytes") < before + 60e6


def test_a_body_of_unknown_length_is_read_up_to_the_limit(alive):
    head = b"POST /v1/recommend HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    with alive.connect() as one:
        one.sendall(head)
        with suppress(ConnectionError):
            for _ in range(60):
                one.sendall(chunk)
        answer = read_answer(one)
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
def test_what_json_should_not_hold_is_refused(alive, body, code):
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
def test_what_is_no_http_is_refused(alive, raw, expected):
    assert says(alive, raw) == expected


def test_headers_are_measured_alone(alive):
    """A large body behind small headers, in one piece, is no large header; large headers behind a request are."""
    body = b'{"history": [], "k": 1}' + b" " * 100_000
    head = b"POST /v1/recommend HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    whole = head + b"content-length: %d\r\n\r\n" % len(body) + body
    with alive.connect() as one:
        one.sendall(whole)
        assert read_answer(one).status == 200
        one.sendall(
            whole + b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: " + b"y" * 40_000 + b"\r\n\r\n"
        )
        got = b""
        with suppress(ConnectionError):
            while part := one.recv(65536):
                got += part
    assert b"headers_too_large" in got


def test_headers_may_come_in_pieces(alive):
    """On a connection that was used before, and right behind a large body."""
    body = b'{"history": [], "k": 1}' + b" " * 100_000
    head = b"POST /v1/recommend HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    whole = head + b"content-length: %d\r\n\r\n" % len(body) + body
    live = b"GET /health/live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    with alive.connect() as one:
        for first, second in ((live, live[:20]), (whole, live[:20]), (live, head[:30])):
            one.sendall(first + second)
            assert read_answer(one).status == 200
            time.sleep(0.05)
            rest = whole[30:] if second == head[:30] else live[20:]
            one.sendall(rest)
            assert read_answer(one).status == 200


def test_two_questions_at_once_on_one_connection_are_answered_in_turn(alive):
    body = json.dumps({"history": [{"item_id": 1}], "k": 1}).encode()
    head = f"POST /v1/recommend HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    with alive.connect() as one:
        one.sendall(head.encode() + body + b"GET /health/live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        got = b""
        while got.count(b"HTTP/1.1 200") < 2:
            part = one.recv(65536)
            assert part
            got += part
    assert got.index(b'"items"') < got.index(b'"status":"ok"')


# -- the document ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["service", "remembering"])
def test_the_service_answers_as_its_document_says(kind, request):
    """Schemathesis makes requests from the OpenAPI document, good and bad ones, and checks every answer."""
    service = request.getfixturevalue(kind)
    schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis (EXTRAS=all)")
    assert schemathesis
    program = CHECK.format(url=service.url, examples=30)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-6000:]
    assert int(ran.stdout.split()[-1]) >= (12 if kind == "remembering" else 9)  # operations asked


#: In a process of its own: its warnings are not ours. JSON Schema cannot say which text is a condition on the item table, or when the future begins.
CHECK = """
import hypothesis, schemathesis
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

calm = hypothesis.settings(max_examples={examples}, deadline=None, database=None, derandomize=True,
                           suppress_health_check=list(hypothesis.HealthCheck))
asked = set()

def check(operation, mode):
    @calm
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def run(case):
        answer = case.call()
        asked.add(operation.label)
        assert answer.status_code < 500, answer.text
        finer = 'message":"where ' in answer.text or "lies in the future" in answer.text or "lies before 1970" in answer.text
        case.validate_response(answer, excluded_checks=[positive_data_acceptance] if finer else [])
    run()

for found in schemathesis.openapi.from_url("{url}/openapi.json").get_all_operations():
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
        try:
            check(found.ok(), mode)
        except hypothesis.errors.Unsatisfiable:
            pass  # a request without parameters cannot be made wrong
print(len(asked))
"""


# -- several workers -------------------------------------------------------------------------------


@pytest.fixture
def workers(log, tmp_path):
    path = tr.TALE(reg=20).fit(log).save(tmp_path / "shop.tale")
    one = Remote(path, "--workers", "2", "--watch", "0.2", token=TOKEN)
    yield one
    one.stop()


def test_a_new_model_reaches_every_worker_and_metrics_are_their_sum(workers, log, tmp_path):
    first = artifact.read_manifest(tmp_path / "shop.tale")["version"]
    assert workers.metric(f'talerec_model_workers{{version="{first}"}}') == 2
    tr.TALE(reg=500).fit(log).save(tmp_path / "shop.tale")
    said = workers.ask("POST", "/v1/reload").json
    second = artifact.read_manifest(tmp_path / "shop.tale")["version"]
    assert (said["model"], said["workers"]) == (second, 2)
    assert workers.metric(f'talerec_model_workers{{version="{second}"}}') == 2
    tr.TALE(reg=20).fit(log).save(tmp_path / "shop.tale")
    workers.until(f'talerec_model_workers{{version="{first}"}}', 2)  # the watch saw it
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


def test_reloads_and_the_end_under_load_drop_nothing():
    """The benchmark of the same, in short: every answer is checked against the library's."""
    script = ROOT / "benchmarks" / "steady.py"
    small = ["--rows", "3000", "--items", "300", "--reloads", "5", "--seconds", "1"]
    small += ["--within", str(LONG_S)]
    ran = subprocess.run([sys.executable, str(script), *small], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]
    assert "damaged, refused" in ran.stdout
    assert " 0 failed, 0 mixed, 0 dropped" in ran.stdout


def test_two_checkouts_are_compared_by_processor_time():
    """This checkout with itself, in short: the ratio is near 1, and lies in its interval."""
    script = ROOT / "benchmarks" / "serve.py"
    small = ["--turns", "1", "--requests", "500", "--items", "300", "--workers", "1"]
    command = [sys.executable, str(script), "--other", str(ROOT), *small]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]
    found = re.search(r"ours / other: ([\d.]+) \(95 % interval ([\d.]+) to ([\d.]+)\)", ran.stdout)
    ratio, low, high = map(float, found.groups())
    assert 0.2 < low <= ratio <= high < 5


def test_requests_in_flight_finish_when_told_to_stop(saved):
    service = Remote(saved, "--drain", "2")
    body = json.dumps({"history": [{"item_id": 1}], "k": 1}).encode()
    head = f"POST /v1/recommend HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    with service.connect() as one, service.connect() as idle:
        one.sendall(head.encode() + body[:5])
        service.until("talerec_in_flight", 2)  # this one, and who asks for the metric
        service.process.send_signal(signal.SIGTERM)
        refused = until(lambda: unready(service))
        assert (refused.status, refused.code) == (503, "stopping")
        until(lambda: lets_nobody_in(service))
        one.sendall(body[5:])
        answer = read_answer(one)
        assert answer.status == 200
        assert answer.headers["connection"] == "close"
        assert idle.recv(100) == b""
    assert service.process.wait(LONG_S) == 0
    assert lets_nobody_in(service)
    service.stop()


def unready(service: Remote) -> Answer | None:
    answer = service.ask("GET", "/health/ready")
    return None if answer.status == 200 else answer


def lets_nobody_in(service: Remote) -> bool:
    try:
        service.connect().close()
    except OSError:  # refused, in the words of this system
        return True
    return False


# -- the command -----------------------------------------------------------------------------------


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TALEREC_TOKEN"}
    command = [sys.executable, "-c", START, "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LONG_S)


def test_mistakes_at_the_start_are_one_line(saved, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cases = [
            ([str(tmp_path / "nothing.tale")], "does not exist"),
            ([str(saved), "--host", "0.0.0.0"], "can be reached from other machines"),
            ([str(saved), "--port", str(port)], "cannot listen on 127.0.0.1"),
            ([str(saved), "--workers", "0"], "workers is 0"),
            ([str(saved), "--token-file", str(tmp_path / "none")], "cannot be read"),
        ]
        for arguments, said in cases:
            ran = run(*arguments)
            assert ran.returncode == 2
            assert said in ran.stderr
            assert len(ran.stderr.splitlines()) == 1

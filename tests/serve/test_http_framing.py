"""Where a request ends and what it says twice: trailers, unread bodies, Host, Authorization."""

from __future__ import annotations

import socket
import time
from contextlib import suppress

import pytest

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from service import Answer, Remote, read_answer
from waiting import LONG_S

TOKEN = "a-token-for-tests-alone"
BODY = b'{"history": [{"item_id": 1}], "k": 3}'
LIVE = b"GET /health/live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"


def head(path: bytes = b"/v1/recommend", fields: bytes = b"", method: bytes = b"POST") -> bytes:
    """Return the head of a chunked request with the token."""
    start = method + b" " + path + b" HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    start += b"authorization: Bearer " + TOKEN.encode() + b"\r\ncontent-type: application/json\r\n"
    return start + b"transfer-encoding: chunked\r\n" + fields + b"\r\n"


def chunks(body: bytes, size: int) -> bytes:
    """Return a body in chunks of this size, and the last chunk without the end of the body."""
    parts = (body[at : at + size] for at in range(0, len(body), size))
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n"


@pytest.fixture(scope="module")
def service(saved):
    remote = Remote(saved, "--timeout", "60", token=TOKEN)
    yield remote
    assert remote.ask("GET", "/v1/model").status == 200
    assert remote.stop() == 0


def answer_and_end(service: Remote, *parts: bytes) -> Answer:
    """Return the answer to a request sent in parts, after the service closed the connection."""
    with service.connect() as connection:
        for part in parts:
            with suppress(ConnectionError):
                connection.sendall(part)
            time.sleep(0.05)
        answer = read_answer(connection)
        assert is_closed(connection)
    return answer


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


# -- trailers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_chunked_body_is_read_however_it_arrives(service, size):
    raw = head() + chunks(BODY, size) + b"\r\n"
    for step in (1, 2, 3, len(raw)):
        with service.connect() as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for at in range(0, len(raw), step):
                connection.sendall(raw[at : at + step])
            assert read_answer(connection).status == 200
            connection.sendall(LIVE)  # the connection stays open
            assert read_answer(connection).status == 200


@pytest.mark.parametrize(
    "parts",
    [
        (b"0\r\nhost: evil.example\r\n\r\n",),
        (b"0\r\nx: 1\r\n", b"y: 2\r\n"),
        (b"0\r\n", b"x", b": 1"),
        (b"0\r\nx: ", b"1", b"2"),
        (b"0\r\n\r", b"x: 1"),
        (chunks(BODY, 9), b"authorization: Bearer x\r\n\r\n"),
        (b"0\r\nx: " + b"y" * 300_000,),
    ],
)
def test_trailers_are_refused_at_their_first_bytes(service, parts):
    """However they arrive, and before the end of the request."""
    answer = answer_and_end(service, head(), *parts)
    assert (answer.status, answer.headers["connection"]) == (400, "close")
    assert answer.code in ("trailers_refused", "malformed_http")


def test_a_flood_of_trailers_costs_neither_memory_nor_time(service):
    before = service.metric("talerec_resident_bytes")
    for field in (b"x: y\r\n" * 10_000, b"y" * 60_000):
        with service.connect() as connection:
            connection.sendall(head() + b"0\r\nx: y")
            sent = 0
            with suppress(ConnectionError):
                for _ in range(1000):
                    connection.sendall(field)
                    sent += len(field)
            assert sent < 30_000_000  # more than buffers hold was refused
    assert service.metric("talerec_resident_bytes") < before + 30e6


def test_trailers_do_not_reach_the_headers_of_an_answered_request(service):
    """The request is answered without its body; its trailers find the connection closed."""
    answer = answer_and_end(service, head(b"/nowhere"), b"0\r\nhost: evil.example\r\n\r\n", LIVE)
    assert answer.status in (400, 404)


# -- unread bodies ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (head(b"/nowhere"), 404),
        (head(b"/v1/model"), 405),
        (head().replace(TOKEN.encode(), b"wrong"), 401),
        (head().replace(b"application/json", b"text/plain"), 415),
        (head(method=b"GET", path=b"/v1/model"), 200),
        (head(fields=b"expect: 100-continue\r\n", path=b"/nowhere"), 404),
        (b"POST /nowhere HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000\r\n\r\n", 404),
    ],
)
def test_a_connection_with_an_unread_body_is_closed_after_the_answer(service, raw, status):
    answer = answer_and_end(service, raw)
    assert (answer.status, answer.headers["connection"]) == (status, "close")


def test_a_connection_whose_body_was_read_stays_open_after_an_error(service):
    with service.connect() as connection:
        for path, status in ((b"/nowhere", 404), (b"/v1/similar", 422), (b"/v1/recommend", 200)):
            connection.sendall(head(path) + chunks(BODY, 10) + b"\r\n")
            answer = read_answer(connection)
            assert (answer.status, "connection" in answer.headers) == (status, False)


def test_blank_lines_between_requests_are_limited(saved):
    """They begin no request, so no timer of a request limits them."""
    service = Remote(saved, "--timeout", "1")
    try:
        for wait, status in ((0.05, 408), (0.0, 431)):
            with service.connect() as connection:
                connection.sendall(LIVE)
                assert read_answer(connection).status == 200
                end, answer = time.monotonic() + LONG_S, None
                connection.settimeout(0.01)
                while answer is None and time.monotonic() < end:
                    with suppress(TimeoutError):
                        connection.sendall(b"\r\n" * (1 if wait else 1000))
                        time.sleep(wait)
                        answer = read_answer(connection)
            assert answer is not None
            assert answer.status == status
    finally:
        assert service.stop() == 0


def test_garbage_after_a_request_leaves_no_traceback_in_the_log(saved, tmp_path):
    """The connection is closed while the response to the request is computed."""
    service = Remote(saved, log=tmp_path / "log")
    body = b'{"history": [], "k": 1}'
    ask = b"POST /v1/recommend HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    ask += b"content-length: %d\r\n\r\n" % len(body) + body
    try:
        for n_requests in (1, 2, 3):
            with service.connect() as connection:
                connection.sendall(ask * n_requests + b"\x00GARBAGE\r\n\r\n")
                while not is_closed(connection):
                    pass
        assert service.ask("GET", "/health/live").status == 200
    finally:
        assert service.stop() == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


# -- what a request says twice ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (b"", 400),
        (b"host: 127.0.0.1\r\nhost: 127.0.0.1\r\n", 400),
        (b"host: 127.0.0.1\r\nHOST: evil.example\r\n", 400),
        (b"host: evil.example\r\nhost: 127.0.0.1\r\n", 400),
        (b"host: 127.0.0.1\r\nauthorization: Bearer a\r\nAuthorization: Bearer b\r\n", 400),
        (b"host:\r\n", 421),
        (b"host: 127.0.0.1\r\n", 200),
    ],
)
def test_a_request_names_its_host_once_and_its_token_at_most_once(service, fields, status):
    raw = b"GET /health/live HTTP/1.1\r\n" + fields + b"\r\n"
    with service.connect() as connection:
        connection.sendall(raw + LIVE)
        answer = read_answer(connection)
        assert answer.status == status
        assert status != 400 or answer.code == "malformed_http"
        assert status != 400 or is_closed(connection)  # what follows is not read
        assert b"Bearer" not in answer.body


def test_http_1_0_needs_no_host(service):
    with service.connect() as connection:
        connection.sendall(b"GET /health/live HTTP/1.0\r\n\r\n")
        assert read_answer(connection).status == 200

"""Tokens: who may ask, who may write, a file of tokens that changes, and no trace of a token."""

from __future__ import annotations

import json
import logging
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from talerec.errors import TalerecError

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from processes import workers_of
from service import GOOD, Local, Remote, service_with_store
from talerec.serve import Settings, TokenWatch, read_environment
from talerec.serve.tokens import Tokens, parse_tokens, read_token_file
from waiting import until

TOKEN = "a-token-for-tests-alone"
READER = "a-token-that-only-reads"
OTHER = "another-token-for-tests"
ASK = {"history": [{"item_id": 3}], "k": 5}
COLUMNS = '"propertyNames": {"enum"'  # of the model's item table, in the OpenAPI document
#: What the page of the service asks for, and the probes.
READS = [
    ("GET", "/v1/model", None), ("GET", "/v1/items?q=3", None), ("GET", "/v1/items?id=3", None),
    ("GET", "/v1/users?q=2", None), ("GET", "/v1/users/20", None), ("GET", "/v1/stats", None),
    ("GET", "/metrics", None), ("GET", "/openapi.json", None), ("GET", "/health/ready", None),
    ("POST", "/v1/recommend", ASK), ("POST", "/v1/recommend:batch", {"requests": [ASK]}),
    ("POST", "/v1/similar", {"item_id": 3}),
    ("POST", "/v1/explain", {"history": [{"item_id": 3}], "item_id": 5}),
]  # fmt: skip
WRITES = [
    ("POST", "/v1/events", {"events": [GOOD]}),
    ("DELETE", "/v1/users/20", None),
    ("POST", "/v1/reload", None),
]


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def write_tokens(path: Path, *lines: str) -> Path:
    """Write a file of tokens, in place, that others cannot read."""
    path.touch(0o600)
    path.write_text("\n".join(lines) + "\n")
    return path


# -- rights ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["settings", "file"])
def test_one_token_may_ask_and_one_may_write_too(saved, tmp_path, kind):
    tokens: dict[str, Any] = {"token": TOKEN, "read_token": READER}
    if kind == "file":
        tokens = {"token_file": write_tokens(tmp_path / "t", f"read {READER}", f"write {TOKEN}")}
    store = f"sqlite:///{tmp_path}/shop.db"
    with service_with_store(saved, tmp_path / "run", store, **tokens) as local:
        for method, path, body in READS:
            for token in (TOKEN, READER):
                assert local.ask(method, path, body, bearer(token)).status == 200, path
        for method, path, body in WRITES:
            refused = local.ask(method, path, body, bearer(READER))
            assert (refused.status, refused.code) == (403, "read_only")
            assert local.ask(method, path, body, bearer("wrong")).code == "unauthorized"
            assert local.ask(method, path, body).code == "unauthorized"
        for method, path, body in WRITES:
            assert local.ask(method, path, body, bearer(TOKEN)).status in (200, 202), path


def test_a_single_token_has_both_rights_and_a_read_token_alone_writes_nothing(saved, tmp_path):
    local = Local(saved, tmp_path / "a", token=TOKEN)
    assert local.ask("POST", "/v1/reload", None, bearer(TOKEN)).status == 200
    local = Local(saved, tmp_path / "b", read_token=READER)
    assert local.get("/v1/model", **bearer(READER)).status == 200
    assert local.get("/v1/model").status == 401
    assert local.ask("POST", "/v1/reload", None, bearer(READER)).status == 403
    Settings(path=saved, host="0.0.0.0", read_token=READER)  # not open to everybody


def test_the_document_has_nothing_of_the_model_without_a_token(saved, tmp_path, log):
    local = Local(saved, tmp_path, token=TOKEN, read_token=READER)
    neutral = local.get("/openapi.json")
    assert neutral.body == local.get("/openapi.json", **bearer("wrong")).body
    for token in (TOKEN, READER):
        full = local.get("/openapi.json", **bearer(token)).json
        assert COLUMNS in json.dumps(full)
        recommend = full["paths"]["/v1/recommend"]["post"]["requestBody"]["content"]
        example = recommend["application/json"]["examples"]["one"]["value"]
        assert [row["item_id"] for row in example["history"]] == log.items.ids.to_list()[:3]
    paths = neutral.json["paths"]
    assert set(paths) == set(full["paths"])
    bodies = [
        operation["requestBody"]["content"]["application/json"]["examples"]["one"]["value"]
        for methods in paths.values()
        for operation in methods.values()
        if "requestBody" in operation
    ]
    assert not any(f'"item_id": {item}' in json.dumps(bodies) for item in log.items.ids.to_list())
    assert COLUMNS not in json.dumps(neutral.json)
    maximum = neutral.json["components"]["schemas"]["RecommendRequest"]["properties"]["k"]
    assert maximum["maximum"] == 1000  # not the number of items
    public = Local(saved, tmp_path / "public")
    assert COLUMNS in json.dumps(public.get("/openapi.json").json)


# -- files and variables ---------------------------------------------------------------------------


def test_tokens_come_from_a_file_or_the_environment(tmp_path):
    assert read_environment({}) == {}
    both = {"TALEREC_TOKEN": f" {TOKEN} ", "TALEREC_READ_TOKEN": READER}
    assert read_environment(both) == {"token": TOKEN, "read_token": READER}
    for name in both:
        with pytest.raises(TalerecError, match=f"{name} is empty"):
            read_environment({name: " "})
    file = write_tokens(tmp_path / "t", TOKEN)
    assert parse_tokens(read_token_file(file), file) == Tokens((TOKEN.encode(),))
    text = f"\ufeff# comment\r\n\r\n read {READER}\r\nwrite\t{TOKEN}\r\n{OTHER}"
    file.write_text(text, encoding="utf-8")
    tokens = parse_tokens(read_token_file(file), file)
    assert tokens == Tokens((TOKEN.encode(), OTHER.encode()), (READER.encode(),))
    assert TOKEN not in repr(tokens)
    assert READER not in repr(tokens)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n# nothing\n", "is empty"),
        (b"read short", "line 1 of .*: the token is shorter than 16 characters"),
        (b"%b\nreed %b" % (TOKEN.encode(), READER.encode()), "line 2 of .* is not valid"),
        (b"read %b %b" % (TOKEN.encode(), READER.encode()), "line 1 of .* is not valid"),
        (TOKEN.encode() + b"\xff", "is not UTF-8 text"),
        (b"x" * 70_000, "more than 65536 bytes"),
    ],
)
def test_an_invalid_file_of_tokens_is_refused_without_its_content(tmp_path, content, message):
    file = write_tokens(tmp_path / "t")
    file.write_bytes(content)
    with pytest.raises(TalerecError, match=message) as raised:
        Settings(path=tmp_path, token_file=file)
    for secret in (TOKEN, READER, "xxx", "0xff"):
        assert secret not in str(raised.value)


def test_a_file_of_tokens_is_private_and_plain(tmp_path):
    file = write_tokens(tmp_path / "t", TOKEN)
    file.chmod(0o644)
    with pytest.raises(TalerecError, match="can be read by everybody"):
        Settings(path=tmp_path, token_file=file)
    os.mkfifo(tmp_path / "fifo", 0o600)  # reading it would wait for ever
    with pytest.raises(TalerecError, match="is not a plain file"):
        Settings(path=tmp_path, token_file=tmp_path / "fifo")
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(TalerecError, match=r"cannot be read|is not a plain file"):
            Settings(path=tmp_path, token_file=path)
    before = len(os.listdir("/dev/fd"))
    for _ in range(50):
        with suppress(TalerecError):
            read_token_file(tmp_path)
    assert len(os.listdir("/dev/fd")) < before + 50  # no file stays open
    file.chmod(0o600)
    Settings(path=tmp_path, token_file=file, host="0.0.0.0")
    with pytest.raises(TalerecError, match="give neither"):
        Settings(path=tmp_path, token_file=file, token=TOKEN)
    with pytest.raises(TalerecError, match="are the same"):
        Settings(path=tmp_path, token=TOKEN, read_token=TOKEN)
    with pytest.raises(TalerecError, match="shorter than 16"):
        Settings(path=tmp_path, read_token="short")


# -- rotation --------------------------------------------------------------------------------------


def test_a_changed_file_counts_once_it_is_stable_and_valid(tmp_path, caplog):
    caplog.set_level(logging.INFO, "talerec")
    file = write_tokens(tmp_path / "t", TOKEN)
    watch = TokenWatch(Tokens((TOKEN.encode(),)), file, reports=True)
    for _ in range(3):
        watch.refresh()
    assert caplog.text == ""  # nothing has changed
    write_tokens(file, TOKEN[:17])  # the beginning of a file that is being written
    watch.refresh()
    write_tokens(file, OTHER)
    watch.refresh()
    assert watch.current == Tokens((TOKEN.encode(),))
    watch.refresh()
    assert watch.current == Tokens((OTHER.encode(),))
    for spoil in (lambda: file.write_text(""), lambda: file.chmod(0o644), file.unlink):
        spoil()
        for _ in range(4):
            watch.refresh()
        assert watch.current == Tokens((OTHER.encode(),))
    assert caplog.text.count("the old tokens stay in use") == 3
    write_tokens(file, TOKEN, f"read {READER}")
    for _ in range(2):
        watch.refresh()
    assert watch.current == Tokens((TOKEN.encode(),), (READER.encode(),))
    assert "1 may write, 1 may only read" in caplog.text
    for token in (TOKEN, READER, OTHER):
        assert token[:17] not in caplog.text


def test_tokens_rotate_while_requests_are_answered(tmp_path):
    """At every moment either the old or the new tokens are accepted, never a mixture."""
    file = write_tokens(tmp_path / "t", TOKEN)
    watch = TokenWatch(Tokens((TOKEN.encode(),)), file)
    stop = threading.Event()
    pairs = [(TOKEN, READER), (OTHER, TOKEN)]
    watch.start(0.001, stop)
    try:
        for n in range(20):
            writer, reader = pairs[n % 2]
            new = write_tokens(tmp_path / "new", f"write {writer}", f"read {reader}")
            new.replace(file)
            expected = Tokens((writer.encode(),), (reader.encode(),))
            before = watch.current
            until(lambda before=before, expected=expected: _is_next(watch, before, expected))
    finally:
        stop.set()


def _is_next(watch: TokenWatch, before: Tokens | None, expected: Tokens) -> bool:
    current = watch.current
    assert current in (before, expected)
    return current == expected


def status(service: Remote, token: str, method: str = "GET", path: str = "/v1/model") -> int:
    return service.ask(method, path, None, bearer(token)).status


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to find a worker")
def test_tokens_are_rotated_without_a_restart_and_never_logged(saved, tmp_path):
    file, log = write_tokens(tmp_path / "tokens", TOKEN), tmp_path / "log"
    options = ["--token-file", str(file), "--workers", "2", "--watch", "0.2"]
    options += ["--log-level", "debug", "--hang-timeout", "5"]
    service = Remote(saved, *options, token=TOKEN, log=log)
    try:
        pids = workers_of(service.process.pid)
        write_tokens(file, TOKEN, OTHER, f"read {READER}")
        until(lambda: all(status(service, OTHER) == 200 for _ in range(10)))
        assert {status(service, token) for token in (TOKEN, READER)} == {200}
        assert status(service, READER, "POST", "/v1/reload") == 403
        write_tokens(file, OTHER)
        service.token = OTHER
        until(lambda: all(status(service, TOKEN) == 401 for _ in range(10)))
        file.write_text("short")  # the operator errs
        until(lambda: "the old tokens stay in use" in log.read_text())
        assert {status(service, OTHER) for _ in range(10)} == {200}
        assert workers_of(service.process.pid) == pids
        os.kill(pids[0], 9)  # a new worker, which finds an invalid file, has the last valid tokens
        until(lambda: pids[0] not in workers_of(service.process.pid))
        until(lambda: len(workers_of(service.process.pid)) == 2)
        until(lambda: _is_ready(service, 2))
        assert {status(service, OTHER) for _ in range(20)} == {200}
        assert {status(service, TOKEN) for _ in range(20)} == {401}
        metrics = service.ask("GET", "/metrics").body.decode()
    finally:
        assert service.stop() == 0
    text = log.read_text() + metrics
    assert "GET /v1/model: 401" in text
    for token in (TOKEN, READER, OTHER):
        assert token not in text
    assert "Bearer" not in text


def _is_ready(service: Remote, workers: int) -> bool:
    with suppress(OSError):
        return service.metric("talerec_workers_ready") == workers
    return False


def test_no_answer_log_or_trace_contains_a_token(saved, tmp_path, caplog, monkeypatch):
    """Neither the service's nor one that a client sent by mistake."""
    caplog.set_level(logging.DEBUG)
    local = Local(saved, tmp_path, token=TOKEN, read_token=READER)
    monkeypatch.setattr(local.app.holder.current, "search", lambda *_: 1 / 0)  # an internal error
    requests = [*READS, *WRITES, ("GET", "/nowhere", None), ("PUT", "/v1/model", None)]
    for token in (TOKEN, READER, "a-token-sent-by-mistake"):
        for method, path, body in requests:
            for scheme in ("Bearer", "Basic", "bearer "):
                headers = {"authorization": f"{scheme} {token}", "x-request-id": "r 1"}
                answer = local.ask(method, path, body, headers)
                assert token not in answer.body.decode() + str(answer.headers)
        assert token not in caplog.text
    assert "ZeroDivisionError" in caplog.text

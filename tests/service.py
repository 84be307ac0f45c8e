"""Services for tests: the application in this process, or `talerec serve` in another."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from talerec.data import Log
from talerec.serve import Settings
from talerec.serve.http import App
from waiting import LONG_S, until

START = "import sys; from talerec.cli.main import main; sys.argv[0] = 'talerec'; main()"
JSON = {"content-type": "application/json"}
GOOD = {"user_id": "ann", "item_id": 1}  # an event
_ID = re.compile(rb',"recommendation_id":"[0-9a-f]{38}"')


def rows(items: Iterable[Any], start: int | None = None) -> list[dict[str, Any]]:
    """Return a history as JSON rows; with `start` (Unix seconds), one row per day from then."""
    if start is None:
        return [{"item_id": item} for item in items]
    return [{"item_id": item, "timestamp": start + 86_400 * n} for n, item in enumerate(items)]


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Return the code of an error, after a check of the form of its body."""
        body = self.json
        assert set(body) == {"error", "model"}
        assert set(body["error"]) == {"code", "message"}
        assert "Traceback" not in body["error"]["message"]
        return body["error"]["code"]


def leave_out_id(body: bytes) -> bytes:
    """Return the body of an answer without its random id, so that answers can be compared."""
    return _ID.sub(b"", body)


class Local:
    """The application without a server, called by ASGI messages.

    Answers have no `recommendation_id`, which differs each time, unless `shows_ids` is set.
    """

    shows_ids = False

    def __init__(self, path: Path, folder: Path, worker: int = 0, **settings: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.app = App(Settings(path=path, **settings), folder, worker)
        self.app.holder.refresh()

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        parts: list[bytes] | None = None,
    ) -> Answer:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        raw = b"" if body is None else raw
        all_headers = {**(JSON if body is not None or parts else {}), **(headers or {})}
        return asyncio.run(self._ask(method, path, all_headers, parts or [raw]))

    async def _ask(
        self, method: str, path: str, headers: dict[str, str], parts: list[bytes]
    ) -> Answer:
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self._call(send, method, path, headers, parts)
        got = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        body = b"".join(bytes(message["body"]) for message in sent[1:])
        body = body if self.shows_ids else leave_out_id(body)
        return Answer(sent[0]["status"], got, body)

    async def _call(
        self, send: Any, method: str, path: str, headers: dict[str, str], parts: list[bytes]
    ) -> None:
        where, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": where,
            "query_string": query.encode(),
            "client": ("127.0.0.9", 40_000),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        left = list(parts)

        async def receive() -> dict[str, Any]:
            part = left.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(left)}

        await self.app(scope, receive, send)

    def ask_with(self, send: Any, method: str, path: str, body: Any = None) -> None:
        """Send one request; each ASGI message of the response goes to `send`."""
        raw = b"" if body is None else json.dumps(body).encode()
        asyncio.run(self._call(send, method, path, JSON, [raw]))

    def ask_all(
        self,
        requests: list[tuple[str, str, Any]],
        headers: dict[str, str],
        answered: list[str] | None = None,
    ) -> list[Answer]:
        """Return the answers to concurrent requests; each path goes to `answered` in turn."""

        async def ask_single(method: str, path: str, body: Any) -> Answer:
            raw = b"" if body is None else json.dumps(body).encode()
            answer = await self._ask(method, path, headers, [raw])
            if answered is not None:
                answered.append(path)
            return answer

        async def gather() -> list[Answer]:
            return await asyncio.gather(*(ask_single(*each) for each in requests))

        return asyncio.run(gather())

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        return self.ask("POST", path, body, headers)

    def post_all(self, path: str, bodies: list[Any]) -> list[Answer]:
        """Return the answers to concurrent POST requests."""
        return self.ask_all([("POST", path, body) for body in bodies], JSON)

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, None, headers)


class Remote:
    """`talerec serve`, in its own processes."""

    def __init__(
        self, path: Path, *options: str, token: str | None = None, log: Path | None = None,
        **variables: str,
    ) -> None:  # fmt: skip
        environment = {name: value for name, value in os.environ.items() if name != "TALEREC_TOKEN"}
        environment |= variables
        if token:
            environment["TALEREC_TOKEN"] = token
        if "--store" in options and "--ids" not in options:
            options = (*options, "--ids", "text")  # as `service_with_store`
        command = [sys.executable, "-c", START, "serve", str(path), "--port", "0", *options]
        self.token = token
        with (log or Path(os.devnull)).open("w") as errors:
            self.process = subprocess.Popen(
                command, env=environment, text=True, stdout=subprocess.PIPE, stderr=errors
            )
        assert self.process.stdout is not None
        listening = select.poll()  # accepts descriptors above 1,024, unlike select
        listening.register(self.process.stdout, select.POLLIN)
        assert listening.poll(1000 * LONG_S), "the service printed nothing"
        line = self.process.stdout.readline()
        self.port = int(line.split("://127.0.0.1:")[1].split("/")[0])
        self.url = f"http://127.0.0.1:{self.port}"
        self.until("talerec_workers_ready", int(line.split("(")[1].split()[0]))

    def until(self, metric: str, value: float) -> None:
        """Wait until a metric reaches a value."""

        def is_so() -> bool:
            with suppress(ConnectionError):  # a worker that ends, or does not listen yet
                return self.metric(metric) >= value
            assert self.process.poll() is None, "the service has ended"
            return False

        until(is_so, f"{metric} does not reach {value}")

    def metric(self, name: str) -> float:
        lines = self.ask("GET", "/metrics").body.decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=LONG_S)

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        raw = (
            body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        )
        all_headers = {"host": "127.0.0.1", "content-length": str(len(raw)), "connection": "close"}
        all_headers |= JSON if body is not None else {}
        all_headers |= {"authorization": f"Bearer {self.token}"} if self.token else {}
        lines = [f"{name}: {value}" for name, value in {**all_headers, **(headers or {})}.items()]
        head = "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode()
        with self.connect() as connection:
            connection.sendall(head)
            with suppress(ConnectionError):  # the service may respond before it has read everything
                connection.sendall(raw)
            return read_answer(connection)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(LONG_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def read_answer(connection: socket.socket) -> Answer:
    """Return the next response on a connection, without the id of an answer."""
    got = b""
    while b"\r\n\r\n" not in got:
        part = connection.recv(65536)
        if not part:
            raise ConnectionError(f"the connection ended after {got!r}")
        got += part
    head, _, body = got.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {line.split(": ", 1)[0].lower(): line.split(": ", 1)[1] for line in lines}
    while len(body) < int(headers["content-length"]):
        body += connection.recv(65536)
    return Answer(int(first.split()[1]), headers, leave_out_id(body))


# -- services with a store -------------------------------------------------------------------------


@contextmanager
def service_with_store(
    saved: Path, folder: Path, store: str | None, **settings: Any
) -> Iterator[Local]:
    """Run an application with a store in this process until the block ends.

    Events may have any ids unless `ids` says otherwise; a model's ids are integers in most tests.
    """
    settings.setdefault("ids", "text")
    local = Local(saved, folder, store=store, **settings)
    local.app.start()
    try:
        yield local
    finally:
        local.app.stop()


def send(local: Local, *events: dict[str, Any]) -> Answer:
    return local.post("/v1/events", {"events": list(events)})


def ids(answer: Answer) -> list[Any]:
    assert answer.status == 200, answer.body
    return [item["item_id"] for item in answer.json["items"]]


def history_of(log: Log, user: int) -> list[tuple[Any, int]]:
    """Return the item ids and times of the user at this position."""
    rows = slice(log.ptr[user], log.ptr[user + 1])
    names = log.items.ids.gather(log.item[rows]).to_list()
    return list(zip(names, log.time[rows].tolist(), strict=True))

"""A bounded load for the service: a number of requests over a number of connections."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KEPT = 200  # answers that are kept


class Client(asyncio.Protocol):
    """Send requests over one connection, each after the previous response."""

    def __init__(
        self, requests: Iterator[bytes], done: asyncio.Future[None], keep: list[bytes]
    ) -> None:
        self.requests, self.done, self.keep, self.buffer = requests, done, keep, b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._send()

    def _send(self) -> None:
        request = next(self.requests, None)
        if request is not None:
            self.transport.write(request)
            return
        self.transport.close()
        self.done.set_result(None)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, end, body = self.buffer.partition(b"\r\n\r\n")
        if not end or len(body) < int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]):
            return
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"the service answers {self.buffer[:300]!r}")
        if len(self.keep) < KEPT:
            self.keep.append(body)
        self.buffer = b""
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("the service closed a connection"))


async def send(port: int, requests: list[bytes], connections: int) -> list[bytes]:
    """Send every request once over so many connections; the first answers."""
    loop, rest, answers = asyncio.get_running_loop(), iter(requests), []
    ends = [loop.create_future() for _ in range(connections)]
    for end in ends:
        await loop.create_connection(lambda end=end: Client(rest, end, answers), "127.0.0.1", port)
    await asyncio.wait_for(asyncio.gather(*ends), 300)
    return answers


def http_requests(bodies: Path, number: int) -> list[bytes]:
    head = (
        "POST /v1/recommend HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        "content-type: application/json\r\ncontent-length: "
    )
    lines = bodies.read_text().splitlines()
    encoded = [f"{head}{len(line)}\r\n\r\n{line}".encode() for line in lines]
    return [encoded[n % len(encoded)] for n in range(number)]

"""Refusals: every error that leaves the service has one shape, and no stack trace."""

from __future__ import annotations

import msgspec


class Fault(msgspec.Struct):
    """What was wrong: a code for programs, a sentence for people."""

    code: str
    message: str


class Failure(msgspec.Struct):
    """The body of every answer that is not a success; `model` is the version in use."""

    error: Fault
    model: str | None = None


class Refusal(Exception):
    """An answer that is not a success."""

    def __init__(
        self, status: int, code: str, message: str, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, headers

    def body(self, model: str | None = None) -> bytes:
        return msgspec.json.encode(Failure(Fault(self.code, self.message), model))


def busy(message: str) -> Refusal:
    return Refusal(503, "busy", message, ((b"retry-after", b"1"),))

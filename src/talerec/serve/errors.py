"""Errors that clients see: they all have the same JSON form, and none shows a stack trace."""

from __future__ import annotations

import msgspec

Headers = tuple[tuple[bytes, bytes], ...]

_MAX_MESSAGE = 400  # characters
_RETRY_SOON: Headers = ((b"retry-after", b"1"),)


class ErrorDetail(msgspec.Struct):
    """What is wrong: a code for programs and a sentence for people."""

    code: str
    message: str


class ErrorBody(msgspec.Struct):
    """The body of every error; `model` is the version of the model that the request was for."""

    error: ErrorDetail
    model: str | None = None


class ApiError(Exception):
    """An error response: its HTTP status, its code and message, and headers of its own."""

    def __init__(self, status: int, code: str, message: str, headers: Headers = ()) -> None:
        shown = _shortened(message)
        super().__init__(shown)
        self.status, self.code, self.message, self.headers = status, code, shown, headers

    def body(self, model: str | None = None) -> bytes:
        return msgspec.json.encode(ErrorBody(ErrorDetail(self.code, self.message), model))


def _shortened(message: str) -> str:
    """A message that repeats a long value of the client shows its beginning and its end."""
    if len(message) <= _MAX_MESSAGE:
        return message
    half = _MAX_MESSAGE // 2
    return f"{message[:half]} ... {message[-half:]}"


def busy(message: str) -> ApiError:
    """Too many requests at a time; the client may try again after a second."""
    return ApiError(503, "busy", message, _RETRY_SOON)


def store_unavailable(message: str) -> ApiError:
    """Nothing was acknowledged; the client may try again after a second."""
    return ApiError(503, "store_unavailable", message, _RETRY_SOON)


def too_many(message: str) -> ApiError:
    """One client asks too much at a time; it may try again after a second."""
    return ApiError(429, "too_many", message, _RETRY_SOON)


def not_ready() -> ApiError:
    """No model is loaded yet; the client may try again after a second."""
    return ApiError(503, "not_ready", "the model is not loaded yet", _RETRY_SOON)

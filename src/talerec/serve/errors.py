"""Errors that clients see: all have the same JSON form, and none shows a stack trace."""

from __future__ import annotations

import msgspec

Headers = tuple[tuple[bytes, bytes], ...]

_MAX_MESSAGE = 400  # characters
_RETRY_SOON: Headers = ((b"retry-after", b"1"),)


class ErrorDetail(msgspec.Struct):
    """The problem with a request: the field `error` of every error response."""

    code: str  # for programs, such as "k_too_large"
    message: str  # for people


class ErrorBody(msgspec.Struct):
    """The JSON body of every error response."""

    error: ErrorDetail
    model: str | None = None  # the version of the model that was to answer; None without a model


class ApiError(Exception):
    """An error to be sent as an HTTP response in JSON, with additional response headers.

    `status` is the HTTP status, `code` a short name for programs such as "k_too_large", the message
    is for people. A message of more than 400 characters is shortened in the middle.
    """

    def __init__(self, status: int, code: str, message: str, headers: Headers = ()) -> None:
        super().__init__(_shorten(message))
        self.status, self.code, self.headers = status, code, headers

    def body(self, model: str | None = None) -> bytes:
        """Return the JSON body; `model` is the version of the model that was to answer, if any."""
        return msgspec.json.encode(ErrorBody(ErrorDetail(self.code, str(self)), model))


def _shorten(message: str) -> str:
    """Return a message, with its middle replaced by " ... " if it exceeds 400 characters.

    Messages grow long when they repeat a value that the client sent.
    """
    if len(message) <= _MAX_MESSAGE:
        return message
    return f"{message[: _MAX_MESSAGE // 2]} ... {message[-_MAX_MESSAGE // 2 :]}"


def busy(message: str) -> ApiError:
    """Return the error 503 for too many requests in progress; retry after a second."""
    return ApiError(503, "busy", message, _RETRY_SOON)


def store_unavailable(message: str) -> ApiError:
    """Return the error 503 for an event store that stored nothing; retry after a second."""
    return ApiError(503, "store_unavailable", message, _RETRY_SOON)


def too_many(message: str) -> ApiError:
    """Return the error 429 for too many requests of one client; it may retry in a second."""
    return ApiError(429, "too_many", message, _RETRY_SOON)


def no_histories() -> ApiError:
    """Return the error 404 for a model that was saved without users' histories."""
    return ApiError(404, "no_histories", "this model was saved without users' histories")


def not_ready() -> ApiError:
    """Return the error 503 for a service without a model yet; retry after a second."""
    return ApiError(503, "not_ready", "the model is not loaded yet", _RETRY_SOON)

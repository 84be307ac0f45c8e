"""The log of a service: plain lines or JSON lines, which no request can forge."""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any

from talerec.serve import Settings

_FORMAT = "%(asctime)s %(levelname)s %(message)s"
#: Control characters, line and paragraph separators, and characters that change the direction of
#: text: a path or an id that contains them could look like another line of the log.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class TextLines(logging.Formatter):
    """Formats a record as one line of text: time, level and message; then the exception.

    Control characters of the message are escaped, as "\\x0a" for a line feed. The lines of an
    exception are indented.
    """

    def __init__(self) -> None:
        super().__init__(_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return time, level and message of a log record as one line; `logging` calls this."""
        record.message = _UNSAFE.sub(_escape, record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        """Return a traceback, indented; `ei` is the tuple of `sys.exc_info`."""
        lines = super().formatException(ei).splitlines()
        return "\n".join(f"    {_UNSAFE.sub(_escape, line)}" for line in lines)


def _escape(match: re.Match[str]) -> str:
    """Return the matched character as an escape sequence, such as "\\x0a" or "\\u2028"."""
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON: time, level, message, process and extra fields.

    Extra fields are those that the caller passed as `extra={"fields": ...}`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the log record as one line of JSON, with the traceback of an exception."""
        created = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": created, "level": record.levelname.lower(), "message": record.getMessage(),
            "process": record.process, **getattr(record, "fields", {}),
        }  # fmt: skip
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logging(settings: Settings) -> None:
    """Log to standard error at the level of the settings; of other libraries, only warnings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if settings.log_format == "json" else TextLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("talerec").setLevel(settings.log_level.upper())

"""Access tokens: what they allow, where they come from, and a file that may change.

No message, log or representation contains a token.
"""

from __future__ import annotations

import hmac
import logging
import os
import stat
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from talerec.errors import TalerecError

logger = logging.getLogger("talerec")

TOKEN_VARIABLE = "TALEREC_TOKEN"
READ_TOKEN_VARIABLE = "TALEREC_READ_TOKEN"
READ, WRITE = "read", "write"  # what a token allows; one that may write may read too
_MIN_TOKEN = 16  # characters
_MAX_FILE = 65_536  # bytes


@dataclass(frozen=True)
class Tokens:
    """The tokens that a service accepts, as bytes."""

    writers: tuple[bytes, ...] = field(repr=False)  # may ask, store events, delete, and reload
    readers: tuple[bytes, ...] = field(default=(), repr=False)  # may only read

    def find_right(self, token: bytes) -> str | None:
        """Return what a token allows, "write" or "read"; None if it is not accepted.

        The time that this takes does not show how much of a token is right.
        """
        right = None
        for other in self.readers:
            if hmac.compare_digest(token, other):
                right = READ
        for other in self.writers:
            if hmac.compare_digest(token, other):
                right = WRITE
        return right


def check_token(token: str, place: str = "the token") -> str:
    """Return a token without surrounding blanks; TalerecError if it has under 16 characters.

    `place` names the token in the message, such as "line 3 of FILE: the token".
    """
    token = token.strip()
    if len(token) < _MIN_TOKEN:
        raise TalerecError(f"{place} is shorter than {_MIN_TOKEN} characters")
    return token


def read_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the settings `token` and `read_token` from the variables that are set.

    The variables are TALEREC_TOKEN and TALEREC_READ_TOKEN; TalerecError if one is empty.
    """
    tokens = {}
    for name, variable in (("token", TOKEN_VARIABLE), ("read_token", READ_TOKEN_VARIABLE)):
        text = environment.get(variable)
        if text is None:
            continue
        if not text.strip():
            raise TalerecError(f"{variable} is empty: set it to the token or unset it")
        tokens[name] = text.strip()
    return tokens


# -- the file --------------------------------------------------------------------------------------


def read_token_file(path: Path) -> str:
    """Return the text of a file of tokens.

    TalerecError if it cannot be read, can be read by everybody, is not a plain file of UTF-8 text,
    or has more than 64 KiB.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # does not wait for a pipe
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise TalerecError(f"{path} is not a plain file")
            if mode & stat.S_IROTH:
                raise TalerecError(f"{path} can be read by everybody: run chmod 600 on it")
            content = os.read(descriptor, _MAX_FILE + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise TalerecError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(content) > _MAX_FILE:
        raise TalerecError(f"{path} has more than {_MAX_FILE} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise TalerecError(f"{path} is not UTF-8 text") from None


def parse_tokens(text: str, path: Path) -> Tokens:
    """Return the tokens in the text of a file: one in each line, after "read" or "write".

    A line with a token alone is one that may write. Blank lines and lines that begin with "#" are
    ignored. TalerecError names `path` and the line, and never the token.
    """
    tokens: dict[str, list[bytes]] = {READ: [], WRITE: []}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        right = words.pop(0) if len(words) == 2 else WRITE
        if len(words) != 1 or right not in tokens:
            rule = "a line has a token, alone or after read or write"
            raise TalerecError(f"line {number} of {path} is not valid: {rule}")
        tokens[right].append(check_token(words[0], f"line {number} of {path}: the token").encode())
    if not any(tokens.values()):
        raise TalerecError(f"{path} is empty: it must contain a token")
    return Tokens(tuple(tokens[WRITE]), tuple(tokens[READ]))


class TokenWatch:
    """The tokens that a process accepts now; it follows the file of tokens, if there is one.

    Parameters
    ----------
    tokens : Tokens or None
        The tokens at first; None if requests need no token.
    file : Path or None
        The file to follow.
    reports : bool
        Whether changes and invalid files are logged; of all processes, the supervisor does so.
    """

    def __init__(self, tokens: Tokens | None, file: Path | None, *, reports: bool = False) -> None:
        self.current = tokens
        self._file, self._reports = file, reports
        self._seen: tuple[str, str] | None = None  # text and problem of the last check
        self._handled: tuple[str, str] | None = None  # those that were handled last

    def refresh(self) -> None:
        """Use the tokens of the file if it has changed; an invalid file changes nothing.

        A file counts once two checks in a row find the same content, as it may be written just now.
        """
        if self._file is None:
            return
        text = problem = ""
        try:
            text = read_token_file(self._file)
        except TalerecError as error:
            problem = str(error)
        is_stable, self._seen = self._seen == (text, problem), (text, problem)
        if is_stable and self._handled != self._seen:
            self._handled = self._seen
            self._handle(self._file, text, problem)

    def _handle(self, file: Path, text: str, problem: str) -> None:
        """Use the tokens in `text`, the content of `file`, or log the problem with the file.

        `problem` is a message, or empty if the file could be read.
        """
        try:
            if problem:
                raise TalerecError(problem)
            tokens = parse_tokens(text, file)
        except TalerecError as error:
            if self._reports:
                logger.error("the old tokens stay in use: %s", error)
            return
        if tokens != self.current:
            self.current = tokens
            if self._reports:
                counts = len(tokens.writers), len(tokens.readers)
                logger.info("new tokens are in use: %d may write, %d may only read", *counts)

    def start(self, interval: float, stop: threading.Event) -> None:
        """Read the token file again every `interval` seconds, if it changed, until `stop` is set.

        The service accepts the tokens of the last valid file. A daemon thread does it; without a
        token file, nothing is started.
        """

        def watch() -> None:
            """Refresh the tokens until `stop` is set."""
            while not stop.wait(interval):
                self.refresh()

        if self._file is not None:
            threading.Thread(target=watch, name="watch tokens", daemon=True).start()

"""Errors that people cause and can mend: a single line, in their words."""

from __future__ import annotations


class TalerecError(ValueError):
    """Bad input, or a request that cannot be met; the message names the thing and what to do about it."""


class InvalidLogError(TalerecError):
    """A log that cannot be used: a column, row, id or time in it is missing or wrong."""


class UnknownIdError(TalerecError):
    """A user or an item that the model does not know."""


class NotFittedError(TalerecError):
    """A model that was asked something before it was fitted."""

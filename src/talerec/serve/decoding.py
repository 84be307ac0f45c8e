"""Decoding errors of JSON bodies, reworded for clients; whole numbers written as floats."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

NO_FIELD = "there is no field"  # begins the message about an unknown field


class DecodeProblem(NamedTuple):
    """The reason why msgspec could not decode a JSON body into a request class."""

    path: str  # of the value in the JSON, such as "events[3].user_id"; empty for the whole body
    message: str  # for clients
    has_float: bool  # whether the value is a float where another type is needed


def parse_validation_error(error: Exception) -> DecodeProblem:
    """Return the JSON path and problem in a msgspec error, which has them only in its text.

    The problem is reworded for clients, such as "k is missing". The third field says whether a
    float stands where another type is needed.
    """
    text, _, path = str(error).partition(" - at `$")
    has_float = "got `float`" in text
    text = re.sub("Object missing required field `(.*)`", r"\1 is missing", text)
    text = re.sub("Object contains unknown field `(.*)`", rf"{NO_FIELD} \1", text)
    text, path = text.replace("`", ""), path.removesuffix("`").removeprefix(".")
    return DecodeProblem(path, f"{text[:1].lower()}{text[1:]}" if path else text, has_float)


def convert_whole_floats(value: Any) -> Any:
    """Return a JSON value with whole floats as integers, also inside lists and objects.

    Some languages write 28 as 28.0. Beyond 2^53, a float stands for several whole numbers and is
    not converted.
    """
    if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
        return int(value)
    if isinstance(value, list):
        return [convert_whole_floats(entry) for entry in value]
    if isinstance(value, dict):
        return {name: convert_whole_floats(entry) for name, entry in value.items()}
    return value

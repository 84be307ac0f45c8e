"""Parts of a blend that were trained elsewhere: which training is which part's, and on which rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from talerec.data.log import Log
from talerec.errors import TalerecError
from talerec.models.blend import parts as _parts
from talerec.models.core import params
from talerec.models.core.base import Model
from talerec.models.networks.base import Neural, read_training, rows_of

_WHERE = "device"  # the parameter that says where a network was trained, and nothing about it


def taken(
    text: str,
    known: Mapping[str, type[Model]],
    trainings: Sequence[Any],
    log: Log,
    first: Log | None,
) -> tuple[str, dict[int, list[Any]]]:
    """The parts with the settings that they were trained with, and the trainings of each by its number.

    text: the parts as a blend names them
    first: the rows of the first fit; None where there is none
    """
    made = [read_training(one) for one in trainings]
    rows = [_rows(one) for one in (log, first) if one is not None]
    parts, found = [], {}
    for number, (name, settings) in enumerate(_parts.named(text)):
        kind = known.get(name)
        if kind is not None and issubclass(kind, Neural):
            mine = [_one(kind, params.parse(kind, settings), made, rows[0], "the log")]
            if first is not None:
                exactly = _apart(mine[0].facts["params"])
                mine.append(_one(kind, exactly, made, rows[1], "the first fit (`first_rows`)"))
            found[number], settings = mine, _settings(kind, mine[0].facts["params"])
        parts.append(f"{name}({'; '.join(settings)})" if settings else name)
    used = [id(one) for mine in found.values() for one in mine]
    for number, one in enumerate(made, 1):
        if id(one) not in used:
            raise TalerecError(
                f"training {number}, of {one.facts['kind']}, is none of a part's on the rows that it is fitted on"
            )
    return ", ".join(parts), found


def _rows(log: Log) -> str:
    return rows_of(log).fingerprint()


def _apart(known: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters, without where they were used."""
    return {name: value for name, value in known.items() if name != _WHERE}


def _one(
    kind: type[Neural], wanted: Mapping[str, Any], made: Sequence[Any], rows: str, where: str
) -> Any:
    """The one training of this model, with these parameters, on these rows."""
    found = [
        one
        for one in made
        if one.facts["kind"] == kind.name
        and one.facts["rows"] == rows
        and wanted.items() <= one.facts["params"].items()
    ]
    if len(found) == 1:
        return found[0]
    said = ", ".join(_settings(kind, {**kind().params, **wanted})) or "its defaults"
    if found:
        raise TalerecError(
            f"{len(found)} trainings of {kind.name} are of the rows of {where}; "
            f"name the part's settings, such as {kind.name}(seed=1)"
        )
    raise TalerecError(
        f"{kind.name}, a part of the blend, has no training on the rows of {where} with {said}"
    )


def _settings(kind: type[Neural], known: Mapping[str, Any]) -> list[str]:
    """What is not as usual in the parameters of a model, as a blend's text says it."""
    usual = kind().params
    return [f"{name}={value}" for name, value in known.items() if usual[name] != value]

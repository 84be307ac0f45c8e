"""Checkpoints: a training as plain arrays in one file, which is whole or not there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch

from talerec.errors import TalerecError
from talerec.runtime.arrays import Array
from talerec.runtime.files import atomic_write, sync_folder

_ABOUT = "about"  # the entry that holds facts, as JSON


def write(path: Path, facts: dict[str, Any], arrays: dict[str, Array]) -> None:
    """Write facts and arrays to one .npz file, replacing an earlier one in one step."""
    text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as unfinished, unfinished.open("wb") as file:
        np.savez(file, allow_pickle=False, **{_ABOUT: text, **arrays})
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def read(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """Facts and arrays of a file that `write` wrote."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
            arrays = {name: kept[name] for name in kept.files}
        facts: dict[str, Any] = json.loads(arrays.pop(_ABOUT).tobytes())
    except (OSError, ValueError, KeyError, BadZipFile, EOFError) as error:
        raise TalerecError(f"{path} is not a training that can be read: {error}") from None
    return facts, arrays


# -- networks and optimisers -----------------------------------------------------------------------


def state_of(module: torch.nn.Module) -> dict[str, Array]:
    """The parameters of a network by name, as arrays of their own."""
    return {name: value.detach().cpu().numpy().copy() for name, value in module.named_parameters()}


def put_state(module: torch.nn.Module, arrays: dict[str, Array]) -> None:
    """Put parameters back; names and shapes have to agree."""
    mine = dict(module.named_parameters())
    if mine.keys() != arrays.keys():
        raise TalerecError("the arrays are of a network with other parameters")
    with torch.no_grad():
        for name, value in mine.items():
            if tuple(value.shape) != arrays[name].shape:
                raise TalerecError(
                    f"the array {name} has the shape {arrays[name].shape}, not {tuple(value.shape)}"
                )
            value.copy_(torch.tensor(np.asarray(arrays[name])))


def optimiser_state(module: torch.nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Array]:
    """What Adam remembers of each parameter."""
    found = {}
    for name, value in module.named_parameters():
        for part, kept in optimiser.state[value].items():
            found[f"{part}:{name}"] = kept.detach().cpu().numpy().copy()
    return found


def put_optimiser_state(
    module: torch.nn.Module, optimiser: torch.optim.Optimizer, arrays: dict[str, Array]
) -> None:
    """Put back what Adam remembered."""
    mine = dict(module.named_parameters())
    for key, array in arrays.items():
        part, _, name = key.partition(":")
        value = mine[name]
        where = value.device
        optimiser.state[value][part] = torch.tensor(array).to(where)

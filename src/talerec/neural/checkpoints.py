"""Checkpoints: the state of a training as plain arrays in one file, written atomically."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch

from talerec.errors import TalerecError
from talerec.runtime import Array, atomic_write, sync_folder

_ABOUT = "about"  # the entry that holds facts, as JSON


def write(path: Path, facts: dict[str, Any], arrays: dict[str, Array]) -> None:
    """Write facts and arrays to one .npz file, replacing an earlier file in one step.

    facts : values that JSON can hold, stored as one entry; arrays : NumPy arrays by name
    The file is flushed to disk before the function returns; missing folders are created.
    """
    text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as unfinished, unfinished.open("wb") as file:
        np.savez(file, allow_pickle=False, **{_ABOUT: text, **arrays})
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def read(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return (facts, arrays) of a .npz file that `write` wrote.

    facts : the dictionary stored as JSON; arrays : NumPy arrays by name
    Raises TalerecError if the file is missing or damaged.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as entries:
            arrays = {name: entries[name] for name in entries.files}
        facts: dict[str, Any] = json.loads(arrays.pop(_ABOUT).tobytes())
    except (OSError, ValueError, KeyError, BadZipFile, EOFError) as error:
        raise TalerecError(f"{path} is not a readable training: {error}") from None
    return facts, arrays


# -- networks and optimisers -----------------------------------------------------------------------


def copy_parameters(module: torch.nn.Module) -> dict[str, Array]:
    """Return NumPy copies of a network's parameters, by parameter name.

    Empty for a network without parameters.
    """
    return {name: value.detach().cpu().numpy().copy() for name, value in module.named_parameters()}


def load_parameters(module: torch.nn.Module, arrays: dict[str, Array]) -> None:
    """Copy arrays into the parameters of a network, in place.

    Raises TalerecError unless names and shapes agree with the network's parameters.
    """
    parameters = dict(module.named_parameters())
    if parameters.keys() != arrays.keys():
        raise TalerecError("the arrays belong to a network with other parameters")
    with torch.no_grad():
        for name, value in parameters.items():
            if tuple(value.shape) != arrays[name].shape:
                raise TalerecError(
                    f"array {name} has shape {arrays[name].shape}, expected {tuple(value.shape)}"
                )
            value.copy_(torch.tensor(np.asarray(arrays[name])))


def optimiser_state(module: torch.nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Array]:
    """Return NumPy copies of the optimiser's tensors of each parameter (Adam's moments).

    The keys are "TENSOR:PARAMETER", for example "exp_avg:items".
    """
    arrays = {}
    for name, value in module.named_parameters():
        for part, tensor in optimiser.state[value].items():
            arrays[f"{part}:{name}"] = tensor.detach().cpu().numpy().copy()
    return arrays


def load_optimiser_state(
    module: torch.nn.Module, optimiser: torch.optim.Optimizer, arrays: dict[str, Array]
) -> None:
    """Restore in `optimiser` the arrays that `optimiser_state` returned.

    arrays : by "TENSOR:PARAMETER"; each is moved to the device of its parameter in `module`
    """
    parameters = dict(module.named_parameters())
    for key, array in arrays.items():
        part, _, name = key.partition(":")
        value = parameters[name]
        optimiser.state[value][part] = torch.tensor(array).to(value.device)

"""Where a training runs, how precisely, and whether there is room for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from talerec.errors import TalerecError
from talerec.neural.settings import Settings
from talerec.neural.validation import CELLS, SCORES
from talerec.runtime.memory import available_bytes, human

_KEPT = 14  # numbers of `dim` that a block keeps for each cell, and as many again while gradients are made
_SCORES = 4  # of the scores of a batch, chunks that exist at once


def device_of(name: str) -> torch.device:
    """The device of this name; `auto` is a GPU where there is one."""
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise TalerecError("device is 'cuda', but torch finds no GPU; use device=auto or cpu")
    return torch.device("cuda" if there and name != "cpu" else "cpu")


#: On a GPU, take only operations whose results do not depend on the order in which its threads end.
DETERMINISTIC = True


@contextmanager
def exactly(device: torch.device, precision: str, seed: int) -> Iterator[None]:
    """Inside the block, the same work gives identical results; torch's own settings and draws are put back after it.

    Where a GPU has no such operation, torch warns and takes another.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the GPU is first used
    precise = torch.get_float32_matmul_precision()
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
        exact = DETERMINISTIC and device.type == "cuda"
        torch.use_deterministic_algorithms(exact, warn_only=exact)
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise TalerecError(
                f"the GPU's memory is full ({str(error).splitlines()[0]}); lower batch or dim"
            ) from None
        finally:
            torch.set_float32_matmul_precision(precise)
            torch.use_deterministic_algorithms(before, warn_only=warned)


def needed_bytes(settings: Settings, items: int, cells: int, width: int) -> int:
    """About how much memory a training takes: parameters and Adam's, what a batch keeps, and scores."""
    table = items * settings.dim * (1 if settings.own.get("output", "shared") == "shared" else 2)
    block = 12 * settings.dim**2 * settings.layers
    kept = cells * settings.dim * 2 * _KEPT * settings.layers
    weights = cells * width * settings.heads * 3 * settings.layers
    shared = settings.negatives if settings.loss != "softmax" else items
    scores = min(2**27, settings.batch * shared) * _SCORES
    judging = 3 * min(SCORES, settings.judges * items) + 8 * CELLS * settings.dim
    return 4 * (5 * (table + block) + max(kept + weights + scores, judging))


def require_room(needed: int, device: torch.device) -> None:
    """Refuse a training that does not fit, before it begins."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_bytes()
    if needed > free:
        place = "on the GPU " if device.type == "cuda" else ""
        raise TalerecError(
            f"training needs about {human(needed)} {place}but {human(free)} is free; "
            "lower batch, max_history or dim"
        )

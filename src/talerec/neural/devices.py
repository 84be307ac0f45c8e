"""The device of a training, its numeric precision, and how much memory it needs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from talerec.errors import TalerecError
from talerec.neural.settings import NetSettings
from talerec.neural.validation import CELLS, SCORES
from talerec.runtime import available_bytes, format_bytes

_ACTIVATIONS = 14  # vectors of size dim that a block stores per cell; gradients need as many
_SCORES = 4  # copies of a batch's scores that exist at once


def device_of(name: str) -> torch.device:
    """Return the torch device of a name: "cpu", "cuda" or "auto" (the GPU if there is one).

    Raises TalerecError for "cuda" without a GPU.
    """
    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        raise TalerecError("device is 'cuda', but torch finds no GPU; use device=auto or cpu")
    return torch.device("cuda" if has_gpu and name != "cpu" else "cpu")


#: On a GPU, use only operations whose results do not depend on the order of its threads.
DETERMINISTIC = True


@contextmanager
def deterministic(device: torch.device, precision: str, seed: int) -> Iterator[None]:
    """Make torch deterministic inside a `with` block; restore settings and random state after.

    precision : "float32" for full float32 matrix products; any other value allows TF32
    seed : of torch's random numbers inside the block
    Where a GPU has no deterministic operation, torch warns and uses another. A full GPU memory
    becomes a TalerecError.
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


def needed_bytes(settings: NetSettings, items: int, cells: int, width: int) -> int:
    """Estimate the peak memory of training a network, in bytes.

    It counts parameters, gradients, optimiser, activations and scores.
    items : number of items; cells : rows of a batch, with padding; width : rows per sample
    settings : dim (of item vectors), layers, heads, loss, negatives, batch and validation users
    """
    tables = 1 if settings.specific.get("output", "shared") == "shared" else 2
    table = items * settings.dim * tables
    block = 12 * settings.dim**2 * settings.layers
    activations = cells * settings.dim * 2 * _ACTIVATIONS * settings.layers
    attention = cells * width * settings.heads * 3 * settings.layers
    shared = settings.negatives if settings.loss != "softmax" else items
    scores = min(2**27, settings.batch * shared) * _SCORES
    validation = 3 * min(SCORES, settings.judges * items) + 8 * CELLS * settings.dim
    return 4 * (5 * (table + block) + max(activations + attention + scores, validation))


def require_memory(needed: int, device: torch.device) -> None:
    """Raise TalerecError if `needed` bytes exceed the free memory of the device.

    On a CPU, that is the memory available to the process.
    """
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_bytes()
    if needed > free:
        where = "on the GPU " if device.type == "cuda" else ""
        raise TalerecError(
            f"training needs about {format_bytes(needed)} {where}but {format_bytes(free)} is free; "
            "lower batch, max_history or dim"
        )

"""Asking a trained network: histories in, one state for each out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch

from talerec.neural.checkpoints import put_state
from talerec.neural.nets.base import Net
from talerec.neural.registry import build
from talerec.neural.samples import Batch, widths
from talerec.neural.settings import Settings
from talerec.runtime.arrays import Array

_CELLS = 2**15  # that are encoded at once
_TABLE = "items"
_SCORING = ("targets", "bias")  # parameters that scores are made with, and states are not


class Runs(NamedTuple):
    """Histories: rows start[h]..stop[h] of the columns; -1 for an item that is not known. `now`: when each is asked."""

    start: Array
    stop: Array
    item: Array
    time: Array
    now: Array


class Scorer(NamedTuple):
    """What scores are made with: a row of `table` (dim x items) for each number of a state.

    A bias is one more row, for a number that is always 1.
    kept: the arrays that are needed besides, to make states
    """

    table: Array
    kept: dict[str, Array]


def scorer(settings: Settings, arrays: Mapping[str, Array]) -> Scorer:
    """What a network with these arrays scores items by."""
    net = _built(len(arrays[_TABLE]), settings)
    put_state(net, dict(arrays))
    with torch.no_grad():
        head = net.head()
        table = head.table.mT.numpy()
        if head.bias is not None:
            table = np.vstack([table, head.bias.numpy()[None]])
    read = {_TABLE} if net.shares_table else set()
    kept = {name: a for name, a in arrays.items() if name not in read | set(_SCORING)}
    return Scorer(np.ascontiguousarray(table, np.float32), kept)


def _built(items: int, settings: Settings) -> Net:
    """A network, without a trace in torch's own draws."""
    with torch.random.fork_rng([]):
        return build(items, settings)


def reader(settings: Settings, arrays: Mapping[str, Array]) -> Net:
    """A network that is asked: its item vectors stay where they are, and are handed to it row by row."""
    net = _built(0, settings)
    put_state(
        net,
        {
            name: arrays[name] if value.numel() else value.detach().numpy()
            for name, value in net.named_parameters()
        },
    )
    return net.eval()


def states(net: Net, runs: Runs, vectors: Callable[[Array], Array]) -> tuple[Array, Array]:
    """The state of every history (zeros where none of its rows is known), and which have one.

    vectors: the vectors of some items, as the network reads them
    """
    known = np.flatnonzero(runs.item >= 0)
    before = np.concatenate([[0], np.cumsum(runs.item >= 0)])
    stop = before[runs.stop]
    count = np.minimum(stop - before[runs.start], net.longest_asked)
    out = np.zeros((len(count), net.settings.dim), np.float32)
    allowed = [net.longest_asked] if net.fixed_width else widths(net.longest_asked)
    bucket = np.searchsorted(allowed, count)
    for number, width in enumerate(allowed):
        mine = np.flatnonzero((bucket == number) & (count > 0))
        for part in np.array_split(mine, -(-len(mine) * width // _CELLS) or 1):
            if part.size:
                rows = known[_rows(stop[part], count[part], width)]
                batch = _batch(runs, rows, count[part], runs.now[part], vectors)
                with torch.inference_mode():
                    out[part] = net.ask(batch).numpy()
    return out, count > 0


def _rows(stop: Array, count: Array, width: int) -> Array:
    """The last `count` rows before `stop`, oldest first; after them, the newest again."""
    found: Array = (stop - count)[:, None] + np.minimum(np.arange(width), (count - 1)[:, None])
    return found


def _batch(
    runs: Runs, rows: Array, count: Array, now: Array, vectors: Callable[[Array], Array]
) -> Batch:
    item, time = runs.item[rows].astype(np.int64), runs.time[rows]
    later = np.concatenate([time[:, 1:], time[:, -1:]], 1)
    later[np.arange(len(rows)), count - 1] = now
    inside = np.arange(rows.shape[1]) < count[:, None]
    read = vectors(item.ravel()).reshape(*item.shape, -1) * inside[..., None]
    return Batch(
        item=torch.from_numpy(item * inside),
        time=torch.from_numpy(time),
        now=torch.from_numpy(later),
        count=torch.from_numpy(count),
        lengths=count,
        place=None,
        target=None,
        sample=np.arange(len(rows)),
        user=np.arange(len(rows)),
        vectors=torch.from_numpy(np.ascontiguousarray(read, np.float32)),
    )

"""Encode histories with a trained network: one state vector per history."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch

from talerec.neural.checkpoints import load_parameters
from talerec.neural.nets.base import Net
from talerec.neural.registry import build_net
from talerec.neural.samples import Batch, widths
from talerec.neural.settings import NetSettings
from talerec.runtime import Array

_CELLS = 2**15  # cells (histories x columns) that are encoded at once
_TABLE = "items"
_SCORING = ("targets", "bias")  # parameters that scores need and states do not


class HistoryRows(NamedTuple):
    """Histories to encode: history h has rows start[h]..stop[h] of the columns item and time.

    start, stop, now : one entry per history; now : its request time, microseconds
    item, time : one entry per row, oldest first; item -1 is unknown; time in microseconds
    """

    start: Array
    stop: Array
    item: Array
    time: Array
    now: Array


class OutputLayer(NamedTuple):
    """The output layer of a network, and the parameters of its encoder.

    The encoder maps a history to its state, a vector of size dim.
    table : dim x items, so that scores are state @ table; a bias is one more row, for a constant 1
    encoder : the parameters of the encoder by name, as arrays
    """

    table: Array
    encoder: dict[str, Array]


def output_layer(settings: NetSettings, arrays: Mapping[str, Array]) -> OutputLayer:
    """Split the parameters of a trained network into its output layer and its encoder.

    The encoder maps a history to a state; scores are the state times the output layer's item
    vectors. arrays : all parameters by name. The encoder keeps the input vectors of items only
    where the output layer has vectors of its own.
    """
    net = _build_net(len(arrays[_TABLE]), settings)
    load_parameters(net, dict(arrays))
    with torch.no_grad():
        head = net.head()
        table = head.table.mT.numpy()
        if head.bias is not None:
            table = np.vstack([table, head.bias.numpy()[None]])
    shared = {_TABLE} if net.shares_table else set()
    encoder = {name: a for name, a in arrays.items() if name not in shared | set(_SCORING)}
    return OutputLayer(np.ascontiguousarray(table, np.float32), encoder)


def _build_net(items: int, settings: NetSettings) -> Net:
    """Return a network for `items` items, whose parameters the caller initialises.

    settings : the kind of network and its sizes. torch's random state stays as it was.
    """
    with torch.random.fork_rng([]):  # []: no GPU has a state to save
        return build_net(items, settings)


def load_encoder(settings: NetSettings, arrays: Mapping[str, Array]) -> Net:
    """Return a network in evaluation mode that has its parameters, but no item vectors.

    arrays : the trained parameters by name. Batches for this network must carry the input vectors
    of their items (`Batch.vectors`). It encodes histories as states, vectors of size dim.
    """
    net = _build_net(0, settings)
    parameters = {
        name: arrays[name] if value.numel() else value.detach().numpy()
        for name, value in net.named_parameters()
    }
    load_parameters(net, parameters)
    return net.eval()


def encode_histories(
    net: Net, histories: HistoryRows, vectors: Callable[[Array], Array]
) -> tuple[Array, Array]:
    """Return (states, has_state): the float32 state of each history, and whether it has one.

    states is histories x dim; scores are states times output vectors. Unknown items (-1) are
    skipped and only the newest rows are read; a history without a known item has no state: zeros.
    net : a trained encoder
    vectors : a function from item positions to their input vectors (n x dim)
    """
    is_known = histories.item >= 0
    known_rows = np.flatnonzero(is_known)
    n_known_before = np.concatenate([[0], np.cumsum(is_known)])
    stop = n_known_before[histories.stop]
    count = np.minimum(stop - n_known_before[histories.start], net.longest_history)
    out = np.zeros((len(count), net.settings.dim), np.float32)
    allowed = [net.longest_history] if net.fixed_width else widths(net.longest_history)
    bucket = np.searchsorted(allowed, count)
    for number, width in enumerate(allowed):
        selected = np.flatnonzero((bucket == number) & (count > 0))
        for part in np.array_split(selected, -(-len(selected) * width // _CELLS) or 1):
            if part.size:
                rows = known_rows[_select_last_rows(stop[part], count[part], width)]
                batch = _build_batch(histories, rows, count[part], histories.now[part], vectors)
                with torch.inference_mode():
                    out[part] = net.encode_last(batch).numpy()
    return out, count > 0


def _select_last_rows(stop: Array, count: Array, width: int) -> Array:
    """Return row numbers, histories x width: the last `count` rows before `stop`, in order.

    stop, count : one entry per history, count at least 1; columns beyond it repeat the newest row.
    """
    rows: Array = (stop - count)[:, None] + np.minimum(np.arange(width), (count - 1)[:, None])
    return rows


def _build_batch(
    histories: HistoryRows, rows: Array, count: Array, now: Array, vectors: Callable[[Array], Array]
) -> Batch:
    """Return rows of histories as a `Batch` for inference, without targets, with item vectors.

    rows : histories x width, row numbers, of which only the first `count` of each line are read
    now : request time of each history, microseconds; it is the time that follows its newest row
    vectors : a function from item positions to input vectors (n x dim)
    """
    item, time = histories.item[rows].astype(np.int64), histories.time[rows]
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
        position=None,
        target=None,
        sample=np.arange(len(rows)),
        user=np.arange(len(rows)),
        vectors=torch.from_numpy(np.ascontiguousarray(read, np.float32)),
    )

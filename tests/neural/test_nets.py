"""Networks: each equals its slow twin, sees no later row than it says, and does not see padding."""

from __future__ import annotations

import numpy as np
import pytest
import twins

from kinds import NEURAL, need_torch, small
from talerec.errors import TalerecError
from talerec.models import MODELS

need = pytest.fixture(autouse=True, scope="module")(need_torch)

ITEMS = 13

#: Every kind, and those of its settings that make another network.
VARIANTS = [(name, {}) for name in NEURAL]
VARIANTS += [("sasrec", {"norm": norm}) for norm in ("pre", "original")]
VARIANTS += [("sasrec", {"output": "own"}), ("sasrec", {"heads": 1, "layers": 1})]
VARIANTS += [("linrec", {"causal": "yes", "samples": "windows"}), ("tisasrec", {"unit": "log"})]
VARIANTS += [
    ("fearec", {"band": 0.3, "lags": 2.0}),
    ("bsarec", {"bins": 1}),
    ("gru4rec", {"layers": 1}),
]


def name_of(variant) -> str:
    return " ".join([variant[0], *(f"{k}={v}" for k, v in variant[1].items())])


@pytest.fixture(scope="module", params=VARIANTS, ids=map(name_of, VARIANTS))
def made(request):
    """Return settings and random arrays of a network, larger than initial parameters."""
    from talerec.neural import NetSettings
    from talerec.neural.checkpoints import copy_parameters
    from talerec.neural.registry import build_net

    name, own = request.param
    model = MODELS[name](**{**small(name), **own})
    settings = NetSettings.of(name, model.params)
    net = build_net(ITEMS, settings)
    net.reset()
    rng = np.random.default_rng(5)
    arrays = {
        key: (value + rng.normal(0, 0.3, value.shape)).astype(np.float32)
        for key, value in copy_parameters(net).items()
    }
    if "median" in arrays:
        arrays["median"] = np.array([3e10], np.float32)
    return settings, arrays


def histories(longest: int) -> list[list[int]]:
    rng = np.random.default_rng(1)
    return [rng.integers(0, ITEMS, n).tolist() for n in (1, 2, 7, longest, longest + 5)]


def times_of(items: list[int], seed: int = 0) -> list[int]:
    gaps = np.random.default_rng(seed).integers(1, 10**6, len(items)) * 10**6
    return (10**15 + np.cumsum(gaps)).tolist()


def asked(settings, arrays, rows, times=None, now=None) -> np.ndarray:
    """States from the torch network, all histories in one go."""
    from talerec.neural.inference import HistoryRows, encode_histories, load_encoder

    times = times or [times_of(items) for items in rows]
    ends = np.cumsum([len(items) for items in rows])
    runs = HistoryRows(
        ends - [len(items) for items in rows],
        ends,
        np.concatenate(rows).astype(np.int32),
        np.concatenate(times).astype(np.int64),
        np.array(now or [one[-1] for one in times]),
    )
    found, known = encode_histories(
        load_encoder(settings, arrays), runs, lambda items: arrays["items"][items]
    )
    assert known.all()
    return found


def twin(settings, arrays, items, times, now=None) -> np.ndarray:
    exact = {name: array.astype(np.float64) for name, array in arrays.items()}
    return twins.TWINS[settings.kind](
        exact, settings, items, times, times[-1] if now is None else now
    )


def test_torch_equals_its_twin(made):
    settings, arrays = made
    rows = histories(settings.max_history)
    found = asked(settings, arrays, rows)
    for items, state in zip(rows, found, strict=True):
        wanted = twin(settings, arrays, items, times_of(items))
        assert np.abs(state - wanted).max() <= 1e-5 * np.linalg.norm(wanted)


def test_one_alone_is_as_in_a_batch_of_many(made):
    settings, arrays = made
    rows = histories(settings.max_history)
    together = asked(settings, arrays, rows)
    for items, state in zip(rows, together, strict=True):
        alone = asked(settings, arrays, [items])[0]
        np.testing.assert_allclose(alone, state, rtol=0, atol=1e-5 * np.linalg.norm(alone))


def batch_of(rows: list[list[int]], width: int, times: list[int] | None = None):
    """Rows as a batch of this width; times: of the rows, and of those that would follow."""
    import torch

    from talerec.neural.samples import Batch

    count = np.array([len(items) for items in rows])
    item, time = np.zeros((2, len(rows), width), np.int64)
    now = np.zeros_like(time)
    for n, items in enumerate(rows):
        when = times or times_of(items)
        after = [*when, when[-1]][1 : len(items) + 1]
        item[n, : len(items)], time[n, : len(items)] = items, when[: len(items)]
        time[n, len(items) :] = when[len(items) - 1]
        now[n, : len(items)], now[n, len(items) :] = after, after[-1]
    to = torch.from_numpy
    return Batch(
        to(item),
        to(time),
        to(now),
        to(count),
        count,
        None,
        None,
        np.arange(len(rows)),
        np.arange(len(rows)),
    )


def network(settings, arrays):
    from talerec.neural.checkpoints import load_parameters
    from talerec.neural.registry import build_net

    net = build_net(ITEMS, settings)
    load_parameters(net, arrays)
    return net.eval()


def test_a_causal_state_is_the_code_of_its_prefix_and_knows_no_later_row(made):
    import torch

    settings, arrays = made
    net = network(settings, arrays)
    if not net.causal:
        with pytest.raises(TalerecError, match="samples is"):
            MODELS[settings.kind](**{**small(settings.kind), "samples": "windows"})
        return
    items = histories(settings.max_history)[3]
    times = times_of(items)
    with torch.inference_mode():
        whole = net.encode(batch_of([items], settings.max_history, times))[0]
        for r in range(len(items)):
            prefix = net.encode(batch_of([items[: r + 1]], r + 1, times))[0, r]
            torch.testing.assert_close(whole[r], prefix, rtol=1e-5, atol=1e-5)
            later = items[: r + 1] + [(item + 1) % ITEMS for item in items[r + 1 :]]
            other = net.encode(batch_of([later], settings.max_history, times))[0, : r + 1]
            torch.testing.assert_close(whole[: r + 1], other, rtol=1e-5, atol=1e-5)


def test_padding_says_nothing(made):
    import torch

    settings, arrays = made
    net = network(settings, arrays)
    rows = [[1, 2], [3, 4, 5, 6]]
    if net.fixed_width:
        pytest.skip("its width is part of the model")
    with torch.inference_mode():
        narrow, wide = (
            net.encode_last(batch_of(rows, width)) for width in (4, settings.max_history)
        )
        alone = net.encode_last(batch_of(rows[:1], 2))
    torch.testing.assert_close(narrow, wide, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(alone[0], wide[0], rtol=1e-5, atol=1e-5)


def test_every_parameter_has_a_gradient_at_the_first_step(made):
    import torch

    from talerec.neural import Rows
    from talerec.neural.losses import criterion
    from talerec.neural.nets.base import Step
    from talerec.neural.registry import build_net
    from talerec.neural.samples import Feed, cut_samples
    from talerec.neural.training import sampling_scheme

    settings = made[0]
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    item = np.concatenate([rng.permutation(ITEMS), rng.integers(0, ITEMS, 40)])
    rows = Rows(np.array([0, 13, 30, 53]), item, np.cumsum(rng.integers(1, 10**10, 53)), ITEMS)
    net = build_net(ITEMS, settings)
    net.reset()
    net.prepare(rows)
    made_samples = cut_samples(
        sampling_scheme(settings), rows.ptr[:-1], rows.ptr[1:], settings.max_history
    )
    feed = Feed(rows, made_samples, torch.device("cpu"))
    net.train()
    for epoch in {0, net.warmup}:
        step = Step(feed, criterion(settings.loss, 200), rng, epoch)
        net.loss(feed.batch(np.arange(len(made_samples)), settings.max_history), step).backward()
    for name, value in net.named_parameters():
        if value.requires_grad:
            assert value.grad is not None, name
            assert value.grad.abs().sum() > 0, name


def test_attention_weights_add_up_to_one_over_what_may_be_looked_at():
    import torch

    from talerec.neural.nets.base import causal_mask
    from talerec.neural.nets.blocks import attention_weights

    weights = attention_weights(torch.randn(2, 3, 5, 5), causal_mask(5, torch.device("cpu")))
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 5))
    assert (weights.triu(1) == 0).all()
    assert (weights[..., 0, 0] == 1).all()

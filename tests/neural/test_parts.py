"""Layers with a formula of their own: filters, lags, running sums, intervals, views."""

from __future__ import annotations

import math

import numpy as np
import pytest
from twins import dft_filter

from kinds import need_torch, small
from talerec.errors import TalerecError
from talerec.models import MODELS

need = pytest.fixture(autouse=True, scope="module")(need_torch)

DAY, HOUR = 86_400 * 10**6, 3600 * 10**6


def settings_of(name: str, **changes):
    from talerec.neural import NetSettings

    return NetSettings.of(name, MODELS[name](**{**small(name), **changes}).params)


# -- frequencies -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "bins"), [(6, 3), (7, 5), (50, 9), (8, 8), (5, 0)])
def test_the_low_pass_is_transform_cut_and_back(width, bins):
    from talerec.neural.nets.spectral import low_pass

    C = low_pass(width, bins).double().numpy()
    x = np.random.default_rng(0).normal(size=(width, 3))
    wanted = np.array(dft_filter(list(x), lambda k: k < bins // 2 + 1))
    np.testing.assert_allclose(C @ x, wanted, atol=1e-6)
    np.testing.assert_allclose(C @ C, C, atol=1e-6)
    np.testing.assert_allclose(C.sum(1), 1, atol=1e-6)


def test_the_bands_of_the_published_settings():
    from talerec.neural.nets.spectral import bands

    assert bands(50, 2, 0.6) == [(10, 26), (0, 16)]
    assert bands(50, 2, 0.4) == [(13, 26), (0, 13)]
    assert bands(50, 1, 1.0) == [(0, 26)]


@pytest.mark.parametrize(("left", "right"), [(0, 26), (10, 26), (0, 16), (3, 4)])
def test_a_band_is_transform_cut_and_back(left, right):
    from talerec.neural.nets.spectral import band_pass

    x = np.random.default_rng(0).normal(size=(50, 2))
    spectrum = np.fft.rfft(x, axis=0)
    spectrum[:left], spectrum[right:] = 0, 0
    wanted = np.fft.irfft(spectrum, 50, axis=0)
    np.testing.assert_allclose(band_pass(50, left, right).numpy() @ x, wanted, atol=1e-5)


def test_resemblance_by_a_matrix_is_resemblance_by_transforms():
    import torch

    from talerec.neural.nets.spectral import FrequencyAttention

    layer = FrequencyAttention(settings_of("fearec", max_history=10), 0, 6)
    q, k = torch.randn(2, 3, 10, 8).unbind()
    found = layer.autocorrelation(q, k).numpy()
    Q, K = (np.fft.rfft(part.numpy(), axis=1) for part in (q, k))
    np.testing.assert_allclose(found, np.fft.irfft(Q * np.conj(K), 10, axis=1).mean(2), atol=1e-5)


def test_lags_are_those_of_the_batch_in_training_and_of_each_sample_when_asked():
    import torch

    from talerec.neural.nets.spectral import FrequencyAttention

    layer = FrequencyAttention(settings_of("fearec", max_history=10, lags=0.5), 0, 6)
    assert layer.lags == 1
    rng = np.random.default_rng(2)
    q, k, v = (torch.tensor(rng.normal(size=(4, 10, 8)), dtype=torch.float32) for _ in range(3))
    R = layer.autocorrelation(q, k).numpy()
    for train in (True, False):
        found = layer.train(train)._attend_lags(q, k, v).numpy()
        for n in range(4):
            lag = int((R.mean(0) if train else R[n]).argmax())
            rolled = np.array([v[n, (t + lag) % 10].numpy() for t in range(10)])
            np.testing.assert_allclose(found[n], rolled, atol=1e-6)


def test_fearec_takes_an_even_number_of_rows():
    with pytest.raises(TalerecError, match="max_history is 7; fearec takes an even number"):
        MODELS["fearec"](max_history=7)


# -- running sums ----------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 5, 64, 130])
def test_causal_linear_attention_by_running_sums_is_the_lower_triangle(width):
    import torch

    from talerec.neural.nets.sasrec import causal_linear_attention

    q, k, v = torch.randn(3, 2, 2, width, 4, dtype=torch.float64).unbind()
    torch.testing.assert_close(causal_linear_attention(q, k, v), (q @ k.mT).tril() @ v)


def test_the_feature_of_a_zero_row_is_finite():
    import torch

    from talerec.neural.nets.sasrec import linear_feature

    x = torch.zeros(1, 4, requires_grad=True)
    linear_feature(x).sum().backward()
    assert torch.isfinite(linear_feature(x)).all()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("width", [1, 2, 3, 8, 13])
def test_the_scan_is_the_loop_and_the_powers(width):
    import torch

    from talerec.neural.nets.recurrent import scan

    torch.manual_seed(0)
    u = torch.randn(2, width, 5, dtype=torch.complex128)
    factor = 0.9 * torch.exp(1j * torch.rand(5, dtype=torch.float64) * 6)
    h, rows = torch.zeros(2, 5, dtype=torch.complex128), []
    for t in range(width):
        h = factor * h + u[:, t]
        rows.append(h)
    torch.testing.assert_close(scan(factor, u), torch.stack(rows, 1))
    powers = sum(factor ** (width - 1 - t) * u[:, t] for t in range(width))
    torch.testing.assert_close(rows[-1], powers)
    empty = torch.cat([torch.zeros(2, 3, 5, dtype=u.dtype), u], 1)
    torch.testing.assert_close(scan(factor, empty)[:, 3:], scan(factor, u))


def test_linear_units_begin_inside_their_ring():
    import torch

    from talerec.neural.nets.recurrent import LinearUnit

    unit = LinearUnit(32)
    unit.reset()
    size = torch.exp(-unit.nu.exp())
    assert (size >= 0.8 - 1e-5).all()
    assert (size <= 0.99 + 1e-5).all()
    torch.testing.assert_close(unit.gamma.exp() ** 2 + size**2, torch.ones(64))


# -- time ------------------------------------------------------------------------------------------


def net_of(name: str, **changes):
    import torch

    from talerec.neural.registry import build_net

    torch.manual_seed(0)
    net = build_net(9, settings_of(name, **changes))
    net.reset()
    return net.eval()


def times(*days: float):
    import torch

    return torch.tensor([[round(10**15 + day * DAY) for day in days]])


def test_intervals_are_in_units_of_the_smallest_so_far():
    net = net_of("tisasrec", units=20)
    assert net.intervals(times(0, 4, 4, 6, 100))[0].tolist() == [
        [0, 20, 20, 20, 20],  # no interval yet: seconds
        [1, 0, 0, 0, 20],
        [1, 0, 0, 0, 20],
        [3, 1, 1, 0, 20],
        [20, 20, 20, 20, 0],
    ]


def test_intervals_of_a_log_are_in_octaves_of_its_median():
    from talerec.neural import Rows

    net = net_of("tisasrec", unit="log", units=3)
    when = np.array([0, 1, 3, 3, 0, 2]) * DAY
    net.prepare(Rows(np.array([0, 4, 6]), np.zeros(6, np.int32), when, 9))
    assert net.median.item() == pytest.approx(2 * DAY)  # of 1, 2 and 2 days
    assert net.intervals(times(0, 1, 2, 6, 1000))[0, 0].tolist() == [0, 0, 1, 2, 3]


def test_equal_times_are_the_network_without_intervals():
    """With equal times every interval is 0: T^K_0 adds a constant to scores, T^V_0 to values."""
    import torch

    from talerec.neural.nets.base import causal_mask

    net = net_of("tisasrec")
    layer = net.blocks[0].attention
    x = torch.randn(1, 5, 8)
    near, mask = net.intervals(times(1, 1, 1, 1, 1)), causal_mask(5, x.device)
    assert (near == 0).all()
    tables = [net.place_key[:5], net.place_value[:5], net.time_key, net.time_value]
    nothing = [*tables[:2], torch.zeros_like(net.time_key), torch.zeros_like(net.time_value)]
    with torch.no_grad():
        found = layer(x, x, mask, near, tables)
        plain = layer(x, x, mask, near, nothing)
    torch.testing.assert_close(found, plain + net.time_value[0])


def test_an_hour_later_moves_the_bucket_by_the_formula():
    import torch

    from talerec.neural.samples import Batch

    net = net_of("hstu")
    now = 10**15

    def bucket(seconds: float) -> int:
        one = torch.tensor([[now]])
        count = np.array([1])
        asked = torch.tensor([[now + round(seconds * 10**6)]])
        return int(
            net.time_buckets(
                Batch(one, one, asked, torch.tensor([1]), count, None, None, count, count)
            )
        )

    assert bucket(0) == bucket(1) == bucket(-5) == 0
    assert bucket(3600) == math.floor(math.log(3600) / 0.301) == 27
    assert bucket(1e30 / 1e6 / 1e12) == 128 or bucket(10**10) == math.floor(
        math.log(10**10) / 0.301
    )


@pytest.mark.parametrize("at_once", [1, 7, 10**6])
def test_a_short_table_read_at_many_places_learns_what_a_lookup_learns(at_once):
    import torch
    from torch.nn import functional as F

    from talerec.neural.nets.hstu import look_up, sum_by_index

    torch.manual_seed(3)
    index, worth = torch.randint(6, (4, 5, 5)), torch.randn(4, 5, 5)
    table, twin = (torch.arange(6.0)[:, None].clone().requires_grad_() for _ in range(2))
    found, wanted = look_up(table, index), F.embedding(index, twin)[..., 0]
    assert torch.equal(found, wanted)
    (found * worth).sum().backward()
    (wanted * worth).sum().backward()
    torch.testing.assert_close(table.grad, twin.grad)
    by_products = sum_by_index(index.flatten(), worth.flatten(), 6, at_once)
    torch.testing.assert_close(by_products, twin.grad[:, 0])


def test_hstu_answers_by_when_it_is_asked():
    import talerec as tr
    from kinds import maker
    from logs import tiny_log

    log = tiny_log(
        [(u, (u + s) % 5, 1e9 + 3600 * s * (u % 3 + 1)) for u in range(20) for s in range(6)]
    )
    model = maker("hstu", rate=0.05, epochs=4)().fit(log)
    rows = [(1, 10**15), (2, 10**15 + HOUR)]
    at = [
        model.recommend_histories([rows], k=5, as_of=10**15 + later)["score"].to_list()
        for later in (HOUR + 1, 30 * DAY)  # a row at the request time is not history
    ]
    assert at[0] != at[1]
    assert model.recommend_histories([rows], k=5)["score"].to_list() == at[0]
    assert isinstance(model, tr.HSTU)


# -- partners and hidden rows ----------------------------------------------------------------------


def test_partners_share_the_target_and_are_others_where_there_are_any():
    import torch

    from talerec.neural import Rows
    from talerec.neural.samples import Feed, prefixes

    rng = np.random.default_rng(0)
    rows = Rows(np.array([0, 30, 60]), rng.integers(0, 8, 60), np.arange(60), 9)
    feed = Feed(rows, prefixes(rows.ptr[:-1], rows.ptr[1:], 5), torch.device("cpu"))
    target, every = feed.targets(), np.arange(len(feed.samples))
    assert (target == rows.item[feed.samples.first + feed.samples.count]).all()
    drawn = np.array([feed.same_target(every, rng) for _ in range(300)])
    for sample in every:
        others = np.flatnonzero(target == target[sample])
        others = others[others != sample] if len(others) > 1 else others
        assert set(drawn[:, sample]) == set(others)


def test_half_of_the_batches_hide_the_last_row_and_others_a_share():
    import torch

    from talerec.neural.nets.bert4rec import draw_masked_rows
    from talerec.neural.samples import Batch

    count = np.array([1, 4, 6] * 50)
    item = torch.zeros(150, 6)
    batch = Batch(item, item, item, torch.as_tensor(count), count, None, None, count, count)
    rng, last, shares = np.random.default_rng(0), 0, []
    for _ in range(200):
        hide = draw_masked_rows(batch, 0.3, rng)
        assert hide.any(1).all()
        assert not hide[np.arange(6) >= count[:, None]].any()
        if hide.sum() == 150:
            assert (hide.argmax(1) == count - 1).all()
            last += 1
        else:
            shares.append(hide[2::3].mean())
    assert 70 < last < 130
    assert np.mean(shares) == pytest.approx(0.3, abs=0.04)


# -- sub-sequences ---------------------------------------------------------------------------------


def test_visits_break_at_the_gap_and_nowhere_else():
    from talerec.neural.nets.contrastive import group_by_time

    monday = 4 * DAY  # the fifth of January 1970
    time = monday + np.array([0, 30, 90, 151, 0, 60 * 24]) * 60 * 10**6
    found = group_by_time(np.array([4, 2]), time, gap=1.0)
    assert found.sequence.tolist() == [0, 0, 0, 0, 1, 1]
    assert found.part.tolist() == [0, 0, 0, 1, 2, 3]
    assert found.part_sequence.tolist() == [0, 0, 1, 1]
    assert found.weekday.tolist() == [0, 0, 0, 1]
    assert found.quarter.tolist() == [0, 0, 0, 0]
    assert group_by_time(np.array([1]), monday + np.array([19 * HOUR]), 1.0).quarter.tolist() == [3]


def test_belonging_is_a_double_loop():
    import torch

    from talerec.neural.nets.contrastive import group_loss

    rng = np.random.default_rng(1)
    x, group = rng.normal(size=(7, 4)), np.array([0, 0, 1, 2, 2, 2, 1])
    found = group_loss(
        *(torch.tensor(part) for part in (x, group)),
        3,
        *(torch.tensor(part) for part in (x, group)),
    )
    means = [x[group == g].mean(0) for g in range(3)]
    total = 0.0
    for n in range(7):
        cosines = [x[n] @ m / np.linalg.norm(x[n]) / np.linalg.norm(m) / 0.05 for m in means]
        total += math.log(sum(math.exp(c) for c in cosines)) - cosines[group[n]]
    assert found.item() == pytest.approx(total)


# -- views -----------------------------------------------------------------------------------------


def test_the_steadiest_window_has_the_least_variance_by_brute_force():
    from talerec.neural.views import steadiest_window

    rng = np.random.default_rng(0)
    for _ in range(50):
        time = np.cumsum(rng.integers(0, 5, rng.integers(4, 12)))
        size = int(rng.integers(3, len(time) + 1))
        spread = [
            np.var(np.diff(time[a : a + size]).astype(float)) for a in range(len(time) - size + 1)
        ]
        wanted = max(a for a, s in enumerate(spread) if s == min(spread))
        assert steadiest_window(time, size) == wanted


def test_views_touch_what_they_say():
    from talerec.neural import views

    rng = np.random.default_rng(3)
    item, similar = np.arange(10), np.arange(10) + 100
    time = np.cumsum(
        [0, 5, 1, 9, 2, 2, 2, 2, 30, 4]
    )  # intervals after rows 0..8: 5 1 9 2 2 2 2 30 4
    assert views.substitute(item, time, 0.2, similar).tolist() == [0, 101, 2, 103, *range(4, 10)]
    assert views.insert(item, time, 0.2, similar).tolist() == [
        0,
        1,
        2,
        102,
        3,
        4,
        5,
        6,
        7,
        107,
        8,
        9,
    ]
    assert views.crop(item, time, 0.4, rng).tolist() == [4, 5, 6, 7]
    assert len(views.crop(item, time, 0.2, rng)) == 1
    mixed = views.reorder(item, time, 0.4, rng)
    assert sorted(mixed[4:8]) == [4, 5, 6, 7]
    assert mixed[:4].tolist() + mixed[8:].tolist() == [0, 1, 2, 3, 8, 9]
    holes = views.mask(item, 0.5, rng)
    assert (holes == views.HOLE).sum() == 5
    assert (views.mask(item[:1], 1.0, rng) == item[:1]).all()
    assert views.substitute(item[:1], time[:1], 0.5, similar).tolist() == [100]


def test_short_histories_are_neither_cropped_nor_reordered(monkeypatch):
    from talerec.neural import views

    done = []
    for name in ("crop", "reorder", "mask", "substitute", "insert"):
        monkeypatch.setattr(views, name, lambda item, *rest, name=name: done.append(name) or item)
    rates = dict.fromkeys(("crop", "reorder", "mask", "substitute", "insert"), 0.5)
    view, rng = views.ViewSettings(rates, 12, np.arange(20)), np.random.default_rng(0)
    for _ in range(200):
        views.draw_view(np.arange(12), np.arange(12), view, rng)
    assert set(done) == {"mask", "substitute", "insert"}
    for _ in range(200):
        views.draw_view(np.arange(13), np.arange(13), view, rng)
    assert set(done) == set(rates)


def test_similar_items_by_hand():
    from talerec.neural import Rows
    from talerec.neural.views import similar_items, steadiest_users

    rng = np.random.default_rng(4)
    lists = [rng.integers(0, 6, n) for n in (1, 5, 7, 3, 9)]
    ptr = np.concatenate([[0], np.cumsum([len(one) for one in lists])])
    rows = Rows(ptr, np.concatenate(lists), np.cumsum(rng.integers(0, 9, ptr[-1])), 8)
    known = [set(one[:-1].tolist()) for one in lists]
    score = np.zeros((8, 8))
    for i in range(8):
        for j in range(8):
            both = sum(
                1 / math.log(1 + max(2, len(one)))
                for one, has in zip(lists, known, strict=True)
                if {i, j} <= has
            )
            counts = [max(1, sum(item in has for has in known)) for item in (i, j)]
            score[i, j] = 0 if i == j else both / math.sqrt(counts[0] * counts[1])
    found = similar_items(rows)
    for i in range(8):
        assert (
            score[i, found[i]] == pytest.approx(score[i].max()) if score[i].max() else found[i] == i
        )
    spread = [
        np.var(np.diff(rows.time[ptr[u] : ptr[u + 1] - 1]).astype(float))
        if len(lists[u]) > 2
        else np.inf
        for u in range(5)
    ]
    assert np.flatnonzero(steadiest_users(rows, 0.4)).tolist() == sorted(
        np.argsort(spread, kind="stable")[:2].tolist()
    )


def test_a_view_with_holes_is_encoded_as_if_they_were_not_looked_at():
    """Another item or position under a hole changes nothing; a hole's own columns are zero."""
    import torch

    from talerec.neural.views import pad_views

    net = net_of("ticoserec")
    made = pad_views([np.array([3, -1, 4]), np.array([5])], 6)
    with torch.no_grad():
        found = net.encode_padded(made)
        made["item"][0, 1] = 7
        net.places[1] = torch.arange(8.0) ** 2
        again = net.encode_padded(made)
    torch.testing.assert_close(found, again)
    rows = found.view(2, 6, 8)
    assert (rows[0, 1] == 0).all()
    assert (rows[0, 3:] == 0).all()
    assert (rows[0, [0, 2]] != 0).any()

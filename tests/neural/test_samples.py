"""Samples: every row is a target once, held-out rows are in no batch, padding loses nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinds import need_torch
from logs import quick

need = pytest.fixture(autouse=True, scope="module")(need_torch)

sizes = st.lists(st.integers(0, 13), min_size=1, max_size=8)


def bounds(counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    ptr = np.concatenate([[0], np.cumsum(counts)])
    return ptr[:-1], ptr[1:]


def targets_of(made) -> list[int]:
    """The rows that are targets, by hand."""
    return sorted(
        int(made.first[s] + made.count[s] - place)
        for s in range(len(made))
        for place in range(made.n_targets[s])
    )


@quick
@given(counts=sizes, longest=st.integers(1, 6), scheme=st.sampled_from(["windows", "prefixes"]))
def test_every_row_but_a_users_first_is_a_target_once(counts, longest, scheme):
    from talerec.neural.samples import cut_samples

    begin, end = bounds(counts)
    made = cut_samples(scheme, begin, end, longest)
    wanted = [r for b, e in zip(begin, end, strict=True) for r in range(b + 1, e)]
    assert targets_of(made) == wanted
    assert (made.count >= 1).all()
    assert (made.count <= longest).all()
    assert (made.first >= begin[made.user]).all()
    assert (made.first + made.count < end[made.user]).all()


@quick
@given(counts=sizes, longest=st.integers(1, 6))
def test_whole_samples_have_every_row_once(counts, longest):
    from talerec.neural.samples import whole

    made = whole(*bounds(counts), longest)
    rows = [
        r for s in range(len(made)) for r in range(made.first[s], made.first[s] + made.count[s])
    ]
    assert sorted(rows) == list(range(sum(counts)))


def test_a_prefix_is_as_long_as_it_may_be():
    from talerec.neural.samples import prefixes

    made = prefixes(*bounds([1, 5]), 3)
    assert made.first.tolist() == [1, 1, 1, 2]
    assert made.count.tolist() == [1, 2, 3, 3]


@quick
@given(counts=sizes, size=st.integers(1, 9), seed=st.integers(0, 3))
def test_buckets_lose_no_sample_and_none_is_too_narrow(counts, size, seed):
    from talerec.neural.samples import shuffle_batches, widths, windows

    made, allowed = windows(*bounds(counts), 10), widths(10)
    assert allowed == [4, 8, 10]
    found = shuffle_batches(made, allowed, size, np.random.default_rng(seed))
    assert sorted(s for chosen, _ in found for s in chosen) == list(range(len(made)))
    for chosen, width in found:
        assert made.count[chosen].max() <= width
        assert len(chosen)


def test_a_batch_is_the_rows_that_it_names():
    import torch

    from talerec.neural import Rows
    from talerec.neural.samples import Feed, windows

    rows = Rows(np.array([0, 3, 7]), np.arange(10, 17), np.arange(7) * 100, 20)
    feed = Feed(rows, windows(rows.ptr[:-1], rows.ptr[1:], 4), torch.device("cpu"))
    batch = feed.batch(np.array([0, 1]), 4)
    assert batch.item.tolist() == [[10, 11, 0, 0], [13, 14, 15, 0]]
    assert batch.time.tolist() == [[0, 100, 100, 100], [300, 400, 500, 500]]
    assert batch.now[0, :2].tolist() == [100, 200]
    assert batch.is_row.tolist() == [[True, True, False, False], [True, True, True, False]]
    assert batch.position.tolist() == [0, 1, 4, 5, 6]
    assert batch.target.tolist() == [11, 12, 14, 15, 16]
    assert batch.user.tolist() == [0, 1]


@quick
@given(counts=sizes, most=st.integers(0, 5))
def test_held_back_rows_are_in_no_sample(counts, most):
    from talerec.neural import Rows
    from talerec.neural.samples import windows
    from talerec.neural.validation import draw_users, hold_out

    ptr = np.concatenate([[0], np.cumsum(counts)])
    rows = Rows(ptr, np.arange(ptr[-1]), np.arange(ptr[-1]), int(ptr[-1]) + 1)
    users = draw_users(rows, most, seed=0)
    held_out, end = hold_out(rows, users)
    assert len(users) == min(most, sum(count >= 3 for count in counts))
    made = windows(ptr[:-1], end, 4)
    touched = {
        int(r)
        for s in range(len(made))
        for r in range(made.first[s], made.first[s] + made.count[s] + 1)
    }
    assert not touched & set(held_out.row.tolist())
    asked = held_out.samples(4)
    assert (asked.first + asked.count).tolist() == held_out.row.tolist()
    shorter = rows.without_last(users)
    held = set(held_out.row.tolist())
    assert shorter.item.tolist() == [r for r in range(ptr[-1]) if r not in held]
    assert np.diff(shorter.ptr).tolist() == (end - ptr[:-1]).tolist()


@quick
@given(counts=sizes.filter(any), seed=st.integers(0, 99))
def test_the_last_row_of_some_users_is_taken_away_and_put_back(counts, seed):
    from talerec.neural.settings import Rows

    rng = np.random.default_rng(seed)
    ptr = np.concatenate([[0], np.cumsum(counts)])
    rows = Rows(ptr, rng.integers(0, 9, ptr[-1]), rng.integers(0, 99, ptr[-1]), 9)
    users = rng.permutation([u for u, count in enumerate(counts) if count])[:3]
    shorter = rows.without_last(users)
    for u, count in enumerate(counts):
        kept = slice(ptr[u], ptr[u] + count - (u in users))
        now = slice(shorter.ptr[u], shorter.ptr[u + 1])
        assert shorter.item[now].tolist() == rows.item[kept].tolist()
        assert shorter.time[now].tolist() == rows.time[kept].tolist()
    last = ptr[users + 1] - 1
    again = shorter.with_last(users, rows.item[last], rows.time[last])
    assert again.fingerprint() == rows.fingerprint()
    assert shorter.fingerprint() != rows.fingerprint()

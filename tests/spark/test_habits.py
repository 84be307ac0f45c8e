"""What tempo learns of a log in parts is what it learns of the log: to the last bit where it is counted."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_tasks import counted, counts_of, in_parts, laid_out, ranks, skewed_log

import talerec as tr
from logs import logs, quick
from talerec.models.tempo import holdout as _questions
from talerec.models.tempo.popularity import InTime, memories
from talerec.runtime.arrays import dense
from talerec.spark import blocks, tasks
from talerec.spark import log_statistics as habits
from talerec.spark import triangles as halves
from talerec.spark.gram import Paced

PARTS = 3


def sent_to(number, batches):
    return [batch for batch in batches if batch.column("block")[0].as_py() == number]


@quick
@given(logs(max_users=9, max_items=6))
def test_habits_of_parts_are_those_of_the_log(tmp_path_factory, log):
    rows = in_parts(log, tmp_path_factory.mktemp("parts"))
    for part in range(PARTS):
        habits.save_habits(rows.log(part), part, rows)
    found, expected = habits.habits_of(tr.Tempo(), rows, PARTS), tr.Tempo().habits(log)
    assert found.interval == expected.interval
    assert found.joint == expected.joint
    np.testing.assert_array_equal(found.repeats, expected.repeats)


@given(st.lists(st.lists(st.integers(-(10**15), 10**15), max_size=9), min_size=1, max_size=5))
def test_the_median_of_several_arrays_is_that_of_all_values(lists):
    together = np.array([value for one in lists for value in one])
    found = habits.median([np.array(sorted(one), np.int64) for one in lists])
    assert found == (float(np.median(together)) if len(together) else None)


def in_time(rows, log, folder, stretches: int = 4):
    """All rows in the order of time, as tasks leave them."""
    item = ranks(log).astype(np.int32)
    cuts = np.unique(np.quantile(log.time, np.arange(1, stretches) / stretches).astype(np.int64))
    sent = [b for part in range(PARTS) for b in habits.time_cells(rows, part, cuts, item)]
    for number in range(len(cuts) + 1):
        habits.save_stretch(sent_to(number, sent), number, rows)
    habits.join_stretches(rows, len(cuts) + 1)
    return habits.in_time(rows)


@quick
@given(logs(max_users=9, max_items=6))
def test_rows_of_parts_come_in_the_order_of_time_of_one_machine(tmp_path_factory, log):
    """Rows of one moment too: in the order of users, and as they stand."""
    folder = tmp_path_factory.mktemp("parts")
    rows = in_parts(log, folder)
    found, expected = in_time(rows, log, folder), InTime.of(log)
    np.testing.assert_array_equal(found.item, expected.item)
    np.testing.assert_array_equal(found.time, expected.time)
    np.testing.assert_array_equal(blocks.load_array(folder, "counts-0"), log.counts())
    np.testing.assert_array_equal(blocks.load_array(folder, "lately-0"), log.counts(7.0))
    lengths = [1 / 16, 1.0]
    habits.save_memories(memories(found, 1.0, lengths), rows)
    kept, made = habits.load_memories(rows), memories(expected, 1.0, lengths)
    np.testing.assert_array_equal(dense(kept.shares), dense(made.shares))
    for a, b in zip(kept[1:], made[1:], strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_first_fit_without_rows_counts_nothing(tmp_path):
    """All rows of one instant: none lies before the end, and questions are none."""
    log = skewed_log(60)
    rows = in_parts(log.keep(np.zeros(log.rows, bool)), tmp_path)
    found = in_time(rows, log, tmp_path)
    assert len(found.time) == 0
    for name in ("counts-0", "lately-0"):
        assert blocks.load_array(tmp_path, name).tolist() == [0.0] * len(log.items)


@pytest.mark.parametrize("every_item", [True, False])
def test_questions_of_parts_are_those_of_the_log(tmp_path, every_item, monkeypatch):
    monkeypatch.setattr(_questions, "_ALL_ITEMS", 50)  # so that half of the items are asked for
    monkeypatch.setattr(_questions, "_LEAST", 300)  # and only some users
    log = skewed_log(9_000)
    expected = tr.models._questions.held_back(log, every_item=every_item)
    rows, item = in_parts(log, tmp_path), ranks(log)
    first = rows._replace(kind="first_")
    ends = _questions.end_choices(in_time(rows, log, tmp_path).time)
    for part in range(PARTS):
        habits.save_across(rows, part, ends)
    end = _questions.chosen_end(ends, sum(rows.arrays("across", PARTS)))
    wanted = _questions.wanted_items(len(log.items), every_item=every_item)
    asking = habits.Asking(end, wanted[item])
    for part in range(PARTS):
        habits.save_askers(rows, part, asking)
    chosen = [habits.chosen_askers(rows, kind, PARTS, log.rows) for kind in habits.KINDS]
    for part in range(PARTS):
        habits.save_questions(rows, first, part, asking, (chosen[0][part], chosen[1][part]))
    train = expected.train
    np.testing.assert_array_equal(np.concatenate(list(first.arrays("time", PARTS))), train.time)
    there = np.bincount(train.item, minlength=len(log.items)) > 0
    assert 100 < len(expected.fresh) <= 300
    for kind in habits.KINDS:
        asked = habits.questions(first, kind, PARTS, item.astype(np.int32))
        found, held = _questions.known_answers(asked, there), getattr(expected, kind)
        np.testing.assert_array_equal(found.target, held.target)
        np.testing.assert_array_equal(found.histories.now, held.histories.now)
        for q in range(0, len(held), 17):
            one, other = (h.item[h.start[q] : h.stop[q]] for h in (found.histories, held.histories))
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("same_time", ["joint", "ordered"])
def test_both_directions_of_a_pair_meet_where_they_are_evened_out(tmp_path, same_time):
    log = skewed_log(2_000)
    tempo = tr.Tempo(same_time=same_time, max_history=40, even=0.2)
    rows, item = in_parts(log, tmp_path, limit=40), ranks(log)
    rows = counted(rows, tempo, tmp_path)
    own = tempo.habits(log)
    counting, n, folder = Paced(tempo, own.interval, own.joint), rows.items, str(tmp_path)
    edges = np.array([0, 5, n // 2, n])
    layout, alike = laid_out(counting, rows, tmp_path, PARTS)
    counts = counts_of(layout, n)
    sent = [
        batch
        for number, one in enumerate(counts)
        for batch in tasks.gram_cells(counting, rows, layout, one, number, edges)
    ]
    for block in range(3):
        tasks.owner_sums(
            sent_to(block, sent), block, tasks.Summing(counts, edges, alike, folder), n
        )
    tied = sum(float(one[0]) for one in blocks.load_blocks(folder, "tied", PARTS))
    share = halves.sums_of(folder, 3, tied).share(tempo.even)
    assert 0 < share < 1
    targets, K = np.array([0, 9, n]), np.zeros((n, n))
    sent = [b for x in range(3) for b in halves.target_cells(x, share, None, targets, n, folder)]
    for block, (lo, hi) in enumerate(pairwise(targets)):
        found = halves.sent_entries(sent_to(block, sent), lo, hi)
        target, source, value = (np.concatenate(parts) for parts in found)
        K[item[source], item[target]] = value
    target, source, value = halves.own_entries(edges, share, None, 0, n, folder)
    K[item[source], item[target]] = value
    whole = tempo.gram(log)
    np.testing.assert_allclose(K, dense(whole.K), rtol=1e-10)
    assert halves.entries_of(folder, 3, n, share) == np.count_nonzero(K)
    diagonal = np.concatenate(list(blocks.load_blocks(folder, "diagonal", 3)))
    np.testing.assert_allclose(diagonal, whole.G.diagonal()[item], rtol=1e-12)

"""Held-out queries, examples and times of partitions are those of the log, to the last bit."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_tasks import in_partitions, ranks, skewed_log
from test_tempo_tasks import PARTITIONS, order_by_time

import talerec as tr
from logs import logs, quick
from talerec.features import ItemTimes
from talerec.models.ranker import (
    Examples,
    FirstStage,
    RankerState,
    ask_queries,
    build_parts,
    queries,
)
from talerec.models.ranker.queries import QuerySplit, current_round, delayed_rounds
from talerec.spark import messages, ranker_tasks


def hold_out(log, folder, split, known_until):
    """Return a round of queries of a log whose rows are saved in partitions."""
    rows, position = in_partitions(log, folder), ranks(log).astype(np.int32)
    for partition in range(PARTITIONS):
        ranker_tasks.save_held_counts(rows, "some", partition, split)
    users = ranker_tasks.sample_held_users(rows, "some", PARTITIONS, split)
    return ranker_tasks.HeldOutRows(rows, "some", split, users, position, known_until)


def rounds_of(log):
    """Return splits with the rounds that one machine holds out."""
    delayed = delayed_rounds(log)
    assert len(delayed) == 3
    splits = [QuerySplit(None, 2), *(QuerySplit(each.known_until) for each in delayed)]
    return zip(splits, [current_round(log, 2), *delayed], strict=True)


@pytest.mark.parametrize("most", [300, 20_000])
def test_queries_and_training_rows_of_partitions_are_those_of_the_log(tmp_path, most, monkeypatch):
    monkeypatch.setattr(queries, "_MAX_QUERIES", most)  # so that only some users have queries
    log = skewed_log(9_000)
    for number, (split, expected) in enumerate(rounds_of(log)):
        assert len(expected.queries) > 100
        folder = tmp_path / str(number)
        folder.mkdir()
        held_out = hold_out(log, folder, split, expected.known_until)
        trains = [held_out.load_train(partition) for partition in range(PARTITIONS)]
        position = held_out.position
        items = np.concatenate([position[train.item] for train in trains])
        np.testing.assert_array_equal(items, expected.train.item)
        times = np.concatenate([train.time for train in trains])
        np.testing.assert_array_equal(times, expected.train.time)
        for partition in range(PARTITIONS):
            held_out.save_targets(partition)
        targets = np.concatenate(list(held_out.files.map_arrays("targets", PARTITIONS)))
        in_train = np.bincount(expected.train.item, minlength=len(log.items)) > 0
        np.testing.assert_array_equal(targets[in_train[targets]], expected.queries.target)


@quick
@given(logs(max_users=9, max_items=6), st.booleans())
def test_queries_of_small_partitions_are_those_of_the_log(tmp_path_factory, log, delayed):
    """Users with a row or two, equal times, and partitions without users or queries."""
    split = QuerySplit(int(np.sort(log.time)[log.rows // 2]) if delayed else None, 3)
    held_out = hold_out(log, tmp_path_factory.mktemp("partitions"), split, 0)
    users = np.flatnonzero(split.count_held(log))
    train, expected = split.hold_out(log, users)
    pairs = [held_out._split(partition) for partition in range(PARTITIONS)]
    position = held_out.position
    ours = np.concatenate([position[some.item] for some, _ in pairs])
    np.testing.assert_array_equal(ours, train.item)
    targets = np.concatenate([position[some.target] for _, some in pairs])
    np.testing.assert_array_equal(targets, expected.target)
    lengths = [some.histories.stop - some.histories.start for _, some in pairs]
    whole = expected.histories
    np.testing.assert_array_equal(np.concatenate(lengths), whole.stop - whole.start)
    now = np.concatenate([some.histories.now for _, some in pairs])
    np.testing.assert_array_equal(now, whole.now)


@pytest.mark.parametrize("repeats", [False, True])
def test_examples_of_partitions_are_those_of_the_log(tmp_path, repeats):
    log = skewed_log(5_000)
    names = "tempo(solver=local),markov,trending"
    for number, (split, expected) in enumerate(rounds_of(log)):
        folder = tmp_path / str(number)
        folder.mkdir()
        parts = [part.fit(expected.train) for part in build_parts(names)]
        stage = FirstStage(parts, ItemTimes.from_log(log), repeats, 50)
        file, first = ranker_tasks.StageFile(str(folder), 50), 0
        file.save(stage, names)
        for part in RankerState.restore(tr.load(file.path).fitted, 50).first.parts:
            assert part.fitted.training["last_time"] == expected.train.time.max()
        held_out = hold_out(log, folder, split, expected.known_until)
        in_train = np.bincount(expected.train.item, minlength=len(log.items)) > 0
        messages.save_array(folder, "in_train", in_train)
        for partition in range(PARTITIONS):
            held_out.save_targets(partition)
            held_out.save_examples(partition, file, first)
            targets = messages.map_array(folder, f"some_targets-{partition}")
            first += np.count_nonzero(in_train[targets])
        n_users = [len(held_out.rows.read_array("ptr", p)) - 1 for p in range(PARTITIONS)]
        first_user = np.array([0, *accumulate(n_users)])
        for mode, whole in zip(
            ranker_tasks.MODES, ask_queries(stage, expected, repeats), strict=True
        ):
            sets = held_out.load_examples(mode, range(PARTITIONS), first_user)
            for ours, theirs in zip(Examples.join(sets), whole, strict=True):
                np.testing.assert_array_equal(ours, theirs)
            assert len(whole.rows)


@quick
@given(logs(max_users=9, max_items=6))
def test_times_of_items_in_partitions_are_those_of_the_log(tmp_path_factory, log):
    folder = tmp_path_factory.mktemp("partitions")
    rows = in_partitions(log, folder)
    order_by_time(rows, log, folder)
    ranker_tasks.create_times_file(rows, log.rows)
    ranker_tasks.save_item_times(rows)
    for ours, theirs in zip(
        ranker_tasks.load_item_times(rows), ItemTimes.from_log(log), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_times_of_items_do_not_depend_on_how_many_rows_are_read_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(ranker_tasks, "_CHUNK_ROWS", 700)
    log = skewed_log(5_000)
    rows = in_partitions(log, tmp_path)
    order_by_time(rows, log, tmp_path)
    ranker_tasks.create_times_file(rows, log.rows)
    for _ in range(2):  # a task that runs twice leaves the same bytes
        ranker_tasks.save_item_times(rows)
    for ours, theirs in zip(
        ranker_tasks.load_item_times(rows), ItemTimes.from_log(log), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)

"""Features know nothing from the request on, and are the same bits wherever they are computed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import talerec as tr
from logs import hour_log
from talerec.data import Histories
from talerec.features import FAMILIES, FeatureInputs, ItemTimes, feature_names
from talerec.models.core import HoldoutQueries, rank_targets, rank_top
from talerec.models.ranker import candidates, examples
from talerec.models.ranker.candidates import FirstStage, Requests
from talerec.models.ranker.queries import QueryRound, current_round, delayed_rounds
from talerec.runtime import Array

pytest.importorskip("lightgbm")

PARTS = "markov,popular"
Recorded = dict[tuple[Any, ...], bytes]


@pytest.fixture(scope="module")
def log() -> tr.Log:
    return hour_log()


@pytest.fixture(scope="module")
def model(log) -> tr.Ranker:
    return tr.Ranker(parts=PARTS, candidates=10).fit(log)


@pytest.fixture
def recorded(monkeypatch) -> Callable[[], Recorded]:
    """Record every row of features; the result empties the record: request and item -> bits."""
    calls: Recorded = {}
    build = candidates.build_features

    def record(inputs: FeatureInputs, parts: list[str]) -> tuple[Array, Array]:
        indptr, rows = build(inputs, parts)
        for q in range(len(inputs.counts)):
            history = tuple(inputs.item[inputs.start[q] : inputs.stop[q]].tolist())
            for c in range(inputs.counts[q]):
                key = history, int(inputs.now[q]), int(inputs.candidates[q, c])
                calls[key] = rows[indptr[q] + c].tobytes()
        return indptr, rows

    def take() -> Recorded:
        rows = dict(calls)
        calls.clear()
        return rows

    monkeypatch.setattr(candidates, "build_features", record)
    return take


def some_requests(log: tr.Log, users: range) -> HoldoutQueries:
    """Return a query for each user's last row but one, with earlier rows as history."""
    user = np.array(users)
    row = log.ptr[user + 1] - 2
    histories = Histories(log.ptr[user], row, log.item, log.time, log.time[row])
    return HoldoutQueries(histories, log.item[row].astype(np.int64), user)


def moment(microseconds: int) -> str:
    """Return a time as a client writes it."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)).isoformat()


def ask_service(model: tr.Ranker, queries: HoldoutQueries, folder: Path) -> None:
    """Send the queries to a service, which answers them in this process."""
    from service import Local

    service = Local(model.save(folder / "m.tale"), folder / "run")
    histories, ids = queries.histories, model.item_ids.to_list()
    assert histories.now is not None
    for q in range(len(histories)):
        rows = range(histories.start[q], histories.stop[q])
        history = [
            {"item_id": ids[histories.item[r]], "timestamp": moment(int(histories.time[r]))}
            for r in rows
        ]
        body = {"history": history, "k": 10, "as_of": moment(int(histories.now[q]))}
        reply = service.ask("POST", "/v1/recommend", body)
        assert reply.status == 200, reply


def test_training_evaluation_lists_and_service_have_the_same_bits(model, log, recorded, tmp_path):
    """The same requests to the same parts: every row of features has the same bits."""
    pytest.importorskip("msgspec", reason="needs the extra serve")
    queries = some_requests(log, range(40))
    stage, known_until = model._state.first, model.fitted.training["last_time"] + 1
    held_out = QueryRound(log, queries, known_until)
    examples.build_examples(stage, held_out, np.arange(len(queries)), hide_seen=False)
    training = recorded()
    rank_targets(model, queries.histories, queries.target)
    evaluation = recorded()
    rank_top(model, queries.histories, 10)
    lists = recorded()
    ask_service(model, queries, tmp_path)
    service = recorded()
    assert len(training) >= 100
    for rows in (training, evaluation, service):
        assert len(lists.keys() & rows.keys()) >= 100
    for name, rows in (("training", training), ("evaluation", evaluation), ("service", service)):
        shared = lists.keys() & rows.keys()
        assert all(lists[key] == rows[key] for key in shared), name


def counted_columns(stage: FirstStage) -> Array:
    """Return the columns of features that count rows: all but those of the parts' scores."""
    parts = next(family for family in FAMILIES if family.name == "parts")
    return np.arange(len(parts.names(stage.sources)), len(feature_names(stage.sources)))


def rounds_of(log: tr.Log) -> list[QueryRound]:
    return [current_round(log, 2), *delayed_rounds(log)]


def test_training_counts_only_rows_strictly_before_each_query(log):
    """Later rows, simultaneous ones and the target itself, taken out of the log, change no bit."""
    n_compared = 0
    for held_out in rounds_of(log):
        queries = held_out.queries
        assert queries.histories.now is not None
        parts = [tr.Markov().fit(held_out.train), tr.Popular().fit(held_out.train)]
        whole = FirstStage(parts, ItemTimes.from_log(log), joins_history=True, size=10)
        columns = counted_columns(whole)
        for q in range(0, len(queries), max(1, len(queries) // 30)):
            history = queries.histories.slice(q, q + 1)
            now = queries.histories.now[q : q + 1]
            known_until = np.array([held_out.known_until])
            before = log.keep(log.time < min(int(now[0]), held_out.known_until))
            past = FirstStage(parts, ItemTimes.from_log(before), joins_history=True, size=10)
            items = np.arange(len(log.items), dtype=np.int32)[None, :]
            rows = [
                stage.build_features(
                    Requests(history, now, known_until),
                    stage.score_candidates(history, items, np.array([items.size])),
                )[1]
                for stage in (whole, past)
            ]
            assert rows[0][:, columns].tobytes() == rows[1][:, columns].tobytes()
            n_compared += 1
    assert n_compared >= 60


def test_parts_of_training_queries_know_neither_the_target_nor_later_rows_of_the_user(log):
    for held_out in rounds_of(log):
        train, queries = held_out.train, held_out.queries
        n_history = queries.histories.stop - queries.histories.start
        assert len(queries) >= 100
        for user, n_known in zip(queries.user.tolist(), n_history.tolist(), strict=True):
            rows = slice(train.ptr[user], train.ptr[user + 1])
            n_train = rows.stop - rows.start
            assert n_train <= n_known
            first = log.ptr[user]
            assert train.item[rows].tolist() == log.item[first : first + n_train].tolist()
            assert train.time[rows].tolist() == log.time[first : first + n_train].tolist()

"""Artifacts of all formats load and answer as when they were saved (`artifacts/make.py`)."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import talerec as tr
from logs import at, rows_of
from talerec.artifact.integrity import FORMAT
from talerec.models.core import ItemFilter, rank_top
from talerec.models.core.recommender import lists_frame

FOLDER = Path(__file__).parent / "artifacts"
EVERY = sorted(path for path in FOLDER.glob("format-*/*.tale"))
ASKED = [[1, 2, 3], [14], [5, 5, 7, 0, 3], []]
USERS = [f"u{n}" for n in (0, 1, 10, 11, 12, 13)]
MOMENT = 1_600_900_000 * 10**6


def test_there_are_artifacts_of_every_format():
    folders = {path.parent.name for path in EVERY}
    assert folders == {f"format-{number + 1}" for number in range(FORMAT)}
    assert len(EVERY) == 25


@pytest.mark.parametrize("path", EVERY, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_an_artifact_of_an_earlier_format_answers_as_it_did(path):
    """To the last bit: JSON keeps every digit of a float."""
    model = tr.load(path, verify=True)
    wanted = json.loads((path.parent / "answers.json").read_text("utf-8"))[path.stem]
    for hide in (False, True):
        found = model.recommend_histories(ASKED, k=5, hide_seen=hide)
        assert [list(row) for row in found.rows()] == wanted[f"histories-{hide}"]
        found = lists_of_all_rows(model, hide)
        assert [list(row) for row in found.rows()] == wanted[f"users-{hide}"]
    assert [list(row) for row in model.explain([1, 2, 3], 7).rows()] == wanted["explain"]


def lists_of_all_rows(model, hide):
    """Lists of users at MOMENT from all their rows, as earlier versions made them."""
    log = model.fitted.log
    positions = log.users.positions(USERS, "user", "error")
    histories = tr.Histories.of_users(log, positions).as_of(MOMENT)
    lists = rank_top(model, histories, 4, ItemFilter(hide_seen=hide))
    return lists_frame(lists, model.item_ids, pl.Series("user_id", USERS))


@pytest.mark.parametrize("path", EVERY, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_answers_differ_from_those_of_earlier_versions_only_for_users_with_later_rows(path):
    """Rows after the request time were history once: the one answer that has changed."""
    model = tr.load(path)
    log = model.fitted.log
    last = dict(zip(log.users.ids, log.time[log.ptr[1:] - 1].tolist(), strict=True))
    before = {user for user in USERS if last[user] < MOMENT}
    assert 0 < len(before) < len(USERS)
    for hide in (False, True):
        now = model.recommend(USERS, k=4, hide_seen=hide, as_of=MOMENT)
        then = lists_of_all_rows(model, hide)
        is_same = pl.col("user_id").is_in(list(before))
        assert now.filter(is_same).equals(then.filter(is_same))
        for user in set(USERS) - before:
            rows = [(item, time) for name, item, time in rows_of(log) if name == user]
            pairs = [(item, at(time)) for item, time in rows if time < MOMENT]
            alone = model.recommend_histories([pairs], k=4, hide_seen=hide, as_of=at(MOMENT))
            assert now.filter(pl.col("user_id") == user)["item_id"].equals(alone["item_id"])
            assert len(pairs) < len(rows)


@pytest.mark.parametrize("path", EVERY, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_saved_again_it_has_todays_format_and_the_same_answers(path, tmp_path):
    model = tr.load(path)
    again = tr.load(model.save(tmp_path / "again.tale"))
    for hide in (False, True):
        found = again.recommend_histories(ASKED, k=5, hide_seen=hide)
        assert found.equals(model.recommend_histories(ASKED, k=5, hide_seen=hide))


@pytest.mark.parametrize("number", [2, 3])
def test_an_artifact_of_today_can_be_updated_by_a_later_version(number):
    model = tr.load(FOLDER / f"format-{number}" / "tempo-updatable.tale")
    log = model.fitted.log
    last = log.keep(log.time == log.time.max()).to_frame()
    later = last.with_columns(timestamp=last["timestamp"].dt.offset_by("1d"))
    assert tr.update(model, later).rows == len(later)

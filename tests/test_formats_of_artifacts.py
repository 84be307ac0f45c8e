"""Artifacts of all formats load and answer as when they were saved (`artifacts/make.py`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import talerec as tr
from talerec.artifact.integrity import FORMAT

FOLDER = Path(__file__).parent / "artifacts"
EVERY = sorted(path for path in FOLDER.glob("format-*/*.tale"))
ASKED = [[1, 2, 3], [14], [5, 5, 7, 0, 3], []]
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
        users = [f"u{n}" for n in (0, 1, 10, 11, 12, 13)]
        found = model.recommend(users, k=4, hide_seen=hide, as_of=MOMENT)
        assert [list(row) for row in found.rows()] == wanted[f"users-{hide}"]
    assert [list(row) for row in model.explain([1, 2, 3], 7).rows()] == wanted["explain"]


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

"""`update --check`: how far an updated model is from a new fit of the same rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import talerec as tr
from command import talerec, works, write_log
from talerec.models import check_drift


def test_the_overlap_is_that_of_lists_compared_one_by_one() -> None:
    log = tr.synthetic_log(2_000, items=60)
    model = tr.TALE(solver="local", neighbors=5)
    model.fit(log.keep(log.time < np.quantile(log.time, 0.7)).compact())
    tr.update(model, log, tolerance=1e9)  # every old target keeps its weights
    drift = check_drift(model, k=4)
    whole = tr.TALE(solver="local", neighbors=5).fit(model.fitted.log)
    shares = []
    for user in log.users.ids:
        lists = [set(m.recommend([user], 4)["item_id"]) for m in (model, whole)]
        shares.append(len(lists[0] & lists[1]) / max(len(lists[0]), len(lists[1])))
    assert drift.users == len(log.users)
    assert drift.overlap == pytest.approx(np.mean(shares), abs=1e-12)
    assert 0 < drift.overlap < 1
    assert not drift.has_drifted  # tale has nothing to learn


def test_a_new_fit_that_learns_otherwise_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pl.read_csv(write_log(tmp_path / "all.csv", users=30, rows=400))
    table.head(380).write_csv(tmp_path / "old.csv")
    table.tail(25).write_csv(tmp_path / "new.csv")
    path = tmp_path / "m.tale"
    settings = ("--model", "tale", "--set", "solver=local", "--set", "reg=5", "--updatable")
    works("fit", tmp_path / "old.csv", "-o", path, *settings)
    monkeypatch.setattr(tr.TALE, "describe_learned", lambda m: [f"{m.fitted.training['rows']}"])
    text = works("update", path, tmp_path / "new.csv", "--check")
    assert "A new fit would list" in text
    assert "It would learn otherwise" not in text
    result = talerec("update", path, tmp_path / "new.csv", "--check", "--json").json
    assert result["drift"]["learned_before"] == result["drift"]["learned_today"] == []
    assert 0.5 < result["drift"]["overlap"] <= 1
    model = tr.load(path)
    model.fitted.training["rows"] = 7
    drift = check_drift(model)
    assert drift.has_drifted
    assert (drift.learned_before, drift.learned_today) == (["7"], ["400"])

"""Tuning: on validation rows alone, nothing made twice, nothing lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from test_comparison import walk

import talerec as tr
from kinds import maker
from logs import described, tiny_log
from talerec.data import Vocabulary
from talerec.data.split import SplitPlan
from talerec.errors import TalerecError
from talerec.evaluation import studies, trials, tuning
from talerec.models import MODELS
from talerec.models.core import FitCache, build_model, param_fields, rank_targets
from waiting import LONG_S, until

pytest.importorskip("optuna", reason="the extra tune is not installed")


def test_the_best_trial_is_what_evaluate_says_of_it():
    log = walk()
    found = tr.tune("tale", log, trials=8, ties="random:1")
    assert len(found.trials) == 8
    split = tr.leave_one_out(tr.order_ties(log, "random:1"))
    for trial in found.trials:
        model = build_model(tr.TALE, trial.params).fit(split.train)
        value = tr.evaluate(model, split, on="validation").metrics["NDCG@10"]
        assert trial.value == pytest.approx(value, abs=1e-12)
    assert found.value == max(trial.value for trial in found.trials)
    again = tr.TALE(**found.params).fit(split.train)
    assert tr.evaluate(again, split, on="validation").metrics["NDCG@10"] == found.value


def test_a_tuning_names_the_order_that_the_rows_have():
    log = tr.order_ties(walk(), "item")
    assert tr.tune("markov", log, trials=1).ties == "item"
    assert tr.tune("markov", log, trials=1, ties="random:1").ties == "random:1"


def test_test_rows_play_no_part():
    log = walk()
    split = tr.leave_one_out(log)
    keep = np.ones(log.rows, bool)
    keep[log.ptr[1:] - 1] = False
    rest = log.keep(keep)  # the last rows are gone, so the validation rows are last
    task = trials.Task("tale", {}, "leave-one-out", "file", "HR@5", False)
    value, _ = trials.Objective(task, log)({"reg": 3.0})
    refit = tr.leave_one_out(rest, refit=True)
    assert refit.train.rows == split.train.rows
    model = tr.TALE(reg=3.0).fit(refit.train)
    assert value == tr.evaluate(model, refit, k=[5]).metrics["HR@5"]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_what_is_kept_from_one_fit_serves_the_next_only_where_it_is_the_same(name, monkeypatch):
    """Every searched parameter in turn, up and back: the same ranks with and without a cache."""
    kind = maker(name)
    split = tr.leave_one_out(described(walk(users=40, items=9)))
    other = tr.leave_one_out(described(walk(users=40, items=9, seed=8)))
    cache, values = FitCache(), {}
    settings = [dict(values)]
    for field in param_fields(MODELS[name]):
        if field.metadata["search"]:
            low, high = field.metadata["search"]
            whole = isinstance(field.default, int)
            middle = round((low + high) / 3) if whole else (low + high) / 3
            settings += [{field.name: middle}, {}]
    expected: dict[tuple[str, int], np.ndarray] = {}  # without memory the same fit is the same
    for setting in settings:
        for number, part in enumerate((split, other)):
            cases = part.cases("validation")
            key = (str(setting), number)
            if key not in expected:
                alone = kind(**setting).fit(part.train)
                expected[key] = rank_targets(alone, cases.histories, cases.target).ranks
            found = kind(**setting).fit(part.train, cache=cache)
            places = rank_targets(found, cases.histories, cases.target).ranks
            np.testing.assert_array_equal(places, expected[key])


def test_one_gram_serves_every_penalty_and_one_solve_every_recency(monkeypatch):
    made = {"gram": 0, "solution": 0}
    for name in made:
        real = getattr(tr.TALE, name)

        def counting(self, given, real=real, name=name):
            made[name] += 1
            return real(self, given)

        monkeypatch.setattr(tr.TALE, name, counting)
    tr.tune("tale", walk(), trials=24)
    assert made == {"gram": 2, "solution": 6}


def test_a_study_goes_on_where_it_stopped(tmp_path):
    log, study = walk(), tmp_path / "s.db"
    first = tr.tune("tale", log, trials=5, study=study)
    second = tr.tune("tale", log, trials=9, study=study)
    assert [t.params for t in second.trials[:5]] == [t.params for t in first.trials]
    assert len(second.trials) == 9
    assert len(tr.tune("tale", log, trials=9, study=study).trials) == 9
    other = tr.tune("tale", log, trials=3, study=study, metric="HR@5")
    assert len(other.trials) == 3  # another question is another study in the same file


def other_rows():
    """Logs that differ from walk() in one column, but not in its count or its sum."""
    log = walk()
    ids = pl.Series(["a", "b", *map(str, range(len(log.users) - 2))])
    weights = np.where(np.arange(log.rows) % 2, 0.5, 1.5)
    return {
        "users": replace(log, users=Vocabulary(ids)),
        "items": replace(log, item=np.random.default_rng(0).permutation(log.item)),
        "times": replace(log, time=np.sort(log.time)),
        "order": tr.order_ties(log, "random:1"),
        "weights": replace(log, weight=weights, weight_unit=1.0),
        "unit": replace(log, unit="ms"),
    }


@pytest.mark.parametrize("changed", sorted(other_rows()))
def test_a_study_goes_on_only_with_the_same_rows(changed, tmp_path, caplog):
    """Same counts and sums of items and times: the trials of another log were taken over."""
    log, other, study = walk(), other_rows()[changed], tmp_path / "s.db"
    assert (other.rows, len(other.items)) == (log.rows, len(log.items))
    assert other.item.sum() == log.item.sum()
    assert other.time.sum() == log.time.sum()
    first = tr.tune("markov", log, trials=2, study=study)
    assert not [r for r in caplog.records if r.levelname == "WARNING"]
    alone = tr.tune("markov", other, trials=2)
    found = tr.tune("markov", other, trials=2, study=study)
    assert [t.params for t in found.trials] == [t.params for t in alone.trials]
    assert [t.value for t in found.trials] == [t.value for t in alone.trials]
    (warning,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert warning == (
        f"{study} has trials of another log: they are not used, and a new search starts in the "
        "same file"
    )
    caplog.clear()
    again = tr.tune("markov", log, trials=2, study=study)  # both go on
    assert [t.value for t in again.trials] == [t.value for t in first.trials]
    assert len(tr.tune("markov", other, trials=3, study=study).trials) == 3
    assert not [r for r in caplog.records if r.levelname == "WARNING"]


def test_the_target_event_of_a_plan_is_tuned_for_and_is_part_of_a_study(tmp_path):
    rows = [(u, i, d) for u in range(30) for d, i in enumerate(np.roll(range(6), u).tolist())]
    frame = tiny_log(rows).to_frame()
    event = pl.Series("event", ["buy" if n % 2 else "view" for n in range(len(frame))])
    log, study = tr.Log.from_frame(frame.with_columns(event), event="event"), tmp_path / "s.db"
    plan = SplitPlan("leave-one-out", target="view")
    found = tr.tune("markov", log, plan, trials=2, study=study)
    split = next(plan.splits(log, "validation"))
    for trial in found.trials:
        model = build_model(tr.Markov, trial.params).fit(split.train)
        value = tr.evaluate(model, split, on="validation").metrics["NDCG@10"]
        assert trial.value == pytest.approx(value, abs=1e-12)
    assert len(tr.tune("markov", log, trials=1, study=study).trials) == 1


def test_trials_of_version_0_2_are_not_taken_over_and_that_is_said(tmp_path, caplog):
    optuna, log, study = pytest.importorskip("optuna"), walk(), tmp_path / "s.db"
    task = {"model": "tale", "fixed": {}, "split": "leave-one-out", "ties": "file",
            "metric": "NDCG@10", "hide_seen": False}  # fmt: skip
    sums = f"{log.rows}/{int(log.time.sum()) % 10**9}/{int(log.item.astype(np.int64).sum())}"
    storage = studies.study_storage(study)
    for name in (json.dumps([task, sums], sort_keys=True), "somebody else's", "[1, 2, 3]"):
        old = optuna.create_study(storage=storage, study_name=name, direction="maximize")
        old.add_trial(optuna.trial.create_trial(value=1.0))
    found = tr.tune("tale", log, trials=1, study=study)
    assert found.value < 1.0
    (warning,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert "has trials of version 0.2, which does not tell for certain of which log" in warning


KILLED = """
import sys, time
import talerec as tr
from talerec.evaluation import trials
from test_comparison import walk
real = trials.Objective.__call__
def slow(self, values):
    time.sleep(0.3)
    return real(self, values)
trials.Objective.__call__ = slow
tr.tune("tale", walk(), trials=1000, study=sys.argv[1])
"""


def test_a_killed_search_loses_nothing_that_was_finished(tmp_path):
    study = tmp_path / "s.db"
    here = os.path.dirname(__file__)
    source = os.path.join(here, "..", "..", "src")
    path = os.pathsep.join([here, os.path.dirname(here), source])
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(study)], env={**os.environ, "PYTHONPATH": path}
    )
    try:
        until(lambda: process.poll() is not None or (study.exists() and _finished(study) >= 3))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = _finished(study)
    assert before >= 3
    found = tr.tune("tale", walk(), trials=before + 2, study=study)
    assert len(found.trials) == before + 2


def _finished(study):
    """Read as the next process does, which first rolls back what a killed writer began."""
    import sqlite3

    connection = sqlite3.connect(study, timeout=LONG_S)
    try:
        return connection.execute(
            "select count(*) from trials where state = 'COMPLETE'"
        ).fetchone()[0]
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):  # not yet
            return 0
        raise
    finally:
        connection.close()


def test_two_workers_share_a_study(tmp_path):
    found = tr.tune("markov", walk(), trials=6, study=tmp_path / "s.db", workers=2)
    assert len(found.trials) >= 6
    with pytest.raises(TalerecError, match="need a `study`"):
        tr.tune("tale", walk(), workers=2)


def test_who_shares_a_study_waits_for_whoever_writes(tmp_path):
    """SQLite's driver would give up after five seconds, too soon on a busy machine."""
    sqlalchemy = pytest.importorskip("sqlalchemy")
    engine = sqlalchemy.create_engine(studies.study_storage(tmp_path / "s.db"))
    with engine.connect() as connection:
        assert connection.exec_driver_sql("pragma busy_timeout").scalar() == 60_000
    engine.dispose()
    assert (tmp_path / "s.db").exists()


def test_a_trial_that_another_process_has_finished_is_not_an_error(tmp_path):
    """Both take the waiting trial; the other process reports while this one still fits."""
    optuna = pytest.importorskip("optuna")
    task = trials.Task("markov", {}, "leave-one-out", "file", "HR@5", False)
    storage = studies.study_storage(tmp_path / "s.db")
    made = tuning._SearchWorker(task, storage, "shared", 3, 0)
    fit, met = trials.Objective(task, walk()), []

    def objective(values):
        if not met:
            other = optuna.load_study(study_name="shared", storage=storage)
            met.append(other.tell(other.get_trials()[0].number, 0.5).number)
        return fit(values)

    made.run(objective)
    found = made.finished()
    assert met == [found[0].number]
    assert found[0].value == 0.5
    assert len(found) == 3


def test_the_papers_grid_moves_one_parameter_at_a_time():
    found = tr.tune("tale", walk(), grid="paper", fixed={"trend": 0.0})
    names = ["decay", "floor", "window", "reg"]
    assert found.searched == names
    assert len(found.trials) == 21 + 11 + 6 + 7
    start = {name: getattr(tr.TALE(), name) for name in names}
    place, best = 0, start
    for name, size in zip(names, (21, 11, 6, 7), strict=True):
        block = found.trials[place : place + size]
        for trial in block:
            assert {k: v for k, v in trial.params.items() if k != name} == {
                k: v for k, v in best.items() if k != name
            }
        place += size
        best = max(found.trials[:place], key=lambda trial: trial.value).params
    assert found.params["trend"] == 0.0
    with pytest.raises(TalerecError, match="declares no grid"):
        tr.tune("markov", walk(), grid="paper")
    with pytest.raises(TalerecError, match="`grid` is 'fine'"):
        tr.tune("tale", walk(), grid="fine")


def test_fixed_parameters_stay(tmp_path):
    found = tr.tune("tale", walk(), trials=3, fixed={"decay": 2.0, "solver": "exact"})
    assert found.params["decay"] == 2.0
    assert "decay" not in found.searched
    path = found.save(tmp_path / "best.json")
    assert json.loads(path.read_text())["params"] == found.params
    assert tuning.read_params(path, None) == ("tale", found.params)
    with pytest.raises(TalerecError, match="parameters of tale, not of slit"):
        tuning.read_params(path, "slit")


def test_mistakes_are_named():
    log = tiny_log([(u, i, i) for u in range(3) for i in range(4)])
    for options, message in (
        ({"metric": "AUC"}, "`metric` is 'AUC'"),
        ({"metric": "HR@0"}, "`metric` is"),
        ({"trials": 0}, "`trials` is 0"),
        ({"fixed": {"nothing": 1}}, "no parameter 'nothing'"),
        ({"ties": "random:4..1"}, "range of seeds"),
        ({"plan": SplitPlan("leave-one-out", refit=True)}, "cannot be scored"),
    ):
        with pytest.raises(TalerecError, match=message):
            tr.tune("tale", log, **options)
    views = replace(log, event=np.ones(log.rows, np.int16), event_names=("buy", "view"))
    views.event[log.ptr[1:] - 1] = 0  # one purchase of each user, which is the test
    with pytest.raises(TalerecError, match="no user has a row to validate on"):
        tr.tune("tale", views, SplitPlan("leave-one-out", target="buy"))
    with pytest.raises(TalerecError, match="no parameter left"):
        tr.tune("popular", log)


def test_a_file_that_is_no_study_is_refused(tmp_path):
    path = tmp_path / "s.db"
    path.write_text("not a database at all")
    with pytest.raises(TalerecError, match="is not a study file"):
        tr.tune("tale", walk(), trials=1, study=path)


def test_the_shortest_list_has_a_metric_and_an_empty_one_has_none():
    task = trials.Task("popular", {}, "leave-one-out", "file", "HR@1", False, None)
    task.check()
    for metric in ("HR@0", "HR@", "HR", "HR@x", "Recall@5"):
        with pytest.raises(TalerecError, match="`metric` is"):
            replace(task, metric=metric).check()

"""A model that was fitted on the rows it is evaluated on is refused, and no other model is."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import talerec as tr
from logs import logs, quick, rows_of, tiny_log
from talerec.data.split import SplitPlan
from talerec.errors import TalerecError
from talerec.evaluation.leakage import _find_leaked

DAY_S = 86_400
PLANS = [("leave-one-out", "test"), ("leave-one-out", "validation"), ("at:{}", "test"),
         ("at:{}", "validation"), ("rolling:{},20", "test")]  # fmt: skip


@pytest.fixture(scope="module")
def log() -> tr.Log:
    """Few items, all of them from the first days on, so that they are in all training rows."""
    rng = np.random.default_rng(0)
    rows = [
        (u, int(rng.integers(9)), int(rng.integers(200 * DAY_S)))
        for u in range(1, 301)
        for _ in range(12)
    ]
    return tiny_log(rows)


def splits_of(log: tr.Log, plan: str, on: str) -> list[tr.Split]:
    cutoff = np.datetime64(int(np.quantile(log.time, 0.7)), "us")
    return list(SplitPlan(plan.format(cutoff)).splits(log, on))


@pytest.mark.parametrize(("plan", "on"), PLANS)
def test_a_model_of_all_rows_is_refused(plan, on, log, tmp_path):
    model = tr.Popular().fit(log)
    loaded = tr.load(model.save(tmp_path / "m.tale"))
    for split in splits_of(log, plan, on):
        assert split.train.items.ids.equals(log.items.ids)
        cases = split.cases(on)
        user, when = (
            split.users.ids[int(cases.user[0])],
            np.datetime64(int(cases.target_time[0]), "us"),
        )
        item = log.items.ids[int(cases.target[0])]
        for leaky in (model, loaded):
            with pytest.raises(TalerecError) as caught:
                tr.evaluate(leaky, split, on=on)
            assert str(caught.value) == (
                f"the model was fitted on {len(cases):,} of the {len(cases):,} rows that it would "
                f"be evaluated on, such as item {item} of user {user} at {when}: "
                "call model.fit(split.train)"
            )


@pytest.mark.parametrize(("plan", "on"), PLANS)
def test_a_model_of_the_training_rows_is_evaluated_before_and_after_saving(
    plan, on, log, tmp_path, caplog
):
    for split in splits_of(log, plan, on):
        model = tr.Blend(parts="popular,markov", weights_of_parts="1,1").fit(split.train)
        metrics = tr.evaluate(model, split, on=on).metrics
        for histories in (True, False):
            loaded = tr.load(model.save(tmp_path / "m.tale", histories=histories))
            assert tr.evaluate(loaded, split, on=on).metrics == metrics
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_rows_of_the_validation_may_be_learned_for_the_test_and_not_for_themselves(log):
    split, refitted = tr.leave_one_out(log), tr.leave_one_out(log, refit=True)
    model = tr.Popular().fit(refitted.train)
    assert tr.evaluate(model, split).cases == len(split.test)
    with pytest.raises(TalerecError, match="such as item"):
        tr.evaluate(model, split, on="validation")


def test_one_leaked_row_is_enough(log):
    split = tr.leave_one_out(log)
    rows = np.ones(log.rows, bool)
    rows[log.ptr[1:] - 1] = False
    rows[log.ptr[8] - 1] = True  # the last row of user 7
    with pytest.raises(TalerecError, match=f"on 1 of the {len(split.test)} rows .* of user 8 at"):
        tr.evaluate(tr.Popular().fit(log.keep(rows).compact()), split)


@given(logs(max_rows=40), st.sampled_from(["file", "item", "random:1"]), st.data())
@quick
def test_rows_are_found_by_counting_them(log, ties, data):
    """Any rows as training rows, against counts of (user, item, time) in plain Python."""
    log = tr.order_ties(log, ties)
    try:
        split = next(SplitPlan("leave-one-out").splits(log))
    except TalerecError:
        return
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=log.rows, max_size=log.rows)))
    if not mask.any():
        return
    kept = log.keep(mask)
    positions = split.train.items.codes(log.items.ids).astype(np.int32)  # -1: not in training
    kept = replace(kept, item=positions[kept.item], items=split.train.items)
    count = Counter(rows_of(log.keep(mask)))
    for on in ("test", "validation"):
        cases, expected = split.cases(on), []
        for number, user in enumerate(cases.user):
            last = int(cases.histories.stop[number])
            rows = rows_of(log)
            before = Counter(rows[int(log.ptr[user]) : last])
            in_training = cases.target[number] >= 0
            if in_training and count[rows[last]] > before[rows[last]]:
                expected.append(number)
        assert _find_leaked(kept, split, cases).tolist() == expected


@given(logs(max_rows=40), st.sampled_from(PLANS), st.sampled_from(["file", "item", "random:1"]))
@quick
def test_training_rows_are_never_taken_for_leaked_ones(log, plan, ties):
    """Duplicates at the same instant on both sides of a split, ties, repeats."""
    try:
        splits = splits_of(tr.order_ties(log, ties), *plan)
    except TalerecError:
        return
    for split in splits:
        assert not _find_leaked(split.train, split, split.cases(plan[1])).size


def test_rows_of_equal_times_and_items_are_not_taken_for_leaked_ones():
    """The validation row, and the row before it, are the same as the test row."""
    rows = [(u, i, t) for u in range(9) for t, i in enumerate([1, 2, 3, 1, 2, 3])]
    rows += [(u, 3, 5) for u in range(9) for _ in range(3)]
    log = tiny_log(rows)
    for refit in (False, True):
        split = tr.leave_one_out(log, refit=refit)
        model = tr.Popular().fit(split.train.keep(np.ones(split.train.rows, bool)))
        assert tr.evaluate(model, split).cases == 9
    with pytest.raises(TalerecError, match="fitted on 9 of the 9 rows"):
        tr.evaluate(tr.Popular().fit(log), split)


def test_logs_without_times_and_with_ids_of_another_type_are_checked_too():
    frame = tr.synthetic_log(2000, items=9).to_frame()
    for log in (
        tr.Log.from_frame(frame, time=None),
        tr.Log.from_frame(frame.with_columns(pl.col("user_id").cast(pl.String))),
    ):
        split = tr.leave_one_out(log)
        copy = split.train.keep(np.ones(split.train.rows, bool))
        assert tr.evaluate(tr.Popular().fit(copy), split).cases == len(split.test)
        model = tr.Popular().fit(log if log.unit == "none" else tr.Log.from_frame(frame))
        with pytest.raises(TalerecError, match=r"the model was fitted on \d+ of the"):
            tr.evaluate(model, split)


def test_a_model_without_histories_warns_if_its_rows_were_others(log, tmp_path, caplog):
    split = tr.leave_one_out(log)
    swapped = replace(split.train, item=split.train.item[::-1].copy())  # the same counts
    for rows, differ in ((log, "rows, last_time, fingerprint"), (swapped, "fingerprint")):
        model = tr.load(tr.Popular().fit(rows).save(tmp_path / "m.tale", histories=False))
        again = tr.load(model.save(tmp_path / "n.tale", histories=False))  # it goes on
        for other in (model, again):
            caplog.clear()
            tr.evaluate(other, split)
            (warning,) = [record.getMessage() for record in caplog.records]
            assert warning == (
                f"the model was fitted on other rows than split.train ({differ} differ): if rows "
                "that it is evaluated on were among them, the figures are too good; fit it on "
                "split.train"
            )


def test_weights_are_part_of_the_fingerprint_as_the_fit_saw_them(log, tmp_path, caplog):
    weight = np.random.default_rng(0).uniform(1, 9, log.rows)
    split = tr.leave_one_out(replace(log, weight=weight, weight_unit=1.0))
    model = tr.load(tr.Popular().fit(split.train).save(tmp_path / "m.tale", histories=False))
    tr.evaluate(model, split)
    assert not caplog.records


def test_an_artifact_of_version_0_2_without_histories_is_compared_by_its_counts(
    log, tmp_path, caplog
):
    """It has no fingerprint."""
    split = tr.leave_one_out(log)
    for rows, warnings in ((split.train, 0), (log, 1)):
        model = tr.load(tr.Popular().fit(rows).save(tmp_path / "m.tale", histories=False))
        del model.fitted.training["fingerprint"]
        caplog.clear()
        tr.evaluate(model, split)
        assert len(caplog.records) == warnings


@pytest.mark.slow
def test_a_shop_log_with_repeated_rows_is_evaluated(data, tmp_path):
    """Thousands of rows have the user, item and time of another row."""
    log = tr.read_log(data / "online-retail.csv.gz")
    assert tr.describe(log)["duplicate_rows"] > 1000
    cutoff = np.datetime64(int(np.quantile(log.time, 0.8)), "us")
    for plan in ("leave-one-out", f"at:{cutoff}"):
        for split in SplitPlan(plan).splits(log):
            model = tr.load(tr.Popular().fit(split.train).save(tmp_path / "m.tale"))
            assert tr.evaluate(model, split).cases == len(split.test)

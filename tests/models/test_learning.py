"""What a log chooses for tempo: planted answers, slow twins of the loops, and what must never be looked at."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import talerec as tr
from logs import logs, quick
from talerec.artifact import format as artifact
from talerec.errors import TalerecError
from talerec.models.tempo import blocks as _blocks
from talerec.models.tempo import popularity as _memories
from talerec.models.tempo import search as _weighing
from talerec.models.tempo.holdout import held_back
from talerec.models.tempo.learning import FirstFit, _Asked, appeal, first_memories
from talerec.models.tempo.query import absences, classes
from talerec.models.tempo.query_params import KNOTS, Numbers
from talerec.models.tempo.search import Choice, Parts, Scale
from talerec.runtime import threads

HOUR, DAY = 3600, 86_400


def log_of(rows) -> tr.Log:
    user, item, time = zip(*rows, strict=True)
    frame = pl.DataFrame({"user_id": user, "item_id": item, "timestamp": time})
    return tr.Log.from_frame(frame, time_unit="s")


def chain_log(
    users=700, items=200, length=14, seed=1, otherwise=np.random.Generator.integers
) -> tr.Log:
    """What comes next follows from the last item alone, every second time; `otherwise` draws the others, from all items."""
    draw = np.random.default_rng(seed)
    after = draw.permutation(items)
    rows = []
    for user in range(users):
        time, item = int(draw.integers(10**7)) + 10**9, int(draw.integers(items))
        for _ in range(length):
            rows.append((user, item, time))
            time += int(draw.integers(600, 5000))
            follows = draw.random() < 0.5
            item = int(after[item] if follows else otherwise(draw, items))
    return log_of(rows)


def hourly_log(users=1500, items=1500, length=10) -> tr.Log:
    """Six of ten rows are one of four items that are in fashion for half an hour."""
    draw, span = np.random.default_rng(2), 40 * HOUR
    time = np.sort(draw.integers(0, span, users * length))
    fashion = draw.integers(0, items, (span // 1800 + 1, 4))
    hot = draw.random(len(time)) < 0.6
    item = np.where(
        hot,
        fashion[time // 1800, draw.integers(0, 4, len(time))],
        draw.integers(0, items, len(time)),
    )
    user = draw.integers(0, users, len(time))
    return log_of(zip(user.tolist(), item.tolist(), (time + 10**9).tolist(), strict=True))


def habit_log(users=1500, items=500, length=30, own=6) -> tr.Log:
    """Everybody goes round a few items of their own."""
    draw = np.random.default_rng(3)
    rows = []
    for user in range(users):
        mine, time = draw.integers(0, items, own), int(draw.integers(10**7)) + 10**9
        for _ in range(length):
            item = draw.choice(mine) if draw.random() < 0.9 else draw.integers(items)
            rows.append((user, int(item), time))
            time += int(draw.integers(HOUR, DAY))
    return log_of(rows)


def browsing_log(users=600, items=320, length=14) -> tr.Log:
    """Nobody has anything twice; people stay in their corner of the shop."""
    draw = np.random.default_rng(4)
    rows = []
    for user in range(users):
        corner, time = int(draw.integers(8)), int(draw.integers(10**7)) + 10**9
        for item in draw.permutation(items // 8)[:length]:
            rows.append((user, corner * (items // 8) + int(item), time))
            time += int(draw.integers(HOUR, DAY))
    return log_of(rows)


def numbers_of(model) -> Numbers:
    return Numbers.restored(model.fitted.weights.query_arrays)


# -- planted answers -------------------------------------------------------------------------------


def test_where_only_the_last_item_matters_the_others_count_next_to_nothing():
    log = chain_log()
    split = tr.leave_one_out(log)
    model, off = tr.Tempo().fit(split.train), tr.Tempo(learn="off").fit(split.train)
    assert numbers_of(model).place_weights(np.array([8.0])).max() < 0.02
    gained = [tr.evaluate(m, split).metrics["NDCG@10"] for m in (model, off)]
    assert gained[0] > 1.05 * gained[1]
    assert any("8 rows back counts next to nothing" in line for line in model.chosen())


def test_where_the_last_hour_matters_a_short_memory_counts_most():
    split = tr.leave_one_out(hourly_log())
    model, off = tr.Tempo().fit(split.train), tr.Tempo(learn="off").fit(split.train)
    known = model.fitted.weights.query_arrays
    short = known["lifetime"] > 0
    assert (known["lifetime"][short] < 2 * HOUR * 1e6).any()
    now = numbers_of(model).now[0]
    assert now[short].max() > now[~short].max(initial=0)
    gained = [tr.evaluate(m, split).metrics["NDCG@10"] for m in (model, off)]
    assert gained[0] > 2 * gained[1]


def test_where_everybody_repeats_repeats_count_more():
    split = tr.leave_one_out(habit_log())
    model = tr.Tempo().fit(split.train)
    numbers = numbers_of(model)
    assert numbers.often.max() > 0 or numbers.again.max() > 1
    assert any("comes again" in line for line in model.chosen())
    off = tr.Tempo(learn="off").fit(split.train)
    gained = [tr.evaluate(m, split).metrics["NDCG@10"] for m in (model, off)]
    assert gained[0] >= gained[1]


def test_where_nobody_repeats_nothing_seen_is_recommended():
    log = browsing_log()
    model = tr.Tempo().fit(log)
    assert not numbers_of(model).often.any()
    found = model.recommend(log.users.ids[:50], k=10)
    seen = set(zip(*log.to_frame().select("user_id", "item_id").get_columns(), strict=True))
    shown = set(zip(*found.select("user_id", "item_id").get_columns(), strict=True))
    assert not seen & shown


# -- what stays as it was --------------------------------------------------------------------------


def test_a_log_too_small_to_learn_from_keeps_the_defaults_and_says_so():
    log = tr.synthetic_log(300, seed=1)
    model, off = tr.Tempo().fit(log), tr.Tempo(learn="off").fit(log)
    users = log.users.ids[:20]
    assert model.recommend(users, k=5).equals(off.recommend(users, k=5))
    assert model.chosen() == ["The log is too small to learn from: the default weights stay."]
    assert off.chosen() == []


def test_a_value_that_somebody_sets_replaces_what_was_learned():
    log = chain_log(users=500)
    model, off = tr.Tempo().fit(log), tr.Tempo(learn="off").fit(log)
    histories = [[1, 2, 3], [4, 5]]

    def scores(one, **changes):
        return one.with_params(**changes).recommend_histories(histories, k=20)

    assert numbers_of(model).lift[0] == 0  # what leads to an item is the same in both
    assert len(model.fitted.weights.query_arrays["lifetime"]) == 1  # and so is what is popular
    both = {"recency": 3.0, "now": 0.2, "repeats": "ignored"}
    assert not scores(model).equals(scores(off))
    assert scores(model, **both).equals(scores(off, **both))
    assert scores(tr.Tempo(recency=3.0).fit(log)).equals(scores(model, recency=3.0))


@pytest.mark.parametrize("value", ["never", -1, 0, True, None])
def test_a_recency_that_is_neither_a_number_nor_auto_is_refused(value):
    with pytest.raises(TalerecError, match="recency"):
        tr.Tempo(recency=value)


def test_saved_and_loaded_it_answers_the_same_and_says_the_same(tmp_path):
    model = tr.Tempo().fit(habit_log(users=300))
    again = tr.load(model.save(tmp_path / "shop.tale"), verify=True)
    users = model.fitted.log.users.ids[:30]
    assert again.recommend(users, k=5).equals(model.recommend(users, k=5))
    assert again.chosen() == model.chosen()
    assert artifact.read(tmp_path / "shop.tale").facts["chosen"] == model.chosen() != []


def test_reasons_add_up_to_scores_with_learned_numbers():
    log = habit_log(users=300)
    model = tr.Tempo().fit(log)
    history = list(zip(log.items.ids.gather([1, 2, 1, 5]), [0, DAY, 2 * DAY, 3 * DAY], strict=True))
    history = [(item, 1_010_000_000_000_000 + 1_000_000 * t) for item, t in history]
    found = model.recommend_histories([history], k=5, as_of="2002-02-01")
    for item, score in found.select("item_id", "score").iter_rows():
        given = model.explain(history, item, as_of="2002-02-01")["contribution"].sum()
        assert given == pytest.approx(score, rel=1e-9, abs=1e-12)


def test_learning_does_not_depend_on_threads(monkeypatch):
    log, found = chain_log(users=500), []
    for count in ("1", "3"):
        monkeypatch.setitem(os.environ, threads.VARIABLE, count)
        model = tr.Tempo().fit(log)
        found.append((numbers_of(model).arrays(), model.recommend(log.users.ids[:40], k=5)))
    (one, lists), (other, other_lists) = found
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert lists.equals(other_lists)


# -- questions -------------------------------------------------------------------------------------


def test_questions_are_about_rows_that_the_first_fit_has_not_seen():
    log = habit_log(users=400)
    held = held_back(log)
    trained = set(zip(held.train.item.tolist(), held.train.time.tolist(), strict=True))
    held_rows = set(zip(log.item.tolist(), log.time.tolist(), strict=True)) - trained
    assert len(held_rows) == log.rows - held.train.rows  # no two rows of this log are alike
    for kind in (held.fresh, held.late):
        asked = list(zip(kind.target.tolist(), kind.histories.now.tolist(), strict=True))
        assert set(asked) <= held_rows
        one = kind.histories
        assert (one.time[one.stop - 1] <= one.now).all()
    assert (held.late.histories.now > held.train.time.max()).all()  # from behind the end
    assert len(held.train.items) == len(log.items)


# -- slow twins ------------------------------------------------------------------------------------


def value_by_hand(parts, choice, bends, q, repeats, places):
    """What the place of candidate 0 is worth, with seen items ranked and without them."""
    score = []
    for c in range(parts.count[q]):
        total = 0.0
        for k in range(len(parts.value)):
            bend = np.exp(choice.lift * parts.appeal[q, c]) if bends[k] else 1.0
            total += choice.weight[parts.group[q], k] * bend * parts.value[k, q, c]
        score.append(total)
    rivals = range(1, parts.count[q])
    shown = sum(score[c] >= score[0] for c in rivals)
    unseen = sum(score[c] >= score[0] and not parts.seen[q, c] for c in rivals)
    hidden = parts.seen[q, 0]
    if not repeats:
        shown = places if hidden else unseen
    unseen = places if hidden else unseen
    return [1 / np.log2(place + 2) if place < places else 0.0 for place in (shown, unseen)]


@pytest.mark.parametrize("repeats", [True, False])
def test_values_after_changes_equal_those_by_hand(repeats):
    draw = np.random.default_rng(5)
    asked, most, kinds, groups, places = 200, 12, 5, 3, 6
    parts = Parts(
        draw.integers(-8, 9, (kinds, asked, most)).astype(np.float32) / 8,
        draw.integers(1, most + 1, asked),
        draw.random((asked, most)) < 0.3,
        draw.integers(0, groups, asked),
        np.log(draw.integers(1, 4, (asked, most))).astype(np.float32),
    )
    bends = np.array([True, True, False, False, False])
    choice = Choice(draw.integers(0, 5, (groups, kinds)) / 4.0, 0.0)
    scale = Scale([parts], choice, bends, repeats, places)
    for lift in (0.0, 0.37, -0.21):
        weight = scale.choice.weight.copy()
        weight[draw.integers(groups), draw.integers(kinds)] = draw.random()
        changed = Choice(weight, lift)
        trial = scale.kinds[0].tried(scale.choice, changed)
        expected = [value_by_hand(parts, changed, bends, q, repeats, places) for q in range(asked)]
        np.testing.assert_allclose(trial.values, expected, atol=1e-12)
        scale.kinds[0].take(trial)
        scale.choice = changed


def test_a_change_is_taken_only_where_no_kind_of_questions_loses():
    """Part 1 helps the first kind of questions and spoils the second; part 2 helps both."""
    asked = 400

    def kind(spoils):
        value = np.zeros((3, asked, 2), np.float32)
        value[0, :, 1] = 1.0  # the rival stands first
        value[1, :, 1 if spoils else 0] = 2.0
        value[2, :, 0] = 2.0
        if spoils:  # in half of the questions the target is first to begin with
            value[0, ::2, 0] = 1.5
        none = np.zeros((asked, 2))
        both = np.full(asked, 2, np.int64)
        return Parts(value, both, none.astype(bool), np.zeros(asked, np.int64), none.astype("f4"))

    start = Choice(np.array([[1.0, 0.0, 0.0]]), 0.0)
    one, two = (Choice(np.array([[1.0, *w]]), 0.0) for w in ((1.0, 0.0), (0.0, 1.0)))
    scale = Scale([kind(False), kind(True)], start, np.zeros(3, bool), False, 10)
    assert scale.take_best([one], 1.0) is None
    assert scale.take_best([one, two], 1.0) == 1
    assert scale.choice is two


def test_a_change_that_may_be_chance_is_not_taken():
    draw = np.random.default_rng(6)
    value = draw.random((2, 300, 8)).astype(np.float32)
    none = np.zeros((300, 8))
    group, count = np.zeros(300, np.int64), np.full(300, 8, np.int64)
    parts = Parts(value, count, none.astype(bool), group, none.astype("f4"))
    start = Choice(np.array([[1.0, 0.0]]), 0.0)
    scale = Scale([parts], start, np.zeros(2, bool), False, 8)
    trials = (Choice(np.array([[1.0, w]]), 0.0) for w in (0.01, 0.02))
    assert scale.take_best(trials, 3.0) is None
    assert scale.choice is start


def test_few_questions_of_a_kind_are_not_asked():
    empty = np.zeros((1, 5, 2), np.float32), np.full(5, 2), np.zeros((5, 2), bool)
    parts = Parts(*empty, np.zeros(5, np.int64), np.zeros((5, 2), np.float32))
    scale = Scale([parts], Choice(np.ones((1, 1)), 0.0), np.zeros(1, bool), False, 5)
    assert scale.kinds == []
    assert scale.take_best([Choice(np.zeros((1, 1)), 0.0)], 1.0) is None
    assert _weighing._FEW > 5


def test_parts_add_up_to_the_scores_of_the_model():
    log = habit_log(users=300)
    held = held_back(log)
    off = tr.Tempo(learn="off", recency=6, now=0.3).fit(held.train)
    known = off.fitted.weights.query_arrays
    first = FirstFit(
        leads=off.fitted.weights.blocks[0],
        repeat_rates=known["repeats"],
        joint=bool(known["joint"][0]),
        decay=float(known["decay"][0]),
        floor=off.floor,
        max_history=off.max_history,
        popular=first_memories(_memories.InTime.of(held.train), off.span),
        counts=held.train.counts(),
        time=(int(held.train.time.min()), int(held.train.time.max())),
    )
    numbers = Numbers.usual(np.array([1.0]))
    parts = _Asked(first, held.wanted).parts(held.fresh, numbers)
    choice = numbers.choice(known["repeats"])
    B = off.weights[: len(log.items)]
    one = held.fresh.histories
    for q in range(0, len(parts), 37):
        rows = range(one.start[q], one.stop[q])
        last = {int(one.item[r]): r for r in rows}
        places = {i: sum(one.time[s] > one.time[r] for s in rows) for i, r in last.items()}
        target = held.fresh.target[q]
        leads = sum(
            np.interp(np.log2(1 + p), np.arange(len(KNOTS)), choice.weight[0, : len(KNOTS)])
            * B[i, target]
            for i, p in places.items()
        )
        found = choice.weight[0, : len(KNOTS)] @ parts.value[: len(KNOTS), q, 0]
        assert found == pytest.approx(leads, rel=1e-5, abs=1e-6)


# -- memories --------------------------------------------------------------------------------------


def shares_by_hand(log, cut, lasting):
    """Every row up to the cut, its weight falling with every row after it."""
    order = np.argsort(log.time, kind="stable")[:cut]
    total = np.zeros(len(log.items))
    for age, row in enumerate(order[::-1]):
        total[log.item[row]] += np.exp(-age / lasting)
    return total / total.sum()


@quick
@given(logs(), st.sampled_from([1 / 128, 1 / 16, 1.0, 8.0]))
def test_memories_equal_sums_by_hand(log, length):
    n = len(log.items)
    found = _memories.memories(_memories.InTime.of(log), 1.0, [length, 8.0])
    lasting = max(length * n, 16.0)
    taken = found.ptr[1] - found.ptr[0]
    cuts = np.unique(np.linspace(0, log.rows, taken + 1).astype(int)[1:])
    for number, cut in enumerate(cuts):
        row = found.shares[[number]].toarray()[0]
        expected = shares_by_hand(log, cut, lasting)
        there = row > 0
        np.testing.assert_allclose(row[there], expected[there], rtol=1e-5)
        assert expected[~there].max(initial=0) <= max(row[there].min(initial=1), np.exp(-5))


def test_memories_together_take_no_more_room_than_one_did():
    draw = np.random.default_rng(7)
    rows = [
        (int(u), int(i), 10**9 + t) for t, (u, i) in enumerate(draw.integers(0, 900, (60_000, 2)))
    ]
    log = log_of(rows)
    alone = _memories.memories(_memories.InTime.of(log), 1.0, [1.0])
    for lengths in (_memories.LENGTHS, _memories.LENGTHS[:2]):
        together = _memories.memories(_memories.InTime.of(log), 1.0, lengths)
        assert together.shares.nnz <= 1024 * 300
        assert len(together.lifetime) == len(lengths)
    assert alone.shares.nnz <= 1024 * 300


def test_a_short_memory_ages_soon_and_a_long_one_does_not():
    log = hourly_log(users=300)
    known = _memories.memories(_memories.InTime.of(log), 1.0, [1 / 16, 1.0])
    end = int(log.time.max())
    asked = tr.Histories.of_users(log, np.array([0, 0]))
    asked = tr.Histories(
        asked.start, asked.stop, asked.item, asked.time, np.array([end, end + 10**12])
    )
    left = known.worth(asked, end)
    assert left[0].tolist() == [1.0, 1.0]
    assert left[1, 0] < 0.01
    assert left[1, 1] == 1.0


def test_askers_are_in_classes_by_absence_and_by_whether_the_end_is_well_behind_them():
    last = 1_000_000
    now = np.array([last, last + 5_000, last + 20_000, last + 20_000])
    absence = np.array([0, 10, 0, 11])
    found = classes(np.array([10.0]), absence, now, 0, last)
    assert found.tolist() == [0, 1, 2, 3]


def test_an_asker_of_whom_no_time_is_known_has_not_been_away():
    untimed = tr.Histories.from_ids([[1], []], habit_log(users=300).items)
    assert absences(untimed.last(), np.array([5, 5])).tolist() == [0, 0]


# -- what is learned is what is asked by ------------------------------------------------------------


def test_repeats_count_as_the_numbers_say():
    """again * exp(-fading * octave) * rate, and often times the share of the item in the history, newer rows more."""
    model = tr.Tempo(now=0).fit(habit_log(users=300))
    known = model.fitted.weights.query_arrays
    known["number_again"][:], known["number_fading"][:] = 1.5, 0.2
    known["number_often"][:] = [0.3, 0.7]
    rows, n = [3, 5, 3, 8], len(model.item_ids)
    history = tr.Histories.from_ids([model.item_ids.gather(rows).to_list()], model.fitted.items)
    x = model.query(history)
    found = dict(zip(x.source.tolist(), x.weight.tolist(), strict=True))
    for item, place in ((8, 0), (3, 1), (5, 2)):
        octave = {0: 0, 1: 1, 2: 1}[place]
        expected = 1.5 * np.exp(-0.2 * octave) * known["repeats"][octave]
        for weight, fade in ((0.3, 10.0), (0.7, 100.0)):
            left = [np.exp(-(len(rows) - 1 - r) / fade) for r in range(len(rows))]
            mine = sum(left[r] for r in range(len(rows)) if rows[r] == item)
            expected += weight * mine / sum(left)
        assert found[n + item] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("solver", ["exact", "local"])
def test_what_leads_to_an_item_is_lifted_by_its_popularity(solver):
    log = habit_log(users=300)
    model = tr.Tempo(learn="off", solver=solver).fit(log)
    numbers = replace(Numbers.usual(np.empty(0)), lift=np.array([0.3]))
    lifted = _blocks.times(
        model.fitted.weights.blocks[0], _blocks.lift(log.counts(), numbers)
    ).matrix
    counts = np.bincount(log.item, minlength=len(log.items))
    factor = (counts / np.exp(np.log(counts).mean())) ** 0.3
    B, found = (m.toarray() if solver == "local" else m for m in (model.weights, lifted))
    np.testing.assert_allclose(found, B * factor, rtol=1e-5)
    assert appeal(counts.astype(float)).mean() == pytest.approx(0, abs=1e-12)

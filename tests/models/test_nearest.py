"""Nearest histories against a scan of all histories, and scores computed by hand."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import talerec as tr
from logs import DAY, START, YEAR, at, instants, logs, quick, tiny_log
from talerec.data import Histories
from talerec.models.core import rank_targets
from talerec.ranking import Mask, Query, SequenceBlock, Weights, rank_queries, top_items
from talerec.runtime import VARIABLE

many = settings(max_examples=150, deadline=None)

# -- the slow twin ---------------------------------------------------------------------------------


class Neighbour(NamedTuple):
    user: int
    last: int
    likeness: float
    items: list[int]  # each at its last row
    anchor: int  # the place of the newest shared item


def each_once(items):
    """Items in the order of their last rows."""
    return list(dict.fromkeys(reversed(items)))[::-1]


def neighbours(model, log, items, last):
    """Who is asked, by looking at everybody; `last` is None for a history without times."""
    recency = getattr(model, "recency", math.inf)
    decay = getattr(model, "decay_user", 0) or math.inf
    newest = list(enumerate(reversed(items)))[: model.max_history]
    places = {item: place for place, item in reversed(newest) if item >= 0}
    neighbors = []
    for user in range(len(log.users)):
        begin, end = int(log.ptr[user]), int(log.ptr[user + 1])
        theirs = each_once(log.item[max(begin, end - model.max_history) : end].tolist())
        shared = sorted((item for item in theirs if item in places), key=places.get)
        if not shared:
            continue
        their_last = int(log.time[end - 1])
        age = 0 if last is None else max(0, last - their_last)
        likeness = sum(math.exp(-places[item] / recency) for item in shared)
        likeness /= math.sqrt(len(places) * len(theirs))
        likeness *= math.exp(-age / (decay * DAY))
        neighbors.append(Neighbour(user, their_last, likeness, theirs, theirs.index(shared[0])))
    neighbors.sort(key=lambda n: (-n.last, n.user))
    neighbors = neighbors[: model.sample or None]
    neighbors.sort(key=lambda n: (-n.likeness, -n.last, n.user))
    return neighbors[: model.nearest]


def expected(model, log, items, last):
    """The score of every item that has one."""
    position = getattr(model, "position", math.inf)
    scores = {}
    for n in neighbours(model, log, items, last):
        for place, item in enumerate(n.items):
            share = n.likeness * math.exp(-abs(place - n.anchor) / position)
            if share > 0:
                scores[item] = scores.get(item, 0.0) + share
    return scores


def assert_ranked(frame, log, scores):
    """These items with these scores, the best first, equal ones by position."""
    position = {name: i for i, name in enumerate(log.items.ids.to_list())}
    positions = [position[name] for name in frame["item_id"].to_list()]
    assert dict(zip(positions, frame["score"].to_list(), strict=True)) == pytest.approx(
        scores, rel=1e-7, abs=1e-300
    )
    order = list(zip((-frame["score"]).to_list(), positions, strict=True))
    assert order == sorted(order)
    assert frame["rank"].to_list() == list(range(1, len(positions) + 1))


# -- what is asked ---------------------------------------------------------------------------------


@st.composite
def models(draw):
    """Few neighbours and small samples, so that both cuts bite."""
    shared = {
        "nearest": draw(st.sampled_from([1, 2, 3, 100])),
        "sample": draw(st.sampled_from([0, 1, 2, 3, 1000])),
        "max_history": draw(st.sampled_from([1, 2, 3, 2500])),
    }
    if draw(st.booleans()):
        return tr.SKNN(**shared)
    places = st.sampled_from([0.5, 2.0, 7.0, math.inf])
    decay_user = draw(st.sampled_from([0.0, 0.5, 30.0, 4000.0]))
    return tr.STAN(**shared, recency=draw(places), position=draw(places), decay_user=decay_user)


names = st.integers(0, 7).map("i{}".format)  # i5 and later are in no log
untimed = st.lists(names, max_size=8)
timed = st.lists(st.tuples(names, instants.map(at)), max_size=8)
wide = logs(max_users=8, max_items=5, max_rows=40)


def positions(log, history):
    item_ids = log.items.ids.to_list()
    return [item_ids.index(name) if name in item_ids else -1 for name in history]


def of_history(frame, number):
    return frame.filter(frame["history"] == number)


@given(wide, models(), st.lists(timed, min_size=1, max_size=3))
@many
def test_histories_with_times_get_what_a_look_at_everybody_gives(log, model, histories):
    model.fit(log)
    frame = model.recommend_histories(histories, k=len(log.items), unknown="skip")
    for number, history in enumerate(histories):
        rows = sorted(history, key=lambda row: row[1])
        items = positions(log, [name for name, _ in rows])
        last = int(rows[-1][1].astype(np.int64)) if rows else 0
        assert_ranked(of_history(frame, number), log, expected(model, log, items, last))


@given(wide, models(), st.lists(untimed, min_size=1, max_size=3))
@many
def test_histories_without_times_get_what_a_look_at_everybody_gives(log, model, histories):
    model.fit(log)
    frame = model.recommend_histories(histories, k=len(log.items), unknown="skip")
    for number, history in enumerate(histories):
        scores = expected(model, log, positions(log, history), None)
        assert_ranked(of_history(frame, number), log, scores)


@given(wide, models())
@many
def test_users_get_what_a_look_at_everybody_gives(log, model):
    frame = model.fit(log).recommend(log.users.ids.to_list(), k=len(log.items))
    for user, name in enumerate(log.users.ids.to_list()):
        rows = slice(log.ptr[user], log.ptr[user + 1])
        items, last = log.item[rows].tolist(), int(log.time[rows][-1])
        assert_ranked(
            frame.filter(frame["user_id"] == name), log, expected(model, log, items, last)
        )


@given(wide, models(), timed)
@settings(max_examples=80, deadline=None)
def test_contributions_add_up_to_the_score_and_come_from_items_that_are_shared(log, model, history):
    model.fit(log)
    frame = model.recommend_histories([history], k=len(log.items), unknown="skip")
    scores = dict(zip(frame["item_id"].to_list(), frame["score"].to_list(), strict=True))
    rows = [name for name, _ in sorted(history, key=lambda row: row[1])]
    counted = {name: row for row, name in enumerate(rows) if row >= len(rows) - model.max_history}
    for item in log.items.ids.to_list():
        share = model.explain(history, item, unknown="skip")["contribution"].to_numpy()
        assert len(share) == len(rows)
        assert share.sum() == pytest.approx(scores.get(item, 0.0), rel=1e-9, abs=1e-300)
        assert (share >= 0).all()
        assert set(np.flatnonzero(share).tolist()) <= set(counted.values())


@given(wide, st.lists(timed, min_size=1, max_size=3))
@quick
def test_stan_without_decays_is_sknn(log, histories):
    cuts = {"nearest": 2, "sample": 3}
    plain = tr.SKNN(**cuts).fit(log)
    stan = tr.STAN(**cuts, recency=math.inf, position=math.inf, decay_user=0).fit(log)
    k = len(log.items)
    results = [m.recommend_histories(histories, k=k, unknown="skip") for m in (plain, stan)]
    assert results[0].equals(results[1])


@given(wide, models(), st.lists(timed, min_size=1, max_size=4))
@quick
def test_a_targets_rank_is_its_place_in_the_list(log, model, histories):
    model.fit(log)
    frame = model.recommend_histories(histories, k=len(log.items), unknown="skip")
    histories_of_log = Histories.from_ids(histories, log.items, "skip")
    for target, name in enumerate(log.items.ids.to_list()):
        targets = np.full(len(histories), target, np.int32)
        places = rank_targets(model, histories_of_log, targets).ranks[:, 0]
        for number, place in enumerate(places.tolist()):
            order = of_history(frame, number)["item_id"].to_list()
            assert place == (order.index(name) + 1 if name in order else 0)


# -- many at once ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crowd():
    """300 users with times of a few instants; some items are everybody's."""
    rng = np.random.default_rng(5)
    rows = []
    for user in range(300):
        start = START / 1e6 + 86_400 * int(rng.integers(0, 40))
        items = (40 * rng.random(rng.integers(1, 15)) ** 2).astype(int)
        rows += [(user, int(item), start + 3600 * int(rng.integers(0, 9))) for item in items]
    return tiny_log(rows)


@pytest.mark.parametrize(
    "model",
    [
        tr.SKNN(nearest=7, sample=25),
        tr.SKNN(nearest=50, sample=0),
        tr.STAN(nearest=7, sample=25, decay_user=9.0),
        tr.STAN(nearest=100, sample=1000, recency=1.0, position=5.0),
    ],
)
def test_many_users_at_once_get_what_a_look_at_everybody_gives(model, crowd, monkeypatch):
    frames = []
    for threads in ("1", "2"):
        monkeypatch.setenv(VARIABLE, threads)
        frames.append(model.fit(crowd).recommend(list(range(300)), k=len(crowd.items)))
    assert frames[0].equals(frames[1])
    parts = frames[0].partition_by("user_id", as_dict=True)
    for user in range(0, 300, 7):
        rows = slice(crowd.ptr[user], crowd.ptr[user + 1])
        items, last = crowd.item[rows].tolist(), int(crowd.time[rows][-1])
        assert_ranked(parts[(user,)], crowd, expected(model, crowd, items, last))


# -- by hand ---------------------------------------------------------------------------------------


def small():
    """ann: a b c, ben: b d, cid: c a; cid came last, ben and ann earlier and together."""
    histories = {"ann": "abc", "ben": "bd", "cid": "ca"}
    times = {"ann": (0, 1, 2), "ben": (0, 2), "cid": (0, 3)}
    return tiny_log(
        [
            (user, item, 1e9 + time)
            for user, items in histories.items()
            for item, time in zip(items, times[user], strict=True)
        ]
    )


def scores_of(model, history):
    frame = model.fit(small()).recommend_histories([history], k=4)
    return dict(zip(frame["item_id"].to_list(), frame["score"].to_list(), strict=True))


def test_sknn_by_hand():
    ann, ben = 1 / math.sqrt(3), 1 / math.sqrt(2)
    scores = scores_of(tr.SKNN(), ["b"])
    assert scores == pytest.approx({"b": ann + ben, "d": ben, "a": ann, "c": ann})
    assert list(scores) == ["b", "d", "a", "c"]


def test_stan_by_hand():
    late = 1e9 + 2 + 86_400
    model = tr.STAN(recency=2.0, position=4.0, decay_user=0.5)
    before = math.exp(-1 / 2)  # b stands one place from the end
    ann = (1 + before) / math.sqrt(2 * 3) * math.exp(-2)
    cid = 1 / math.sqrt(2 * 2) * math.exp(-(86_400 - 1) / 43_200)
    ben = before / math.sqrt(2 * 2) * math.exp(-2)
    near, far = math.exp(-1 / 4), math.exp(-2 / 4)
    history = [("b", round((late - 5) * 1e6)), ("c", round(late * 1e6))]
    scores = scores_of(model, history)
    expected = {"c": ann + cid, "b": ann * near + ben, "a": ann * far + cid * near, "d": ben * near}
    assert scores == pytest.approx(expected)


def test_of_equal_neighbours_those_who_came_last_are_asked():
    assert set(scores_of(tr.SKNN(nearest=1), ["a", "d"])) == {"a", "c"}  # cid, not ben
    assert set(scores_of(tr.SKNN(nearest=1, sample=1), ["b", "a"])) == {
        "a",
        "c",
    }  # though ann is liker


def test_of_equals_that_came_together_the_lower_position_is_asked():
    log = tiny_log([("a", 1, 1e9), ("a", 2, 1e9), ("b", 1, 1e9), ("b", 3, 1e9)])
    for cut in ({"nearest": 1}, {"sample": 1}):
        frame = tr.SKNN(**cut).fit(log).recommend_histories([[1]], k=3)
        assert frame["item_id"].to_list() == [1, 2]


def test_a_neighbour_too_old_to_count_gives_nothing():
    log = tiny_log([("a", 1, 1e9), ("a", 2, 1e9 + 1)])
    model = tr.STAN(decay_user=0.01).fit(log)
    assert model.recommend_histories([[(1, 10**15 + YEAR)]], k=2).is_empty()
    assert len(model.recommend_histories([[(1, 10**15 + 1)]], k=2)) == 2


def test_a_neighbour_newer_than_the_history_is_not_old():
    log = tiny_log([("a", 1, 1e9), ("a", 2, 1e9 + 1)])
    model = tr.STAN(decay_user=0.01).fit(log)
    now = model.recommend_histories([[(1, 10**15 + 1)]], k=2)
    assert model.recommend_histories([[(1, 10**15 - YEAR)]], k=2).equals(now)


def test_unknown_items_are_skipped_but_keep_their_places():
    model = tr.STAN(recency=2.0).fit(small())
    alone, later = (
        model.recommend_histories([history], k=4, unknown="skip")
        for history in (["b"], ["x", "b", "y", "z"])
    )
    assert later["item_id"].to_list() == alone["item_id"].to_list()
    np.testing.assert_allclose(later["score"], alone["score"] * math.exp(-2 / 2.0), rtol=1e-12)
    assert model.recommend_histories([["x", "y"], []], k=4, unknown="skip").is_empty()


def test_only_the_last_rows_of_both_sides_count():
    log = tiny_log([("u", item, 1e9 + item) for item in range(6)])
    frame = tr.SKNN(max_history=2).fit(log).recommend_histories([[0], [4], [4, 0, 1]], k=6)
    assert frame["history"].to_list() == [1, 1]
    assert frame["item_id"].to_list() == [4, 5]


# -- scores from runs ------------------------------------------------------------------------------


def runs(base=None, fade=(1.0, 0.5, 0.25), items=5):
    """Two histories over five items (or more, which nobody has): 2 0 1 and 1 3."""
    block = SequenceBlock(
        items=items,
        indptr=np.array([0, 3, 5], np.int32),
        indices=np.array([2, 0, 1, 1, 3], np.int32),
        decay=np.array(fade),
    )
    return Weights(block, None if base is None else np.array(base))


#: Item 0 in the first history counts 2, item 1 in the second 1; nothing; item 2 in the first, 4.
QUERIES = Query(np.array([0, 2, 2, 3]), np.array([1, 3, 0]), np.array([2.0, 1.0, 4.0]))


def answer(weights, *, hide_seen=False, k=5):
    seen = Histories(
        np.array([0, 2, 2]), np.array([2, 2, 3]), np.array([0, 1, 2], np.int32), np.arange(3)
    )
    mask = Mask.make(seen, hide_seen=hide_seen, allowed=None)
    items, scores, counts = top_items(weights, QUERIES, mask, k)
    return mask, [
        list(zip(items[q, :count].tolist(), scores[q, :count].tolist(), strict=True))
        for q, count in enumerate(counts)
    ]


@pytest.mark.parametrize("items", [5, 200_000])
def test_a_run_gives_its_items_the_fading_of_their_distance(items):
    _, actual = answer(runs(items=items))
    assert actual == [[(0, 2.0), (1, 2.0), (2, 1.0), (3, 0.5)], [], [(2, 4.0), (0, 2.0), (1, 1.0)]]


def test_base_scores_are_added_to_those_of_runs():
    _, actual = answer(runs(base=[math.nan, math.nan, 1.5, math.nan, 0.0]))
    assert actual == [
        [(2, 2.5), (0, 2.0), (1, 2.0), (3, 0.5), (4, 0.0)],
        [(2, 1.5), (4, 0.0)],
        [(2, 5.5), (0, 2.0), (1, 1.0), (4, 0.0)],
    ]


def test_what_has_faded_to_nothing_has_no_score():
    _, actual = answer(runs(fade=(1.0, 0.0, 0.0)))
    assert actual == [[(0, 2.0), (1, 1.0)], [], [(2, 4.0)]]


def test_hidden_items_and_the_first_k_of_runs():
    _, actual = answer(runs(), hide_seen=True)
    assert actual == [[(2, 1.0), (3, 0.5)], [], [(0, 2.0), (1, 1.0)]]
    _, actual = answer(runs(), k=2)
    assert actual == [[(0, 2.0), (1, 2.0)], [], [(2, 4.0), (0, 2.0)]]


@pytest.mark.parametrize("hide_seen", [False, True])
@pytest.mark.parametrize("base", [None, [math.nan, math.nan, 1.5, math.nan, 0.0]])
def test_ranks_over_runs_are_places_in_the_list(base, hide_seen):
    mask, actual = answer(runs(base), hide_seen=hide_seen)
    for target in range(-1, 5):
        ranks = rank_queries(runs(base), QUERIES, mask, 0, np.full(3, target, np.int32))
        places = ranks.ranks[:, int(hide_seen)]
        for place, row in zip(places.tolist(), actual, strict=True):
            order = [item for item, _ in row]
            assert place == (order.index(target) + 1 if target in order else 0)


def slow_contributions(model, x, history, targets):
    """What each row adds: each neighbor's part of a score, divided by the shared items' weights."""
    block, users = model._histories, model.fitted.weights.query_arrays["user"]
    first = max(0, len(history.item) - model.max_history)
    rows = {int(history.item[r]): r for r in range(first, len(history.item))}  # the last one each
    rows.pop(-1, None)
    out = np.zeros((len(targets), len(history.item)))
    for entry, similarity in zip(x.source.tolist(), x.weight.tolist(), strict=True):
        low, high = block.indptr[users[entry]], block.indptr[users[entry] + 1]
        theirs = block.indices[low:high].tolist()
        shared = [r for item, r in rows.items() if item in theirs]
        weights = {r: math.exp((r + 1 - len(history.item)) / model._decays[0]) for r in shared}
        for n, target in enumerate(targets.tolist()):
            if target in theirs:
                part = similarity * block.decay[abs(entry - low - theirs.index(target))]
                for r in shared:
                    out[n, r] += part * weights[r] / sum(weights.values())
    return out


@given(wide, models(), timed)
@settings(max_examples=80, deadline=None)
def test_contributions_are_parts_of_neighbors_divided_among_shared_items(log, model, history):
    model.fit(log)
    one = tr.Histories.from_ids([history], log.items, "skip")
    x, targets = model.query(one), np.array([*range(len(log.items)), 0])[::-1]  # one twice
    expected = slow_contributions(model, x, one, targets)
    np.testing.assert_allclose(model.contributions(x, one, targets), expected, rtol=1e-12)

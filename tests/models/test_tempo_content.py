"""Tempo with content: the formula by hand, new items, dates, saving, updates, and its absence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import talerec as tr
from talerec.artifact import Bundle, read_artifact, write_artifact
from talerec.data import UNTIMED, Histories
from talerec.errors import ArtifactError, TalerecError
from talerec.models.core import ItemFilter, rank_top
from talerec.ranking import Mask

pytest.importorskip("sklearn", reason="the extra content is not installed")

from talerec.models.tempo import content_learning
from talerec.models.tempo.content import ContentWeights, ItemScores, classify_items, measure_taste
from talerec.models.tempo.content_learning import (
    LearnedContent,
    learn_content_weights,
    list_settings,
)
from talerec.models.tempo.content_ranking import WeightStack, rank_target
from talerec.models.tempo.setting_gains import SettingGains

WEIGHTS = ContentWeights((0.03, 0.02, 0.01), 4.0, 90.0)
END = 1_600_000_000  # seconds
COLORS = ["red", "green", "blue", "black"]


def shop(n_users: int = 60, n_items: int = 20, seed: int = 0) -> tr.Log:
    """Users stay with a color; items 20 to 29 have no rows, and dates around the end of the log."""
    draw = np.random.default_rng(seed)
    rows = []
    for user in range(n_users):
        color = int(draw.integers(0, 4))
        items = 4 * (n_items // 4 * draw.random(7) ** 8).astype(int) + color  # skewed
        times = END - np.sort(draw.integers(0, 500 * 86_400, 7))[::-1]
        rows += [(user, int(i), int(t)) for i, t in zip(items, times, strict=True)]
    table = pl.DataFrame(
        {
            "item_id": range(30),
            "title": [f"{COLORS[i % 4]} thing {i % 3}" for i in range(30)],
            "tags": [[f"tag {i % 4}", f"kind {i % 5}"] for i in range(30)],
            "since": [
                None if i % 9 == 0 else f"20{18 + i // 12}-0{1 + i % 9}-01" if i < 20
                else f"2020-{9 + i % 4:02}-15" for i in range(30)
            ],
        }
    )  # fmt: skip
    frame = pl.DataFrame(rows, ["user_id", "item_id", "timestamp"], orient="row")
    return tr.Log.from_frame(frame, time_unit="s").with_items(table)


@pytest.fixture(scope="module")
def log() -> tr.Log:
    return shop()


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Content is taken in with fixed weights, without held-out queries."""
    name = "talerec.models.tempo.content_learning.learn_content_weights"
    monkeypatch.setattr(
        name, lambda fit, rows, tempo: LearnedContent(WEIGHTS, None, 0.01, 0.002, 99)
    )


def histories(log: tr.Log, now: float) -> Histories:
    """Every user's rows, asked at `now` (seconds)."""
    n_users = len(log.users)
    when = np.full(n_users, round(now * 10**6))
    return Histories(log.ptr[:-1], log.ptr[1:], log.item, log.time, when)


def all_scores(model: tr.Tempo, asked: Histories) -> np.ndarray:
    """The scores of all items, history x item; NaN for none."""
    lists = rank_top(model, asked, len(model.item_ids))
    scores = np.full(lists.items.shape, np.nan)
    for row, (items, values, n) in enumerate(zip(*lists[:3], strict=True)):
        scores[row, items[:n]] = values[:n]
    return scores


@pytest.mark.parametrize("days", [1, 30, 100, 900])
def test_scores_are_those_of_the_formula(log: tr.Log, taken: None, days: float) -> None:
    model, plain = tr.Tempo().fit(log), tr.Tempo(content="off").fit(log)
    content = tr.Content(dims=content_learning.DIMS).fit(log)
    assert len(model.item_ids) == 30 > len(plain.item_ids)
    now = log.time.max() / 1e6 + days * 86_400
    scores = all_scores(model, histories(log, now))
    base = np.nan_to_num(all_scores(plain, histories(log, now)))
    base = np.pad(base, ((0, 0), (0, 30 - base.shape[1])))
    by_content = all_scores(content, histories(log, now))
    z = by_content - by_content.mean(axis=1, keepdims=True)
    z /= by_content.std(axis=1, keepdims=True)
    dates = [row["since"] for row in log.with_catalogue().info.to_dicts()]
    fresh = np.zeros(30)
    for i, text in enumerate(dates):
        age = now / 86_400 - np.datetime64(text, "D").astype(int) if text else -1
        fresh[i] = np.exp(-age / 90) if age >= 0 else 0.0
    newness = [[] for _ in range(60)]
    for user, item, time in zip(log.user_codes(), log.item, log.time / 86_400e6, strict=True):
        if (text := log.info["since"][int(item)]) is not None:
            age = time - np.datetime64(text, "D").astype(int)
            newness[user].append(np.exp(-age / 90) if age >= 0 else 0.0)
    mean = np.mean(np.concatenate(newness))
    taste = np.array([[(15 + sum(each) / mean) / (15 + len(each))] for each in newness])
    assert taste.min() < 0.9
    assert taste.max() > 1.1
    counts = np.bincount(log.item, minlength=30)
    factor = np.array([0.03 if n == 0 else 0.02 if n < 5 else 0.01 for n in counts])
    assert {0.03, 0.02, 0.01} == set(factor.tolist())
    assert ((fresh > 0) & (counts == 0)).any() or days == 1
    np.testing.assert_allclose(
        scores, base + factor * (z + 4 * taste * fresh), rtol=1e-4, atol=2e-6
    )


def test_taste_for_new_items_comes_from_the_newest_rows_with_times_and_dates() -> None:
    days = np.array([0.0, 100.0, np.nan])
    day = 86_400_000_000
    item = np.array([0, 1, 2, -1, 1, *[0] * 40, 1], np.int32)
    time = np.array([10, 100, 100, 100, 90, *range(200, 240), 110]) * day
    time[4] = UNTIMED - 5  # a row without a time
    start, stop = np.array([0, 0, 2, 5, 46]), np.array([2, 5, 4, 45, 46])
    asked = Histories(start, stop, item, time, None)
    mean = 0.25
    first = (15 + (np.exp(-1) + 1) / mean) / 17  # ages 10 and 0 days
    old = (15 + np.exp(-np.arange(210, 240) / 10).sum() / mean) / 45
    expected = [first, first, 1.0, old, 1.0]
    np.testing.assert_allclose(measure_taste(asked, days, 10.0, mean), expected, rtol=1e-12)
    early = Histories(np.array([0]), np.array([1]), item[1:2], np.array([99 * day]), None)
    assert measure_taste(early, days, 10.0, mean)[0] == 15 / 16  # before its date: not new
    assert measure_taste(asked, days, 10.0, 0.0).tolist() == [1.0] * 5


def test_a_model_saved_without_taste_answers_as_it_did(log: tr.Log, taken: None) -> None:
    scores = tr.Tempo().fit(log)._content
    assert 0 < scores.newness < 1
    arrays = scores.to_arrays()
    del arrays["content_newness"]
    older = ItemScores.restore(arrays, scores.encoder.types)
    assert older.newness == 0


def test_requests_up_to_the_end_of_the_log_are_tempos(log: tr.Log, taken: None) -> None:
    model, plain = tr.Tempo().fit(log), tr.Tempo(content="off").fit(log)
    asked = histories(log, log.time.max() / 1e6)
    scores, base = all_scores(model, asked), all_scores(plain, asked)
    np.testing.assert_array_equal(scores[:, : base.shape[1]], base)
    assert np.isnan(scores[:, base.shape[1] :]).all()


def test_without_new_items_or_with_content_off_tempo_is_what_it_was(
    log: tr.Log, taken: None
) -> None:
    plain = tr.Tempo().fit(replace(log, info=None, catalogue=None))
    for other in (
        tr.Tempo(content="off").fit(log),
        tr.Tempo().fit(replace(log, catalogue=None)),
        tr.Tempo().fit(replace(log, item_skip=("title", "tags", "since"))),
    ):
        arrays, others = (m.fitted.weights.query_arrays for m in (plain, other))
        assert arrays.keys() == others.keys()
        assert all(np.array_equal(arrays[name], others[name]) for name in arrays)
        for block, block2 in zip(plain.fitted.weights.blocks, other.fitted.weights.blocks,
                                 strict=True):  # fmt: skip
            assert abs(block.matrix - block2.matrix).max() == 0
        asked = histories(log, END + 10**6)
        np.testing.assert_array_equal(all_scores(plain, asked), all_scores(other, asked))
    refit = tr.Tempo().fit(log).fit(replace(log, catalogue=None))
    assert refit.item_ids.equals(plain.item_ids)


def test_a_fit_says_whether_content_is_used_and_how_it_was_judged(
    log: tr.Log, taken: None, tmp_path: Path
) -> None:
    model = tr.Tempo().fit(log)
    n_new = 30 - len(np.unique(log.item))
    expected = [
        "Content and dates of the item table are used: NDCG@10 on held-out rows of 99 users changes"
        " by +0.0100 (standard error 0.0020).",
        "Scores by content are added for all items.",
        "Items are raised by their date, for about 90 days.",
        f"{n_new} items without events can be recommended.",
    ]
    assert model.describe_learned()[-4:] == model.describe_content() == expected
    path = model.save(tmp_path / "t.tale", updatable=True)
    assert read_artifact(path).facts["chosen"][-4:] == expected
    loaded = tr.load(path)
    assert loaded.describe_content() == expected
    row = {"item_id": 99, "title": "red thing 1", "tags": ["tag 0"], "since": "2020-09-01"}
    tr.update(loaded, None, items=pl.DataFrame([row]))
    assert loaded.describe_content()[-1] == f"{n_new + 1} items without events can be recommended."
    full = tr.Tempo().fit(replace(log, catalogue=log.catalogue.clear()))
    said = "The content of the item table is not used: all its items have events."
    assert full.describe_content() == [said]
    assert tr.Tempo().fit(replace(log, info=None, catalogue=None)).describe_content() == []
    assert tr.Tempo(content="off").fit(log).describe_content() == []


def test_a_fit_says_why_content_is_not_used(log: tr.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "talerec.models.tempo.content_learning.learn_content_weights"
    verdict = LearnedContent(None, None, -0.0001, 0.0004, 1234)
    monkeypatch.setattr(name, lambda fit, rows, tempo: verdict)
    assert tr.Tempo().fit(log).describe_content() == [
        "The content of the item table is not used: NDCG@10 on held-out rows of 1,234 users changes"
        " by -0.0001 (standard error 0.0004)."
    ]


def test_a_saved_model_answers_alike_and_takes_new_items(
    log: tr.Log, taken: None, tmp_path: Path
) -> None:
    model = tr.Tempo().fit(log)
    loaded = tr.load(model.save(tmp_path / "t.tale"), verify=True)
    users = list(range(40))
    expected = model.recommend(users, k=25)
    assert loaded.recommend(users, k=25).equals(expected)
    assert loaded.explain([1, 2], 22).equals(model.explain([1, 2], 22))
    row = {"item_id": 99, "title": "red thing 1", "tags": ["tag 0"], "since": "2020-09-01"}
    more = loaded.add_items(pl.DataFrame([row]))
    table = pl.concat([log.info, log.catalogue, pl.DataFrame([row]).cast(log.info.schema)])
    whole = tr.Tempo().fit(replace(log, info=None, catalogue=None).with_items(table))
    assert more.item_ids.equals(whole.item_ids)
    asked = histories(log, END + 10**7)
    np.testing.assert_allclose(
        all_scores(more, asked), all_scores(whole, asked), rtol=1e-5, atol=1e-6
    )
    again = tr.load(more.save(tmp_path / "more.tale"), verify=True)
    assert again.recommend(users, k=31).equals(more.recommend(users, k=31))
    with pytest.raises(TalerecError, match="does not score items by their content"):
        tr.Tempo(content="off").fit(log).add_items(pl.DataFrame([row]))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("content_features", lambda a: a[:, :-1]),
        ("content_bilinear", lambda a: a[:-1]),
        ("content_classes", lambda a: a + 2),
        ("content_classes", lambda a: a[:-1]),
        ("content_days", lambda a: a[:-1]),
        ("content_weights", lambda a: a * 0),
        ("content_weights", lambda a: a[:-1]),
        ("content_weights", None),
        ("content_log_end", lambda a: a[:0]),
    ],
)
def test_damaged_arrays_of_content_are_refused(
    log: tr.Log, taken: None, tmp_path: Path, name: str, change: object
) -> None:
    path = tr.Tempo().fit(log).save(tmp_path / "t.tale")
    bundle = read_artifact(path)
    arrays = {key: np.array(array) for key, array in bundle.arrays.items()}
    key = next(key for key in arrays if key.endswith(name))
    if callable(change):
        arrays[key] = change(arrays[key])
    else:
        del arrays[key]
    write_artifact(path, Bundle(bundle.facts, arrays, dict(bundle.tables)))
    with pytest.raises(ArtifactError):
        tr.load(path, verify=True)


def test_an_update_equals_a_fit_by_content(log: tr.Log, taken: None) -> None:
    old = log.keep(log.time < np.quantile(log.time, 0.8)).compact()
    model = tr.Tempo(learn="off", same_time="joint").fit(old)
    before = model._content
    assert tr.update(model, replace(log, info=None, catalogue=None)).rows > 0
    after = model._content
    assert after.log_end == log.time.max()
    assert after.weights == before.weights
    assert before.newness != after.newness > 0
    counts = model.fitted.log.counts()
    np.testing.assert_array_equal(after.classes, classify_items(counts))
    ids = model.item_ids.to_list()
    places = [before.features[:, ids.index(i)] for i in ids[: before.features.shape[1]]]
    np.testing.assert_allclose(after.features[:, : len(places)].T, places, atol=1e-6)
    asked = histories(model.fitted.log, END + 10**7)
    plain = tr.Tempo(learn="off", same_time="joint", content="off").fit(
        replace(model.fitted.log, info=None, catalogue=None)
    )
    difference = all_scores(model, asked) - np.nan_to_num(all_scores(plain, asked))
    assert np.isfinite(difference[:, after.classes == 0]).all()


def test_an_update_with_columns_of_other_types_is_refused_and_changes_nothing(
    log: tr.Log, taken: None
) -> None:
    vectors = pl.Series([[1.0, float(i)] for i in range(30)])
    table = log.with_catalogue().info.with_columns(price=pl.Series(np.arange(30.0)), vec=vectors)
    old = replace(log, info=None, catalogue=None).with_items(table)
    old = old.keep(old.time < np.quantile(old.time, 0.8)).compact()
    model = tr.Tempo(learn="off", same_time="joint").fit(old)
    rows = model.fitted.log.rows
    new = replace(log, info=None, catalogue=None)
    for column, message in (
        (pl.lit("cheap").alias("price"), "'price' .* 'cheap' in place of a number, .* item 0"),
        (pl.lit("1, 2").alias("vec"), "'vec' of the item table has no lists, but String"),
        (pl.Series("vec", [[1.0, 2.0, 3.0]] * 30), "two widths: 2, and 3"),
        (pl.Series("price", [[1.0]] * 30), "'price' .* no numbers|does not fit the old one"),
    ):
        with pytest.raises(TalerecError, match=message):
            tr.update(model, new, items=table.with_columns(column))
        assert model.fitted.log.rows == rows
    priced = table.with_columns(price=pl.lit("2.50"), vec=pl.lit(None, pl.List(pl.Float64)))
    assert tr.update(model, new, items=priced).rows > 0


def test_explanations_name_content_and_newness_and_add_up(log: tr.Log, taken: None) -> None:
    model, plain = tr.Tempo().fit(log), tr.Tempo(content="off").fit(log)
    late = END + 60 * 86_400
    for user in (1, 5, 11):
        lists = model.recommend([user], k=30, as_of=late)
        rows = log.items.ids.gather(log.item[log.ptr[user] : log.ptr[user + 1]]).to_list()
        for item, score in lists.select("item_id", "score").iter_rows():
            frame = model.explain_user(user, item, as_of=late)
            assert frame["item_id"].to_list() == [*rows, None]
            assert abs(frame["contribution"].sum() - score) < 1e-6
            families = model.explain_user(user, item, as_of=late, by="families")
            parts = dict(families.select("family", "contribution").iter_rows())
            assert abs(sum(parts.values()) - score) < 1e-6
            assert abs(families["share"].abs().sum() - 1) < 1e-9
            # without content, tempo has the other parts alone
            ids = plain.explain_user(user, item, as_of=late) if item in plain.item_ids else None
            shares = frame["contribution"][:-1].sum() - parts.get("content", 0)
            expected = 0.0 if ids is None else ids["contribution"][:-1].sum()
            assert abs(shares - expected) < 1e-6
            base = 0.0 if ids is None else ids["contribution"][-1]
            assert abs(frame["contribution"][-1] - base - parts.get("newness", 0)) < 1e-6
    position = model.item_ids.to_list().index(20)
    date = log.with_catalogue().info["since"][position]
    red = int(log.users.ids[int(log.user_codes()[log.item % 4 == 20 % 4][0])])
    assert model.explain_user(red, 20, as_of=late)["shared"][-1] == f"new: {date}"
    families = model.explain_user(red, 20, as_of=late, by="families")
    named = dict(families.select("family", "reason").iter_rows())
    assert named["newness"] == f"new: {date}"
    assert named["content"].startswith(("tags: ", "words: "))
    assert set(named) <= {"content", "newness"}  # nobody has taken it
    early = model.explain_user(1, 0, as_of=log.time.max() / 1e6)
    assert early.select("item_id", "contribution").equals(
        plain.explain_user(1, 0, as_of=log.time.max() / 1e6)
    )


def test_content_of_a_row_is_the_change_of_the_code_without_it(log: tr.Log, taken: None) -> None:
    """The slow way: the code of a history is the scaled sum of x F A over its items."""
    scores = tr.Tempo().fit(log)._content
    weights = tr.Tempo().fit(log).fitted.weights
    asked = histories(log, END + 10**6).slice(3, 4)
    items, parts = scores.encode_items(weights, asked, 2500)
    assert len(set(items.tolist())) == len(items) == len(set(asked.item.tolist()))
    np.testing.assert_allclose(parts.sum(axis=0), scores.encode(weights, asked, 2500)[0])
    features = scores.features[:, items].T.astype(float)
    direct = features @ scores.bilinear
    for part, line in zip(parts, direct, strict=True):
        factor = part @ line / (line @ line) if line.any() else 0.0
        np.testing.assert_allclose(part, factor * line, atol=1e-12)
        assert factor >= 0


def test_reasons_of_a_list_name_the_items_that_a_new_one_is_like(log: tr.Log, taken: None) -> None:
    model = tr.Tempo().fit(log)
    asked = histories(log, END + 60 * 86_400).slice(3, 4)
    mask = Mask.make(asked, hide_seen=True)
    lists = model.rank_masked_with_reasons(asked, mask, 25, 2)
    ends = [0, *lists.ends]
    new = [n for n, item in enumerate(lists.items) if item >= len(log.items)]
    assert new
    assert all(ends[n + 1] - ends[n] == 2 for n in new)
    ranked = rank_top(model, asked, 25, ItemFilter(hide_seen=True))
    assert lists.items == ranked.items[0, : ranked.counts[0]].tolist()


def test_new_items_are_gained_where_users_take_new_items_by_content() -> None:
    """Every 50 days a color comes out; users who had its word take it, and nobody else."""
    draw = np.random.default_rng(1)
    dates = np.datetime64("2015-01-01") + 10 * np.arange(120)
    words = [[f"word {item % 6}"] for item in range(120)]
    table = pl.DataFrame({"item_id": range(120), "tags": words, "since": dates.astype(str)})
    rows = []
    for user in range(400):
        word, start = user % 6, int(draw.integers(0, 100))
        for item in range(start, 120):
            if item % 6 == word and draw.random() < 0.5:
                time = dates[item].astype("M8[s]").astype(int)
                rows.append((user, item, int(time) + int(draw.integers(1, 10 * 86_400))))
    frame = pl.DataFrame(rows, ["user_id", "item_id", "timestamp"], orient="row")
    log = tr.Log.from_frame(frame, time_unit="s").with_items(table)
    split = tr.time_split(log, int(np.quantile(log.time, 0.8)))
    model = tr.Tempo().fit(split.train)
    assert model.scores_catalogue
    groups = tr.evaluate(model, split, hide_seen=True).groups["item_rows"]
    plain = tr.evaluate(tr.Tempo(content="off").fit(split.train), split, hide_seen=True)
    assert groups["none"]["NDCG@10"] > 0.2
    assert plain.groups["item_rows"]["none"]["NDCG@10"] == 0


def bookshop() -> tr.Log:
    """Many books, few rows each: users stay with an author or a genre; no dates in the table."""
    draw = np.random.default_rng(5)
    n_books, n_authors, n_genres = 1500, 150, 12
    author = (n_authors * draw.random(n_books) ** 1.6).astype(int)
    genre = draw.integers(0, n_genres, n_authors)[author]
    since = np.where(draw.random(n_books) < 0.6, 0.0, draw.random(n_books))
    popularity = 1 / (1 + draw.permutation(n_books)) ** 0.7
    rows = []
    for user in range(500):
        times = np.sort(draw.random() / 1.35 + 0.26 * draw.random(8))
        liked, had = draw.choice(n_genres, 2), []
        for time in times:
            chance = draw.random()
            fits = np.ones(n_books, bool)
            if had and chance < 0.5:
                fits = author == author[draw.choice(had[-3:])]
            elif chance < 0.9:
                fits = genre == draw.choice(liked)
            fits = fits & (since <= time)
            fits[had] = False
            if fits.any():
                share = popularity * fits
                had.append(int(draw.choice(n_books, p=share / share.sum())))
                rows.append((user, had[-1], int(time * 8 * 365 * 86_400)))
    table = pl.DataFrame(
        {
            "item_id": range(n_books),
            "author": [f"author {a}" for a in author],
            "genre": [f"genre {g}" for g in genre],
        }
    )
    frame = pl.DataFrame(rows, ["user_id", "item_id", "timestamp"], orient="row")
    return tr.Log.from_frame(frame, time_unit="s").with_items(table)


def test_books_of_few_rows_gain_from_authors_and_genres() -> None:
    log = bookshop()
    split = tr.time_split(log, int(np.quantile(log.time, 0.8)))
    counts = split.train.with_catalogue().counts()
    assert (counts[counts > 0] < 5).mean() > 0.6
    model = tr.Tempo().fit(split.train)
    assert model.scores_catalogue
    results = {
        name: tr.evaluate(each, split, hide_seen=True)
        for name, each in {
            "tempo": model,
            "plain": fit_plain(split.train),
            "content": tr.Content().fit(split.train),
        }.items()
    }
    gain = {
        name: {key: group["NDCG@10"] for key, group in result.groups["item_rows"].items()}
        for name, result in results.items()
    }
    assert results["tempo"].metrics["NDCG@10"] > results["plain"].metrics["NDCG@10"]
    assert gain["tempo"]["few"] > gain["plain"]["few"]
    assert gain["tempo"]["none"] >= gain["content"]["none"] / 3 > gain["plain"]["none"] == 0


def fit_plain(log: tr.Log) -> tr.Tempo:
    """Tempo without content."""
    return tr.Tempo(content="off").fit(log)


def test_a_table_that_means_nothing_is_not_taken_in(log: tr.Log) -> None:
    whole = log.with_catalogue()
    shuffled = whole.info.with_columns(pl.all().exclude("item_id").shuffle(seed=3))
    log = replace(log, info=None, catalogue=None).with_items(shuffled)
    whole = log.with_catalogue()
    assert learn_content_weights(fit_plain, whole, fit_plain(log)).weights is None


def setting_gains(gains: np.ndarray, user: np.ndarray, **others: object) -> SettingGains:
    """Gains whose targets are rare and whose settings add content to the same items."""
    names = {"is_rare": np.ones(len(user), bool), "group": np.zeros(gains.shape[1], int), **others}
    return SettingGains(gains, user, **names)


def test_a_choice_among_settings_that_gain_by_chance_alone_is_seldom_significant() -> None:
    draw = np.random.default_rng(5)
    n_passed = 0
    for _ in range(300):
        user = np.repeat(np.arange(100), 3)
        gains = (draw.random((300, 40)) < 0.1) + np.repeat(draw.normal(0, 0.1, (100, 40)), 3, 0)
        n_passed += setting_gains(gains, user).held_out_z() > 1.5
    assert n_passed <= 0.11 * 300  # one-sided, 6.7 %


def test_a_steady_gain_is_preferred_to_a_larger_one_that_hurts_others() -> None:
    user = np.repeat(np.arange(40), 2)
    steady = np.full(80, 0.1)
    wild = np.where(user % 2 == 0, 1.0, -0.75)
    gains = np.column_stack([np.zeros(80), wild, steady]) + 0.2
    assert wild.mean() > steady.mean()
    assert setting_gains(gains, user).choose_setting() == 2
    assert setting_gains(gains[:, :1], user).choose_setting() == 0
    assert setting_gains(gains[:0], user[:0]).choose_setting() == 0
    shuffled = np.random.default_rng(0).permutation(80)
    assert setting_gains(gains[shuffled], user[shuffled]).choose_setting() == 2


def test_of_settings_that_are_as_good_the_best_for_rare_items_is_chosen() -> None:
    draw = np.random.default_rng(2)
    user = np.arange(400)
    is_rare = user % 4 == 0
    noise = draw.normal(0, 0.1, 400)  # makes standard errors of differences about .005
    best = np.full(400, 0.05)
    tie = best + noise - noise.mean() - 0.001 + np.where(is_rare, 0.03, -0.01)
    worse = best + noise - noise.mean() - 0.02 + np.where(is_rare, 0.06, -0.02)
    gains = np.column_stack([np.zeros(400), best, tie, worse])
    group = np.array([-1, 0, 0, 0])
    assert setting_gains(gains, user, is_rare=is_rare, group=group).choose_setting() == 2
    for others in ({"is_rare": ~is_rare}, {"group": np.array([-1, 0, 1, 1])}):
        masks = {"is_rare": is_rare, "group": group, **others}
        assert setting_gains(gains, user, **masks).choose_setting() == 1


def test_gains_of_settings_are_those_of_whole_rankings() -> None:
    draw = np.random.default_rng(7)
    settings = list_settings(has_dates=True)
    lifetimes = sorted({setting.lifetime for setting in settings})
    n_items = 60
    for case in range(60):
        classes = draw.integers(0, 3, n_items).astype(np.int8)
        base = np.where(classes > 0, draw.random(n_items).round(2), 0.0)
        hidden = draw.permutation(n_items)[:5]
        target = int(draw.integers(0, n_items))
        base[hidden[hidden != target]] = -1e9
        z = draw.normal(size=n_items).round(1)
        newness = draw.random((len(lifetimes), n_items)).round(1)
        chosen = draw.choice(len(settings), 12, replace=False)
        weights = [settings[s].scale(0.5) for s in chosen]
        out = np.full(12, -1.0)
        rank_target(base, z, newness, classes, target, WeightStack.build(weights), out)
        for gain, (by_class, freshness, lifetime) in zip(out, weights, strict=True):
            weight = np.array(by_class)[classes]
            score = base + weight * (z + freshness * newness[lifetimes.index(lifetime)])
            score[(base < -1e8) | ((base <= 0) & (weight == 0))] = -np.inf
            rank = int((score >= score[target]).sum())
            is_listed = score[target] > -np.inf and rank <= 10
            assert gain == (1 / np.log2(rank + 1) if is_listed else 0.0), case


def test_settings_without_dates_have_no_freshness() -> None:
    plain = list_settings(has_dates=False)
    assert {setting.freshness for setting in plain} == {0.0}
    assert set(plain) < set(list_settings(has_dates=True))
    scaled = plain[0].scale(0.02)
    assert scaled.by_class == tuple(0.02 * plain[0].size * flag for flag in plain[0].by_class)


def test_cutoffs_without_new_items_are_left_out(log: tr.Log) -> None:
    """The log's items all have rows from its beginning on: no tempo is fitted to learn from."""
    asked: list[float] = []
    shares = [0.85, 0.7, 0.55]
    assert list(content_learning._CUTOFF_SHARES) == shares
    assert content_learning._MIN_NEW == 0.02

    def fit(rows: tr.Log) -> tr.Tempo:
        asked.append(rows.rows / log.rows)
        return fit_plain(rows)

    whole = log.with_catalogue()
    old = np.bincount(whole.item[whole.time < np.quantile(whole.time, 0.5)], minlength=30) > 0
    steady = whole.keep(old[whole.item])
    assert learn_content_weights(fit, steady, fit_plain(steady)).weights is None
    assert asked == []
    newer = replace(
        steady, item=np.where(steady.time > np.quantile(steady.time, 0.55), 29, steady.item)
    )
    learn_content_weights(fit, replace(newer, item=newer.item.astype(np.int32)), fit_plain(steady))
    assert asked
    assert all(min(abs(share - x) for x in shares) < 0.1 for share in asked)

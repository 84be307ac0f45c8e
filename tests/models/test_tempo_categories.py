"""Categories in tempo's scores: the formula by hand, new items, saving, updates, and a null."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import talerec as tr
from talerec.artifact import Bundle, read_artifact, write_artifact
from talerec.data import Histories, detect_columns
from talerec.errors import ArtifactError, TalerecError
from talerec.models.core import rank_top

pytest.importorskip("sklearn", reason="the extra content is not installed")

from talerec.models.tempo import content_learning
from talerec.models.tempo.category_learning import (
    CategoryChoice,
    choose_category,
    rank_by_categories,
    score_category,
)
from talerec.models.tempo.content import ContentWeights
from talerec.models.tempo.content_learning import LearnedContent
from talerec.models.tempo.setting_gains import SettingGains

END = 1_600_000_000  # seconds
NO_CONTENT = ContentWeights((0.0, 0.0, 0.0), 0.0, 30.0)
WEIGHT = 0.07


def make_table() -> pl.DataFrame:
    """Items 20 to 29 have no rows; item 7 has no category, item 28 one that no other item has."""
    tags = [[f"Tag {i % 4}", f"kind {i % 3}"][: 1 + i % 2] for i in range(30)]
    tags[7], tags[28] = [], ["other"]
    return pl.DataFrame({"item_id": range(30), "title": ["thing"] * 30, "tags": tags})


def make_log() -> tr.Log:
    """40 users who stay with a tag."""
    draw = np.random.default_rng(3)
    rows = []
    for user in range(40):
        items = 4 * (5 * draw.random(7) ** 2).astype(int) + int(draw.integers(0, 4))
        times = END - np.sort(draw.integers(0, 500 * 86_400, 7))[::-1]
        rows += [(user, int(i), int(t)) for i, t in zip(items, times, strict=True)]
    frame = pl.DataFrame(rows, ["user_id", "item_id", "timestamp"], orient="row")
    return tr.Log.from_frame(frame, time_unit="s").with_items(make_table())


@pytest.fixture(scope="module")
def log() -> tr.Log:
    return make_log()


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The categories of the column tags are taken in with a fixed weight, and no other content."""

    def learn(fit: object, rows: tr.Log, tempo: object) -> LearnedContent:
        return LearnedContent(NO_CONTENT, (detect_columns(rows.info)[-1], WEIGHT))

    name = "talerec.models.tempo.content_learning.learn_content_weights"
    monkeypatch.setattr(name, learn)


def requests(log: tr.Log, days: float) -> Histories:
    """Every user's rows, asked some days after the end of the log."""
    now = np.full(len(log.users), round((END + days * 86_400) * 10**6))
    return Histories(log.ptr[:-1], log.ptr[1:], log.item, log.time, now)


def all_scores(model: tr.Tempo, asked: Histories, n_items: int = 30) -> np.ndarray:
    """The scores of all items, history x item; 0 for none."""
    lists = rank_top(model, asked, len(model.item_ids))
    scores = np.zeros((len(asked), n_items))
    for row, (items, values, n) in enumerate(zip(*lists[:3], strict=True)):
        scores[row, items[:n]] = values[:n]
    return scores


def twin_scores(log: tr.Log, tags: list[list[str]]) -> np.ndarray:
    """The scores by categories with weight 1, user x item, by loops over dictionaries."""
    counts = {item: int((log.item == item).sum()) for item in range(len(tags))}
    known = {tag.lower() for item, names in enumerate(tags) for tag in names if counts[item]}
    own = [[tag.lower() for tag in names if tag.lower() in known] for names in tags]
    total = dict.fromkeys(known, 0.0)
    for item, names in enumerate(own):
        for tag in names:
            total[tag] += (counts[item] + 0.5) / len(names) if counts[item] else 0.0
    shares = []
    for user in range(len(log.users)):
        items = log.item[log.ptr[user] : log.ptr[user + 1]].tolist()
        share = dict.fromkeys(known, 0.0)
        for item in set(items):
            lag = items[::-1].index(item)
            for tag in own[item]:
                share[tag] += np.exp(-lag / 6) / len(own[item])
        size = sum(share.values())
        shares.append({tag: value / size for tag, value in share.items()})
    mean = {tag: np.mean([share[tag] for share in shares]) for tag in known}
    return np.array(
        [
            [
                sum(
                    (share[tag] - mean[tag]) * (counts[item] + 0.5) / len(own[item]) / total[tag]
                    for tag in own[item]
                )
                for item in range(len(own))
            ]
            for share in shares
        ]
    )


@pytest.mark.parametrize("days", [0.5, 200])
def test_scores_are_those_of_the_formula(log: tr.Log, taken: None, days: float) -> None:
    model, plain = tr.Tempo().fit(log), tr.Tempo(content="off").fit(log)
    ids = model.item_ids.to_list()
    table = {row["item_id"]: row["tags"] for row in make_table().to_dicts()}
    added = WEIGHT * twin_scores(log.with_catalogue(), [table[i] for i in ids])
    assert len(ids) == 30
    asked = requests(log, days)
    base = all_scores(plain, asked)
    np.testing.assert_allclose(all_scores(model, asked), base + added, rtol=1e-4, atol=1e-7)
    assert (added[:, len(plain.item_ids) :] > 0).any()
    assert (added[:, [ids.index(7), ids.index(28)]] == 0).all()


def test_requests_up_to_the_end_of_the_log_are_tempos(log: tr.Log, taken: None) -> None:
    asked = requests(log, (log.time.max() / 1e6 - END) / 86_400)
    expected = all_scores(tr.Tempo(content="off").fit(log), asked)
    np.testing.assert_array_equal(all_scores(tr.Tempo().fit(log), asked), expected)


def test_a_saved_model_answers_alike_and_takes_new_items(
    log: tr.Log, taken: None, tmp_path: Path
) -> None:
    model = tr.Tempo().fit(log)
    loaded = tr.load(model.save(tmp_path / "t.tale"), verify=True)
    users = list(range(40))
    assert loaded.recommend(users, k=25).equals(model.recommend(users, k=25))
    assert loaded.explain([1, 2], 22).equals(model.explain([1, 2], 22))
    rows = pl.DataFrame(
        {"item_id": [99, 3], "title": ["thing", "thing"], "tags": [["tag 0", "new"], ["kind 1"]]}
    )
    more = loaded.add_items(rows)
    kept = pl.concat([log.info, log.catalogue]).filter(pl.col("item_id") != 3)
    asked = requests(log, 5)
    new = rows.filter(pl.col("item_id") == 99)
    whole = tr.Tempo().fit(replace(log, info=None, catalogue=None).with_items(
        pl.concat([log.info, log.catalogue, new.cast(log.info.schema)])
    ))  # fmt: skip
    grown = loaded.add_items(new)
    assert grown.item_ids.equals(whole.item_ids)
    np.testing.assert_allclose(
        all_scores(grown, asked, 31), all_scores(whole, asked, 31), rtol=1e-6, atol=1e-9
    )
    changed = replace(log, info=None, catalogue=None).with_items(pl.concat([kept, rows.head(0)]))
    assert changed.info is not None
    place = more.item_ids.to_list().index(3)
    first, later = all_scores(loaded, asked), all_scores(more, asked, 31)
    others = [i for i in range(30) if i != place]
    assert (first[:, place] != later[:, place]).any()
    np.testing.assert_array_equal(first[:, others[:5]] > 0, later[:, others[:5]] > 0)
    again = tr.load(more.save(tmp_path / "more.tale"), verify=True)
    assert again.recommend(users, k=31).equals(more.recommend(users, k=31))


def test_an_update_equals_a_fit_by_categories(log: tr.Log, taken: None) -> None:
    old = log.keep(log.time < np.quantile(log.time, 0.8)).compact()
    model = tr.Tempo(learn="off", same_time="joint").fit(old)
    assert tr.update(model, replace(log, info=None, catalogue=None)).rows > 0
    updated = model.fitted.log
    table = {row["item_id"]: row["tags"] for row in make_table().to_dicts()}
    added = WEIGHT * twin_scores(updated, [table[i] for i in model.item_ids.to_list()])
    categories = model._content.categories
    scores = WEIGHT * categories.score_items(requests(updated, 10), model.fitted.weights)
    np.testing.assert_allclose(scores, added, rtol=1e-6, atol=1e-12)
    is_new = np.bincount(updated.item, minlength=30) == 0
    asked = requests(updated, 10)
    np.testing.assert_allclose(
        all_scores(model, asked)[:, is_new], added[:, is_new], rtol=1e-4, atol=1e-11
    )


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("weight", lambda a: a + np.array([0, 5])),
        ("weight", lambda a: a * np.nan),
        ("weight", lambda a: a[:1]),
        ("keys", lambda a: a[::-1].copy()),
        ("keys", lambda a: a[:-1]),
        ("mean", lambda a: a[:-1]),
        ("mean", lambda a: -a - 1),
        ("total", lambda a: a * 0),
        ("counts", lambda a: a[:-1]),
        ("indptr", lambda a: a[:-1]),
        ("indptr", lambda a: a[::-1].copy()),
        ("indices", lambda a: a + 100),
        ("indices", lambda a: a - 3),
        ("indices", None),
    ],
)
def test_damaged_arrays_of_categories_are_refused(
    log: tr.Log, taken: None, tmp_path: Path, name: str, change: object
) -> None:
    path = tr.Tempo().fit(log).save(tmp_path / "t.tale")
    bundle = read_artifact(path)
    arrays = {key: np.array(array) for key, array in bundle.arrays.items()}
    key = next(key for key in arrays if key.endswith(f"category_{name}"))
    if callable(change):
        arrays[key] = change(arrays[key])
    else:
        del arrays[key]
    write_artifact(path, Bundle(bundle.facts, arrays, dict(bundle.tables)))
    with pytest.raises(ArtifactError):
        tr.load(path, verify=True)


def test_what_is_learned_is_described(
    log: tr.Log, taken: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tr.Tempo(learn="off").fit(log)
    said = "Items that share the user's categories of 'tags' are raised."
    assert model.describe_learned()[-2] == said
    weights = ContentWeights((0.3, 0.2, 0.0), 2.0, 90.0)
    name = "talerec.models.tempo.content_learning.learn_content_weights"
    monkeypatch.setattr(name, lambda fit, rows, tempo: LearnedContent(weights))
    assert tr.Tempo(learn="off").fit(log).describe_learned()[:-1] == [
        "Content and dates of the item table are used.",
        "Scores by content are added for items with fewer than 5 events.",
        "Items are raised by their date, for about 90 days.",
    ]
    assert tr.Tempo(learn="off", content="off").fit(log).describe_learned() == []


def test_items_similar_to_a_new_item_share_its_category(log: tr.Log, taken: None) -> None:
    model = tr.Tempo().fit(log)
    similar = model.similar_items(24, k=30)["item_id"].to_list()
    assert next(item for item in similar if item >= 20) == 20  # of the tag of 24
    with pytest.raises(TalerecError, match="not known"):
        model.similar_items(500)


def test_gains_of_columns_are_those_of_whole_rankings(
    log: tr.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content_learning, "_MIN_NEW", 0.0)
    cutoff = int(np.quantile(log.time, 0.7))
    fit = lambda rows: tr.Tempo(content="off").fit(rows)  # noqa: E731
    held_out = content_learning._fit_cutoff(fit, log.with_catalogue(), cutoff)
    assert held_out is not None
    column = detect_columns(make_table())[-1]
    gains = rank_by_categories(held_out, [column, column])
    assert gains.shape == (len(held_out.queries), 11)
    np.testing.assert_array_equal(gains[:, 1:6], gains[:, 6:])
    assert rank_by_categories(held_out, []).shape == (len(gains), 1)
    histories, target = held_out.queries.histories, held_out.queries.target
    scores, factor = score_category(held_out, column)
    assert factor > 0
    added = factor * scores.score_items(histories, held_out.tempo.fitted.weights)
    base = all_scores(held_out.tempo, histories)
    for q in range(len(target)):
        items = histories.item[histories.start[q] : histories.stop[q]]
        for number, size in enumerate([0, 0.25, 0.5, 1, 2, 4]):
            total = base[q] + size * added[q]
            goal = total[target[q]]
            is_listed = np.ones(30, bool) if size else base[q] > 0
            if target[q] not in items:
                is_listed[items] = False
            rank = int((total[is_listed] >= goal).sum())
            expected = 1 / np.log2(rank + 1) if rank <= 10 and is_listed[target[q]] else 0.0
            assert gains[q, number] == pytest.approx(expected)


def test_a_column_is_chosen_if_other_users_gain() -> None:
    draw = np.random.default_rng(1)
    columns = detect_columns(make_table())[-1:] * 2
    user, group = np.arange(400), np.array([-1, *[0] * 5, *[1] * 5])
    is_rare = np.zeros(400, bool)
    base = draw.random((400, 1)).repeat(11, axis=1)
    noise = draw.normal(0, 0.1, (400, 11))
    noise[:, 0] = 0
    strong = np.where(np.arange(11) == 9, 0.1, 0.0)
    assert choose_category(SettingGains(base + noise + strong, user, is_rare, group), columns) == (
        CategoryChoice(columns[1], 2.0)
    )
    n_taken = 0
    for _ in range(400):
        noise[:, 1:] = draw.normal(0, 0.1, (400, 10))
        gains = SettingGains(base + noise, user, is_rare, group)
        n_taken += choose_category(gains, columns) is not None
    assert n_taken <= 0.04 * 400
    assert choose_category(SettingGains(base[:, :1], user, is_rare, group[:1]), []) is None


def test_a_shuffled_table_adds_no_categories() -> None:
    log = make_log()
    for seed in range(3):
        info = log.with_catalogue().info
        shuffled = info.with_columns(pl.all().exclude("item_id").shuffle(seed=seed))
        other = replace(log, info=None, catalogue=None).with_items(shuffled)
        fit = lambda rows: tr.Tempo(content="off").fit(rows)  # noqa: E731
        choice = content_learning.learn_content_weights(fit, other.with_catalogue(), fit(log))
        assert choice.weights is choice.category is None

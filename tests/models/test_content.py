"""Items by their content: the closed form against slow twins, new items, words, bad tables."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, time, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import talerec as tr
from command import talerec
from talerec.data import DAY, detect_columns
from talerec.data.split import time_split
from talerec.errors import InvalidLogError, TalerecError
from talerec.gram import TaleWeighting, tale_term
from talerec.runtime import Array

pytest.importorskip("sklearn", reason="the extra content is not installed")

from talerec.models.content import find_counting_columns, warn_counting_columns
from talerec.models.content import words as words_module
from talerec.models.content.features import ItemEncoder
from talerec.models.content.moments import solve_bilinear, sum_moments
from talerec.models.content.words import N_BUCKETS, hash_rows, split_words

COLORS = ["red", "green", "blue", "black"]
KINDS = ["tent", "stove", "lamp"]
PLAIN = {"similarity": 0.0, "reverse": 0.0}


def shop_log(n_users: int = 40, n_items: int = 24, seed: int = 1, weighted: bool = False) -> tr.Log:
    """Return a log of users who stay with a color: item i has the color i % 4."""
    draw = np.random.default_rng(seed)
    rows = []
    for user in range(n_users):
        color = int(draw.integers(0, 4))
        time = 1.6e9 + float(draw.integers(0, 100)) * 86_400
        for _ in range(int(draw.integers(2, 9))):
            item = 4 * int(draw.integers(0, n_items // 4)) + color
            rows.append((user, item, time, float(draw.integers(1, 4))))
            time += float(draw.choice([0, 600, 86_400, 864_000]))
    frame = pl.DataFrame(rows, ["user_id", "item_id", "timestamp", "weight"], orient="row")
    return tr.Log.from_frame(frame, weight="weight" if weighted else None)


def shop_table(n_items: int = 30) -> pl.DataFrame:
    """Return a table of items 0 to n_items - 1: the log has the first 24 of them."""
    items = range(n_items)
    return pl.DataFrame(
        {
            "item_id": items,
            "title": [f"{COLORS[i % 4]} {KINDS[i % 3]} mark {i % 5}" for i in items],
            "brand": [f"brand {i % 4}" for i in items],
            "tags": [[COLORS[i % 4], KINDS[i % 3]] for i in items],
            "price": [float(10 * (i % 4) + i % 3) for i in items],
            "since": [f"2020-0{1 + i % 9}-01" for i in items],
            "vector": [[float(i % 4 == c) for c in range(4)] for i in items],
        }
    )


def shop(**options: Any) -> tr.Log:
    """Return the log of the shop with its item table."""
    return shop_log(**options).with_items(shop_table())


def rows_by_hand(log: tr.Log, weighting: TaleWeighting) -> tuple[Array, Array, Array]:
    """Return S, T and the weight of each training row of TALE, one row after the other."""
    n_items = len(log.items)
    sources, targets, weights = [], [], []
    for u in range(len(log.users)):
        rows = range(log.ptr[u], log.ptr[u + 1])
        for target in rows:
            row, column = np.zeros(n_items), np.zeros(n_items)
            for s in rows:
                is_joint = weighting.same_time == "joint"
                is_before = log.time[s] < log.time[target] if is_joint else s < target
                is_tied = is_joint and s != target and log.time[s] == log.time[target]
                if is_before or is_tied:
                    days = (log.time[target] - log.time[s]) / DAY
                    weight = max(np.exp(-days / weighting.decay), weighting.floor)
                    row[log.item[s]] += weight * (1.0 if log.weight is None else log.weight[s])
            column[log.item[target]] = 1.0
            sources.append(row)
            targets.append(column)
            weights.append(1.0 if log.weight is None else log.weight[target])
    return np.array(sources), np.array(targets), np.array(weights)


@pytest.mark.parametrize("same_time", ["ordered", "joint"])
@pytest.mark.parametrize("floor", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_moments_equal_those_of_rows_built_by_hand(
    same_time: str, floor: float, weighted: bool
) -> None:
    log = shop(weighted=weighted)
    weighting = TaleWeighting(2.0, floor, 180.0, 0.0, "both", same_time, 2500)
    features = np.random.default_rng(0).normal(size=(len(log.items), 5)).astype(np.float32)
    S, T, v = rows_by_hand(log, weighting)
    F = features.astype(np.float64)
    moments = sum_moments(log, features, weighting)
    scale = np.abs((S @ F).T @ (S @ F)).max()
    assert np.abs(moments.gram - (S @ F).T @ (v[:, None] * (S @ F))).max() < 1e-12 * scale
    assert np.abs(moments.cross - (S @ F).T @ (v[:, None] * (T @ F))).max() < 1e-12 * scale
    assert np.allclose(moments.features, F.T @ F, rtol=1e-12)


@pytest.mark.parametrize("trend", [0.0, 0.3])
def test_moments_are_tales_gram_seen_through_features(trend: float) -> None:
    log = shop()
    weighting = TaleWeighting(1.0, 0.3, 30.0, trend, "both", "ordered", 5)
    features = np.random.default_rng(0).normal(size=(len(log.items), 5)).astype(np.float32)
    gram = tale_term(log, weighting).build(None)
    F, moments = features.astype(np.float64), sum_moments(log, features, weighting)
    G, K = (np.asarray(m.todense() if hasattr(m, "todense") else m) for m in (gram.G, gram.K))
    assert np.allclose(moments.gram, F.T @ G @ F, rtol=1e-10, atol=1e-10)
    assert np.allclose(moments.cross, F.T @ K @ F, rtol=1e-10, atol=1e-10)


def test_a_is_the_minimum_on_rows_built_by_hand() -> None:
    log = shop()
    weighting = TaleWeighting(2.0, 0.2, 180.0, 0.0, "both", "joint", 2500)
    features = np.random.default_rng(0).normal(size=(len(log.items), 4)).astype(np.float32)
    S, T, _ = rows_by_hand(log, weighting)
    F, reg, mu = features.astype(np.float64), 3.0, 0.7
    A = solve_bilinear(sum_moments(log, features, weighting), reg, mu)

    def loss(B: Array) -> float:
        fit = ((S @ F @ B @ F.T - T) ** 2).sum()
        penalties = reg * ((B @ F.T) ** 2).sum() + mu * ((S @ F @ B) ** 2).sum()
        return float(fit + penalties + reg * mu * (B**2).sum())

    # the loss is a sum of squares of numbers that are linear in A: least squares gives its minimum
    eye = np.eye(4)
    parts = [(S @ F, F), (np.sqrt(reg) * eye, F), (S @ F, np.sqrt(mu) * eye)]
    parts.append((np.sqrt(reg) * eye, np.sqrt(mu) * eye))
    matrix = np.vstack([np.kron(left, right) for left, right in parts])
    goal = np.concatenate([T.ravel(), np.zeros(len(matrix) - T.size)])
    best = np.linalg.lstsq(matrix, goal, rcond=None)[0].reshape(4, 4)
    assert np.abs(A - best).max() < 1e-10 * np.abs(best).max()
    draw = np.random.default_rng(2)
    assert all(loss(A) < loss(A + 1e-3 * draw.normal(size=(4, 4))) for _ in range(20))


def test_scores_are_x_f_a_f() -> None:
    model = tr.Content(recency=2.0).fit(shop())
    F = model.fitted.weights.matrix.T.astype(np.float64)
    A = model.fitted.weights.query_arrays["bilinear"]
    frame = model.recommend_histories([[3, 8, 3]], k=30)
    position = {item: number for number, item in enumerate(model.item_ids.to_list())}
    x = F[position[3]] + np.exp(-1 / 2.0) * F[position[8]]
    expected = x @ A @ F.T
    for row in frame.iter_rows(named=True):
        assert row["score"] == pytest.approx(expected[position[row["item_id"]]], abs=1e-9)


# -- new items -------------------------------------------------------------------------------------


def features_of(model: tr.Content, item: Any) -> Array:
    """Return the column of an item in the model's weights."""
    column: Array = model.fitted.weights.matrix[:, model.item_ids.to_list().index(item)]
    return column


def test_a_new_items_column_is_that_of_a_table_that_had_it_from_the_start() -> None:
    log = shop_log()
    few = tr.Content(dims=5).fit(log.with_items(shop_table(25)))
    many = tr.Content(dims=5).fit(log.with_items(shop_table(30)))
    assert few.item_ids.to_list() == [*range(25)]
    assert many.item_ids.to_list() == [*range(30)]
    for name, array in few.fitted.weights.query_arrays.items():
        assert np.array_equal(array, many.fitted.weights.query_arrays[name]), name
    for item in range(25):
        assert np.abs(features_of(few, item) - features_of(many, item)).max() < 1e-12
    later = few.add_items(shop_table(30))
    assert later.item_ids.to_list() == [*range(30)]
    assert np.abs(later.fitted.weights.matrix - many.fitted.weights.matrix).max() < 1e-12
    lists = [model.recommend_histories([[3, 7]], k=10) for model in (later, many)]
    assert lists[0]["item_id"].to_list() == lists[1]["item_id"].to_list()
    assert len(few.item_ids) == 25  # the model itself is unchanged


def test_items_that_nobody_has_taken_are_recommended_by_content() -> None:
    model = tr.Content().fit(shop())
    assert model.item_ids.to_list() == [*range(30)]
    lists = model.recommend_histories([[1, 5, 9]], k=5, allow=[24, 25, 26, 27, 28, 29])
    assert lists["item_id"].to_list()[0] % 4 == 1  # a new item of the same color comes first
    similar = model.similar_items(25, k=8)["item_id"].to_list()
    assert sum(item % 4 == 1 for item in similar) >= 5


def test_evaluation_ranks_the_items_of_log_and_table() -> None:
    log = shop_log(n_users=200)
    late = np.sort(log.time)[int(0.7 * log.rows)]
    # items 8 to 23 have no rows before the split
    log = log.keep((log.time >= late) | (log.item < 8)).compact().with_items(shop_table())
    split = time_split(log, int(late))
    result = tr.evaluate(tr.Content().fit(split.train), split, hide_seen=True)
    groups = result.groups["item_rows"]
    assert int(groups["none"]["cases"] or 0) >= 10
    assert float(groups["none"]["HR@10"] or 0) > 0.2
    assert all(value <= 1 for value in result.coverage.values())
    assert all(np.isfinite(value or 0.0) for value in result.lists.values())
    other = tr.evaluate(tr.Popular().fit(split.train), split, hide_seen=True)
    assert other.groups["item_rows"]["none"]["HR@10"] == 0
    assert tr.compare(other, result).b.cases == result.cases


def test_items_without_content_are_never_recommended() -> None:
    table = shop_table().filter(pl.col("item_id") != 3)
    model = tr.Content().fit(shop_log().with_items(table))
    assert 3 in model.item_ids
    frame = model.recommend_histories([[1, 5], [3, 7]], k=30)
    assert 3 not in frame["item_id"]
    assert model.recommend_histories([[3]], k=30).is_empty()


# -- artifacts and explanations --------------------------------------------------------------------


def test_a_saved_model_answers_alike_and_takes_new_items(tmp_path: Path) -> None:
    model = tr.Content(dims=6).fit(shop_log().with_items(shop_table(25)))
    model.save(tmp_path / "content.tale")
    loaded = tr.load(tmp_path / "content.tale", verify=True)
    assert loaded.recommend([1, 2], k=9).equals(model.recommend([1, 2], k=9))
    assert loaded.describe_learned() == model.describe_learned()
    more = loaded.add_items(shop_table(30))
    assert more.recommend([1], k=30).equals(model.add_items(shop_table(30)).recommend([1], k=30))
    more.save(tmp_path / "more.tale")
    again = tr.load(tmp_path / "more.tale", verify=True)
    assert again.recommend([1], k=30).equals(more.recommend([1], k=30))


def test_contributions_name_what_items_share() -> None:
    model = tr.Content().fit(shop())
    frame = model.explain([0, 1, 4], 28)
    assert frame.columns == ["item_id", "contribution", "shared"]
    shared = frame["shared"].to_list()
    assert shared[0] == "same brand; tags: red; words: red"
    assert "same brand; tags: red, stove; words:" in shared[2]
    assert not shared[1].startswith("same")
    score = model.recommend_histories([[0, 1, 4]], k=30).filter(pl.col("item_id") == 28)["score"][0]
    assert frame["contribution"].sum() == pytest.approx(score, rel=1e-6)
    boosted = model.explain([0, 1, 4], 28, boost={"brand": {"brand 0": 0.5}})
    assert boosted.columns == ["item_id", "contribution", "shared", "boost"]
    assert boosted["shared"].to_list() == [*shared, None]


def test_the_command_fits_recommends_and_explains(tmp_path: Path) -> None:
    shop_log().to_frame().write_csv(tmp_path / "log.csv")
    shop_table().drop("tags", "vector").write_csv(tmp_path / "items.csv")
    files = [tmp_path / "log.csv", "--items", tmp_path / "items.csv", "--model", "content"]
    saved = tmp_path / "content.tale"
    assert talerec("fit", *files, "-o", saved, "--item-skip", "price").code == 0
    facts = talerec("fit", *files, "-o", saved, "--item-skip", "price", "--json").json
    kinds = {column["name"]: column["kind"] for column in facts["training"]["item_columns"]}
    assert kinds == {"title": "text", "brand": "category", "price": "skipped", "since": "date"}
    assert facts["chosen"] == [
        "Items are compared by title (text), brand (category), since (date)."
    ]
    assert talerec("verify", saved).code == 0
    words = ["--history", "1,5", "--allow", "24,25,26", "-k", 1, "--json"]
    assert talerec("recommend", saved, *words).json[0]["items"][0]["item_id"] == 25
    page = talerec("explain", saved, "--item", "25", "--history", "1,5")
    assert "same brand; words:" in page.out
    words = ["--item", "25", "--history", "1,5", "--json"]
    rows = talerec("explain", saved, *words).json["contributions"]
    assert rows[0]["shared"].startswith("same brand")
    pytest.importorskip("optuna")
    tuned = talerec("tune", *files, "--trials", 1, "--set", "dims=4", "--study", "none")
    assert f"--items {tmp_path}/items.csv" in tuned.out.replace("\n", " ")
    result = talerec("evaluate", *files, "--json").json
    assert set(result["groups"]["item_rows"]) == {"none", "few", "many"}


# -- words and bad tables --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Sony WH-1000XM4, a 7.5 kg box", "sony wh 1000xm4 7 5 kg box wh-1000xm4 7.5"),
        ("हिन्दी में शब्द", "हिन्दी में शब्द"),
        ("東京タワー", "東京 京タ タワ ワー"),
        ("ŠKODA Ｆｕｌｌ Ωμέγα", "škoda full ωμέγα"),
        ("snake_case it's", "snake case it"),
        ("", ""),
        (None, ""),
    ],
)
def test_words_are_those_of_any_script(text: str | None, words: str) -> None:
    assert split_words(pl.Series([text], dtype=pl.String)).to_list() == [words.split()]


def test_counts_of_terms_are_those_of_a_hasher_of_every_row() -> None:
    from sklearn.feature_extraction import FeatureHasher

    draw = np.random.default_rng(0)
    texts = [" ".join(f"w{i}" for i in draw.integers(0, 9, n)) for n in draw.integers(0, 6, 50)]
    tags = [[f"T{i}" for i in draw.integers(0, 5, n)] for n in draw.integers(0, 4, 50)]
    table = pl.DataFrame({"item_id": range(50), "title": texts, "tags": tags})
    types = detect_columns(table)
    hasher = FeatureHasher(N_BUCKETS, input_type="string", alternate_sign=False)
    words = hasher.transform([text.split() for text in texts]).tocoo()
    keys = [sorted({f"tags\x1f{tag.lower()}" for tag in row}) for row in tags]
    categories = hasher.transform(keys).tocoo()
    expected = dict(zip(zip(words.row, words.col, strict=True), words.data, strict=True))
    for row, column, value in zip(categories.row, categories.col, categories.data, strict=True):
        expected[row, column + N_BUCKETS] = value
    counts = hash_rows(table, types).tocoo()
    places = zip(counts.row, counts.col, strict=True)
    assert dict(zip(places, counts.data, strict=True)) == expected


def test_long_texts_are_counted_in_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["lamp " * 40, None, "tent", "", "tent " * 300, "lamp tent", "one word more"]
    table = pl.DataFrame({"item_id": range(7), "title": texts, "text": texts[::-1]})
    types = detect_columns(table, text=["text"])
    whole = hash_rows(table, types)
    monkeypatch.setattr("talerec.models.content.words._BATCH_TEXT", 100)
    bounds = words_module._batch_bounds(table, types)
    assert bounds[0] == 0
    assert bounds[-1] == 7
    assert len(bounds) > 4
    assert bounds == sorted(set(bounds))
    assert (hash_rows(table, types) != whole).nnz == 0


def test_the_reduction_of_many_terms_comes_from_some_of_the_items(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw = np.random.default_rng(5)
    texts = [" ".join(f"w{word}" for word in row) for row in draw.integers(0, 60, (200, 8))]
    table = pl.DataFrame({"item_id": range(200), "title": texts})
    types = detect_columns(table)
    every = ItemEncoder.fit(table, types, 8)
    monkeypatch.setattr("talerec.models.content.features._MAX_SVD_ENTRIES", 700)
    some = ItemEncoder.fit(table, types, 8)
    assert some.terms.tolist() == every.terms.tolist()
    assert some.idf.tolist() == every.idf.tolist()
    step = -(-hash_rows(table, types).nnz // 700)
    assert step == 3
    weighted = every._weigh_rows(hash_rows(table, types))[::step].toarray()
    _, values, _ = np.linalg.svd(weighted, full_matrices=False)
    captured = np.linalg.norm(weighted @ some.projection.astype(float)) ** 2
    assert 0.9 * (values[:8] ** 2).sum() < captured <= (1 + 1e-6) * (values[:8] ** 2).sum()
    assert not np.allclose(some.projection, every.projection)


def test_of_a_million_categories_the_most_frequent_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("talerec.models.content.features._MAX_TERMS", 3)
    cells = [[f"rare {i}", "often" if i % 2 else "seldom", "always"] for i in range(60)]
    table = pl.DataFrame({"item_id": range(60), "tags": cells})
    types = detect_columns(table)
    encoder = ItemEncoder.fit(table, types, 256)
    assert len(encoder.terms) == 3
    vectors = encoder.encode(table)
    assert (vectors[::2] == vectors[0]).all()
    assert (vectors[1::2] == vectors[1]).all()
    assert not np.allclose(vectors[0], vectors[1])


def test_the_reduction_keeps_the_largest_singular_values() -> None:
    draw = np.random.default_rng(4)
    topics = draw.integers(0, 6, 300)
    words = 12 * topics[:, None] + draw.integers(0, 12, (300, 40))  # of 12 words of one topic
    texts = [" ".join(f"w{word}" for word in row) for row in words.tolist()]
    table = pl.DataFrame({"item_id": range(300), "title": texts})
    encoder = ItemEncoder.fit(table, detect_columns(table), 6)
    weighted = encoder._weigh_rows(hash_rows(table, encoder.types)).toarray()
    _, values, vectors = np.linalg.svd(weighted, full_matrices=False)
    kept = np.linalg.norm(weighted @ encoder.projection.astype(float)) ** 2
    assert kept >= (1 - 1e-6) * (values[:6] ** 2).sum()
    assert np.allclose(encoder.projection.T @ encoder.projection, np.eye(6), atol=1e-5)
    first = encoder.projection[:, 0].astype(float)
    assert abs(first @ vectors[0]) > 1 - 1e-6


def test_words_of_most_items_and_of_one_item_do_not_count() -> None:
    texts = [f"the lamp{i % 7} unique{i}" for i in range(60)]
    table = pl.DataFrame({"item_id": range(60), "title": texts})
    encoder = ItemEncoder.fit(table, detect_columns(table), 256)
    assert len(encoder.terms) == 7


def test_a_log_without_a_table_and_a_table_of_another_shop_are_refused() -> None:
    with pytest.raises(TalerecError, match="content needs an item table") as caught:
        tr.Content().fit(shop_log())
    assert caught.value.parameters == ("items",)
    others = shop_table().with_columns(pl.col("item_id") + 1000)
    with pytest.raises(TalerecError, match="says nothing of the log's items: 0 of 24 have"):
        tr.Content().fit(shop_log().with_items(others))


def test_vectors_of_new_items_must_have_the_width_of_the_fit() -> None:
    table = pl.DataFrame({"item_id": [*range(25)], "vector": [[1.0, float(i)] for i in range(25)]})
    wide = pl.DataFrame({"item_id": [90], "vector": [[1.0, 2.0, 3.0]]})
    log = shop_log()
    with pytest.raises(InvalidLogError, match="two widths: 2, and 3 in the row of item 90"):
        tr.Content().fit(log.with_items(pl.concat([table, wide])))
    model = tr.Content().fit(log.with_items(table))
    with pytest.raises(InvalidLogError, match="two widths: 2, and 3 in the row of item 90"):
        model.add_items(wide)
    bad = pl.DataFrame({"item_id": [90], "vector": [[1.0, float("nan")]]})
    with pytest.raises(InvalidLogError, match="NaN or infinite, in the row of item 90"):
        model.add_items(bad)


def test_odd_values_are_fitted() -> None:
    table = shop_table().with_columns(
        title=pl.when(pl.col("item_id") == 0).then(pl.lit("word " * 2_000_000)).otherwise("title"),
        price=pl.when(pl.col("item_id") % 2 == 0).then(float("nan")).otherwise(1e300),
        since=pl.lit("2999-12-31"),
        gone=pl.lit(None, pl.String),
    )
    model = tr.Content().fit(shop_log().with_items(table))
    assert np.isfinite(model.fitted.weights.matrix).all()
    assert np.isfinite(model.fitted.weights.query_arrays["bilinear"]).all()
    assert len(model.recommend([1], k=5)) == 5


def test_columns_of_odd_types_and_sizes_are_fitted_or_skipped() -> None:
    dates = [date(1, 1, 1), date(9999, 12, 31), None]
    odd = {
        "first": pl.Series([dates[i % 3] for i in range(30)]),
        "lead_time": pl.Series([timedelta(days=i) for i in range(30)]),
        "opens": pl.Series([time(i % 24) for i in range(30)]),
        "serial": pl.Series([2**64 - 1 - i for i in range(30)], dtype=pl.UInt64),
        "record": pl.Series([{"a": i} for i in range(30)]),
        "huge": pl.Series([[1e300, -1e300 * (i % 2)] for i in range(30)]),
        "zero": pl.Series([[0.0, 0.0]] * 30),
        "seldom": pl.Series([[1.0, 2.0], *[None] * 29], dtype=pl.List(pl.Float32)),
        "infinite": pl.Series([float("inf"), -float("inf"), float("nan")] * 10),
        "signs": pl.Series([",,;;||"] * 30),
        **{f"column {n}": pl.Series(np.arange(30.0) % (n + 2)) for n in range(80)},
    }
    table = shop_table().with_columns(**odd)
    kinds = {column.name: column.kind for column in detect_columns(table)}
    assert kinds["lead_time"] == kinds["record"] == "skipped"
    assert kinds["huge"] == kinds["seldom"] == "vector"
    model = tr.Content(dims=64).fit(shop_log().with_items(table))
    assert np.isfinite(model.fitted.weights.matrix).all()
    assert np.isfinite(model.fitted.weights.query_arrays["bilinear"]).all()
    assert len(model.recommend([1], k=5)) == 5
    later = table.tail(1).with_columns(item_id=pl.lit(99, pl.Int64))
    assert model.add_items(later).item_ids[-1] == 99


def test_columns_that_count_the_events_of_items_are_found(caplog: pytest.LogCaptureFixture) -> None:
    draw = np.random.default_rng(7)
    items = (90 * draw.random(4000) ** 3).astype(int)
    rows = {"user_id": np.arange(4000) % 200, "item_id": items, "timestamp": np.arange(4000.0)}
    log = tr.Log.from_frame(pl.DataFrame(rows), time_unit="s", any_time=True)
    counts = np.bincount(items, minlength=100).astype(float)
    table = pl.DataFrame(
        {
            "item_id": range(100),
            "sales": np.where(np.arange(100) % 9 == 0, np.nan, 3 * counts + draw.random(100)),
            "rank": -counts,
            "price": draw.random(100),
            "constant": 1.0,
            "seldom": pl.Series([*counts[:40].tolist(), *[None] * 60]),
            "skipped": counts,
        }
    )
    log = log.with_items(table, skip=["skipped"])
    correlations = find_counting_columns(log)
    assert set(correlations) == {"sales", "rank"}
    assert correlations["sales"] > 0.99
    assert correlations["rank"] == pytest.approx(-1)
    assert find_counting_columns(replace(log, info=None)) == {}
    caplog.set_level("WARNING", "talerec")
    warn_counting_columns(log)
    assert len(caplog.messages) == 2
    assert "column 'rank' of the item table follows the number of events" in caplog.text


def test_an_unseen_type_of_a_later_value_is_an_error_or_missing() -> None:
    model = tr.Content().fit(shop())
    odd = shop_table(31).tail(1).with_columns(brand=pl.lit("never seen"), price=pl.lit(None))
    assert model.add_items(odd).item_ids[-1] == 30
    assert model.add_items(odd.drop("vector").with_columns(more=1)).item_ids[-1] == 30
    with pytest.raises(InvalidLogError, match="a value does not fit the item table"):
        model.add_items(odd.with_columns(price=pl.lit("cheap")))
    with pytest.raises(InvalidLogError, match="there is no column 'item_id'"):
        model.add_items(odd.drop("item_id"))


def test_reduced_features_have_length_one_and_dims_columns() -> None:
    model = tr.Content(dims=3).fit(shop())
    matrix = model.fitted.weights.matrix
    assert matrix.shape == (3, 30)
    assert np.allclose(np.linalg.norm(matrix, axis=0), 1, atol=1e-6)


def test_similarity_alone_ranks_by_the_cosine() -> None:
    model = tr.Content(similarity=1e6, **{"reverse": 0.0}).fit(shop())
    F = model.fitted.weights.matrix.T.astype(np.float64)
    expected = np.argsort(-(F @ F[5]), kind="stable")
    items = model.recommend_histories([[5]], k=10)["item_id"].to_list()
    assert set(items) == {int(item) for item in expected[:10]}


def test_models_of_the_whole_log_stay_the_same_with_a_cache() -> None:
    from talerec.models.core import FitCache

    log, cache = shop(), FitCache()
    first = tr.Content(reg=1.0).fit(log, cache=cache)
    second = tr.Content(reg=5.0).fit(log, cache=cache)
    alone = tr.Content(reg=5.0).fit(replace(log))
    lists = [model.recommend([1, 2, 3], k=5) for model in (second, alone)]
    assert lists[0].equals(lists[1])
    assert not lists[0].equals(first.recommend([1, 2, 3], k=5))


def test_content_is_a_part_of_a_blend_of_the_logs_items(tmp_path: Path) -> None:
    parts = {"parts": "markov,content", "weights_of_parts": "1,0.5"}
    blend = tr.Blend(**parts).fit(shop())
    assert blend.item_ids.to_list() == [*range(24)]
    single = [tr.Markov().fit(shop()), tr.Content().fit(replace(shop(), catalogue=None))]
    scores = [
        dict(model.recommend_histories([[3, 7]], k=24).select("item_id", "score").iter_rows())
        for model in (blend, *single)
    ]
    for item, score in scores[0].items():
        expected = scores[1].get(item, 0.0) + 0.5 * scores[2].get(item, 0.0)
        assert score == pytest.approx(expected, rel=1e-6)
    blend.save(tmp_path / "blend.tale")
    loaded = tr.load(tmp_path / "blend.tale", verify=True)
    assert loaded.recommend([1], k=5).equals(blend.recommend([1], k=5))


def test_items_without_rows_are_not_popular(tmp_path: Path) -> None:
    pytest.importorskip("msgspec", reason="needs the extra serve")
    from talerec.serve.model.popular import PopularItems

    model = tr.Content().fit(shop())
    assert model.fitted.training["unseen_items"] == 6
    for saved in (True, False):
        model.add_items(shop_table(40)).save(tmp_path / "m.tale", histories=saved)
        fitted = tr.load(tmp_path / "m.tale").fitted
        assert fitted.training["unseen_items"] == 16
        popular = PopularItems(fitted)
        assert sorted(popular.ranked()[0].tolist()) == [*range(24)]


def test_a_table_of_ids_alone_is_refused() -> None:
    with pytest.raises(TalerecError, match="says nothing of the log's items"):
        tr.Content().fit(shop_log().with_items(shop_table().select("item_id")))


def test_an_item_in_log_and_catalogue_is_in_the_vocabulary_once() -> None:
    log = replace(shop(), catalogue=shop_table())
    assert tr.Content().fit(log).item_ids.to_list() == [*range(30)]

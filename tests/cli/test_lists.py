"""Recommendation lists: written to files, filtered by the item table, never over an input."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import talerec as tr
from command import refusal, talerec, works
from talerec.models.core import user_lists


def read(path: Path) -> pl.DataFrame:
    if path.suffix == ".parquet":
        return pl.read_parquet(path)
    if path.suffix == ".csv":
        return pl.read_csv(path)
    return pl.read_ndjson(path)


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".ndjson", ".jsonl"])
def test_lists_of_all_users_are_those_of_the_library(
    ending: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_lists, "_BLOCK", 7)  # several blocks
    out = tmp_path / f"lists{ending}"
    text = works("recommend", model, "--users", "all", "-k", 3, "-o", out)
    fitted = tr.load(model)
    expected = fitted.recommend(fitted.fitted.log.users.ids, 3)
    lists = read(out)
    assert lists.columns == ["user_id", "item_id", "score", "rank"]
    assert lists.select("user_id", "item_id", "rank").equals(
        expected.select("user_id", "item_id", "rank")
    )
    np.testing.assert_allclose(lists["score"], expected["score"], rtol=1e-12)
    assert "60 rows for 20 users" in " ".join(text.split())
    assert sorted(tmp_path.iterdir()) == [out]


def test_lists_take_the_options_of_printed_ones(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "lists.parquet"
    options = ("--users", "3,7,9", "-k", 4, "--hide-seen", "--deny", "i1", "--as-of", "2019-05-01")
    result = talerec("recommend", model, *options, "-o", out, "--json").json
    lists = pl.read_parquet(out)
    users = lists["user_id"].n_unique()
    counts = {"rows": len(lists), "users": users, "without": 3 - users}
    assert {name: result[name] for name in counts} == counts
    expected = tr.load(model).recommend(
        [3, 7, 9], 4, hide_seen=True, deny=["i1"], as_of="2019-05-01"
    )
    assert pl.read_parquet(out).equals(expected)


def test_users_come_from_parquet_too(model: Path, tmp_path: Path) -> None:
    for table in ({"user_id": [4, 9, 4], "x": [1, 2, 3]}, {"who": ["4", "9", "4"]}):
        pl.DataFrame(table).write_parquet(tmp_path / "users.parquet")
        request = ("recommend", model, "--users", f"@{tmp_path}/users.parquet", "-k", 1, "--json")
        assert [part["user_id"] for part in talerec(*request).json] == [4, 9]
    pl.DataFrame({"a": [1], "b": [2]}).write_parquet(tmp_path / "users.parquet")
    assert "has no column user_id; its columns are a, b" in refusal(*request[:-1])
    (tmp_path / "users.parquet").write_text("junk")
    assert "users.parquet cannot be read" in refusal(*request[:-1])
    (tmp_path / "users.parquet").unlink()
    assert "does not exist" in refusal(*request[:-1])


def test_many_lists_are_printed_one_by_one(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from talerec.cli import recommend

    request = (
        "recommend",
        model,
        "--users",
        "all",
        "-k",
        2,
        "--json",
        "--where",
        "title is not null",
        "--hide-seen",
    )
    whole = talerec(*request).json
    monkeypatch.setattr(recommend, "MANY_USERS", 5)
    monkeypatch.setattr(user_lists, "_BLOCK", 3)
    streamed = talerec(*request)
    assert streamed.json == whole
    assert len(streamed.out.splitlines()) == 22


def test_json_is_indented_only_while_people_can_read_it(model: Path) -> None:
    small = talerec("recommend", model, "--users", "3", "-k", 1, "--json").out
    assert "\n  " in small
    large = talerec("recommend", model, "--users", "all", "-k", 12, "--json").out
    assert len(large) > 10_000
    assert "\n" not in large.strip()
    json.loads(large)


@pytest.mark.parametrize("name", ["lists.txt", "lists", "lists.parquet.gz", "lists.xlsx"])
def test_an_unsupported_ending_is_refused_before_anything_is_read(
    name: str, tmp_path: Path
) -> None:
    message = refusal("recommend", tmp_path / "no.tale", "--users", "all", "-o", tmp_path / name)
    assert "must end in .parquet, .csv, .ndjson, .jsonl" in message


def test_lists_of_histories_are_printed(model: Path, tmp_path: Path) -> None:
    message = refusal("recommend", model, "--history", "i1", "-o", tmp_path / "x.csv")
    assert "--out needs --users" in message


# -- outputs that are inputs -----------------------------------------------------------------------


def test_an_output_that_is_an_input_is_refused_and_left_alone(
    log: Path, items: Path, model: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copy(log, tmp_path / "log.csv"))
    table = Path(shutil.copy(items, tmp_path / "items.csv"))
    before = copy.read_bytes(), table.read_bytes()
    link = tmp_path / "link.csv"
    link.symlink_to(copy)
    for target in (copy, link, tmp_path / "." / "log.csv"):
        for command in (
            ["evaluate", copy, "-o"],
            ["evaluate", copy, "--report"],
            ["tune", copy, "-o"],
        ):
            assert "is one of the inputs, and would be overwritten" in refusal(*command, target)
    assert "is one of the inputs" in refusal(
        "evaluate", tmp_path / "*.csv", "-o", tmp_path / "new.csv"
    )
    assert "is one of the inputs" in refusal("evaluate", tmp_path, "-o", tmp_path / "new.parquet")
    assert "is one of the inputs" in refusal("fit", copy, "-o", copy)
    assert "is one of the inputs" in refusal("fit", copy, "--items", table, "-o", table)
    users = tmp_path / "users.csv"
    users.write_text("3\n")
    request = ("recommend", model, "--users", f"@{users}", "-o")
    assert "is one of the inputs" in refusal(*request, users)
    assert "is one of the inputs" in refusal(*request, model / "lists.csv")
    assert before == (copy.read_bytes(), table.read_bytes())
    assert users.read_text() == "3\n"


# -- the item table --------------------------------------------------------------------------------

TABLE = pl.DataFrame(
    {
        "sku": [f"i{n}" for n in range(12)],
        "name": [f"Thing {n}" for n in range(12)],
        "category": ["tents", "stoves", None, "maps"] * 3,
        "price": [10.0 * n for n in range(12)],
        "in_stock": [n % 3 != 0 for n in range(12)],
        "code": [f"00{n}" for n in range(12)],
    }
)


@pytest.fixture(scope="module")
def stocked(log: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("stocked")
    TABLE.write_csv(folder / "items.csv")
    TABLE.write_parquet(folder / "items.parquet")
    for kind in ("csv", "parquet"):
        table = ("--items", folder / f"items.{kind}", "--item-key", "sku")
        model = ("--model", "tale", "--set", "reg=2")
        works("fit", log, "-o", folder / f"{kind}.tale", *table, *model)
    return {kind: folder / f"{kind}.tale" for kind in ("csv", "parquet")}


def test_files_of_lists_have_titles_where_asked(
    stocked: dict[str, Path], log: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare.tale"
    works("fit", log, "-o", bare, "--model", "tale", "--set", "reg=2")
    plain, titled, of_log = (tmp_path / f"{name}.csv" for name in ("plain", "titled", "of_log"))
    works("recommend", stocked["csv"], "--users", "all", "-k", 3, "-o", plain)
    works("recommend", stocked["csv"], "--users", "all", "-k", 3, "-o", titled, "--titles")
    works("lists", stocked["csv"], log, "-k", 3, "-o", of_log, "--titles")
    names = dict(zip(TABLE["sku"], TABLE["name"], strict=True))
    rows = pl.read_csv(titled)
    assert rows.columns == ["user_id", "item_id", "title", "score", "rank"]
    assert rows.drop("title").equals(pl.read_csv(plain))
    assert rows["title"].to_list() == [names.get(item) for item in rows["item_id"]]
    assert pl.read_csv(of_log).select("title").equals(rows.select("title"))
    untitled = ("recommend", bare, "--users", "all", "-o", tmp_path / "x.csv", "--titles")
    assert "no item table (--items) with titles" in refusal(*untitled)
    assert not (tmp_path / "x.csv").exists()
    assert "--titles needs --out" in refusal("recommend", bare, "--users", 1, "--titles")


CONDITIONS: list[tuple[str, Any]] = [
    (
        "category = 'tents' and price < 100 and in_stock",
        lambda r: r["category"] == "tents" and r["price"] < 100 and r["in_stock"],
    ),
    ("price between 20 and 50", lambda r: 20 <= r["price"] <= 50),
    ("category is null", lambda r: r["category"] is None),
    ("category <> 'tents'", lambda r: r["category"] not in (None, "tents")),
    (
        "not in_stock or category in ('maps', 'stoves')",
        lambda r: not r["in_stock"] or r["category"] in ("maps", "stoves"),
    ),
    ("title like 'Thing 1%'", lambda r: r["name"].startswith("Thing 1")),
    ("code = '007'", lambda r: r["code"] == "007"),
    ("item_id = 'i3'", lambda r: r["sku"] == "i3"),
    (
        "category has 'maps' and not price > 40",
        lambda r: r["category"] == "maps" and r["price"] <= 40,
    ),
    ("1 = 1", lambda r: True),
    ("price < 0", lambda r: False),
]


@pytest.mark.parametrize(("where", "meets"), CONDITIONS, ids=[text for text, _ in CONDITIONS])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_where_equals_an_allow_list(
    kind: str, where: str, meets: Any, stocked: dict[str, Path]
) -> None:
    model = tr.load(stocked[kind])
    allow = [row["sku"] for row in TABLE.iter_rows(named=True) if meets(row)]
    expected = model.recommend([1, 2, 3], 12, allow=allow)
    assert model.recommend([1, 2, 3], 12, where=where).equals(expected)
    lists = talerec(
        "recommend", stocked[kind], "--users", "1,2,3", "-k", 12, "--where", where, "--json"
    ).json
    assert [row["item_id"] for part in lists for row in part["items"]] == expected[
        "item_id"
    ].to_list()
    both = model.recommend_histories([["i1"]], 12, where=where, deny=allow)
    assert both.is_empty()


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("colour = 'red'", "the item table has no column colour; it has item_id, title, category"),
        ("price <", "--where is not valid at character 8: expected a column or a value"),
        ("price", "is not a true/false condition"),
        ("sum(price) > 3 and price", "at character 1: sum(...): there are no functions"),
        ("__import__('os').system('true')", "there are no functions"),
        ("price < 100; drop table items", "at character 12: expected AND, OR or the end"),
        ("price in (select price from items)", "at character 11: expected a 'text', a number"),
        ("category < 3", "at character 12: column category is text, but 3 is a number"),
        ("  ", "where is a condition"),
        ("x" * 3000, "of at most 2,000 characters"),
    ],
)
def test_an_invalid_condition_is_refused(
    where: str, message: str, stocked: dict[str, Path]
) -> None:
    assert message in refusal("recommend", stocked["csv"], "--users", "1", "--where", where)


def greedy(model: tr.Model, user: int, k: int, per: dict[str, int]) -> list[str]:
    """Return the top k of the whole ranking, without items whose value is used up."""
    rows = {row["sku"]: row for row in TABLE.rename({"name": "title"}).iter_rows(named=True)}
    used: dict[tuple[str, Any], int] = {}
    top: list[str] = []
    for item in model.recommend([user], 12)["item_id"]:
        kinds = [(name, rows[item][name]) for name in per if rows[item][name] is not None]
        if len(top) < k and all(used.get(kind, 0) < per[kind[0]] for kind in kinds):
            top.append(item)
            for kind in kinds:
                used[kind] = used.get(kind, 0) + 1
    return top


@pytest.mark.parametrize(
    "per",
    [
        {"category": 1},
        {"category": 2},
        {"category": 1, "in_stock": 3},
        {"price": 1},
        {"in_stock": 2},
    ],
)
@pytest.mark.parametrize("k", [1, 4, 12])
def test_limits_per_value_equal_walking_down_the_whole_ranking(
    per: dict[str, int], k: int, stocked: dict[str, Path], tmp_path: Path
) -> None:
    model = tr.load(stocked["csv"])
    options = [part for name, most in per.items() for part in ("--per", f"{name}={most}")]
    works(
        "recommend",
        stocked["csv"],
        "--users",
        "all",
        "-k",
        k,
        *options,
        "-o",
        tmp_path / "x.parquet",
    )
    out = pl.read_parquet(tmp_path / "x.parquet")
    for user in range(1, 21):
        expected = greedy(model, user, k, per)
        assert model.recommend([user], k, per=per)["item_id"].to_list() == expected
        assert out.filter(pl.col("user_id") == user)["item_id"].to_list() == expected


@pytest.mark.parametrize(
    ("per", "message"),
    [
        ("colour=2", "per: the item table has no column 'colour'"),
        ("category", "--per takes COLUMN=N"),
        ("category=0", "it takes a whole number from 1"),
        ("category=few", "--per takes COLUMN=N"),
    ],
)
def test_a_bad_limit_per_value_is_refused(per: str, message: str, stocked: dict[str, Path]) -> None:
    assert message in refusal("recommend", stocked["csv"], "--users", "1", "--per", per)


@pytest.mark.parametrize(
    "boost",
    [
        {"category": {"tents": 0.5}},
        {"category": {"tents": -2.0, "maps": 3.0}, "in_stock": {"false": -1.0}},
        {"title": {"Thing 1": 0.1}, "price": {"20": 1.0, "none": 1.0}},
    ],
)
def test_boosts_of_the_command_are_those_of_the_library(
    boost: dict[str, dict[str, float]], stocked: dict[str, Path], tmp_path: Path
) -> None:
    model = tr.load(stocked["csv"])
    options = [
        part
        for name, values in boost.items()
        for value, number in values.items()
        for part in ("--boost", f"{name}={value}:{number}")
    ]
    out = tmp_path / "x.parquet"
    works("recommend", stocked["csv"], "--users", "all", "-k", 4, *options, "-o", out)
    expected = model.recommend(range(1, 21), 4, boost=boost)
    assert pl.read_parquet(out).equals(expected)
    shown = talerec("recommend", stocked["csv"], "--users", "3", "-k", 4, *options, "--json").json
    of_user = expected.filter(pl.col("user_id") == 3)
    assert [row["score"] for row in shown[0]["items"]] == of_user["score"].to_list()
    item = of_user["item_id"][0]
    why = talerec("explain", stocked["csv"], "--history", "i1,i2", "--item", item, *options)
    assert "score" in why.out
    rows = model.explain(["i1", "i2"], item, boost=boost)
    explained = talerec(
        "explain", stocked["csv"], "--history", "i1,i2", "--item", item, *options, "--json"
    ).json
    assert [row.get("boost") for row in explained["contributions"]] == rows["boost"].to_list()
    assert explained["score"] == pytest.approx(rows["contribution"].sum())


@pytest.mark.parametrize(
    ("boost", "message"),
    [
        ("colour=red:2", "boost: the item table has no column 'colour'"),
        ("category", "--boost takes COLUMN=VALUE:NUMBER"),
        ("category=tents", "--boost takes COLUMN=VALUE:NUMBER"),
        ("category=tents:many", "--boost takes COLUMN=VALUE:NUMBER"),
        ("category=:1", "--boost takes COLUMN=VALUE:NUMBER"),
        ("category=tents:nan", "it takes a number from -1000 to 1000"),
        ("category=tents:1e308", "it takes a number from -1000 to 1000"),
    ],
)
def test_a_bad_boost_is_refused(boost: str, message: str, stocked: dict[str, Path]) -> None:
    assert message in refusal("recommend", stocked["csv"], "--users", "1", "--boost", boost)


def test_filters_by_the_item_table_need_one(log: Path, tmp_path: Path) -> None:
    works("fit", log, "-o", tmp_path / "m.tale", "--model", "popular")
    for option in (["--where", "price < 3"], ["--per", "category=1"], ["--boost", "a=b:1"]):
        message = refusal("recommend", tmp_path / "m.tale", "--users", "1", *option)
        assert "needs an item table: fit the model with --items" in message


def test_the_share_of_described_items_is_printed(log: Path, tmp_path: Path) -> None:
    table = tmp_path / "items.csv"
    TABLE.head(5).rename({"sku": "item_id"}).write_csv(table)
    fit = ("fit", log, "-o", tmp_path / "m.tale", "--model", "popular", "--items", table)
    assert "does not describe every item of the log: 5 of 12 ids match" in talerec(*fit).err
    TABLE.rename({"code": "item_id"}).write_csv(table)
    note = talerec(*fit, "--json").err
    assert "0 of 12 ids match (--item-key names its column of ids)" in note
    assert "there is no column 'shelf'" in refusal(*fit, "--item-key", "shelf")

"""Recommendations for the users of a log on a cluster: those of one machine."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import talerec as tr
from cluster import skewed, write
from talerec.errors import TalerecError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning"),
]


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> tuple[Path, pl.DataFrame]:
    """Return a model of weighted rows without histories, and later rows of other users.

    The later rows have other weights, other items and duplicates.
    """
    rng = np.random.default_rng(4)
    rows = skewed(3_000).with_columns(worth=pl.Series(rng.integers(1, 9, 3_000)))
    path = tmp_path_factory.mktemp("shop") / "shop.tale"
    model = tr.TALE(max_history=30).fit(tr.Log.from_frame(rows[:2_000], weight="worth"))
    repeated = rows[2_000:2_900].with_columns(worth=pl.col("worth").reverse())
    later = pl.concat([rows[1_500:], repeated, rows[2_900:]]).with_columns(pl.col("worth") * 3 - 3)
    return model.save(path, histories=False), later


def lists(*args) -> tuple[dict, pl.DataFrame]:
    from talerec.cli.main import app

    result = CliRunner().invoke(app, [str(argument) for argument in args])
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    path = Path(summary["path"])
    table = pl.read_parquet(path / "*.parquet" if path.is_dir() else path)
    return summary, table.sort("user_id", "rank")


@pytest.mark.parametrize(
    "flags", [["--drop-duplicates"], ["--hide-seen", "by item"], ["--hide-seen", "in the past"]]
)
def test_the_command_makes_the_lists_of_one_machine(flags, shop, session, machines, tmp_path):
    """Weights have the unit of the fit; rows of weight 0 and duplicates are left out."""
    path, rows = shop
    by_item = "by item" in flags
    if by_item:  # the model orders rows of equal times by item
        model = tr.load(path)
        model.fitted.training.update(ties="item", read_with={"weight": "worth"})
        path = model.save(tmp_path / "item.tale", histories=False)
    source = write(rows, tmp_path / "log")
    options = ["-k", 7, "--deny", "3", "--json", flags[0]]
    options += [] if by_item else ["--weight", "worth"]  # by default as the model was fitted
    if "in the past" in flags:  # which one machine must not look beyond either; see test_as_of.py
        options += ["--as-of", rows["timestamp"].sort()[len(rows) // 3]]
    _, expected = lists("lists", path, source, "-o", tmp_path / "here.parquet", *options)
    spark = ["--engine", "spark", "--master", machines.url, "--work", tmp_path]
    summary, table = lists("lists", path, source, "-o", tmp_path / "there", *options, *spark)
    assert table.drop("score").equals(expected.drop("score"))
    np.testing.assert_allclose(table["score"], expected["score"], rtol=1e-12)
    assert (summary["rows"], summary["users"]) == (len(table), table["user_id"].n_unique())
    left = {"here.parquet", "log", "there"} | ({"item.tale"} if by_item else set())
    assert {file.name for file in tmp_path.iterdir()} == left


def test_a_table_is_written_neither_over_the_log_nor_over_anything_that_is_not_a_table(
    shop, session, tmp_path
):
    from talerec import spark

    path, rows = shop
    source = write(rows, tmp_path / "log")
    (source / "_SUCCESS").touch()  # as if Spark had written it
    (tmp_path / "link").symlink_to(source)
    documents = tmp_path / "documents"
    documents.mkdir()
    (documents / "thesis.txt").write_text("years of work")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".profile").touch()
    before = sorted(file.read_bytes() for file in source.iterdir())
    names = spark.Columns(weight="worth")
    frame = session.read.parquet(str(source))
    over = "is where the log is read from, and would be overwritten: name another folder"
    other = "is there already, and is not a table that Spark has written"
    for log, address, message in (
        (source, source, over),
        (source, f"file://{source}", over),
        (source, f"{source}/../log", over),
        (source, tmp_path / "link", over),
        (source, source / "lists", over),
        (source / "*.parquet", source, over),
        (frame, source, over),
        (source, documents, other),
        (source, tmp_path, over),
        (source, documents / "thesis.txt", other),
        (source, tmp_path / "home", other),
        (source, source / "0.parquet", over),
    ):
        options = {"session": session, "names": names, "ties": "item"}
        with pytest.raises(TalerecError, match=message):
            spark.recommend(path, log, address, **options)
        for output in ({"weights": address}, {"histories": address}):
            with pytest.raises(TalerecError, match=message):
                spark.fit(tr.TALE(), log, tmp_path / "new.tale", **options, **output)
    assert sorted(file.read_bytes() for file in source.iterdir()) == before
    assert (documents / "thesis.txt").read_text() == "years of work"
    assert not (tmp_path / "new.tale").exists()


def test_weights_are_required_and_checked(shop, session, tmp_path):
    from talerec import spark

    path, rows = shop
    negative = rows.with_columns(pl.col("worth").cast(pl.Float64) - 1e9)
    missing = "the model was fitted to weighted rows: give the weights of rows too"
    for frame, names, message in (
        (rows, spark.Columns(), missing),
        (negative, spark.Columns(weight="worth"), "worth is below 0 in"),
    ):
        source = write(frame, tmp_path / f"log{len(message)}")
        with pytest.raises(TalerecError, match=message):
            spark.recommend(path, source, tmp_path / "next", session=session, names=names)
    assert not (tmp_path / "next").exists()

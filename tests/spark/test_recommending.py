"""Lists for the users of a log, made on a cluster: those of one machine, and never over the log."""

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
    """A model of rows with weights, which keeps no histories; and rows of other users, with other weights, items and doubles."""
    rng = np.random.default_rng(4)
    rows = skewed(3_000).with_columns(worth=pl.Series(rng.integers(1, 9, 3_000)))
    path = tmp_path_factory.mktemp("shop") / "shop.tale"
    model = tr.TALE(max_history=30).fit(tr.Log.from_frame(rows[:2_000], weight="worth"))
    again = rows[2_000:2_900].with_columns(worth=pl.col("worth").reverse())
    later = pl.concat([rows[1_500:], again, rows[2_900:]]).with_columns(pl.col("worth") * 3 - 3)
    return model.save(path, histories=False), later


def lists(*args) -> tuple[dict, pl.DataFrame]:
    from talerec.cli.main import app

    told = CliRunner().invoke(app, [str(one) for one in args])
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    place = Path(found["path"])
    table = pl.read_parquet(place / "*.parquet" if place.is_dir() else place)
    return found, table.sort("user_id", "rank")


@pytest.mark.parametrize("more", [["--drop-duplicates"], ["--hide-seen", "by item"]])
def test_the_command_makes_the_lists_of_one_machine(more, shop, session, machines, tmp_path):
    """Weights count over what those of the fit were divided by; rows of weight 0 and doubles are left out."""
    path, rows = shop
    by_item = "by item" in more
    if by_item:  # simultaneous rows by item, as the model says
        model = tr.load(path)
        model.fitted.training.update(ties="item", read_with={"weight": "worth"})
        path = model.save(tmp_path / "item.tale", histories=False)
    source = write(rows, tmp_path / "log")
    told = ["-k", 7, "--deny", "3", "--json", more[0]]
    told += [] if by_item else ["--weight", "worth"]  # as the model says
    _, expected = lists("lists", path, source, "-o", tmp_path / "here.parquet", *told)
    there = ["--engine", "spark", "--master", machines.url, "--work", tmp_path]
    said, found = lists("lists", path, source, "-o", tmp_path / "there", *told, *there)
    assert found.drop("score").equals(expected.drop("score"))
    np.testing.assert_allclose(found["score"], expected["score"], rtol=1e-12)
    assert (said["rows"], said["users"]) == (len(found), found["user_id"].n_unique())
    kept = {"here.parquet", "log", "there"} | ({"item.tale"} if by_item else set())
    assert {one.name for one in tmp_path.iterdir()} == kept


def test_a_table_is_written_neither_over_the_log_nor_over_anything_that_is_not_a_table(
    shop, session, tmp_path
):
    from talerec import spark

    path, rows = shop
    source = write(rows, tmp_path / "log")
    (source / "_SUCCESS").touch()  # as if Spark had written it
    (tmp_path / "link").symlink_to(source)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".profile").touch()
    before = sorted(one.read_bytes() for one in source.iterdir())
    names = spark.Columns(weight="worth")
    frame = session.read.parquet(str(source))
    over = "is where the log is read from, and would be overwritten: name another folder"
    other = "is there already, and is not a table that Spark has written"
    for given, place, said in (
        (source, source, over),
        (source, f"file://{source}", over),
        (source, f"{source}/../log", over),
        (source, tmp_path / "link", over),
        (source, source / "lists", over),
        (source / "*.parquet", source, over),
        (frame, source, over),
        (source, mine, other),
        (source, tmp_path, over),
        (source, mine / "thesis.txt", other),
        (source, tmp_path / "home", other),
        (source, source / "0.parquet", over),
    ):
        told = {"session": session, "names": names, "ties": "item"}
        with pytest.raises(TalerecError, match=said):
            spark.recommend(path, given, place, **told)
        for how in ({"weights": place}, {"histories": place}):
            with pytest.raises(TalerecError, match=said):
                spark.fit(tr.TALE(), given, tmp_path / "new.tale", **told, **how)
    assert sorted(one.read_bytes() for one in source.iterdir()) == before
    assert (mine / "thesis.txt").read_text() == "years of work"
    assert not (tmp_path / "new.tale").exists()


def test_weights_are_asked_for_and_checked(shop, session, tmp_path):
    from talerec import spark

    path, rows = shop
    odd = rows.with_columns(pl.col("worth").cast(pl.Float64) - 1e9)
    for frame, names, said in (
        (
            rows,
            spark.Columns(),
            "the model was fitted to rows with weights: give those of these rows",
        ),
        (odd, spark.Columns(weight="worth"), "worth is below 0 in"),
    ):
        source = write(frame, tmp_path / f"log{len(said)}")
        with pytest.raises(TalerecError, match=said):
            spark.recommend(path, source, tmp_path / "next", session=session, names=names)
    assert not (tmp_path / "next").exists()

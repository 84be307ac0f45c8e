"""`talerec audience`: the users most likely to take an item, printed and written to files."""

from __future__ import annotations

from pathlib import Path

import polars as pl

import talerec as tr
from command import refusal, talerec, works


def test_the_command_prints_what_the_library_returns(model: Path) -> None:
    expected = tr.load(model).audience("i1", k=4)
    result = talerec("audience", model, "--item", "i1", "-k", 4, "--json").json
    assert result == {"item_id": "i1", "users": expected.to_dicts()}
    page = works("audience", model, "--item", "i1", "-k", 4)
    assert "Users for Stove :fire: (i1)" in page
    assert "rank of the item: in the user's recommendations" in page
    hidden = talerec("audience", model, "--item", "i1", "--hide-seen", "--json").json["users"]
    assert hidden == tr.load(model).audience("i1", hide_seen=True).to_dicts()
    early = ("audience", model, "--item", "i1", "--as-of", "2019-01-20", "--json")
    when = tr.load(model).audience("i1", as_of="2019-01-20").to_dicts()
    assert talerec(*early).json["users"] == when


def test_files_of_all_formats_have_the_same_rows(model: Path, tmp_path: Path) -> None:
    expected = tr.load(model).audience("i1", k=7)
    readers = {".parquet": pl.read_parquet, ".csv": pl.read_csv, ".ndjson": pl.read_ndjson}
    for ending, read in readers.items():
        path = tmp_path / f"audience{ending}"
        told = talerec("audience", model, "--item", "i1", "-k", 7, "-o", path, "--json").json
        assert told == {"path": str(path), "rows": 7, "users": 20}
        assert read(path).to_dicts() == expected.to_dicts()


def test_too_few_users_are_explained(model: Path) -> None:
    page = works("audience", model, "--item", "i1", "-k", 500)
    n_users = len(tr.load(model).audience("i1", k=500))
    assert f"{n_users} of 20 users have a score for the item." in page


def test_bad_input_is_one_line(model: Path, tmp_path: Path) -> None:
    assert "nobody" in refusal("audience", model, "--item", "nobody")
    assert "--k is 0; it takes a whole number from 1" in refusal(
        "audience", model, "--item", "i1", "-k", 0
    )
    assert "--item" in refusal("audience", model)
    for name in ("users.txt", "users"):
        assert ".parquet" in refusal("audience", model, "--item", "i1", "-o", tmp_path / name)
    message = refusal("audience", model, "--item", "i1", "-o", tmp_path / "no" / "users.csv")
    assert "no" in message
    bare = tmp_path / "bare.tale"
    tr.load(model).save(bare, histories=False)
    assert "saved without histories" in refusal("audience", bare, "--item", "i1")
    assert "tomorrow" in refusal("audience", model, "--item", "i1", "--as-of", "tomorrow")

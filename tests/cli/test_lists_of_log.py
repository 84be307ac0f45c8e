"""`talerec lists`: recommendations to the users of a log that need not be the training log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import talerec as tr
from command import refusal, talerec, works

NEW = pl.DataFrame(
    {
        "user_id": ["ann", "ann", "ann", "bob", "4", "4", "eve"],
        "item_id": ["i3", "unheard of", "i1", "i7", "i2", "i2", "also unheard of"],
        "timestamp": [f"2020-01-0{n} 10:00:00" for n in (1, 2, 3, 1, 5, 4, 1)],
    }
)


@pytest.fixture
def new(tmp_path: Path) -> Path:
    path = tmp_path / "new.csv"
    NEW.write_csv(path)
    return path


def histories(rows: pl.DataFrame) -> dict[Any, list[tuple[Any, Any]]]:
    """Return the (item, time) pairs of each user in the order of times."""
    by_user: dict[Any, list[tuple[Any, Any]]] = {}
    for user, item, time in rows.sort(rows.columns[2], maintain_order=True).iter_rows():
        by_user.setdefault(user, []).append((item, time))
    return by_user


@pytest.mark.parametrize("more", [[], ["--hide-seen"], ["--as-of", "2020-03-01", "--deny", "i5"]])
def test_lists_of_other_users_are_those_of_their_histories(
    more: list[str], model: Path, new: Path, tmp_path: Path
) -> None:
    out = tmp_path / "lists.parquet"
    counts = talerec("lists", model, new, "-o", out, "-k", 4, *more, "--json").json
    by_user = histories(NEW)
    options = {"hide_seen": True} if more == ["--hide-seen"] else {}
    if "--as-of" in more:
        options = {"as_of": "2020-03-01", "deny": ["i5"]}
    rows = list(by_user.values())
    expected = tr.load(model).recommend_histories(rows, 4, unknown="skip", **options)
    names = pl.DataFrame({"history": range(len(by_user)), "user_id": list(by_user)})
    expected = expected.join(names, on="history").drop("history").sort("user_id", "rank")
    lists = pl.read_parquet(out).sort("user_id", "rank")
    columns = ["user_id", "item_id", "rank"]
    assert lists.select(columns).equals(expected.select(columns))
    np.testing.assert_allclose(lists["score"], expected["score"], rtol=1e-12)
    assert counts["rows"] == len(expected)
    assert counts["users"] == expected["user_id"].n_unique()


def test_lists_of_the_training_log_need_no_histories_in_the_model(
    log: Path, model: Path, tmp_path: Path
) -> None:
    bare, out = tmp_path / "bare.tale", tmp_path / "lists.csv"
    expected = tmp_path / "expected.csv"
    tr.load(model).save(bare, histories=False)
    works("lists", bare, log, "-o", out)
    works("recommend", model, "--users", "all", "-o", expected)
    assert out.read_bytes() == expected.read_bytes()


def test_rows_are_read_as_the_fit_read_its_log_and_weights_count(tmp_path: Path) -> None:
    """Weights are divided by the mean weight of the fit's rows, not of these rows."""
    rng = np.random.default_rng(2)
    rows = pl.DataFrame(
        {
            "who": rng.integers(0, 40, 600),
            "what": rng.integers(0, 15, 600),
            "when": 1_600_000_000 + rng.integers(0, 10**7, 600),
            "did": rng.choice(["view", "buy"], 600),
        }
    )
    log, some, fitted = tmp_path / "log.txt", tmp_path / "some.txt", tmp_path / "m.tale"
    rows.write_csv(log, separator="|")
    rows.filter(pl.col("did") == "buy").write_csv(some, separator="|")
    columns = ["--user", "who", "--item", "what", "--time", "when", "--sep", "|", "--event", "did"]
    weights = ["--event-weights", "view=1,buy=5"]
    works("fit", log, "-o", fitted, "--model", "tale", *columns, *weights)
    out, expected = tmp_path / "lists.parquet", tmp_path / "expected.parquet"
    works("lists", fitted, log, "-o", out)
    works("recommend", fitted, "--users", "all", "-o", expected)
    assert pl.read_parquet(out).equals(pl.read_parquet(expected))
    works("lists", fitted, some, "-o", out)  # only purchases
    unit = rows["did"].replace_strict({"view": 1, "buy": 5}).mean()
    bought = rows.filter(pl.col("did") == "buy").select("who", "what", "when")
    by_user = histories(bought)
    plain = tr.load(fitted).recommend_histories([by_user[user] for user in sorted(by_user)])
    scores = pl.read_parquet(out).sort("user_id", "rank")["score"]
    np.testing.assert_allclose(scores, plain.sort("history", "rank")["score"] * 5 / unit)


def test_conflicting_options_are_refused_before_anything_is_written(
    log: Path, model: Path, new: Path, tmp_path: Path
) -> None:
    out = tmp_path / "lists.parquet"
    before = new.read_bytes()
    for options, message in (
        ([new, "-o", new], "new.csv is one of the inputs, and would be overwritten"),
        ([new, "-o", tmp_path / "lists.txt"], "ending"),
        ([new, "-o", out, "--core", 2], "--core is for fit"),
        ([new, "-o", out, "--master", "local"], "--master needs --engine spark"),
        ([new, "-o", out, "-k", 99], "k is 99, but the model knows 12 items"),
        ([new, "-o", out, "--deny", "nobody"], "item 'nobody' is not known"),
        ([tmp_path / "none.csv", "-o", out], "none.csv does not exist"),
    ):
        assert message in refusal("lists", model, *options)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv"]
    assert new.read_bytes() == before
    NEW.with_columns(weight=pl.lit(2.0)).write_csv(tmp_path / "weighted.csv")
    message = refusal("lists", model, tmp_path / "weighted.csv", "-o", out, "--weight", "weight")
    assert message == "the model was fitted without weights of rows: leave them out"
    weighted = NEW.with_columns(weight=pl.int_range(1, 8))
    tr.TALE().fit(tr.Log.from_frame(weighted, weight="weight")).save(tmp_path / "w.tale")
    message = refusal("lists", tmp_path / "w.tale", new, "-o", out)
    assert message.startswith("the model was fitted to weighted rows: give the weights of rows too")
    assert not out.exists()

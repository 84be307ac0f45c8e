"""First attempts of new users are taken, or refused with the right way to do it."""

from __future__ import annotations

import logging
from pathlib import Path

import polars as pl
import pytest

import talerec as tr
from command import talerec
from talerec.errors import InvalidLogError, TalerecError

ITEMS = pl.DataFrame({"item_id": ["a", "b", "c", "d"], "price": [1.0, 2.0, 3.0, 4.0]})


def rows() -> pl.DataFrame:
    """Return twelve rows: three users who take four items in different orders."""
    orders = {"u1": "abcd", "u2": "bacd", "u3": "abdc"}
    cells = [
        (user, item, 1_700_000_000 + 60 * n)
        for user, items in orders.items()
        for n, item in enumerate(items)
    ]
    return pl.DataFrame(cells, schema=["user_id", "item_id", "timestamp"], orient="row")


def test_a_frame_and_its_item_table_make_one_log() -> None:
    log = tr.Log.from_frame(rows(), items=ITEMS)
    assert log.info is not None
    assert log.info["price"].to_list() == [1.0, 2.0, 3.0, 4.0]


def test_evaluate_log_takes_the_name_of_a_model() -> None:
    log = tr.Log.from_frame(rows())
    by_name = tr.evaluate_log("rules", log)
    assert by_name.metrics == tr.evaluate_log(tr.Rules(), log).metrics
    with pytest.raises(TalerecError, match="is 2 models; use `evaluate_models`"):
        tr.evaluate_log("rules,markov", log)


def test_a_polars_expression_as_where_is_refused_with_the_right_way() -> None:
    model = tr.Rules().fit(tr.Log.from_frame(rows(), items=ITEMS))
    with pytest.raises(TalerecError, match="write it as text, such as"):
        model.recommend(["u1"], k=1, where=pl.col("price") < 2)  # type: ignore[arg-type]


def test_explain_with_a_user_names_explain_user() -> None:
    model = tr.Rules().fit(tr.Log.from_frame(rows()))
    with pytest.raises(TalerecError, match="use explain_user"):
        model.explain("u1", "a")


def test_ids_with_spaces_or_decimals_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    padded = rows().with_columns(pl.format(" {}", "item_id").alias("item_id"))
    with caplog.at_level(logging.WARNING, "talerec"):
        tr.Log.from_frame(padded)
        assert "item_id: 4 ids begin or end with a space" in caplog.text
        assert ".0" not in caplog.text
        caplog.clear()
        tr.Log.from_frame(rows().with_columns(user_id=pl.Series(["7.0"] * 12)))
        assert "user_id: all ids end in .0, such as '7.0'" in caplog.text
        caplog.clear()
        tr.Log.from_frame(rows())
        assert caplog.text == ""


@pytest.mark.parametrize(
    ("times", "hint"),
    [
        (["25/12/2023", "01/02/2023"], "'%d/%m/%Y'"),
        (["01/02/2023 10:30", "12/25/2023 10:30"], "'%m/%d/%Y %H:%M'"),
        (["01/02/2023", "03/04/2023"], "'%m/%d/%Y' or '%d/%m/%Y'"),
    ],
)
def test_dates_with_slashes_get_a_hint_of_their_format(times: list[str], hint: str) -> None:
    frame = pl.DataFrame({"user_id": ["u", "u"], "item_id": ["a", "b"], "timestamp": times})
    with pytest.raises(InvalidLogError) as error:
        tr.Log.from_frame(frame)
    assert str(error.value).endswith(f"such as {hint}")


def test_a_repeated_header_line_is_named(tmp_path: Path) -> None:
    lines = rows().write_csv().splitlines()
    path = tmp_path / "log.csv"
    path.write_text("\n".join([*lines[:5], lines[0], *lines[5:]]))
    with pytest.raises(InvalidLogError, match=r"row 5: .* repeats the header line"):
        tr.read_log(path)
    dates = [line.replace("170000", "12/25/2023 170000") for line in lines]
    path.write_text("\n".join([*dates[:5], lines[0], *dates[5:]]))
    with pytest.raises(InvalidLogError, match=r"row 5: .* repeats the header line"):
        tr.read_log(path, time_unit="%m/%d/%Y %s")


def test_fit_reports_items_of_the_table_that_it_does_not_recommend(tmp_path: Path) -> None:
    log, table = tmp_path / "log.csv", tmp_path / "items.csv"
    rows().write_csv(log)
    pl.concat([ITEMS, pl.DataFrame({"item_id": ["e"], "price": [5.0]})]).write_csv(table)
    words = ("fit", log, "-o", tmp_path / "shop.tale", "--items", table, "--model")
    text = " ".join(talerec(*words, "rules").err.split())
    assert "1 item of the item table without events: rules does not recommend them" in text
    ITEMS.write_csv(table)
    assert "without events" not in talerec(*words, "rules").err


def test_commands_report_what_a_new_model_lacks_and_which_rows_are_known(tmp_path: Path) -> None:
    log, model = tmp_path / "log.csv", tmp_path / "shop.tale"
    rows().write_csv(log)
    assert talerec("fit", log, "-o", model, "--model", "tale", "--updatable").code == 0
    assert "no new rows (12 were known already)" in talerec("update", model, log).out
    by_user = talerec("recommend", model, "--user", "u1", "-k", 2, "--json")
    assert by_user.json == talerec("recommend", model, "--users", "u1", "-k", 2, "--json").json
    again = talerec("fit", log, "-o", model, "--model", "tale")
    assert "could be updated, and its replacement cannot" in again.err
    assert "could be updated" not in talerec("fit", log, "-o", model, "--model", "tale").err


def test_tune_reports_and_keeps_its_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    tr.synthetic_log(300, items=20).to_frame().write_csv("log.csv")
    search = ("tune", "log.csv", "--model", "markov", "--trials")
    first = talerec(*search, 2, "-o", "best.json")
    assert first.code == 0
    note = "trials are kept in best.trials.db, where the same command continues (--study none"
    assert note in first.err
    assert "trials: 1 of 2, best NDCG@10 0." in first.err
    longer = talerec(*search, 3, "-o", "best.json")
    assert "continuing after 2 trials of the study" in longer.err
    again = talerec(*search, 3, "-o", "best.json")
    assert "the study has 3 trials already: none is added" in again.err
    assert again.out.splitlines()[:8] == longer.out.splitlines()[:8]
    assert talerec(*search, 1).code == 0
    names = ["best.json", "best.trials.db", "log.csv", "tune.trials.db"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_tune_keeps_no_trials_where_none_are_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    tr.synthetic_log(300, items=20).to_frame().write_csv("log.csv")
    search = ("tune", "log.csv", "--model", "markov", "--trials", 1)
    assert "trials are kept" not in talerec(*search, "--study", "none").err
    monkeypatch.setattr("os.access", lambda *_: False)
    assert "tune.trials.db cannot be written: trials are not kept" in talerec(*search).err
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]
    message = talerec(*search, "--study", "none", "--workers", 2).err
    assert "several --workers need a --study that they share" in message

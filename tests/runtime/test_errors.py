"""Errors carry what is wrong and where as data; the command line writes the flags."""

from __future__ import annotations

import logging
import pickle

import pytest

from talerec.cli import main  # noqa: F401 - declares all options
from talerec.cli.options import flag_of
from talerec.cli.terminal import show_notes
from talerec.errors import ArtifactError, InvalidLogError, TalerecError, spell_parameters


def test_an_error_names_its_source_once_and_its_row_in_it() -> None:
    error = InvalidLogError("timestamp 'soon' is not a time", row=12)
    assert str(error) == "row 12: timestamp 'soon' is not a time"
    error.locate("b.csv", 2)
    error.locate("2 files")
    assert str(error) == "b.csv: row 2: timestamp 'soon' is not a time"
    assert (error.source, error.row) == ("b.csv", 2)


def test_a_message_that_names_its_source_gets_no_prefix() -> None:
    error = TalerecError("a.txt has no known ending", source="a.txt")
    error.locate("a.txt")
    assert str(error) == "a.txt has no known ending"


def test_parameters_are_written_as_flags_and_other_words_stay() -> None:
    message = "`time_unit` is 'x' (`other` stays); see `any_order`"
    error = TalerecError(message, "time_unit", "any_order")
    flags = spell_parameters(str(error), error.parameters, flag_of)
    assert flags == "--time-unit is 'x' (`other` stays); see --ties item"


def test_a_caller_may_call_a_parameter_by_its_own_name() -> None:
    error = TalerecError("`sep` is ';;'", "sep")
    error.rename_parameters({"sep": "items_sep"})
    assert (str(error), error.parameters) == ("`items_sep` is ';;'", ("items_sep",))


@pytest.mark.parametrize(
    "error",
    [
        InvalidLogError("`sep` is wrong", "sep", row=3),
        ArtifactError("is damaged", "shop.tale", "manifest.json"),
    ],
)
def test_errors_survive_pickling(error: TalerecError) -> None:
    error.locate("a.csv")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), vars(copy)) == (str(error), vars(error))


def test_an_error_about_a_copy_of_a_model_can_name_the_model() -> None:
    error = ArtifactError("is damaged", "/tmp/copy-1", "manifest.json")
    assert str(error.with_folder("shop.tale")) == "shop.tale: manifest.json is damaged"
    assert str(ArtifactError("does not exist", "shop.tale")) == "shop.tale does not exist"


def test_notes_at_the_command_line_name_flags(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("talerec")
    with show_notes(quiet=False):
        logger.info("set `item_key`", extra={"parameters": ("item_key",)})
    assert capsys.readouterr().err == "set --item-key\n"

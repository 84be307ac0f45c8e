"""Vocabularies: ids in their order, and what is found under an id."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logs import quick
from talerec.data import Vocabulary
from talerec.errors import TalerecError, UnknownIdError


def vocabulary(ids: list[Any]) -> Vocabulary:
    return Vocabulary.encode(pl.Series(ids))[0]


@pytest.mark.parametrize(
    ("ids", "ordered"),
    [
        ([10, 9, -1], [-1, 9, 10]),
        (["10", "9", "-1"], ["-1", "9", "10"]),
        (["10", "9", "x"], ["10", "9", "x"]),
        (["7", "007", "6"], ["6", "007", "7"]),
        (["é", "z", "e", "日本"], ["e", "z", "é", "日本"]),
        ([str(2**64), "9", str(2**63)], ["9", str(2**63), str(2**64)]),
        (["1.5", "10", "9"], ["1.5", "10", "9"]),
        ([str(10**38 - 1), "10", "9"], ["9", "10", str(10**38 - 1)]),
        ([str(10**38), "10", "9"], ["10", str(10**38), "9"]),  # of 39 digits, some do not fit
    ],
)
def test_positions_follow_numbers_where_all_are_integers_else_text(
    ids: list[Any], ordered: list[Any]
) -> None:
    assert vocabulary(ids).ids.to_list() == ordered


texts = st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=20)
integers = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20)


@quick
@given(st.one_of(texts, integers))
def test_encoding_gives_each_id_its_position(ids: list[Any]) -> None:
    words, codes = Vocabulary.encode(pl.Series(ids))
    assert [words.ids[int(code)] for code in codes] == ids
    assert len(words) == len(set(ids))
    assert words.positions(ids, "item", "error").tolist() == codes.tolist()
    assert codes.dtype == np.int32


@quick
@given(integers)
def test_numbers_are_found_as_numbers_and_as_text(ids: list[int]) -> None:
    as_numbers, as_text = vocabulary(ids), vocabulary([str(i) for i in ids])
    expected = [sorted(set(ids)).index(i) for i in ids]
    for words in (as_numbers, as_text):
        assert words.positions(ids, "item", "error").tolist() == expected
        assert words.positions([str(i) for i in ids], "item", "error").tolist() == expected


def test_ids_may_come_in_any_kind_of_list() -> None:
    words = vocabulary([5, 6])
    for given_ids in ([6, 5], (6, 5), np.array([6, 5]), pl.Series([6, 5]), iter([6, 5])):
        positions = words.positions(given_ids, "item", "error")  # type: ignore[arg-type]
        assert positions.tolist() == [1, 0]


@pytest.mark.parametrize("empty", [[], np.array([]), pl.Series([], dtype=pl.Int64)])
@pytest.mark.parametrize("ids", [[5], ["a"]])
def test_no_ids_have_no_positions(empty: Any, ids: list[Any]) -> None:
    assert vocabulary(ids).positions(empty, "item", "error").tolist() == []


@pytest.mark.parametrize("ids", [[5, 6], ["5", "x"]])
@pytest.mark.parametrize("unknown", [7, "7", "007", " 5", "5.0", "", "+5", 2**70, -5, "日本"])
def test_an_unknown_id_is_named_or_skipped(ids: list[Any], unknown: Any) -> None:
    words = vocabulary(ids)
    with pytest.raises(UnknownIdError) as caught:
        words.positions([5, unknown, 99], "item", "error")
    message = f"item {unknown!r} is not known to the model"
    assert str(caught.value).removesuffix("; '5' is") == message
    assert words.positions([unknown, "5"], "item", "skip").tolist() == [-1, 0]


@pytest.mark.parametrize(
    ("ids", "unknown", "spelling"),
    [(["17.0", "3.0"], "17", "17.0"), ([17, 3], "17.0", "17"), (["a", "b"], " a ", "a")],
)
def test_an_unknown_id_names_the_spelling_that_is_known(
    ids: list[Any], unknown: str, spelling: str
) -> None:
    with pytest.raises(UnknownIdError) as caught:
        vocabulary(ids).positions([unknown], "user", "error")
    assert str(caught.value) == f"user {unknown!r} is not known to the model; {spelling!r} is"


def test_an_unknown_id_from_an_iterator_is_named_too() -> None:
    with pytest.raises(UnknownIdError, match="user 7 is not known"):
        vocabulary([5]).positions(iter([5, 7]), "user", "error")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [True, np.True_, 1.0, np.float64(1), None, b"1", (1,), [1]])
@pytest.mark.parametrize("unknown", ["error", "skip"])
def test_values_that_cannot_be_ids_are_refused(value: Any, unknown: str) -> None:
    with pytest.raises(TalerecError) as caught:
        vocabulary([1]).positions([1, value], "item", unknown)
    assert str(caught.value) == f"item {value!r} is not an id: ids are text or whole numbers"


@pytest.mark.parametrize("value", ["abc", 5, None])
def test_a_single_id_is_not_a_list_of_ids(value: Any) -> None:
    with pytest.raises(TalerecError, match="is not a list of user ids"):
        vocabulary([1]).positions(value, "user", "error")


def test_unknown_ids_may_raise_or_be_skipped() -> None:
    with pytest.raises(TalerecError, match='takes "error" or "skip"'):
        vocabulary([1]).positions([1], "item", "ignore")


@pytest.mark.parametrize("kind", [int, str])
def test_a_few_ids_are_found_in_a_large_vocabulary_as_many_are(kind):
    ids = pl.Series([kind(3 * i) for i in range(5000)])
    vocabulary, _ = Vocabulary.encode(ids)
    ids = [kind(i) for i in (0, 1, 2, 3, 14_997, 14_998, 7_500)]
    few = vocabulary.positions(ids, "item", "skip")
    many = vocabulary.positions(ids * 300, "item", "skip")[: len(ids)]
    assert few.tolist() == many.tolist()
    names = vocabulary.ids.to_list()
    assert [names[p] if p >= 0 else None for p in few] == [a if a in names else None for a in ids]


def test_ids_that_share_a_hash_are_distinguished(monkeypatch):
    ids = pl.Series([f"item{i}" for i in range(3000)])
    vocabulary, _ = Vocabulary.encode(ids)
    monkeypatch.setattr(
        "talerec.data.vocabulary._hash_keys", lambda ids: np.zeros(len(ids), np.uint64)
    )
    assert [
        vocabulary.ids[int(p)] for p in vocabulary.positions(["item7", "item9"], "item", "error")
    ] == ["item7", "item9"]
    monkeypatch.setattr(
        "talerec.data.vocabulary._hash_keys", lambda ids: np.arange(len(ids), dtype=np.uint64)
    )
    other, _ = Vocabulary.encode(ids)
    assert other.positions(["nothing"], "item", "skip").tolist() == [-1]

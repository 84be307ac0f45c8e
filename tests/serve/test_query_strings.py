"""Query strings are UTF-8, in bytes and in percent-encoded bytes."""

from __future__ import annotations

from urllib.parse import parse_qsl, quote_plus, urlencode

import pytest

pytest.importorskip("msgspec", reason="needs the extra serve")

from talerec.serve import ApiError
from talerec.serve.http.messages import parse_list_query, parse_search, split_model_name


@pytest.mark.parametrize(
    "query", [b"q=%ff", b"%ff=1", b"q=\xff", b"\xff=q", b"q=a&x%ff", b"q=%ff&x", b"q=%ED%A0%80"]
)
def test_a_query_string_that_is_not_utf8_is_refused(query: bytes) -> None:
    for parse in (parse_search, parse_list_query, split_model_name):
        with pytest.raises(ApiError, match="the query string is not UTF-8") as refused:
            parse(query)
        assert (refused.value.status, refused.value.code) == (400, "malformed_query")


@pytest.mark.parametrize(
    "text", ["café", "東京 1&2=3", "\N{REPLACEMENT CHARACTER}", "%", "", "a+b"]
)
@pytest.mark.parametrize("rest", ["", "&limit=7", "&limit=7&id"])
def test_raw_and_encoded_text_are_the_same_search(text: str, rest: str) -> None:
    encoded = parse_search(f"q={quote_plus(text)}{rest}".encode(), has_ids=True)
    assert encoded.text == text
    if not set(text) & set("%&+ "):
        assert parse_search(f"q={text}{rest}".encode(), has_ids=True) == encoded


def test_the_rest_of_a_query_string_keeps_its_pairs() -> None:
    pairs = [("q", "café"), ("id", "\N{REPLACEMENT CHARACTER}"), ("id", ""), ("beside", "b")]
    name, rest = split_model_name(urlencode(pairs).encode() + b"&flag")
    assert name == "b"
    assert parse_qsl(rest.decode(), keep_blank_values=True) == [*pairs[:3], ("flag", "")]

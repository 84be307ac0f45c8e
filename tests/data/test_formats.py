"""Files as MovieLens, Amazon and Yelp publish them are read as they are."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from log_files import refusal
from logs import rows_of
from talerec.data.read import read_items, read_log

SECOND = 10**6
T = 1_370_000_000

AMAZON = [
    {"reviewerID": "B", "asin": "0009", "helpful": [0, 1], "overall": 5.0, "unixReviewTime": T},
    {"reviewerID": "A", "asin": "0010", "reviewText": "fine", "unixReviewTime": T + 1},
    {"reviewerID": "B", "asin": "0007", "overall": 4, "unixReviewTime": T},
    {"reviewerID": "B", "asin": "0007", "overall": 4, "unixReviewTime": T},
]
YELP = [
    {"review_id": "r", "user_id": "v", "business_id": "y", "stars": 5.0,
     "date": "2013-05-31 11:33:20"},
    {"review_id": "s", "user_id": "u", "business_id": "x", "stars": 4.5,
     "date": "2013-05-31 11:33:21"},
    {"review_id": "t", "user_id": "u", "business_id": "z", "stars": 1.0,
     "date": "2013-05-31 11:33:20"},
]  # fmt: skip

Write = Callable[[str, str | bytes], Path]


@pytest.fixture(params=["", ".gz"])
def write(tmp_path: Path, request: pytest.FixtureRequest) -> Write:
    def put(name: str, content: str | bytes) -> Path:
        path = tmp_path / f"{name}{request.param}"
        raw = content.encode() if isinstance(content, str) else content
        path.write_bytes(gzip.compress(raw) if request.param else raw)
        return path

    return put


def lines(objects: list[dict[str, Any]]) -> str:
    return "".join(f"{json.dumps(each)}\n" for each in objects)


def seconds(path: Path, **options: Any) -> list[tuple[Any, Any, int]]:
    return [(user, item, time // SECOND) for user, item, time in rows_of(read_log(path, **options))]


# -- MovieLens -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "sign"), [("ratings.dat", "::"), ("u.data", "\t")])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_movielens_ratings_have_no_header_and_keep_their_order(
    name: str, sign: str, end: str, write: Write
) -> None:
    rows = [(10, 9, T), (2, 7, T + 1), (2, 5, T), (10, 3, T), (10, 3, T)]
    content = "".join(sign.join(map(str, (u, i, 5, t))) + end for u, i, t in rows)
    log = read_log(write(name, content + end))
    read_rows = [(user, item, time // SECOND) for user, item, time in rows_of(log)]
    assert read_rows == [rows[2], rows[1], rows[0], rows[3], rows[4]]
    assert log.users.ids.dtype == log.items.ids.dtype == pl.Int64


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_movies_dat_is_an_item_table_in_either_encoding(encoding: str, write: Write) -> None:
    content = '2::Misérables, Les (1995)::Drama|Musical\n1::Toy "Story"::Animation\n'
    side = read_items(write("movies.dat", content.encode(encoding)))
    assert side.columns == ["item_id", "title", "genres"]
    assert side["title"].to_list() == ["Misérables, Les (1995)", 'Toy "Story"']
    log = read_log(write("ratings.dat", f"1::1::5::{T}\n1::3::5::{T}\n")).with_items(side)
    assert log.info is not None
    assert log.info["title"].to_list() == ['Toy "Story"', None]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (f"1::2::5::{T}\n1::2::5\n", "line 2 has 3 fields, but line 1 has 4"),
        (f"1::2::5::{T}\n1::2::5::{T}::6\n", "line 2 has 5 fields, but line 1 has 4"),
        (f"1::2::5::{T}\n\n1::2::5::{T}\n", "line 2 has 0 fields, but line 1 has 4"),
        ("1::F::1::10::48067\n", "line 1 has 5 fields; supported are user::item::rating"),
        ("some prose\n", "line 1 has 1 fields; supported are user::item::rating"),
        (f"1::::5::{T}\n", "row 1: item_id is empty"),
        (f"1::2::5::{T}\n1::2::5::noon\n", "row 2: timestamp 'noon' is not a number"),
        ("1::Toy Story::Animation\n", "there is no column 'user_id'; the columns are item_id, "),
        (" \n\n", "it holds no rows"),
    ],
)  # fmt: skip
def test_a_bad_dat_file_is_refused_by_its_line(content: str, message: str, write: Write) -> None:
    assert refusal(write("ratings.dat", content)).startswith(message)


def test_a_dat_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ratings.dat.gz"
    path.write_bytes(gzip.compress(b"".join(b"%d::1::5::978300760\n" % n for n in range(999)))[:-9])
    assert refusal(path).startswith("cannot be read: ")


def test_u_data_with_too_many_fields_is_refused_by_its_line(write: Write) -> None:
    path = write("u.data", f"1\t2\t5\t{T}\n1\t2\t5\t{T}\t6\n")
    assert refusal(path) == "cannot be read: line 2 has 5 fields, but a rating has 4"


@pytest.mark.parametrize("fields", [3, 5])
def test_u_data_of_another_width_is_refused(fields: int, write: Write) -> None:
    message = refusal(write("u.data", "\t".join([str(T)] * fields) + "\n"))
    assert message == f"the first line has {fields} fields, but a rating has 4"


def test_a_short_line_of_u_data_lacks_its_time(write: Write) -> None:
    path = write("u.data", f"1\t2\t5\t{T}\n1\t2\n")
    assert refusal(path) == "row 2: timestamp is empty"


def test_movielens_csv_is_read_by_its_own_column_names(write: Write) -> None:
    path = write("ratings.csv", f"userId,movieId,rating,timestamp\n2,9,4.5,{T}\n1,10,5,{T}\n")
    assert seconds(path) == [(1, 10, T), (2, 9, T)]


# -- Amazon ----------------------------------------------------------------------------------------


def test_amazon_ratings_have_no_header_and_keep_their_order(write: Write) -> None:
    path = write("ratings_Beauty.csv", f"B,0009,5.0,{T}\nA,0010,1.0,{T + 1}\nB,0007,4,{T}\n")
    assert seconds(path) == [("A", "0010", T + 1), ("B", "0009", T), ("B", "0007", T)]
    assert seconds(path, user="item_id", item="user_id")[0] == ("0007", "B", T)


def test_the_first_rating_is_a_row_too_where_ids_are_numbers(write: Write) -> None:
    assert seconds(write("ratings.csv", f"1,2,3.0,{T}\n")) == [(1, 2, T)]


def test_a_header_is_a_header_even_of_numbers(write: Write) -> None:
    path = write("log.csv", f"1,2,3,4\na,b,5,{T}\n")
    assert seconds(path, user="1", item="2", time="4") == [("a", "b", T)]


@pytest.mark.parametrize("line", ["A,B,5.0", f"A,B,good,{T}", "A,B,5.0,2013-05-31", f"A,B,1,5,{T}"])
def test_a_first_line_that_is_neither_header_nor_rating_is_refused(line: str, write: Write) -> None:
    assert refusal(write("log.csv", f"{line}\n{line}\n")).startswith("there is no column 'user_id'")


def test_a_first_line_too_long_for_a_rating_is_a_header(write: Write) -> None:
    path = write("log.csv", f"{'x' * 200_000},user_id,item_id,timestamp\n,A,B,{T}\n")
    assert seconds(path) == [("A", "B", T)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"A,B,5.0,{T},x", "cannot be read: line 2 has 5 fields, but a rating has 4"),
        ("A,B", "row 2: timestamp is empty"),
        (f",B,5.0,{T}", "row 2: user_id is empty"),
        ("A,B,5.0,noon", "row 2: timestamp 'noon' is not a number, as other times are"),
    ],
)
def test_a_bad_rating_is_named(line: str, message: str, write: Write) -> None:
    assert refusal(write("ratings.csv", f"A,B,5.0,{T}\n{line}\n")) == message


@pytest.mark.parametrize("ending", [".json", ".jsonl", ".ndjson"])
def test_amazon_reviews_keep_their_order_and_their_duplicates(ending: str, write: Write) -> None:
    path = write(f"reviews_Beauty_5{ending}", lines(AMAZON))
    expected = [("A", "0010", T + 1), ("B", "0009", T), ("B", "0007", T), ("B", "0007", T)]
    assert seconds(path) == expected


def test_published_names_may_be_given_explicitly(write: Write) -> None:
    path = write("Beauty_5.json", lines(AMAZON))
    assert seconds(path, user="reviewerID", time="unixReviewTime") == seconds(path)
    assert seconds(path, user="asin", item="reviewerID")[0] == ("0007", "B", T)


def test_published_names_are_recognized_in_other_formats(write: Write) -> None:
    path = write("log.csv", f"asin,reviewerID,unixReviewTime\n5,A,{T}\n")
    assert seconds(path) == [("A", 5, T)]


def test_default_names_come_before_published_ones(write: Write) -> None:
    both = {**AMAZON[0], "user_id": "mine", "item_id": "this", "timestamp": T + 5}
    assert seconds(write("log.json", lines([both]))) == [("mine", "this", T + 5)]


@pytest.mark.parametrize("name", ["reviewerID", "asin", "unixReviewTime"])
@pytest.mark.parametrize("row", [0, 2])
def test_a_review_that_lacks_a_field_is_named(name: str, row: int, write: Write) -> None:
    reviews = [dict(review) for review in AMAZON]
    del reviews[row][name]
    path = write("reviews.json", lines(reviews))
    assert refusal(path) == f"row {row + 1}: {name} is empty"


def test_reviews_that_all_lack_a_field_are_refused_with_their_fields(write: Write) -> None:
    without = [{k: v for k, v in review.items() if k != "asin"} for review in AMAZON]
    message = refusal(write("reviews.json", lines(without)))
    assert message.startswith("there is no column 'user_id'; the columns are reviewerID, ")
    assert message.endswith("(`user` names another)")


def test_a_broken_review_is_named(write: Write) -> None:
    path = write("reviews.json", lines(AMAZON) + "{'reviewerID': 'loose'}\n")
    expected = "cannot be read: line 5 is not a JSON object: \"{'reviewerID': 'loose'}\""
    assert refusal(path) == expected


def test_an_invalid_time_is_named(write: Write) -> None:
    path = write("reviews.json", lines([*AMAZON, {**AMAZON[0], "unixReviewTime": "noon"}]))
    assert refusal(path) == "row 5: unixReviewTime 'noon' is not a number, as other times are"


@pytest.mark.parametrize("indent", [None, 1])
def test_one_json_array_is_refused_with_the_expected_format(
    indent: int | None, write: Write
) -> None:
    path = write("reviews.json", json.dumps(AMAZON, indent=indent))
    expected = "the file is one JSON array; talerec reads one object per line"
    assert refusal(path) == expected + " (convert it with jq -c '.[]' FILE)"


# -- Yelp ------------------------------------------------------------------------------------------


def test_yelp_reviews_are_read_by_their_dates(write: Write) -> None:
    path = write("yelp_academic_dataset_review.json", lines(YELP))
    assert seconds(path) == [("u", "z", 1370000000), ("u", "x", 1370000001), ("v", "y", 1370000000)]
    assert read_log(path).unit == "datetime"
    assert seconds(path, item="review_id")[2] == ("v", "r", 1370000000)


def test_a_yelp_review_without_its_business_is_named(write: Write) -> None:
    path = write("review.json", lines([*YELP, {"user_id": "u", "date": "2013-05-31"}]))
    assert refusal(path) == "row 4: business_id is empty"


def test_a_long_file_of_reviews_keeps_its_order(tmp_path: Path) -> None:
    many = 100_000
    frame = pl.DataFrame({"business_id": range(many)}).select(
        pl.lit("u").alias("user_id"),
        pl.format("b{}", pl.col("business_id").cast(pl.String).str.zfill(6)).alias("business_id"),
        pl.lit("2019-03-01 12:34:56").alias("date"),
        pl.lit("prose " * 5).alias("text"),
    )
    frame.write_ndjson(tmp_path / "review.json")
    assert read_log(tmp_path / "review.json").item.tolist() == list(range(many))

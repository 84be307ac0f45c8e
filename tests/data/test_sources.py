"""Every source of a log gives the same log to the last bit; secrets are never shown."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import talerec as tr
from command import PYTHONPATH, RUN, refusal, talerec, works
from postgres import postgres
from talerec.artifact import read_manifest
from talerec.data.read import hide_secrets, read_log, remove_secrets
from talerec.data.read.databases import has_order_by
from talerec.data.read.sources import source_name
from talerec.errors import TalerecError

QUERY = "select user_id, item_id, timestamp from events order by place"


def events(rows: int = 400) -> pl.DataFrame:
    """Rows in no order of time, with ties, so that the order of rows matters."""
    rng = np.random.default_rng(3)
    return pl.DataFrame(
        {
            "user_id": rng.integers(1, 30, rows),
            "item_id": [f"i{n}" for n in rng.integers(0, 25, rows)],
            "timestamp": 1_600_000_000 + 3600 * rng.integers(0, 60, rows),
        }
    )


def same(single: tr.Log, other: tr.Log) -> bool:
    return (
        single.users.ids.equals(other.users.ids)
        and single.items.ids.equals(other.items.ids)
        and all(
            np.array_equal(getattr(single, n), getattr(other, n)) for n in ("ptr", "item", "time")
        )
    )


@pytest.fixture(scope="module")
def frame() -> pl.DataFrame:
    return events()


@pytest.fixture(scope="module")
def csv(frame: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("one") / "log.csv"
    frame.write_csv(path)
    return path


@pytest.fixture(scope="module")
def log(csv: Path) -> tr.Log:
    return read_log(csv)


def version(*args: object, folder: Path) -> str:
    """The version of the model that `fit` makes: a hash of all that it is."""
    target = folder / "m.tale"
    works("fit", *args, "-o", target, "--model", "tale", "--set", "reg=2")
    result: str = read_manifest(target)["version"]
    return result


# -- folders, patterns, several paths --------------------------------------------------------------


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".tsv", ".parquet", ".ndjson"])
def test_a_folder_a_pattern_and_several_paths_are_the_rows_of_their_files_by_name(
    ending: str, frame: pl.DataFrame, log: tr.Log, tmp_path: Path
) -> None:
    folder = tmp_path / "days"
    for number, part in enumerate(frame.iter_slices(90)):
        path = folder / f"part-{number}{ending}"
        path.parent.mkdir(exist_ok=True)
        write(part, path)
    (folder / "_SUCCESS").write_text("")
    (folder / ".part-0.crc").write_text("junk")
    files = sorted(folder.glob("part*"))
    assert len(files) == 5
    for source in (folder, str(folder / "part-*"), files, [str(file) for file in files]):
        assert same(read_log(source), log)
    assert not same(read_log(files[::-1]), log)


def write(part: pl.DataFrame, path: Path) -> None:
    if path.suffix == ".parquet":
        part.write_parquet(path)
    elif path.suffix == ".ndjson":
        part.write_ndjson(path)
    else:
        text = part.write_csv(separator="\t" if ".tsv" in path.name else ",").encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_hive_partitions_are_columns(ending: str, frame: pl.DataFrame, tmp_path: Path) -> None:
    parts = frame.sort("user_id", maintain_order=True).partition_by("user_id", as_dict=True)
    for (user,), part in parts.items():
        folder = tmp_path / f"log/country=de%20{user % 2}/user_id={user}"
        folder.mkdir(parents=True)
        write(part.drop("user_id"), folder / f"rows{ending}")
    result = read_log(tmp_path / "log")
    assert result.users.ids.dtype == pl.Int64
    assert same(result, read_log_of(frame))
    assert same(read_log(str(tmp_path / "log" / "*" / "*")), result)
    assert same(read_log(str(tmp_path / "log" / "**" / f"*{ending}")), result)
    single = read_log(tmp_path / "log" / "country=de%201" / "user_id=7" / f"rows{ending}")
    assert single.users.ids.to_list() == [7]
    by_country = read_log(tmp_path / "log", user="country")
    assert by_country.users.ids.to_list() == ["de 0", "de 1"]


def read_log_of(frame: pl.DataFrame) -> tr.Log:
    return tr.Log.from_frame(frame)


def test_many_parquet_files_keep_the_order_of_their_rows(tmp_path: Path) -> None:
    rows = 200_000
    table = pl.DataFrame(
        {
            "user_id": np.zeros(rows, int),
            "item_id": np.arange(rows),
            "timestamp": np.full(rows, 1_600_000_000),
        }
    )
    for number, part in enumerate(table.iter_slices(7000)):
        part.write_parquet(tmp_path / f"{number:03}.parquet", row_group_size=1000)
    assert np.array_equal(read_log(tmp_path).item, np.arange(rows))


def test_ids_that_are_numbers_in_one_file_and_text_in_another_are_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user_id,item_id,timestamp\n1,x,2020-01-01\n")
    (tmp_path / "b.csv").write_text("user_id,item_id,timestamp\nann,y,2020-01-02\n")
    assert read_log(tmp_path).users.ids.to_list() == ["1", "ann"]
    pl.DataFrame({"user_id": [7], "item_id": ["z"], "timestamp": ["2020-01-03"]}).write_parquet(
        tmp_path / "c.parquet"
    )
    result = read_log([tmp_path / "a.csv", tmp_path / "c.parquet"])
    assert result.users.ids.to_list() == [1, 7]


def test_an_error_in_one_of_several_files_names_it_and_its_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user_id,item_id,timestamp\n1,x,2020-01-01\n1,x,2020-01-01\n")
    (tmp_path / "b.csv").write_text("user_id,item_id,timestamp\n1,x,2020-01-01\n1,y,soon\n")
    assert f"{tmp_path}/b.csv: row 2: timestamp 'soon' is not a time" in refusal(
        "describe", tmp_path
    )
    (tmp_path / "b.csv").write_text("user_id,item_id\n1,x\n")
    assert f"{tmp_path}/b.csv has no column of times, and other files have one" in refusal(
        "describe", tmp_path
    )
    said = refusal("fit", tmp_path, "-o", tmp_path / "m.tale")
    assert f"{tmp_path}/b.csv: there is no column 'timestamp'" in said
    pl.DataFrame({"user_id": [7], "item_id": ["z"], "timestamp": [1.6e9]}).write_parquet(
        tmp_path / "c.parquet"
    )
    said = refusal("describe", tmp_path / "a.csv", tmp_path / "c.parquet")
    assert "times of" in said
    assert "convert one of them" in said


def test_folders_without_a_log_are_refused(csv: Path, tmp_path: Path) -> None:
    assert "is a folder without a file that talerec reads" in refusal("describe", tmp_path)
    shutil.copy(csv, tmp_path / "a.csv")
    read_log(csv).to_frame().write_parquet(tmp_path / "b.parquet")
    assert "holds .csv and .parquet files; name one kind" in refusal("describe", tmp_path)
    assert "no file matches" in refusal("describe", tmp_path / "*.tsv")
    works("fit", csv, "-o", tmp_path / "m.tale", "--model", "popular")
    assert "is a saved model, not a log" in refusal("describe", tmp_path / "m.tale")


# -- streams ---------------------------------------------------------------------------------------


def piped(args: list[object], content: bytes) -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "PYTHONPATH": PYTHONPATH}
    return subprocess.run(
        [*RUN, *map(str, args)], input=content, capture_output=True, env=env, timeout=300
    )


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".parquet"])
def test_standard_input_is_read_whatever_it_holds(
    ending: str, csv: Path, frame: pl.DataFrame, tmp_path: Path
) -> None:
    write(frame, tmp_path / f"log{ending}")
    target = tmp_path / "in.tale"
    options = ["--model", "tale", "--set", "reg=2", "-o", target]
    done = piped(["fit", "-", *options], (tmp_path / f"log{ending}").read_bytes())
    assert done.returncode == 0, done.stderr
    assert read_manifest(target)["version"] == version(csv, folder=tmp_path)


def test_an_empty_pipe_is_refused() -> None:
    done = piped(["describe", "-"], b"")
    assert (done.returncode, done.stderr) == (2, b"error: standard input: the file is empty\n")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
@pytest.mark.parametrize("name", ["pipe", "pipe.tsv"])
def test_a_named_pipe_is_read(name: str, frame: pl.DataFrame, log: tr.Log, tmp_path: Path) -> None:
    path = tmp_path / name
    os.mkfifo(path)
    content = frame.write_csv(separator="\t" if name.endswith("tsv") else ",")
    writer = threading.Thread(target=lambda: path.write_text(content))
    writer.start()
    try:
        assert same(read_log(path), log)
    finally:
        writer.join()


# -- separators and ids ----------------------------------------------------------------------------


@pytest.mark.parametrize(("sign", "said"), [(";", ";"), ("|", "|"), ("\t", "\\t"), ("\t", "tab")])
def test_a_separator_can_be_named(
    sign: str, said: str, frame: pl.DataFrame, csv: Path, tmp_path: Path
) -> None:
    for name in ("log.csv", "log.txt"):
        (tmp_path / name).write_text(frame.write_csv(separator=sign))
        assert same(read_log(tmp_path / name, sep=sign), read_log(csv))
        assert "400" in works("describe", tmp_path / name, "--sep", said)
    assert "--sep" in refusal("describe", tmp_path / "log.csv")


def test_an_invalid_separator_is_refused(csv: Path, tmp_path: Path) -> None:
    assert "--sep is ';;'; it takes one character" in refusal("describe", csv, "--sep", ";;")
    read_log(csv).to_frame().write_parquet(tmp_path / "b.parquet")
    assert "--sep goes with text files" in refusal("describe", tmp_path / "b.parquet", "--sep", ";")


def test_ids_may_hold_spaces_commas_quotes_and_at_signs(tmp_path: Path) -> None:
    odd = ["a, b", "@home", " lead", 'say "hi"', "plain", "ünï"]
    table = pl.DataFrame(
        {
            "user_id": [user for user in odd for _ in range(3)],
            "item_id": [odd[(n + s) % 6] for n in range(6) for s in range(3)],
            "timestamp": [1_600_000_000 + n for n in range(18)],
        }
    )
    table.write_csv(tmp_path / "log.csv")
    model = tmp_path / "m.tale"
    works("fit", tmp_path / "log.csv", "-o", model, "--model", "tale")
    for user in odd:
        quoted = '"' + user.replace('"', '""') + '"'
        result = talerec("recommend", model, "--users", quoted, "-k", 2, "--json").json
        assert result[0]["user_id"] == user
        text = f"plain,{quoted}" if user != "plain" else user
        by_history = talerec("recommend", model, "--history", text, "-k", 2, "--json").json
        by_user = tr.load(model).recommend_histories(
            [["plain", user] if user != "plain" else [user]], k=2
        )
        assert [item["item_id"] for item in by_history[0]["items"]] == by_user["item_id"].to_list()


# -- addresses -------------------------------------------------------------------------------------


@contextmanager
def web(folder: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_http_is_read(csv: Path, log: tr.Log, tmp_path: Path) -> None:
    log_frame = pl.read_csv(csv)
    for ending in (".csv", ".csv.gz", ".parquet"):
        write(log_frame, tmp_path / f"log{ending}")
    with web(tmp_path) as host:
        for ending in (".csv", ".csv.gz", ".parquet"):
            assert same(read_log(f"http://{host}/log{ending}"), log)
        assert same(read_log(f"http://{host}/log.csv?key=topsecret"), log)
        said = refusal("describe", f"http://ann:topsecret@{host}/none.csv?key=othersecret")
        assert (
            said
            == f"http://ann:***@{host}/none.csv?... cannot be read: HTTP Error 404: File not found"
        )
    assert "cannot be read" in refusal("describe", f"http://{host}/log.csv")
    assert "addresses begin with http" in refusal("describe", "ftp://host/log.csv")


def test_s3_is_read_from_a_stand_in(
    csv: Path, log: tr.Log, frame: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moto = pytest.importorskip("moto.server", reason="needs moto: EXTRAS=all make test")
    boto3 = pytest.importorskip("boto3")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "me",
            "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_SECRET_ACCESS_KEY": "topsecret", "AWS_ALLOW_HTTP": "true",
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        client = boto3.client("s3", endpoint_url=f"http://{host}:{port}")
        client.create_bucket(Bucket="shop")
        write(frame, tmp_path / "log.parquet")
        client.upload_file(str(tmp_path / "log.parquet"), "shop", "log.parquet")
        client.upload_file(str(csv), "shop", "log.csv")
        for number, part in enumerate(frame.iter_slices(90)):
            write(part, tmp_path / "part.parquet")
            client.upload_file(
                str(tmp_path / "part.parquet"), "shop", f"days/part-{number}.parquet"
            )
        for name in ("log.parquet", "log.csv", "days/*.parquet", "days/"):
            assert same(read_log(f"s3://shop/{name}"), log), name
        said = refusal("describe", "s3://shop/none.parquet")
        assert said.startswith("s3://shop/none.parquet cannot be read: ")
        assert "topsecret" not in said
    finally:
        server.stop()


# -- databases -------------------------------------------------------------------------------------


def with_places(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    return [(place, *row) for place, row in enumerate(frame.rows())]


@pytest.fixture(scope="module")
def sqlite(frame: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sqlite") / "shop.db"
    connection = sqlite3.connect(path)
    connection.execute(
        "create table events (place integer, user_id integer, item_id text, timestamp integer)"
    )
    connection.executemany("insert into events values (?, ?, ?, ?)", with_places(frame)[::-1])
    connection.commit()
    connection.close()
    return path


def test_sqlite_gives_the_same_model(sqlite: Path, csv: Path, tmp_path: Path) -> None:
    expected = version(csv, folder=tmp_path)
    for address in (sqlite, f"sqlite:///{sqlite}"):
        assert version(address, "--query", QUERY, folder=tmp_path) == expected


def test_duckdb_gives_the_same_model(csv: Path, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="needs duckdb: EXTRAS=all make test")
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            f"create table events as select row_number() over () as place, * from '{csv}'"
        )
    expected = version(csv, folder=tmp_path)
    for address in (path, f"duckdb:///{path}"):
        assert version(address, "--query", QUERY, folder=tmp_path) == expected
    said = refusal("describe", path, "--query", "select nothing from events order by 1")
    assert said.startswith(f"{path}: Binder Error")


def test_postgresql_gives_the_same_model(frame: pl.DataFrame, csv: Path, tmp_path: Path) -> None:
    with postgres() as server:
        place = server.address.partition("://")[2]
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(
                "create table events (place int, user_id bigint, item_id text, timestamp bigint)"
            )
            cursor.executemany(
                "insert into events values (%s, %s, %s, %s)", with_places(frame)[::-1]
            )
            cursor.execute(
                "create view dated as select place, user_id, item_id, "
                "to_timestamp(timestamp) at time zone 'utc' as timestamp from events"
            )
        expected = version(csv, folder=tmp_path)
        for scheme in ("postgresql", "postgres"):
            address = f"{scheme}://{place}"
            assert version(address, "--query", QUERY, folder=tmp_path) == expected
        dated = read_log(address, query=QUERY.replace("events", "dated"))
        assert same(dated, read_log(csv))
        assert dated.unit == "datetime"
        said = refusal("describe", address, "--query", "select * from nowhere order by 1")
        assert 'relation "nowhere" does not exist' in said
        assert "topsecret" not in said
        wrong = address.replace("topsecret", "wrongsecret")
        said = refusal("describe", wrong, "--query", QUERY)
        assert "password authentication failed" in said
        assert "wrongsecret" not in said
        assert b"topsecret" not in (tmp_path / "m.tale" / "manifest.json").read_bytes()


def test_a_query_needs_an_order_or_says_how_ties_are_ordered(
    sqlite: Path, csv: Path, tmp_path: Path
) -> None:
    loose = "select * from events"
    said = refusal("fit", sqlite, "--query", loose, "-o", tmp_path / "m.tale")
    assert (
        said == "the query has no order by, so its rows have no order: add one, or set --ties item"
    )
    assert "order by" in refusal("evaluate", sqlite, "--query", loose)
    by_item = version(sqlite, "--query", loose, "--ties", "item", folder=tmp_path)
    assert by_item == version(csv, "--ties", "item", folder=tmp_path)
    works("describe", sqlite, "--query", loose)
    with pytest.raises(TalerecError, match="order by"):
        tr.read_log(sqlite, query=loose)


@pytest.mark.parametrize(
    ("query", "ordered"),
    [
        ("select * from e ORDER\n BY t", True),
        ("select row_number() over (order by t) from e", False),
        ("select * from (select * from e order by t) as x", False),
        ("select 'order by' from e -- order by t", False),
        ('select "order by" from e /* order by */', False),
        ("select (1) from e order by (t)", True),
    ],
)
def test_order_by_is_recognized_outside_brackets_and_quotes(query: str, ordered: bool) -> None:
    assert has_order_by(query) is ordered


def test_a_database_and_a_query_go_together(sqlite: Path, csv: Path, tmp_path: Path) -> None:
    assert "is a database: set --query" in refusal("describe", sqlite)
    assert "--query reads a database" in refusal("describe", csv, "--query", QUERY)
    assert "does not exist" in refusal("describe", "sqlite:///no.db", "--query", QUERY)
    assert "readonly" in refusal("describe", sqlite, "--query", "delete from events")
    assert "no such column" in refusal(
        "describe", sqlite, "--query", "select who from events order by 1"
    )
    untimed = ("--query", "select user_id, item_id from events order by 1")
    said = refusal("fit", sqlite, "-o", tmp_path / "m.tale", *untimed)
    assert "there is no column 'timestamp'" in said
    junk = tmp_path / "junk.db"
    junk.write_text("not a database, not at all")
    assert "not a database" in refusal("describe", junk, "--query", QUERY)


def test_a_missing_driver_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    said = refusal("describe", "postgresql://host/shop", "--query", QUERY)
    assert said.startswith(
        "reading from postgresql needs the extra `databases` (psycopg is missing)"
    )


@pytest.mark.parametrize(
    ("address", "seen"),
    [
        ("postgresql://ann:p%40ss@host:5/shop?sslmode=x", "postgresql://ann:***@host:5/shop?..."),
        ("s3://bucket/log.parquet", "s3://bucket/log.parquet"),
        ("https://host/log.csv?sig=abc#x", "https://host/log.csv?..."),
        ("shop.db", "shop.db"),
        ("sqlite:///shop.db", "sqlite:///shop.db"),
        ("sqlite:////var/shop.db", "sqlite:////var/shop.db"),
        ("C:/logs/a@b.csv", "C:/logs/a@b.csv"),
    ],
)
def test_addresses_are_shown_without_secrets(address: str, seen: str) -> None:
    assert hide_secrets(address) == seen
    message = remove_secrets(address, f"cannot reach {address} with p@ss and p%40ss")
    assert "p@ss" not in message or "p%40" not in address


@pytest.mark.parametrize(
    ("address", "seen"),
    [
        ("postgresql://u:one/two@host/db", "postgresql://u:***@host/db"),
        ("postgresql://u:one#two@host/db", "postgresql://u:***@host/db"),
        ("postgresql://u:one?two@host/db", "postgresql://u:***@host/db"),
        ("postgresql://u:one@two@127.0.0.1:1/db", "postgresql://u:***@127.0.0.1:1/db"),
        ("postgresql://u:one[two@host/db", "postgresql://u:***@host/db"),
        ("postgres://u:one%zztwo@127.0.0.1:1/db", "postgres://u:***@127.0.0.1:1/db"),
        ("postgresql://u@127.0.0.1:1/db?password=one two&x=1", "postgresql://u@127.0.0.1:1/db?..."),
        ("postgresql:///db?user=u&password=onetwo&foo=2", "postgresql:///db?..."),
        ("postgresql://127.0.0.1/db?password=one@two", "postgresql://127.0.0.1/db?..."),
        ("postgresql://127.0.0.1:1/db?password=one@two", "postgresql://127.0.0.1:***?..."),
    ],
)  # fmt: skip
def test_a_password_of_any_signs_is_never_shown(address: str, seen: str) -> None:
    """Neither by us, nor by the driver, which takes it for parts of the address."""
    pytest.importorskip("psycopg", reason="needs psycopg: EXTRAS=all make test")
    assert hide_secrets(address) == seen
    with pytest.raises(TalerecError) as refused:
        tr.read_log(address, query=QUERY)
    assert "one" not in str(refused.value).replace("None", "")
    assert "two" not in str(refused.value)
    if "onetwo" not in address and "%" not in address:
        quoted = remove_secrets(address, "no host 'two@host', no port 'one'")
        assert "one" not in quoted
        assert "two" not in quoted


def test_an_invalid_address_is_refused_without_being_quoted() -> None:
    with pytest.raises(TalerecError, match="an address of https cannot be read") as refused:
        tr.read_log("https://u:one[two@host/log.csv")
    assert "two" not in str(refused.value)


def test_a_log_without_times_is_described_without_intervals(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("user_id,item_id\n1,a\n1,b\n2,a\n1,a\n")
    facts = json.loads(talerec("describe", path, "--json").out)
    said = talerec("describe", path).err
    assert "there is no column timestamp: rows stay in their order" in said
    assert (facts["users"], facts["items"], facts["rows"], facts["repeats"]) == (2, 2, 4, 1)
    assert (facts["ties"], facts["first_time"], facts["time_read_as"]) == (None, None, "none")
    assert "density" in works("describe", path)
    assert "there is no column 'when'" in refusal("describe", path, "--time", "when")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("a.csv", "a.csv"),
        (["a.csv"], "a.csv"),
        (["a.csv", "b.csv"], "a.csv and 1 more"),
        (["a.csv", "b.csv", "c.csv"], "a.csv and 2 more"),
        ([], "nothing"),
    ],
)
def test_a_log_of_several_files_is_named_by_the_first_and_a_count(source, name):
    assert source_name(source) == name

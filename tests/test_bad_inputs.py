"""The table of bad inputs in docs/data.md: every row is what the command says."""

from __future__ import annotations

import re
import shlex
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from command import refusal, talerec, works, write_log

PAGE = Path(__file__).parents[1] / "docs" / "data.md"
ROW = re.compile(r"^\| (.+?) \| `talerec (.+?)` \| `(.+?)` \|$", re.MULTILINE)
ROWS = ROW.findall(PAGE.read_text("utf-8"))
HEAD = "user_id,item_id,timestamp\n"
FILES = {
    "notes.txt": "hello",
    "empty.csv": "",
    "header.csv": HEAD,
    "mixed/a.csv": HEAD + "1,a,2020-01-01\n",
    "mixed/b.parquet": "x",
    "days/a.csv": HEAD,
    "fake.parquet": HEAD,
    "array.json": "[{}]",
    "broken.ndjson": '{"user_id": 1, "item_id": 2, "timestamp": "2020-01-01"}\n{"user_id": 1,\n',
    "wide.csv": HEAD + "1,a,2020-01-01\n1,a,b,2020-01-01\n",
    "semicolons.csv": "user_id;item_id;timestamp\n1;a;2020-01-01\n",
    "emptyid.csv": HEAD + "1,a,2020-01-01\n,b,2020-01-01\n",
    "nulls.csv": HEAD + "ann,a,2020-01-01\nNULL,b,2020-01-01\n",
    "notime.csv": HEAD + "1,a,2020-01-01\n1,b,\n",
    "soon.csv": HEAD + "1,a,2020-01-01\n1,b,soon\n",
    "american.csv": HEAD + "1,a,10/01/2019\n1,b,10/31/2019\n",
    "orders.ndjson": '{"user_id": 1, "lines": [{"sku": "a"}, {"sku": "b"}], '
    '"timestamp": "2020-01-01"}\n',
    "sepline.csv": "sep=;\nuser_id;item_id;timestamp\n1;a;2020-01-01\n",
    "units.csv": HEAD + "1,a,1600000000\n1,b,1600000000000\n",
    "dashes.csv": HEAD + "1,a,20190131\n1,b,20190201\n",
    "sheet.csv": HEAD + "1,a,43831\n1,b,43832.5\n",
    "far.csv": HEAD + "1,a,2020-01-01\n1,b,2300-01-01\n",
    "untimed.csv": "user_id,item_id\n1,a\n1,b\n",
    "short.csv": HEAD + "1,a,2020-01-01\n2,b,2020-01-01\n",
    "stars.csv": HEAD.replace("\n", ",stars\n") + "1,a,2020-01-01,5\n1,b,2020-01-02,-1\n",
    "stars2.csv": HEAD.replace("\n", ",stars\n") + "1,a,2020-01-01,5\n1,b,2020-01-02,1\n",
    "events.csv": HEAD.replace("\n", ",event\n") + "1,a,2020-01-01,view\n1,b,2020-01-02,buy\n",
    "others.csv": "item_id,title\nx1,One\nx2,Two\n",
    "twice.csv": "item_id,title\ni1,One\ni1,Two\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("bad")
    for name, content in FILES.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(content)
    (place / "nothing-here").mkdir()
    write_log(place / "shop.csv")
    table = pl.DataFrame({"item_id": [f"i{n}" for n in range(12)], "price": range(12)})
    table.write_csv(place / "items.csv")
    works(
        "fit",
        place / "shop.csv",
        "-o",
        place / "shop.tale",
        "--items",
        place / "items.csv",
        "--model",
        "tale",
    )
    good = pl.DataFrame({"user_id": [1], "item_id": ["a"], "timestamp": ["2020-01-01"]})
    good.write_parquet(place / "mixed" / "b.parquet")
    shutil.copy(place / "mixed" / "b.parquet", place / "fake.csv")
    good.with_columns(user_id=1.5).write_parquet(place / "decimals.parquet")
    good.with_columns(timestamp=pl.Series(np.array([1.6e9], np.float32))).write_parquet(
        place / "single.parquet"
    )
    (place / "zipped.csv").write_bytes(b"PK\x03\x04 and so on")
    (place / "utf16.csv").write_bytes(HEAD.encode("utf-16"))
    (place / "latin.csv").write_bytes(
        (HEAD + "1,a,2020-01-01\n1,caf\xe9,2020-01-01\n").encode("latin-1")
    )
    connection = sqlite3.connect(place / "shop.db")
    connection.execute("create table events (user_id integer, item_id text, timestamp integer)")
    connection.execute("insert into events values (1, 'a', 1600000000)")
    connection.commit()
    connection.close()
    return place


def test_the_table_has_about_forty_rows() -> None:
    assert len(ROWS) >= 40


@pytest.mark.parametrize(("what", "command", "said"), ROWS, ids=[row[0] for row in ROWS])
def test_the_command_prints_the_message_of_the_table(
    what: str, command: str, said: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    before = sorted(path for path in folder.rglob("*") if ".tale" not in str(path))
    if what.endswith("*"):
        outcome = talerec(*shlex.split(command))
        assert outcome.code == 0
        assert said in outcome.err
    else:
        assert said in refusal(*shlex.split(command))
        assert not Path("new.tale", "manifest.json").exists() or "0 of 12" in PAGE.read_text(
            "utf-8"
        )
    assert before == sorted(path for path in folder.rglob("*") if ".tale" not in str(path))

"""Files of logs in every format and packing, and how a bad one is refused."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from talerec.data.read import read_log
from talerec.errors import TalerecError

SECOND = 10**6
T = 1_600_000_000
HEADER = "user_id,item_id,timestamp\n"
GOOD = HEADER + f"1,a,{T}\n"


def zstd(content: bytes) -> bytes:
    buffer = pa.BufferOutputStream()
    with pa.CompressedOutputStream(buffer, "zstd") as stream:
        stream.write(content)
    return bytes(buffer.getvalue())


def parquet(table: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.write_parquet(buffer)
    return buffer.getvalue()


def inter(table: pl.DataFrame) -> bytes:
    kinds = {"user_id": "token", "item_id": "token", "timestamp": "float"}
    named = table.rename({name: f"{name}:{kinds.get(name, 'token')}" for name in table.columns})
    return named.write_csv(separator="\t", quote_style="never").encode()


PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda content: content,
    ".gz": gzip.compress,
    ".zst": zstd,
}
FORMATS: dict[str, Callable[[pl.DataFrame], bytes]] = {
    ".csv": lambda table: table.write_csv().encode(),
    ".tsv": lambda table: table.write_csv(separator="\t").encode(),
    ".inter": inter,
    ".ndjson": lambda table: table.write_ndjson().encode(),
    ".jsonl": lambda table: table.write_ndjson().encode(),
    ".parquet": parquet,
}
TEXTS = [".csv", ".tsv", ".inter"]


Write = Callable[[str, str | bytes], Path]


def refusal(path: Path | str, **options: Any) -> str:
    with pytest.raises(TalerecError) as caught:
        read_log(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    return message[len(str(path)) :].lstrip(": ")


def table(users: Any, items: Any, times: Any) -> pl.DataFrame:
    return pl.DataFrame({"user_id": users, "item_id": items, "timestamp": times})

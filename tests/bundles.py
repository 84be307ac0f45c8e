"""Small saved models: what they answer, what is in their folder, and how it is damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import talerec as tr
from talerec.artifact.format import LOCK
from talerec.artifact.integrity import manifest_version
from talerec.errors import TalerecError

Change = Callable[[dict[str, Any]], Any]


def tiny_log(seed: int = 0, rows: int = 120) -> tr.Log:
    rng = np.random.default_rng(seed)
    return tr.Log.from_frame(
        pl.DataFrame(
            {
                "user_id": rng.integers(0, 15, rows),
                "item_id": [f"i{x}" for x in rng.integers(0, 12, rows)],
                "timestamp": 1_600_000_000 + rng.integers(0, 10**7, rows),
            }
        )
    )


def answers(model: tr.Model) -> list[pl.DataFrame]:
    """Everything that is asked of a model, to the last bit."""
    ids = model.item_ids.to_list()
    found = [
        model.recommend_histories([ids[:3], ids[4:5], []], 8, hide_seen=True),
        model.similar_items(ids[2], 5),
        model.explain(ids[:4], ids[5]),
    ]
    log = model.fitted.log
    return found if log is None else [*found, model.recommend(log.users.ids, 10)]


def same(one: tr.Model, other: tr.Model) -> bool:
    pairs = zip(answers(one), answers(other), strict=True)
    return one.params == other.params and all(a.equals(b) for a, b in pairs)


def data_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in (".npy", ".parquet"))


def manifest_of(folder: Path) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads((folder / "manifest.json").read_text(), parse_constant=refuse)


def edit_manifest(folder: Path, change: Change, *, rehash: bool = True) -> None:
    manifest = manifest_of(folder)
    change(manifest)
    if rehash:
        manifest["version"] = manifest_version(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0xFF
    path.write_bytes(content)


def refusal(folder: Path, **options: bool) -> str:
    with pytest.raises(TalerecError) as caught:
        tr.load(folder, **options)
    message = str(caught.value)
    assert str(folder) in message
    assert "\n" not in message
    return message


def no_strays(folder: Path) -> bool:
    named = {entry["file"] for entry in manifest_of(folder)["files"].values()}
    return {path.name for path in folder.iterdir()} - named == {"manifest.json", LOCK}

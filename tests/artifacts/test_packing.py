"""Integer arrays are stored in fewer bytes, and come back to the last bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talerec.artifact import Bundle, read_artifact, write_artifact
from talerec.artifact.integrity import manifest_version
from talerec.artifact.packing import FEWEST, MOST, pack_array, unpack_array
from talerec.errors import ArtifactError

SECOND = 10**6
FACTS: dict[str, Any] = {"model": "none", "params": {}, "training": {}}


def spread(first: int, last: int, step: int, dtype: str) -> np.ndarray:
    """Return an array of `FEWEST` numbers from `first` to `last`, multiples of `step` apart."""
    steps = np.random.default_rng(1).integers(0, (last - first) // step, FEWEST, endpoint=True)
    steps[:2] = 0, (last - first) // step
    return (first + step * steps).astype(dtype)


@given(
    st.integers(-(2**61), 2**61), st.integers(0, 2**45), st.sampled_from([1, 7, 1000, SECOND]),
    st.sampled_from(["<i4", "<i8"]),
)  # fmt: skip
def test_every_number_comes_back(first: int, width: int, step: int, dtype: str) -> None:
    if dtype == "<i4":
        first, width = first >> 31, min(width, 2**30)
    values = spread(first, first + width, step, dtype)
    stored, packing = pack_array(values)
    back = unpack_array(stored, packing)
    assert back.dtype == values.dtype
    np.testing.assert_array_equal(back, values)
    assert (packing is None) == (stored.nbytes == values.nbytes)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (spread(1_600_000_000 * SECOND, 1_700_000_000 * SECOND, SECOND, "<i8"), "uint32"),
        (spread(1_600_000_000 * SECOND, 1_600_000_100 * SECOND, 1, "<i8"), "uint32"),
        (spread(0, 2**33, 1, "<i8"), "int64"),
        (spread(0, 3_416, 1, "<i4"), "uint16"),
        (spread(0, 200, 1, "<i4"), "uint8"),
        (spread(-(2**31), 2**31 - 1, 1, "<i4"), "int32"),
        (np.zeros(FEWEST - 1, np.int64), "int64"),
        (np.zeros(MOST + 1, np.int64), "int64"),
        (np.zeros(FEWEST), "float64"),
    ],
)
def test_the_smallest_type_is_chosen(values: np.ndarray, dtype: str) -> None:
    assert pack_array(values)[0].dtype == dtype


def test_an_artifact_has_fewer_bytes_and_the_same_arrays(tmp_path: Path) -> None:
    time = spread(1_600_000_000 * SECOND, 1_700_000_000 * SECOND, SECOND, "<i8")
    arrays = {"time": time, "short": time[:9], "weights": np.ones(FEWEST, np.float32)}
    folder = write_artifact(tmp_path / "model.tale", Bundle(FACTS, arrays, {}))
    for verify in (False, True):
        back = read_artifact(folder, verify=verify).arrays
        assert {name: array.dtype for name, array in back.items()} == {
            name: array.dtype for name, array in arrays.items()
        }
        for name, array in arrays.items():
            np.testing.assert_array_equal(back[name], array)
        assert not any(array.flags.writeable for array in back.values())
    (file,) = folder.glob("time-*.npy")
    assert np.load(file).dtype == np.uint32


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("dtype", "<f8", "is damaged"),
        ("first", 2**70, "is damaged"),
        ("first", 1.5, "is damaged"),
        ("step", 0, "is damaged"),
        ("step", 2**61, "too large for int64"),
    ],
)
def test_a_wrong_packing_is_an_error(tmp_path: Path, field: str, value: Any, message: str) -> None:
    time = spread(0, 1_000_000 * SECOND, SECOND, "<i8")
    folder = write_artifact(tmp_path / "model.tale", Bundle(FACTS, {"time": time}, {}))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["time"]["packing"][field] = value
    manifest["version"] = manifest_version(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match=message):
        read_artifact(folder)

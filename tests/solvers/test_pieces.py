"""Half of G in pieces gives the weights of half of G at hand, with memory for a part of it."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest

import talerec as tr
from talerec.solvers.local import local_columns
from talerec.solvers.pieces import local_pieces


def problem(rows: int = 20_000, items: int = 600, seed: int = 3):
    """What the local solver is asked on a cluster: half of G, lengths, K by target, the diagonal."""
    log = tr.synthetic_log(rows, items=items, titles=False, seed=seed)
    gram = tr.Tempo(same_time="ordered").gram(log)
    G, K = (m.toarray() if hasattr(m, "toarray") else np.asarray(m) for m in (gram.G, gram.K))
    below, led = np.tril(G, -1), K.T
    half = by_row(below)
    return half, np.diff(half[0]), by_row(led), G.diagonal() + 50.0


def by_row(matrix):
    starts = np.concatenate([[0], np.cumsum(np.count_nonzero(matrix, axis=1))])
    row, column = np.nonzero(matrix)
    return starts, column.astype(np.int32), matrix[row, column]


@pytest.mark.parametrize("neighbors", [6, 60])
@pytest.mark.parametrize("room", [1, 500, 20_000, 10**9])
def test_pieces_have_the_weights_of_the_whole(neighbors, room):
    half, lengths, K, diagonal = problem()
    n, read = len(diagonal), []

    def reader(a: int, b: int):
        lo, hi = half[0][a], half[0][b]
        read.append(hi - lo)
        return half[1][lo:hi], half[2][lo:hi]

    told = (lengths, K, diagonal, neighbors, len(K[1]), 3, n)
    expected = local_columns(half, *told)
    pieces = list(local_pieces(half[0], reader, room, *told))
    for found, all_at_once in zip(
        map(np.concatenate, zip(*pieces, strict=True)), expected, strict=True
    ):
        np.testing.assert_array_equal(found, all_at_once)
    longest = np.diff(half[0]).max()
    assert max(read) <= max(room, longest)
    assert (len(pieces) == 1) == (room == 10**9)


SCRIPT = """
    import resource, sys
    from pathlib import Path
    import numpy as np
    from talerec.spark import blocks, tasks

    folder, room = sys.argv[1], int(sys.argv[2])
    n, K = 400, tuple(np.load(f"{folder}/K{x}.npy") for x in range(3))
    settings = tasks.SolveSettings(20, len(K[1]), room)
    tasks._solved(K, settings._replace(room=10**5), folder, 0, 5)  # kernels are compiled without a limit
    tasks._solved(K, settings._replace(room=10**15), sys.argv[3], 0, 5)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + 2**28, held + 2**28))
    found = tasks._solved(K, settings, folder, 0, n)
    print(len(found[2]), float(np.abs(found[2]).sum()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it limits the memory of a process")
def test_a_half_far_larger_than_memory_is_solved_in_pieces_and_not_at_once(tmp_path):
    """The half takes 3.2 GB (a file with a hole), and the task may take 0.27 GB beyond what Python and the kernels hold."""
    from talerec.spark import blocks

    (starts, column, value), lengths, K, diagonal = problem(6_000, 400)
    n, hole = len(diagonal), 2**28  # entries that no target reads: those of an item without sources
    names = {"big": hole, "small": 0}
    for name, more in names.items():
        folder = tmp_path / name
        folder.mkdir()
        grown = np.concatenate([starts, [starts[-1] + more]])
        for file, array in (("column", column), ("value", value)):
            with (folder / f"{file}.raw").open("wb") as out:
                out.write(array.tobytes())
                out.truncate(int(grown[-1]) * array.itemsize)
        wide = {"starts": grown, "owned": np.append(lengths, 0), "ridge": np.append(diagonal, 1.0)}
        for file, array in wide.items():
            blocks.save_array(folder, file, array)
        padded = (np.append(K[0], K[0][-1]), K[1], K[2])
        for x, array in enumerate(padded):
            np.save(folder / f"K{x}.npy", array)
    script = textwrap.dedent(SCRIPT).replace("n, K = 400", f"n, K = {n}")

    def run(room: int) -> subprocess.CompletedProcess:
        told = [
            sys.executable,
            "-c",
            script,
            str(tmp_path / "big"),
            str(room),
            str(tmp_path / "small"),
        ]
        return subprocess.run(told, capture_output=True, text=True, check=False)

    in_pieces, at_once = run(10**6), run(10**15)
    assert in_pieces.returncode == 0, in_pieces.stderr
    assert at_once.returncode != 0
    assert "Cannot allocate memory" in at_once.stderr
    expected = local_columns((starts, column, value), lengths, K, diagonal, 20, len(K[1]), 0, n)
    count, total = in_pieces.stdout.split()
    assert int(count) == len(expected[2])
    assert float(total) == pytest.approx(float(np.abs(expected[2]).sum()), rel=1e-6)

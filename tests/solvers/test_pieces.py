"""The triangle of G in pieces gives the same weights with memory for a part of it."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest

import talerec as tr
from talerec.runtime import CSR
from talerec.solvers import RangeProblem, solve_range, solve_range_in_pieces


def problem(rows: int = 20_000, items: int = 600, seed: int = 3):
    """Return the lower triangle of G, its row lengths, K by target, and the diagonal."""
    log = tr.synthetic_log(rows, items=items, titles=False, seed=seed)
    gram = tr.Tempo(same_time="ordered").gram(log)
    G, K = (m.toarray() if hasattr(m, "toarray") else np.asarray(m) for m in (gram.G, gram.K))
    below, by_target = np.tril(G, -1), K.T
    triangle = compress(below)
    return triangle, np.diff(triangle[0]), compress(by_target), G.diagonal() + 50.0


def compress(matrix):
    indptr = np.concatenate([[0], np.cumsum(np.count_nonzero(matrix, axis=1))])
    row, column = np.nonzero(matrix)
    return CSR(indptr, column.astype(np.int32), matrix[row, column])


@pytest.mark.parametrize("neighbors", [6, 60])
@pytest.mark.parametrize("room", [1, 500, 20_000, 10**9])
def test_pieces_have_the_weights_of_the_whole(neighbors, room):
    triangle, lengths, K, diagonal = problem()
    n, read = len(diagonal), []

    def reader(a: int, b: int):
        lo, hi = triangle.indptr[a], triangle.indptr[b]
        read.append(hi - lo)
        return triangle.indices[lo:hi], triangle.values[lo:hi]

    task = RangeProblem(lengths, K, diagonal, neighbors, len(K.indices))
    expected = solve_range(triangle, task, 3, n)
    pieces = list(solve_range_in_pieces(triangle.indptr, reader, room, task, 3, n))
    for result, all_at_once in zip(
        map(np.concatenate, zip(*pieces, strict=True)), expected, strict=True
    ):
        np.testing.assert_array_equal(result, all_at_once)
    longest = np.diff(triangle[0]).max()
    assert max(read) <= max(room, longest)
    assert (len(pieces) == 1) == (room == 10**9)


SCRIPT = """
    import resource, sys
    from pathlib import Path
    import numpy as np
    from talerec.runtime.csr import CSR
    from talerec.spark import tasks, triangles

    folder, room = sys.argv[1], int(sys.argv[2])
    n, K = 400, CSR(*(np.load(f"{folder}/K{x}.npy") for x in range(3)))
    plan = triangles.SolvePlan(None, None, None, 0.0, None, folder, 20, len(K[1]), room)
    # Kernels are compiled before memory is limited.
    tasks.solve_targets(K, plan._replace(max_bytes=10**5), 0, 5)
    tasks.solve_targets(K, plan._replace(max_bytes=10**15, folder=sys.argv[3]), 0, 5)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + 2**28, held + 2**28))
    _, _, weights = tasks.solve_targets(K, plan, 0, n)
    print(len(weights), float(np.abs(weights).sum()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it limits the memory of a process")
def test_a_half_far_larger_than_memory_is_solved_in_pieces_and_not_at_once(tmp_path):
    """The triangle takes 3.2 GB (a file with a hole), and the task may take 0.27 GB.

    The 0.27 GB are beyond what Python and the kernels hold.
    """
    from talerec.spark.messages import save_array

    (indptr, column, value), lengths, K, diagonal = problem(6_000, 400)
    n, hole = len(diagonal), 2**28  # entries that no target reads: those of an item without sources
    names = {"big": hole, "small": 0}
    for name, more in names.items():
        folder = tmp_path / name
        folder.mkdir()
        grown = np.concatenate([indptr, [indptr[-1] + more]])
        for file, array in (("column", column), ("value", value)):
            with (folder / f"{file}.raw").open("wb") as out:
                out.write(array.tobytes())
                out.truncate(int(grown[-1]) * array.itemsize)
        wide = {"indptr": grown, "owned": np.append(lengths, 0), "ridge": np.append(diagonal, 1.0)}
        for file, array in wide.items():
            save_array(folder, file, array)
        padded = (np.append(K[0], K[0][-1]), K[1], K[2])
        for x, array in enumerate(padded):
            np.save(folder / f"K{x}.npy", array)
    script = textwrap.dedent(SCRIPT).replace("n, K = 400", f"n, K = {n}")

    def run(room: int) -> subprocess.CompletedProcess:
        command = [
            sys.executable,
            "-c",
            script,
            str(tmp_path / "big"),
            str(room),
            str(tmp_path / "small"),
        ]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    in_pieces, at_once = run(10**6), run(10**15)
    assert in_pieces.returncode == 0, in_pieces.stderr
    assert at_once.returncode != 0
    assert "Cannot allocate memory" in at_once.stderr
    task = RangeProblem(lengths, K, diagonal, 20, len(K.indices))
    expected = solve_range(CSR(indptr, column, value), task, 0, n)
    count, total = in_pieces.stdout.split()
    assert int(count) == len(expected[2])
    assert float(total) == pytest.approx(float(np.abs(expected[2]).sum()), rel=1e-6)

"""Cases written to a file while they are evaluated: the same figures, in bounded memory."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import polars as pl
import pytest

import talerec as tr
from command import talerec
from figures import flat
from talerec.data import Histories
from talerec.errors import TalerecError
from talerec.evaluation import case_file, list_metrics, queries
from talerec.evaluation.user_sums import tabulate_user_sums

PLANS = ["every:last:30%", "every:2024-05-01,60d", "rolling:2024-06-01,60", "leave-one-out"]


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of seven histories, sums merged three at a time, and buckets of 50 cases."""

    def chunks(self):
        edges = list(range(0, len(self), 7))
        return zip(edges, [*edges[1:], len(self)], strict=True)

    monkeypatch.setattr(Histories, "chunks", chunks)
    monkeypatch.setattr(case_file, "_CHUNKS_PER_MERGE", 3)
    monkeypatch.setattr(case_file, "_CASES_PER_PASS", 50)


def assert_same_figures(found, expected):
    """Compare all figures of two results of one evaluation, those of lists included."""
    ours, theirs = (flat(result.to_dict()) for result in (found, expected))
    skipped = ("/seconds", "/peak_rss_mb")
    for path, value in theirs.items():
        if not path.startswith(skipped):
            is_number = isinstance(value, float)
            assert ours[path] == (pytest.approx(value, rel=1e-9) if is_number else value), path
    assert list(ours) == list(theirs)


def described_log(rows=3000):
    """Return a synthetic log with an item table, for diversity and calibration."""
    log = tr.synthetic_log(rows, items=60, seed=4)
    kinds = pl.Series([["red", "blue"][: 1 + n % 2] if n % 3 else None for n in range(60)])
    table = pl.DataFrame({"item_id": log.items.ids, "kind": kinds[: len(log.items)]})
    return tr.Log.from_frame(log.to_frame(), items=table)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("hide_seen", [False, True])
def test_cases_in_a_file_give_the_figures_of_cases_in_memory(
    plan, hide_seen, small_chunks, tmp_path
):
    log, options = described_log(), {"k": [1, 3, 20], "hide_seen": hide_seen}
    found = tr.evaluate_log(tr.SLIST(), log, plan, cases=tmp_path / "cases.parquet", **options)
    expected = tr.evaluate_log(tr.SLIST(), log, plan, **options)
    assert {f"{name}@20" for name in ("new", "diversity", "calibration")} <= set(expected.lists)
    assert_same_figures(found, expected)
    for column, names in queries.case_groups(expected.frame).items():
        for name in names:
            for rank in ("rank", "rank_hidden"):
                ours = found.group_intervals(column, name, rank)
                assert flat(ours) == pytest.approx(
                    flat(expected.group_intervals(column, name, rank)), rel=1e-9
                )
    loaded = tr.Evaluation.load(tmp_path / "cases.parquet")
    assert loaded.frame.equals(expected.frame)
    assert {k: v for k, v in loaded.facts().items() if k != "seconds"} == {
        k: v for k, v in expected.facts().items() if k != "seconds"
    }


def test_chunks_of_any_size_give_the_same_cases_and_figures(small_chunks, monkeypatch):
    log = described_log(1500)
    small = tr.evaluate_log("rules", log, "every:last:30%")
    monkeypatch.undo()
    whole = tr.evaluate_log("rules", log, "every:last:30%")
    assert small.frame.equals(whole.frame)
    assert_same_figures(small, whole)


def test_random_orders_of_ties_are_summed_by_user(small_chunks, tmp_path):
    frame = pl.DataFrame(
        {
            "user_id": np.repeat(np.arange(30), 8),
            "item_id": np.random.default_rng(1).integers(0, 15, 240),
            "timestamp": np.tile(np.repeat([10**9, 2 * 10**9, 2 * 10**9 + 9, 10**9 + 5], 2), 30),
        }
    )
    log = tr.Log.from_frame(frame)
    options = {"plan": "every:2033-01-01", "ties": "random:0..2"}
    found = tr.evaluate_log("rules", log, cases=tmp_path / "cases.parquet", **options)
    expected = tr.evaluate_log("rules", log, **options)
    assert len(expected.fixed_order_metrics) == 2
    assert_same_figures(found, expected)


def test_two_results_in_files_are_compared_case_by_case(tmp_path):
    log, results = tr.synthetic_log(2000, items=50), []
    for name in ("rules", "popular"):
        tr.evaluate_log(name, log, "every:last:20%", cases=tmp_path / f"{name}.parquet")
        results.append(tr.Evaluation.load(tmp_path / f"{name}.parquet"))
    expected = tr.compare(
        *(tr.evaluate_log(n, log, "every:last:20%") for n in ("rules", "popular"))
    )
    assert tr.compare(*results).verdict == expected.verdict


def test_a_failed_evaluation_leaves_no_file(tmp_path, monkeypatch):
    log, added = tr.synthetic_log(1000, items=50), []

    def fail(*_):
        added.append(True)
        raise MemoryError

    monkeypatch.setattr(case_file, "sum_cases", fail)
    with pytest.raises(MemoryError):
        tr.evaluate_log("rules", log, "every:last:20%", cases=tmp_path / "cases.parquet")
    assert added
    assert not list(tmp_path.iterdir())
    with pytest.raises(TalerecError, match="no row"):
        tr.evaluate_log("rules", log, "every:1990-01-01", cases=tmp_path / "cases.parquet")
    assert not list(tmp_path.iterdir())


def test_the_command_streams_every_row_and_writes_the_cases(tmp_path):
    log = tr.synthetic_log(2000, items=50)
    log.to_frame().write_csv(tmp_path / "log.csv")
    command = ("evaluate", tmp_path / "log.csv", "--split", "every:last:20%", "--model", "rules")
    alone = talerec(*command, "--json").json
    out = tmp_path / "cases.parquet"
    saved = talerec(*command, "--json", "-o", out).json
    reported = talerec(*command, "--json", "--report", tmp_path / "page.html").json
    loaded = tr.Evaluation.load(out)
    assert saved["metrics"] == alone["metrics"]
    for result in (reported, loaded.to_dict()):
        assert result["metrics"] == pytest.approx(alone["metrics"], rel=1e-12)
        assert list(result["lists"]) == list(alone["lists"])
    assert len(loaded.frame) == alone["cases"]
    assert "HR@10" in talerec(*command).out


GROWTH = """
import gc, sys, numpy as np, polars as pl, talerec as tr
from talerec.data import histories
from talerec.evaluation import case_file
from talerec.runtime import memory
# reached by both numbers of cases:
histories._CHUNK_HISTORIES, case_file._CASES_PER_PASS = 2**13, 2**14
rng = np.random.default_rng(0)
n, n_users = 400_000, 8_000
frame = pl.DataFrame({
    "user_id": rng.integers(0, n_users, n), "item_id": (rng.random(n) ** 2 * 500).astype(int),
    "timestamp": 1_500_000_000 + np.arange(n) * 60,
})
log = tr.Log.from_frame(frame)
model = tr.Popular()
def peak(share):
    gc.collect()
    assert memory.reset_high_water()
    before = memory.high_water_mb()
    result = tr.evaluate_log(model, log, f"every:last:{share}%", cases=sys.argv[1], k=[10])
    return memory.high_water_mb(), result.cases
peak(40), peak(40)  # caches and arenas of libraries
(small, few), (large, many) = peak(10), peak(80)
print((large - small) * 2**20 / (many - few), many - few)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the high-water mark can be reset on Linux")
@pytest.mark.slow
def test_memory_hardly_grows_with_the_number_of_cases(tmp_path):
    """A case took 1 to 13 bytes when this was written, and 301 bytes with all cases in memory."""
    command = [sys.executable, "-c", GROWTH, str(tmp_path / "cases.parquet")]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert float(out[1]) > 250_000
    assert float(out[0]) < 120


def test_columns_of_lists_are_those_of_the_frames():
    result = tr.evaluate_log("rules", described_log(1500))
    names = list_metrics.list_column_names(result.ks)
    assert set(names) <= set(result.frame.columns)
    assert tabulate_user_sums(result.frame, result.ks)["n_users"].max() == result.users

"""Two checkouts side by side: the scripts, their order, and the summary of the figures."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "sides.py"


@pytest.fixture(scope="module")
def sides():
    spec = importlib.util.spec_from_file_location("sides", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def checkout(folder: Path, cost: float, script: str | None) -> Path:
    """A package that knows its cost, and maybe a benchmark."""
    (folder / "src" / "priced").mkdir(parents=True)
    (folder / "src" / "priced" / "__init__.py").write_text(f"COST = {cost}\n")
    (folder / "benchmarks").mkdir()
    if script:
        (folder / "benchmarks" / "cost.py").write_text(script)
    return folder


WITH_JSON = """
import json, sys, priced
from pathlib import Path
assert sys.argv[-1] == "--json"
with Path(sys.argv[1]).open("a") as out:
    out.write(f"{priced.COST} ")
print("some text")
print(json.dumps({"fit s": priced.COST, "own": 1}))
"""


def test_turns_alternate_and_the_first_does_not_count(sides, tmp_path, monkeypatch):
    ours = checkout(tmp_path / "ours", 1.0, WITH_JSON)
    other = checkout(tmp_path / "other", 2.0, None)
    monkeypatch.setattr(sides, "HERE", ours)
    order = tmp_path / "order"
    turns = sides.turns_of(ours, other, 3, "benchmarks/cost.py", [str(order)])
    assert order.read_text().split() == ["2.0", "1.0", "1.0", "2.0", "2.0", "1.0", "1.0", "2.0"]
    assert turns == [({"fit s": 1.0, "own": 1.0}, {"fit s": 2.0, "own": 1.0})] * 3
    fit_seconds = sides.summary(turns)["fit s"]
    assert fit_seconds == {"ours": 1.0, "other": 2.0, "ratio": 0.5, "low": 0.5, "high": 0.5}


def test_each_checkout_runs_its_own_script_where_it_has_one(sides, tmp_path, monkeypatch):
    ours = checkout(tmp_path / "ours", 1.0, WITH_JSON)
    old = WITH_JSON.replace('"--json"', "sys.argv[-1]").replace('"fit s"', '"old s"')
    other = checkout(tmp_path / "other", 2.0, old.replace("--json", "json"))
    monkeypatch.setattr(sides, "HERE", ours)
    costs = sides.run(other, "benchmarks/cost.py", [str(tmp_path / "order")], False)
    assert costs == {"old s": 2.0, "own": 1.0}
    same = sides.run(other, "benchmarks/cost.py", [str(tmp_path / "order")], True)
    assert same == {"fit s": 2.0, "own": 1.0}
    assert sides.shared([({"fit s": 1, "own": 1}, costs)]) == ["own"]


def test_the_interval_holds_the_median_and_is_the_same_each_time(sides):
    ratios = [1.0, 1.1, 0.9, 1.05, 0.95, 1.2, 0.8, 1.01, 0.99]
    low, high = sides.interval(ratios)
    assert 0.8 <= low < 1.0 < high <= 1.2
    assert sides.interval(ratios) == (low, high)
    assert sides.interval([1.5] * 9) == (1.5, 1.5)
    wide = sides.interval([0.5, 2.0] * 5)
    assert wide == (0.5, 2.0)


@pytest.mark.parametrize(
    ("script", "printed", "expected"),
    [
        (
            "query.py",
            "load (sizes checked, not hashed): 0.700 s\n10,000 items, history of 50, top 10\n"
            "one by one: median 0.89 ms, 99 % under 4.70 ms\n"
            "batch of 100,000 users with their own histories: 8,000 users/s\n"
            "batch of 2,000 histories of 50: 4,000 users/s\n",
            {
                "load s": 0.7, "one by one, median ms": 0.89, "one by one, 99 % ms": 4.7,
                "batch of users, us each": 125.0, "batch of histories, us each": 250.0,
            },
        ),
        (
            "tune.py",
            "tune:         18.1 s for 100 trials (9 Grams)\n"
            "separate:    104.6 s (10 of them run, scaled)\n5.8 times\n",
            {"tune s": 18.1, "separate s": 104.6},
        ),
        (
            "family.py",
            "| model | solver | HR@10 | fit s | peak MB |\n|---|---|---|---|---|\n"
            "| tale | local | .0875 | 0.73 | 358 |\n| rules | - | .0779 | 0.08 | 301 |\n",
            {"tale fit s": 0.73, "rules fit s": 0.08},
        ),
    ],
)  # fmt: skip
def test_what_older_scripts_print_is_understood(sides, script, printed, expected):
    costs = sides.figures(Path(script), printed)
    assert costs == pytest.approx(expected)


def test_of_json_only_numbers_are_figures(sides):
    printed = '{"solver": "local", "seconds": 0.5, "metrics": [0.1]}'
    assert sides.figures(Path("family.py"), printed) == {"seconds": 0.5}


def test_a_script_that_prints_no_figures_is_refused(sides):
    with pytest.raises(SystemExit, match=r"cost\.py printed no JSON"):
        sides.figures(Path("cost.py"), "done\n")


def test_the_command_prints_a_table_and_json(tmp_path):
    script = "import json, priced  # --json\nprint(json.dumps({'fit s': priced.COST}))\n"
    ours, other = (checkout(tmp_path / name, 3.0, script) for name in ("ours", "other"))
    copy = ours / "benchmarks" / "sides.py"
    copy.write_text(SCRIPT.read_text(encoding="utf-8"), encoding="utf-8")
    command = [
        sys.executable,
        str(copy),
        "--other",
        str(other),
        "--turns",
        "2",
        "--",
        "benchmarks/cost.py",
    ]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[2] == "| fit s | 3 | 3 | 1.000 | 1.000 to 1.000 |"
    assert json.loads(lines[-1])["fit s"]["ratio"] == 1.0

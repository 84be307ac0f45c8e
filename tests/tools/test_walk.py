"""The walk of a command: files and functions in the order of their first calls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import talerec
from walk import write_log

ROOT = Path(__file__).parents[2]

#: main, read, start, work; before Python 3.12 a comprehension is a function of its own.
N_FUNCTIONS = 4 + (sys.version_info < (3, 12))

FILES = {
    "__init__.py": "",
    "never.py": "x = 1\ndef unused(): pass\n",
    "early.py": "def at_import():\n    return 1\nat_import()\n",
    "main.py": """
import sys
from shop import never, early, thread

def main():
    from shop.data import Row, read
    read(sys.argv[1:])
    thread.start()
    sys.exit(3)
""",
    "data.py": """
from shop import quiet

def read(words):
    assert words == ["evaluate", "the log"], words
    return [quiet.Marker for _ in words]

class Row:
    pass
""",
    "quiet.py": "class Marker:\n    size = 1\n",
    "thread.py": """
import threading

def work():
    pass

def start():
    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
""",
}


def walk_shop(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    for name, text in FILES.items():
        path = folder / "shop" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    command = [sys.executable, str(ROOT / "tools" / "walk.py"), "--source", str(folder)]
    entry = ["--entry", "shop.main:main", "--run", "evaluate 'the log'"]
    return subprocess.run([*command, *entry, *options], capture_output=True, text=True, check=False)


def test_files_are_listed_in_order_and_imports_alone_do_not_count(tmp_path):
    done = walk_shop(tmp_path)
    assert done.returncode == 3, done.stderr  # that of the command
    assert done.stdout.splitlines() == [
        "   1  main.py",
        "   2  quiet.py",
        "   3  data.py",
        "   4  thread.py",
        f"4 files; 3 of them run a function ({N_FUNCTIONS} functions)",
    ]


def test_functions_are_listed_with_their_lines_also_those_of_threads(tmp_path):
    lines = walk_shop(tmp_path, "--functions").stdout.splitlines()
    names = [line.split()[-1] for line in lines[:-1]]
    assert [name for name in names if "<listcomp>" not in name] == ["main", "read", "start", "work"]
    assert "main.py:5" in lines[0]


def test_the_log_that_is_made_up_is_one_that_talerec_reads(tmp_path):
    write_log(tmp_path / "log.csv", n_users=5)
    log = talerec.read_log(tmp_path / "log.csv")
    assert len(log.users) == 5
    write_log(tmp_path / "again.csv", n_users=5)
    assert (tmp_path / "log.csv").read_text() == (tmp_path / "again.csv").read_text()


def test_an_evaluation_passes_few_files():
    command = [sys.executable, str(ROOT / "tools" / "walk.py"), "--source", str(ROOT / "src")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "  cli/main.py\n" in done.stdout
    files, _, rest = done.stdout.splitlines()[-1].partition(" files; ")
    assert int(files) <= 105
    assert int(rest.split()[0]) <= 85  # files in which a function runs


def test_a_request_is_walked_from_the_application_to_the_ranking():
    command = [sys.executable, str(ROOT / "tools" / "walk.py"), "--source", str(ROOT / "src")]
    options = ["--request", "/v1/recommend", "--functions"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    paths = [line.split()[1].partition(":")[0] for line in done.stdout.splitlines()[:-1]]
    rooms = [path.split("/")[0] for path in paths]
    assert rooms[0] == "serve"
    assert {"models", "ranking"} <= set(rooms)

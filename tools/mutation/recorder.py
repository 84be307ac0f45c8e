"""What a recording copy of a package calls first in each of its functions (see `calls`).

The process that runs pytest collects the functions of each test (see `plugin`). Other processes,
which tests start, append a JSON line to a file whenever they call a function for the first time.
"""

from __future__ import annotations

import json
import os

#: The environment variable with the path of the file of calls.
FILE = "MUTANTS_CALLS"

called: set[str] = set()
pytest_process = 0  # the id of the process that runs pytest; 0 in the processes of tests


def record_call(function: str) -> None:
    """Note that a function was called; `function` has the form `gram/pairs.py:tale_pairs`."""
    if function not in called:
        called.add(function)
        if os.getpid() != pytest_process:
            test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
            write_line({"test": test, "calls": [function]})


def write_line(line: dict[str, object]) -> None:
    """Append one JSON line to the file of calls; several processes may do so at a time."""
    if FILE in os.environ:
        with open(os.environ[FILE], "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

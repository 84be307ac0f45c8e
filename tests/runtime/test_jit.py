"""Compiled kernels: cached on disk while their sources are unchanged, and reported."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

import talerec
from talerec.runtime import Tick, jit, listening
from talerec.runtime.kernel_cache import KernelCache, fingerprint

SOURCE = str(Path(talerec.__file__).parents[1])

#: A package whose kernel contains a template, a kernel and a constant from files of other folders.
FILES = {
    "__init__.py": "",
    "low/__init__.py": "",
    "low/parts.py": (
        "from shop.low.numbers import BASE\n"
        "from talerec.runtime.jit import kernel, template\n"
        "@template\n"
        "def times(x):\n"
        "    return 2 * x\n"
        "@kernel\n"
        "def plus(x):\n"
        "    return x + BASE\n"
    ),
    "low/numbers.py": "BASE = 100\n",
    "high/__init__.py": "",
    "high/sums.py": (
        "from shop.low import parts\n"
        "from shop.low.parts import times\n"
        "from talerec.runtime.jit import kernel\n"
        "@kernel\n"
        "def total(x):\n"
        "    return parts.plus(times(x))\n"
    ),
}
RUN = """
import json
from shop.high.sums import total
value = total(5)
loaded = sum(total.stats.cache_hits.values())
print(json.dumps({"value": value, "loaded": loaded, "folder": total.stats.cache_path}))
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "shop" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "shop"


def run(shop: Path, **environment: str) -> dict[str, Any]:
    return json.loads(run_code(RUN, shop, **environment))


def run_code(code: str, shop: Path, **environment: str) -> str:
    paths = os.pathsep.join([str(shop.parent), SOURCE])
    expected = {n: value for n, value in os.environ.items() if n != "NUMBA_CACHE_DIR"}
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True,
        env={**expected, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", **environment},
    )  # fmt: skip
    return result.stdout


def edit(path: Path, old: str, new: str, moment: float) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    os.utime(path, (moment, moment))


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_kernel_is_recompiled_when_anything_in_it_changes(
    shop: Path, tmp_path: Path, elsewhere: bool
) -> None:
    """Also with times of files that go backwards, and with a cache in a folder of its own."""
    environment = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")} if elsewhere else {}

    def outcome() -> tuple[int, int]:
        result = run(shop, **environment)
        expected = tmp_path / "cache" if elsewhere else shop / "high" / "__pycache__"
        assert Path(result["folder"]).is_relative_to(expected)
        return result["value"], result["loaded"]

    assert outcome() == (110, 0)
    assert outcome() == (110, 1)
    edit(shop / "low" / "parts.py", "2 * x", "3 * x", moment=1e9)  # long before
    assert outcome() == (115, 0)
    edit(shop / "low" / "parts.py", "x + BASE", "x - BASE", moment=1e9)
    assert outcome() == (-85, 0)
    edit(shop / "low" / "numbers.py", "100", "10", moment=1e9)
    assert outcome() == (5, 0)
    assert outcome() == (5, 1)


def test_a_damaged_cache_is_rebuilt(shop: Path) -> None:
    assert run(shop)["loaded"] == 0
    for path in shop.rglob("*.nbc"):
        path.write_bytes(path.read_bytes()[:100])
    assert run(shop) | {"folder": ""} == {"value": 110, "loaded": 0, "folder": ""}
    for path in shop.rglob("*.nbi"):
        path.write_bytes(b"")
    assert run(shop)["value"] == 110
    assert run(shop)["loaded"] == 1


USE_BLAS = """
import sys, numba, numpy as np
from shop.high.sums import total
total(5)
print("numba.np.arraymath" in sys.modules, "scipy.linalg" in sys.modules)
rows = np.array([[1.0, 2.0, 4.0], [3.0, 5.0, 4.0]])
assert (numba.njit(lambda x: x @ x.T)(rows) == rows @ rows.T).all()
assert np.allclose(numba.njit(lambda x: np.cov(x))(rows), np.cov(rows))
"""


def test_a_cached_kernel_needs_no_scipy_and_functions_that_call_blas_compile_as_ever(
    shop: Path,
) -> None:
    run(shop)
    assert run_code(USE_BLAS, shop).split() == ["True", "False"]


def test_kernels_are_read_from_a_folder_that_cannot_be_written_to(
    shop: Path, tmp_path: Path
) -> None:
    """In an image, another user ran `talerec warm`. (Root may write anywhere: it fails here.)"""
    folder = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    assert run(shop, **folder)["loaded"] == 0
    (tmp_path / "sitecustomize.py").write_text(
        "import tempfile\n"
        "def refuse(*_, **__):\n    raise PermissionError\n"
        "tempfile.TemporaryFile = refuse\n"
    )
    assert run(shop, **folder)["loaded"] == 1


# -- fingerprints ----------------------------------------------------------------------------------

FACTOR = 2
TABLE = np.arange(3)


def _helper(x: int) -> int:
    return FACTOR * x + int(TABLE[0])


def _caller(x: int) -> int:
    return sum(_helper(part) for part in range(x))


@pytest.mark.parametrize(("name", "value"), [("FACTOR", 3), ("TABLE", np.arange(1, 4))])
def test_a_fingerprint_sees_constants_of_functions_that_are_reached(
    name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fingerprint(_caller)
    assert fingerprint(_caller) == before
    monkeypatch.setitem(globals(), name, value)
    assert fingerprint(_caller) != before


def test_a_fingerprint_sees_how_a_function_is_compiled() -> None:
    assert fingerprint(jit.template(_helper)) != fingerprint(jit.reduction(_helper))
    assert fingerprint(jit.template(_helper)) == fingerprint(jit.template(_helper))


def test_a_fingerprint_of_functions_that_call_each_other_ends() -> None:
    space: dict[str, Any] = {}
    exec(
        "def even(n): return n == 0 or odd(n - 1)\ndef odd(n): return n != 0 and even(n - 1)", space
    )
    assert fingerprint(space["even"]) != fingerprint(space["odd"])


def test_fingerprints_are_the_same_in_every_process() -> None:
    code = (
        "import sys, talerec as tr\n"
        "tr.Tempo, tr.STAN, tr.Markov, tr.FPMC, tr.SWalk, tr.synthetic_log\n"
        "from talerec.runtime.kernel_cache import KernelCache, fingerprint\n"
        "for name in sorted(sys.modules):\n"
        "    if name.startswith('talerec.'):\n"
        "        for part in vars(sys.modules[name]).values():\n"
        "            if isinstance(getattr(part, '_cache', None), KernelCache):\n"
        "                print(part.py_func.__qualname__, fingerprint(part))\n"
    )
    first, second = (
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": SOURCE, "PYTHONHASHSEED": seed},
        ).stdout.splitlines()
        for seed in ("1", "2")
    )  # fmt: skip
    assert len(first) > 40
    assert first == second


# -- templates -------------------------------------------------------------------------------------


@pytest.mark.parametrize("decorator", [jit.template, jit.reduction])
def test_a_template_can_be_called_from_python_too(decorator: Any) -> None:
    """Before and after it is part of a kernel, although it has no entry point for Python."""

    @decorator
    def inner(x: Any, pair: tuple[Any, Any]) -> Any:
        return x + pair[0] * pair[1]

    @jit.kernel
    def outer(x: int) -> Any:
        return inner(x, (2, 3))

    assert inner(1, (2, 3)) == 7
    assert outer(1) == 7
    assert inner(1, (2, 3)) == 7
    assert inner(0.5, (2, 3.0)) == 6.5
    assert outer(2) == 8


def test_a_template_takes_kernels_as_arguments_and_is_cached() -> None:
    @jit.kernel
    def double(x: int) -> int:
        return 2 * x

    @jit.template
    def twice(function: Any, x: int) -> Any:
        return function(function(x))

    @jit.kernel
    def outer(x: int) -> Any:
        return twice(double, x)

    assert outer(10) == 40
    assert double(10) == 20


@pytest.mark.parametrize("decorator", [jit.template, jit.reduction, jit.kernel])
def test_a_function_is_compiled_once_for_all_whole_numbers_of_its_callers(decorator: Any) -> None:
    """Constants, counters from 0, and int32 from an array: the results are Python's."""

    @decorator
    def inner(x: int, up: bool) -> int:
        return x + 1 if up else x - 1

    @jit.kernel
    def outer(values: Any) -> Any:
        total = 0
        for value in values:
            total = inner(total, True) + inner(value, False) + inner(np.int8(3), True)
        return total + inner(7, up=False)

    assert outer(np.array([5, 6], np.int32)) == 25
    assert len(inner.overloads) == 1
    assert outer(np.array([2**31 - 1], np.int32)) == 1 + 2**31 - 2 + 4 + 6


# -- where nothing can be kept ---------------------------------------------------------------------


def test_kernels_compile_in_memory_where_no_cache_can_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from numba.core import caching

    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])

    @jit.kernel
    def double(x: int) -> int:
        return 2 * x

    assert double(21) == 42
    assert double._cache.cache_path is None  # type: ignore[attr-defined]


def test_a_full_disk_while_a_kernel_is_cached_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba.core import caching

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(caching.FunctionCache, "save_overload", full)

    @jit.kernel
    def triple(x: int) -> int:
        return 3 * x

    assert triple(14) == 42


def test_an_unsupported_numba_compiles_in_memory_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from numba.core import caching, ccallback  # noqa: F401  (it takes the class by its name)

    monkeypatch.delattr(caching, "FunctionCache")

    @jit.kernel
    def partial(x: int) -> float:
        return x / 2

    assert partial(84) == 42
    assert "this version of Numba is not supported" in caplog.text


def test_kernels_are_cached_by_a_numba_with_the_former_class_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Numba 0.61, the lowest allowed, has the class with an underscore."""
    from numba.core import caching

    from talerec.runtime.kernel_cache import KernelCache

    name = "UserProvidedCacheLocator"
    old = not hasattr(caching, name)
    here, there = (f"_{name}", name) if old else (name, f"_{name}")
    monkeypatch.setattr(caching, there, getattr(caching, here), raising=False)
    monkeypatch.delattr(caching, here)

    @jit.kernel
    def fourfold(x: int) -> int:
        return 4 * x

    assert KernelCache(fourfold).cache_path is not None
    assert not caplog.text


def test_every_kernel_of_the_package_has_the_cache_that_sees_all_changes() -> None:
    from talerec.data import synthetic
    from talerec.gram import pairs

    for module in (pairs, synthetic):
        kernels = [value for value in vars(module).values() if hasattr(value, "py_func")]
        assert sum(isinstance(value._cache, KernelCache) for value in kernels) > 5


# -- what is compiled is reported ------------------------------------------------------------------


def _ours(function: Any) -> Any:
    """As if the function were written in the package."""
    function.__module__ = "talerec.test"
    return function


def _listener(heard: list[tuple[str, float]]) -> Any:
    def listener(name: str, total: float) -> Tick:
        heard.append((name, total))
        return lambda done: heard.append((f"{name} done", done))

    return listener


def test_compiling_is_a_stage_that_counts_kernels(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jit._listener, "total", jit.CompilationStats())
    inner = jit.template(_ours(lambda x: x + 1))
    first = numba.njit(_ours(lambda x: inner(x) * 2))
    second = numba.njit(_ours(lambda x: inner(x) * 3))
    foreign = numba.njit(lambda x: x * 5)
    heard: list[tuple[str, float]] = []
    with listening(_listener(heard)), caplog.at_level(logging.INFO, "talerec"):
        assert (first(1), first(2), second(1), foreign(1)) == (4, 6, 6, 5)
    assert heard == [("compile", 1.0), ("compile done", 1.0)] * 2
    assert caplog.messages == []
    total = jit.compilation_stats()
    assert total.kernels == 2
    assert total.seconds > 0


def test_without_a_listener_compiling_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jit._listener, "_is_logged", False)
    with caplog.at_level(logging.INFO, "talerec"):
        assert numba.njit(_ours(lambda x: x * 2))(1) == 2
        assert numba.njit(_ours(lambda x: x * 3))(1) == 3
    assert caplog.messages == ["compiling kernels, once"]

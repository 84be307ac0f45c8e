"""Imports point one way, heavy libraries stay out until they are needed, names are pinned."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import talerec

SOURCE = Path(talerec.__file__).parent

#: From the bottom up; a module imports only from layers below its own. The page in ARCHITECTURE.md says why.
LAYERS = [
    {"errors", "columns", "arrays", "progress", "jit", "clock", "markup", "scales", "repro"},
    {"memory", "threads", "times", "kernels", "files", "drawing"},
    {"tiles", "pairs", "charts", "page"},
    {"blas", "solve_torch"},
    {"log", "artifact", "local_kernels", "score_kernels"},
    {"readers", "histories", "grams", "habits", "synthetic"},
    {"prepare", "splits", "solve", "weights", "factors", "walks", "rank_kernels"},
    {"rank", "description", "nearest"},
    {"models.params"},
    {"models.base"},
    {"models.linear", "models.popular", "models.nearest", "models.fpmc"},
    {"models.tale", "models.slist", "models.ease", "models.rules", "models.tempo"},
    {"models.swalk"},
    {"models"},
    {"metrics", "significance", "repro.paper", "repro.measures", "parts"},
    {"evaluation", "tuning", "spark.sessions"},
    {"comparison", "spark.events"},
    {"spark.fitting", "spark.recommending"},
    {"spark"},
    {"show", "report", "repro.experiments"},
    {
        "repro.pages",
        "serve.settings",
        "serve.refusal",
        "serve.shapes",
        "serve.board",
        "serve.pages",
    },
    {"demo", "options", "serve.answers"},
    {"serve.reload", "serve.openapi"},
    {"serve.app"},
    {"serve.server"},
    {"serve"},
    {"commands.app"},
    {
        "commands.logs",
        "commands.fitting",
        "commands.asking",
        "commands.judging",
        "commands.serving",
    },
    {"commands"},
    {"cli"},
]
HEAVY = (
    "numba", "scipy", "pyarrow", "torch", "optuna", "pyspark", "polars", "numpy", "uvicorn", "msgspec",
)  # fmt: skip


def modules() -> dict[str, Path]:
    found = {}
    for path in SOURCE.rglob("*.py"):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    found.pop("__init__")
    return found


def imported(path: Path) -> set[str]:
    """Modules of the package that a file imports, wherever in the file it does."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("talerec"):
            base = node.module.removeprefix("talerec").lstrip(".")
            for alias in node.names:
                full = f"{base}.{alias.name}".lstrip(".")
                names.add(full if full in modules() else base)
    return names - {""}


def level(name: str) -> int:
    return next(place for place, layer in enumerate(LAYERS) if name in layer)


@pytest.mark.parametrize("name", sorted(modules()))
def test_a_module_imports_only_from_layers_below_it(name):
    for other in imported(modules()[name]):
        assert level(other) < level(name), f"{name} imports {other}"


@pytest.mark.parametrize(
    ("library", "home"),
    [
        ("torch", "solve_torch"),
        (
            "typer",
            "cli options commands.app commands.logs commands.fitting commands.asking commands.judging",
        ),
        ("optuna", "tuning"),
        ("uvicorn", "serve.server"),
        ("msgspec", "serve.shapes serve.refusal serve.answers serve.app serve.openapi"),
        ("pyspark", "spark.sessions spark.events spark.fitting spark.recommending"),
    ],
)
def test_a_special_library_is_imported_in_its_home_only(library, home):
    for name, path in modules().items():
        roots = {
            alias.name.split(".")[0]
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Import)
            for alias in node.names
        } | {
            (node.module or "").split(".")[0]
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom)
        }
        assert library not in roots or name in home.split(), f"{name} imports {library}"


def loaded_by(code: str) -> list[str]:
    program = f"{code}\nimport sys, json; print(json.dumps(sorted({{m.split('.')[0] for m in sys.modules}})))"
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return json.loads(out.stdout)


def test_import_talerec_loads_nothing_heavy():
    loaded = loaded_by("import talerec")
    assert not set(HEAVY) & set(loaded)


def test_the_command_line_starts_without_the_heavy_libraries():
    loaded = loaded_by("import talerec.cli")
    assert not set(HEAVY) & set(loaded)


def test_public_names_are_these_and_load():
    assert sorted(talerec.__all__) == sorted(
        [
            "Association", "EASE", "EDLAE", "Evaluation", "FPMC", "Gram", "Log", "MODELS", "Markov", "Model",
                "Popular", "RDLAE", "Rules", "SKNN", "SLIS", "SLIST", "SLIT", "STAN", "SWalk",
                "Split", "TALE", "TalerecError", "Tempo", "Trending", "__version__", "compare", "describe", "drop_duplicates",
                "evaluate", "evaluate_log", "k_core", "leave_one_out", "load", "load_result", "order_ties", "read_items", "read_log", "rolling",
                "slis_gram", "slit_gram", "split_at", "synthetic_log", "tale_gram", "tune",
            ]
    )  # fmt: skip
    for name in talerec.__all__:
        assert getattr(talerec, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = talerec.nothing  # type: ignore[attr-defined]


def test_a_function_stays_a_function_after_its_module_was_imported():
    code = "import talerec.evaluation, talerec.description, talerec as tr; assert callable(tr.evaluate) and callable(tr.describe)"
    loaded_by(code)


def test_kernels_compile_in_memory_where_no_cache_can_be_written(monkeypatch):
    import numba

    from talerec import jit

    real = numba.njit

    def no_cache(function, cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return real(function, **options)

    monkeypatch.setattr(jit.numba, "njit", no_cache)

    @jit.kernel
    def double(x):
        return 2 * x

    assert double(21) == 42


def test_kernels_older_than_the_templates_they_hold_are_dropped(tmp_path):
    from talerec import jit

    cache = tmp_path / "__pycache__"
    cache.mkdir()
    ages = {"jit.py": 50, "kernels.py": 20, "local_kernels.py": 40, "score_kernels.py": 30}
    for name, age in ages.items():
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    for name, age in (("rank.old.nbi", 25), ("rank.old.nbc", 25), ("rank.new.nbi", 10)):
        (cache / name).touch()
        os.utime(cache / name, (1000 - age, 1000 - age))
    jit._drop_stale(tmp_path)
    assert [path.name for path in cache.iterdir()] == ["rank.new.nbi"]

"""Imports point one way, heavy libraries stay out until they are needed, names are pinned."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

import talerec

SOURCE = Path(talerec.__file__).parent
ROOT = Path(__file__).parents[1]

#: From the bottom up; a room imports only from rooms below its own.
ROOMS: dict[str, list[str]] = tomllib.loads((ROOT / "tools" / "rooms.toml").read_text("utf-8"))[
    "rooms"
]
HEAVY = (
    "numba", "scipy", "pyarrow", "torch", "optuna", "pyspark", "polars", "numpy", "uvicorn",
    "msgspec",
)  # fmt: skip


@cache
def modules() -> dict[str, Path]:
    found = {}
    for path in SOURCE.rglob("*.py"):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    found.pop("__init__")
    return found


@cache
def imports(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """Every import of a file, wherever in the file it is."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def imported(path: Path) -> set[str]:
    """Modules of the package that a file imports, in whichever way."""
    names: set[str] = set()
    for node in imports(path):
        if isinstance(node, ast.Import):
            every = (alias.name for alias in node.names)
            names |= {
                name.removeprefix("talerec.") for name in every if name.startswith("talerec.")
            }
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "talerec":
            base = (node.module or "").removeprefix("talerec").lstrip(".")
            for alias in node.names:
                full = f"{base}.{alias.name}".lstrip(".")
                names.add(full if full in modules() else base)
    return names - {""}


def room_of(name: str) -> str:
    """The one room of a module."""
    found = [
        room for room, kinds in ROOMS.items() if any(fnmatchcase(name, kind) for kind in kinds)
    ]
    assert len(found) == 1, f"{name} is in {len(found)} rooms"
    return found[0]


def level(name: str) -> int:
    return list(ROOMS).index(room_of(name))


@pytest.mark.parametrize("name", sorted(modules()))
def test_a_module_imports_only_from_its_room_and_rooms_below(name):
    for other in imported(modules()[name]):
        assert level(other) <= level(name), f"{name} imports {other}"


def test_imports_are_seen_in_every_form_and_place(tmp_path):
    file = tmp_path / "one.py"
    file.write_text(
        "import talerec.cli.main\nfrom talerec.data import log\nfrom talerec.data.log import Log\n"
        "def f():\n    import talerec.serve.http.app as a\n    from talerec import artifact\n",
        encoding="utf-8",
    )
    assert imported(file) == {"cli.main", "data.log", "serve.http.app", "artifact"}


@pytest.mark.parametrize(
    ("library", "home"),
    [
        ("torch", "solvers.gpu neural.*"),
        ("typer", "cli.main cli.options cli.app cli.completion cli.logs"),
        ("rich", "cli.terminal cli.progress"),
        ("optuna", "evaluation.studies"),
        ("uvicorn", "serve.process.http_protocol serve.process.draining_server"),
        (
            "msgspec",
            "serve.schemas serve.errors serve.model.served serve.http.app serve.http.openapi"
            " serve.http.item_schemas serve.http.audience_schemas serve.named_lists",
        ),
        ("sqlite3", "data.read.databases"),
        ("duckdb", "data.read.databases"),
        ("psycopg", "data.read.databases"),
        (
            "pyspark",
            "spark.session spark.evaluate_job spark.read spark.files spark.fit_model spark.parts "
            "spark.histories spark.recommend_job spark.solve spark.tables spark.log_stats "
            "spark.errors spark.log_columns spark.fit_job",
        ),
    ],
)
def test_a_special_library_is_imported_in_its_home_only(library, home):
    for name, path in modules().items():
        roots = {
            alias.name.split(".")[0]
            for node in imports(path)
            if isinstance(node, ast.Import)
            for alias in node.names
        } | {
            (node.module or "").split(".")[0]
            for node in imports(path)
            if isinstance(node, ast.ImportFrom)
        }
        at_home = any(fnmatchcase(name, place) for place in home.split())
        assert library not in roots or at_home, f"{name} imports {library}"


def loaded_by(code: str) -> list[str]:
    names = "sorted({m.split('.')[0] for m in sys.modules})"
    program = f"{code}\nimport sys, json; print(json.dumps({names}))"
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return json.loads(out.stdout)


def test_import_talerec_loads_nothing_heavy():
    loaded = loaded_by("import talerec")
    assert not set(HEAVY) & set(loaded)


def test_the_command_line_starts_without_the_heavy_libraries():
    loaded = loaded_by("import talerec.cli.main")
    assert not set(HEAVY) & set(loaded)


def test_loading_a_model_imports_that_model_alone(tmp_path):
    path = talerec.Markov().fit(talerec.synthetic_log(500, seed=1)).save(tmp_path / "m.tale")
    code = (
        f"import sys, talerec; talerec.load({str(path)!r}); "
        "print(*(name for name in sys.modules if name.startswith('talerec.models.')))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    families = {name.split(".")[2] for name in run.stdout.split()}
    assert families == {"catalog", "core", "counting", "linear"}  # `Linear` is Markov's base
    assert "talerec.models.linear.tale" not in run.stdout.split()


def test_public_names_are_these_and_load():
    assert sorted(talerec.__all__) == sorted(
        [
            "Association", "Blend", "Content", "EASE", "EDLAE", "Evaluation", "FPMC", "Gram",
                "Histories", "InvalidLogError", "Log", "MODELS", "Markov", "Model",
                "NotFittedError", "Popular", "Query", "RDLAE", "Ranker", "Rules",
                "BERT4Rec", "BSARec", "DuoRec", "ESASRec", "FEARec",
                "GRU4Rec", "GSASRec", "HSTU", "LRURec", "LinRec", "SASRec", "TCPSRec", "TiCoSeRec",
                "TiSASRec", "SKNN", "SLIS", "SLIST", "SLIT", "STAN", "SWalk", "Split", "TALE",
                "TalerecError", "Tempo", "Trending", "UnknownIdError", "Weights", "__version__",
                "compare", "describe", "drop_duplicates", "evaluate", "evaluate_log",
                "evaluate_models", "k_core", "leave_one_out", "load", "order_ties", "read_items",
                "read_log", "rolling_split", "every_row_split", "join_baskets", "split_sessions",
                "BasketEvaluation", "LastBasket", "Personal", "TIFUKNN", "evaluate_baskets",
                "slis_gram", "slit_gram", "time_split", "synthetic_log", "synthetic_sessions",
                "tale_gram", "tune", "update",
            ]
    )  # fmt: skip
    for name in talerec.__all__:
        assert getattr(talerec, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = talerec.nothing  # type: ignore[attr-defined]


def test_the_page_of_the_package_names_every_public_name():
    words = set(re.findall(r"\w+", talerec.__doc__))
    assert set(talerec.__all__) - {"__version__"} <= words
    assert dir(talerec) == sorted(talerec.__all__)


@pytest.mark.parametrize("old", ["split_at", "rolling", "load_result"])
def test_a_name_that_was_to_go_with_this_version_is_gone(old):
    with pytest.raises(AttributeError, match=f"module 'talerec' has no attribute '{old}'"):
        getattr(talerec, old)


def test_a_function_stays_a_function_after_its_module_was_imported():
    code = (
        "import talerec.evaluation.evaluator, talerec.data.summary, talerec as tr; "
        "assert callable(tr.evaluate) and callable(tr.describe)"
    )
    loaded_by(code)

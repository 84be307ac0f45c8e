"""What the docs name in the code exists; what is no name of ours raises no alarm."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import docnames
from shape.names import Project

ROOT = Path(__file__).parents[2]

FILES = {
    "src/shop/__init__.py": "if TYPE_CHECKING:\n    from shop.data.log import Log as Log\n",
    "src/shop/data/__init__.py": "",
    "src/shop/data/log.py": (
        "import numpy as np\nimport torch\nSIZE = 1\n"
        "class Log:\n    rows: int\n    def __init__(self):\n        self.users = 1\n"
        "    def keep(self): ...\n"
        "class Timed(Log):\n    def ages(self): ...\n"
        "class FitCache:\n    def cached(self): ...\n"
    ),
    "src/shop/data/readers.py": (
        "from shop.data.log import Log\ndef read_log(): ...\ndef _scan(): ...\n"
    ),
    "src/shop/page.css": "",
    "tests/test_log.py": "import shop as sh\n",
    "docs/guide.md": "",
}


@pytest.fixture
def project(tmp_path) -> Project:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return Project(tmp_path)


@pytest.fixture(scope="module")
def ours() -> Project:
    return Project(ROOT)


def unknown(text: str, project: Project) -> list[tuple[int, str]]:
    references = docnames.references(text, project)
    return [(r.line, r.text) for r in references if not docnames.exists(r.text, project)]


@pytest.mark.parametrize(
    "name",
    [
        "log.SIZE",
        "data.log.SIZE",
        "shop.data.log",
        "readers._scan",
        "shop.Log",
        "sh.Log",
        "shop.data.readers.read_log",
        "Log.keep",
        "Log.rows",
        "Log.users",
        "log.keep",
        "log.Log.keep",
        "Timed.keep",
        "log.ages",
        "fit_cache.cached",
        "Log.keep(rows)",
        "log.py",
        "data/log.py",
        "src/shop/data/log.py",
        "data/log",
        "data/",
        "src/",
        "page.css",
        "docs/guide.md",
        "tests/test_log.py::test_one",
    ],
)
def test_what_exists_is_taken_for_a_reference_and_found(project, name):
    references = list(docnames.references(f"See `{name}`.", project))
    assert len(references) == 1
    assert docnames.exists(references[0].text, project)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("log.TALL", "log.TALL"),
        ("readers.Log", "readers.Log"),
        ("data.nothing", "data.nothing"),
        ("grams.tale_gram", "grams.tale_gram"),
        ("shop.readers", "shop.readers"),
        ("shop.Nothing", "shop.Nothing"),
        ("sh.nothing", "sh.nothing"),
        ("Log.ages", "Log.ages"),
        ("Log.gone", "Log.gone"),
        ("log.gone", "log.gone"),
        ("data.log.Log.gone", "data.log.Log.gone"),
        ("grams.py", "grams.py"),
        ("data/grams.py", "data/grams.py"),
        ("other/log.py", "other/log.py"),
        ("commands/", "commands/"),
        ("data/web", "data/web"),
        ("docs/other.md", "docs/other.md"),
        ("x = grams.slit_gram(log)", "grams.slit_gram"),
        ("tests/test_rank.py -k one", "tests/test_rank.py"),
    ],
)
def test_what_is_gone_is_named_with_its_line(project, name, said):
    assert unknown(f"One line.\n\nAnother, with `{name}`.\n", project) == [(3, said)]


@pytest.mark.parametrize(
    "text",
    [
        "ratings.dat",
        "u.data",
        "reviews_5.json.gz",
        "RESULTS.md",
        "results.html",
        "m.tale",
        ".inter",
        "--data shop.csv",
        "D/log.inter.gz",
        "torch.linalg.cholesky",
        "np.int64",
        "json.dumps(x)",
        "os.environ",
        '{"error": {"code": 1}}',
        "/v1/items",
        "/metrics",
        "shop-demo/",
        "shop-demo/out.tale",
        "NAME.tale/",
        "http://127.0.0.1:80/log.py",
        "spark.executor.memory=16g",
        "0.5",
        "v1.2",
        "x @ B",
        "1/32",
        "text/html",
        "data/ratings.csv",
        "*.py",
        "~/log.py",
        "read_log",
        "rows",
        "pip install '.[torch]'",
        "users/s",
        "HR@10/NDCG@10",
    ],
)
def test_what_is_no_name_of_ours_raises_no_alarm(project, text):
    assert unknown(f"See `{text}`.", project) == []


def test_blocks_of_code_are_asked_for_the_package_and_for_paths_alone(project):
    text = (
        "Text.\n\n    python tests/test_log.py shop.csv\n    python tests/gone.py\n\n"
        "```python\nfrom shop import Log, Gone\nfrom shop.data.log import FitCache\n"
        "log = sh.read(out.gone)\nmodel = grams.x\n```\n`log.gone`\n"
    )
    assert sorted(unknown(text, project)) == [
        (4, "tests/gone.py"),
        (7, "shop.Gone"),
        (9, "sh.read"),
        (12, "log.gone"),
    ]


def test_code_may_run_over_the_end_of_a_line_and_not_over_a_paragraph(project):
    assert unknown("see `log.SIZE\nlog.gone`, and `\n\nlog.other", project) == [(2, "log.gone")]


def test_the_command_says_where_a_name_is_now(project):
    guide = project.root / "docs" / "guide.md"
    guide.write_text("`rows.read_log` and `log.SIZE`\n", encoding="utf-8")
    (project.root / "CHANGELOG.md").write_text("`rows.read_log` was moved\n", encoding="utf-8")
    command = [sys.executable, str(ROOT / "tools" / "docnames.py"), str(project.root)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stdout.splitlines() == [
        "docs/guide.md:1: rows.read_log does not exist (read_log is in data.readers)",
        "names and paths in the docs: 2, unknown: 1",
    ]
    guide.write_text("`log.SIZE`\n", encoding="utf-8")
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (
        0,
        "names and paths in the docs: 1, unknown: none\n",
    )


@pytest.mark.parametrize("path", docnames.documents(ROOT), ids=lambda path: path.name)
def test_every_name_in_the_projects_own_docs_exists(path, ours):
    assert unknown(path.read_text(encoding="utf-8"), ours) == []

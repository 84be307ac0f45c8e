"""Figures of the pages that the code itself decides: limits, defaults, counts and sizes."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

import talerec as tr

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "talerec"

#: Page, a fragment of it, the module and the name that hold the figure, and its value.
LIMITS = [
    ("serving", "Responses from 4 kB on are", "serve.http.messages", "_MIN_GZIP", 4096),
    ("serving", "Bodies of more than 64 kB", "serve.http.routes", "_LARGE_BODY", 65_536),
    ("serving", "32 kB of headers", "serve.process.http_protocol", "_MAX_HEADERS", 32_768),
    ("serving", "`--hang-timeout` seconds (20)", "serve.settings", "Settings.hang_timeout", 20),
    ("serving", "`--start-timeout` seconds (900)", "serve.settings", "Settings.start_timeout", 900),
    ("serving", "the last 64 conditions", "serve.model.queries", "_MAX_CACHED", 64),
    ("data", "at most 2,000 characters", "models.core.conditions", "MAX_CONDITION", 2_000),
    ("data", "2,000 characters, 64 tests", "models.core.conditions", "_MAX_TESTS", 64),
    ("data", "32 brackets and `not`", "models.core.conditions", "_MAX_DEPTH", 32),
    ("data", "16 uses of `like` and `has`", "models.core.conditions", "_MAX_SEARCHES", 16),
    ("data", "with 32 `%`", "models.core.conditions", "_MAX_ANY_TEXTS", 32),
    ("data", "and 8 `_` in all", "models.core.conditions", "_MAX_ANY_CHARACTERS", 8),
    ("serving", "(`--max-body`, 1 MB:", "serve.settings", "Settings.max_body", 1_000_000),
    ("serving", "responses occupy 64 MB", "serve.settings", "Settings.max_unread", 64_000_000),
    ("serving", "(10,000 at most,", "serve.settings", "Settings.max_events", 10_000),
    ("serving", "While more than 20,000 events", "store.writer", "_QUEUE_EVENTS", 20_000),
    ("serving", "Ids have at most 500 characters", "store.ids", "MAX_ID", 500),
    ("serving", "beyond 50,000 events it", "serve.online.evaluation", "MAX_BEHIND", 50_000),
    ("serving", "(on another machine after 15)", "serve.online.evaluation", "LEASE_S", 15),
    ("serving", "poll the store five times a second", "store.tail", "_POLL_S", 1 / 5),
    ("evaluation", "more than 5 % of consecutive events", "data.summary", "_MANY_TIES", 0.05),
    ("tempo", "If fewer than 1 % of the", "models.tempo.log_statistics", "_MIN_REPEAT_SHARE", 0.01),
    ("tempo", "at least 95 % of the", "models.tempo.tie_order", "_SORTED_SHARE", 0.95),
    ("tempo", "by 5 % of all steps", "models.tempo.tie_order", "_MIN_DRIFT", 0.05),
    ("tempo", "and by five standard errors", "models.tempo.tie_order", "_MIN_Z", 5),
    ("tempo", "more than one standard error. `talerec", "models.tempo.learning", "_MIN_TIE_Z", 1),
    ("tempo", "at least one held-out query in ten", "models.tempo.learning", "_MIN_TIES", 0.1),
    ("tempo", "together by 1.9 standard errors", "models.tempo.learning", "_MIN_Z", 1.9),
    ("tempo", "gain 2.9 standard errors", "models.tempo.learning", "_MIN_TOTAL_Z", 2.9),
    ("neural", "an epoch has 16 steps", "neural.settings", "_STEPS", 16),
    ("neural", "every 20 seconds, atomically", "neural.training", "_EVERY", 20),
    ("nightly", "more than `--tolerance` (0.2)", "models.updates", "TOLERANCE", 0.2),
    ("models", "with more than 10 million pairs in K", "solvers.local", "_FEW", 10_000_000),
    ("models", "three times `neighbors` sources", "solvers.local", "_OUTSIDE", 3),
    ("models", "`exact` up to 4,000 items", "solvers.solver", "_EXACT_UP_TO", 4_000),
    ("models", "more than a quarter of the Gram", "solvers.solver", "_DENSE", 0.25),
    ("models", "below a thousandth of the mean", "solvers.solver", "_FAINT", 1e-3),
    ("models", "no more than 25,000 items", "solvers.solver", "_FAINT_UP_TO", 25_000),
    ("scale", "needs at most 65,536 entries", "solvers.sources", "_WORK", 65_536),
    ("quickstart", "the last `max_history` (2,500)", "models.linear", "TALE.max_history", 2_500),
]


def find_value(module: str, name: str) -> Any:
    """Return a value by module (below talerec) and dotted name; skip if an extra is missing."""
    try:
        value: Any = importlib.import_module(f"talerec.{module}")
    except ModuleNotFoundError as error:
        pytest.skip(f"needs {error.name}: EXTRAS=all make test")
    for part in name.split("."):
        value = getattr(value, part)
    return value


@pytest.mark.parametrize(("page", "text", "module", "name", "value"), LIMITS, ids=lambda x: str(x))
def test_a_limit_on_a_page_is_the_one_in_the_code(
    page: str, text: str, module: str, name: str, value: float
) -> None:
    written = " ".join((ROOT / "docs" / f"{page}.md").read_text("utf-8").split())
    assert text in written, f"docs/{page}.md no longer says {text!r}: adapt LIMITS"
    assert find_value(module, name) == value


def test_the_numbers_of_models_on_the_pages_are_those_of_the_catalogue() -> None:
    assert len(tr.MODELS) == 37
    assert sum(kind.extra == "torch" for kind in tr.MODELS.values()) == 14
    readme, index = ((ROOT / page).read_text("utf-8") for page in ("README.md", "docs/index.md"))
    assert "all 37 models" in readme
    assert "fourteen [neural models]" in readme
    assert "37 models" in index


def test_sizes_of_custom_code_are_right_within_a_tenth() -> None:
    """The column of lines in docs/by-hand.md against the files that its first column names."""
    page = (ROOT / "docs" / "by-hand.md").read_text("utf-8")
    rows = re.findall(r"^\| (?P<part>[^|]*`) ?\)? ?[^|]*\| (?P<lines>[\d,]+) \|", page, re.M)
    assert len(rows) == 4
    for part, lines in rows:
        paths = [SRC / name for name in re.findall(r"`([^`]+)`", part)]
        files = [file for path in paths for file in ([path] if path.suffix else path.glob("*.py"))]
        length = sum(len(file.read_text("utf-8").splitlines()) for file in files)
        assert int(lines.replace(",", "")) == pytest.approx(length, rel=0.1), part


def test_networks_within_a_tenth_of_the_paper_are_counted_right() -> None:
    """Twenty-two of twenty-seven values in docs/neural.md, SASRec by its better row."""
    page = (ROOT / "docs" / "neural.md").read_text("utf-8")
    row = r"^\| (Beauty|ML-1M|Yelp) \| (\w+)[^|]*\| (?:NDCG@5 )?(\.\d+) \| (\.\d+) \| [-+]\d+% \|"
    ratios: dict[tuple[str, str], float] = {}
    for data, model, paper, ours in re.findall(row, page, re.M):
        ratio = float(ours) / float(paper)
        ratios[data, model] = max(ratio, ratios.get((data, model), 0.0))
    assert len(ratios) == 27
    assert sum(ratio >= 0.9 for ratio in ratios.values()) == 22
    assert "Of twenty-seven values (SASRec by its better row), twenty-two are" in page

#!/usr/bin/env python3
"""Check that the tree can be released: `make release-check`.

    python tools/release.py                 # build, check the files, run the wheel, list parts
    python tools/release.py --tag v0.3.0    # only check that the tag names this version

Wheel and sdist are built into build/release/dist; build/release/parts.json is a CycloneDX list of
the installed packages, and licences.json has the licence of each. Licences that require more than a
notice are printed for a person to decide. Every extra is installed alone and does its job
(tools/extras.py), which takes pip's index, and Java for Spark; all else needs no network.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import extras

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "release"

#: What a wheel has to hold besides modules, and what it must not hold.
_IN_WHEEL = (
    "talerec/py.typed",
    "talerec/data/catalogue.toml",
    "talerec/reports/page.css",
    "talerec/repro/paper.toml",
    "licenses/LICENSE",
)
_NOT_IN_WHEEL = ("tests/", "benchmarks/", "docs/", "tools/", ".nbi", ".nbc", "__pycache__")
_IN_SDIST = (
    "pyproject.toml",
    "LICENSE",
    "README.md",
    "CHANGELOG.md",
    "src/talerec/__init__.py",
    "tests/test_contract.py",
)
#: Licences that ask for more than that their text is kept.
_STRICT = re.compile(
    r"\bA?GPL|General Public License(?! \(LGPL\))|\bLGPL|Proprietary|UNKNOWN", re.I
)


def main() -> None:
    """Run the checks, print the problems, and exit with 1 if there are any."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tag", help="the tag that names the release")
    options = parser.parse_args()
    if options.tag is not None:
        problems = list(check_tag(options.tag))
    else:
        problems = [*check_versions(), *build_files(), *try_wheel(), *list_parts()]
        wheel = next((OUT / "dist").glob("*.whl"))
        problems += extras.try_extras(list(extras.JOBS), OUT / "extras", wheel)
    for problem in problems:
        print(f"release: {problem}", file=sys.stderr)
    print(f"release {version()}: " + (f"{len(problems)} problems" if problems else "ready"))
    sys.exit(bool(problems))


def check_tag(tag: str) -> Iterator[str]:
    """Yield a problem if a tag does not name this version."""
    if tag != f"v{version()}":
        yield f"the tag is {tag}, the version {version()}"


def version() -> str:
    """Return the version of the package."""
    text = (ROOT / "src/talerec/__init__.py").read_text("utf-8")
    match = re.search(r'^__version__ = "(.+)"$', text, re.M)
    assert match is not None
    return match[1]


def check_versions() -> Iterator[str]:
    """Yield a problem for each file that names another version than the package."""
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.M)
    if cited is None or cited[1] != version():
        yield f"CITATION.cff does not name version {version()}"
    if f"\n## {version()}" not in (ROOT / "CHANGELOG.md").read_text("utf-8"):
        yield f"CHANGELOG.md has no section {version()}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lowest = (ROOT / "constraints-lowest.txt").read_text("utf-8")
    for requirement in project["dependencies"]:
        name, least = requirement.split(";")[0].split(">=")
        if not re.search(rf"^{re.escape(name)}=={re.escape(least.strip())}(\.0)*\b", lowest, re.M):
            yield f"constraints-lowest.txt has another lowest version of {name} than {least}"


def run(*command: str, env: dict[str, str] | None = None) -> str:
    """Return the output of a command; exit with its messages if it fails."""
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **(env or {})}, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"release: {' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def build_files() -> Iterator[str]:
    """Build wheel and sdist; yield a problem for each missing or unwanted file in them."""
    for old in (OUT / "dist").glob("*"):
        old.unlink()
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(OUT / "dist"))
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, (OUT / "dist").iterdir()))
    with zipfile.ZipFile(next((OUT / "dist").glob("*.whl"))) as wheel:
        names = wheel.namelist()
    yield from (
        f"the wheel lacks {name}" for name in _IN_WHEEL if not any(n.endswith(name) for n in names)
    )
    yield from (f"the wheel holds {n}" for n in names for bad in _NOT_IN_WHEEL if bad in n)
    with tarfile.open(next((OUT / "dist").glob("*.tar.gz"))) as sdist:
        names = sdist.getnames()
    yield from (
        f"the sdist lacks {name}"
        for name in _IN_SDIST
        if not any(n.endswith(f"/{name}") for n in names)
    )


def try_wheel() -> Iterator[str]:
    """Install the wheel into a folder and run its demo; yield what does not work."""
    target, wheel = OUT / "installed", next((OUT / "dist").glob("*.whl"))
    run(
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--upgrade",
        "--target",
        str(target),
        str(wheel),
    )
    env = {"PYTHONPATH": str(target)}
    code = "import talerec; print(talerec.__file__)"
    if not run(sys.executable, "-c", code, env=env).startswith(str(target)):
        yield "the installed wheel is not what is imported"
    output = run(sys.executable, "-m", "talerec", "demo", "-o", str(OUT / "demo"), env=env)
    if "with your own log" not in output:
        yield "the demo of the installed wheel did not come to its end"


def list_parts() -> Iterator[str]:
    """Write the installed packages and licences; yield dependencies with strict licences."""
    at = str(OUT / "parts.json")
    run(
        sys.executable,
        "-m",
        "cyclonedx_py",
        "environment",
        "--output-reproducible",
        "-o",
        at,
        sys.executable,
    )
    licences = run(sys.executable, "-m", "piplicenses", "--format=json", "--from=mixed")
    (OUT / "licences.json").write_text(licences, "utf-8")
    strict = {
        part["Name"]: part["License"]
        for part in json.loads(licences)
        if _STRICT.search(part["License"])
    }
    for name, licence in sorted(strict.items()):
        print(f"look at the licence of {name}: {licence.splitlines()[0]}")
    yield from (
        f"talerec itself needs {n}, whose licence is {strict[n]}"
        for n in dependency_names() & set(strict)
    )


def dependency_names() -> set[str]:
    """Return the names of the packages that `pip install talerec` requires."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return {re.split(r"[<>=;\[ ]", requirement)[0] for requirement in project["dependencies"]}


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Is the tree ready to be released? Everything about that which needs no network: `make release-check`.

    python tools/release.py                 # build, look into what was built, run it, list its parts
    python tools/release.py --tag v0.2.0    # only: does the tag name this version?

Wheel and sdist are built into build/release/dist; build/release/parts.json is a CycloneDX list of what is installed here, and
licences.json the licence of each. A licence that asks for more than a notice is named, so that somebody decides.
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

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "release"

#: What a wheel has to hold besides modules, and what it must not hold.
_IN_WHEEL = (
    "talerec/py.typed",
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tag", help="the tag that names the release")
    options = parser.parse_args()
    if options.tag is not None:
        found = (
            []
            if options.tag == f"v{version()}"
            else [f"the tag is {options.tag}, the version {version()}"]
        )
    else:
        found = [*said_alike(), *built(), *ran(), *parts()]
    for problem in found:
        print(f"release: {problem}", file=sys.stderr)
    print(f"release {version()}: " + (f"{len(found)} problems" if found else "ready"))
    sys.exit(bool(found))


def version() -> str:
    """The version that the package says."""
    text = (ROOT / "src/talerec/__init__.py").read_text("utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.M)
    assert found is not None
    return found[1]


def said_alike() -> Iterator[str]:
    """Does everything that names the version name the same?"""
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.M)
    if cited is None or cited[1] != version():
        yield f"CITATION.cff does not name version {version()}"
    if f"\n## {version()}" not in (ROOT / "CHANGELOG.md").read_text("utf-8"):
        yield f"CHANGELOG.md has no section {version()}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lowest = (ROOT / "constraints-lowest.txt").read_text("utf-8")
    for one in project["dependencies"]:
        name, least = one.split(";")[0].split(">=")
        if not re.search(rf"^{re.escape(name)}=={re.escape(least.strip())}(\.0)*\b", lowest, re.M):
            yield f"constraints-lowest.txt has another lowest version of {name} than {least}"


def run(*command: str, env: dict[str, str] | None = None) -> str:
    """What a command printed; its own words where it fails."""
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **(env or {})}, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"release: {' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def built() -> Iterator[str]:
    """Build wheel and sdist, and look at what is in them."""
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


def ran() -> Iterator[str]:
    """Install the wheel beside everything, and see it work."""
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
    said = run(sys.executable, "-m", "talerec", "demo", "-o", str(OUT / "demo"), env=env)
    if "with a log of your own" not in said:
        yield "the demo of the installed wheel did not come to its end"


def parts() -> Iterator[str]:
    """List what is installed, and the licence of each part."""
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
    told = run(sys.executable, "-m", "piplicenses", "--format=json", "--from=mixed")
    (OUT / "licences.json").write_text(told, "utf-8")
    strict = {
        one["Name"]: one["License"] for one in json.loads(told) if _STRICT.search(one["License"])
    }
    for name, licence in sorted(strict.items()):
        print(f"look at the licence of {name}: {licence.splitlines()[0]}")
    yield from (
        f"talerec itself needs {n}, whose licence is {strict[n]}" for n in needed() & set(strict)
    )


def needed() -> set[str]:
    """The names of what `pip install talerec` asks for by itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return {re.split(r"[<>=;\[ ]", one)[0] for one in project["dependencies"]}


if __name__ == "__main__":
    main()

"""No file leads to code: an artifact's model is looked up by name, and nothing is unpickled."""

from __future__ import annotations

import ast
import hashlib
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import talerec as tr
from bundles import edit_manifest, manifest_of, tiny_log
from command import PYTHONPATH, refusal, talerec, works, write_log
from talerec.models.core.registry import REGISTRY
from waiting import LONG_S

EVIL = "import pathlib\npathlib.Path(__file__).with_name('TRACE').touch()\nclass Kind: pass\n"
SOURCE = Path(tr.__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": PYTHONPATH}

MODULE = '''
from dataclasses import dataclass
from typing import ClassVar
import numpy as np
import talerec as tr
from talerec.models.linear import Linear

@dataclass(eq=False, kw_only=True)
class Mirror(Linear):
    """Every item after the item at the other end."""
    name: ClassVar[str] = "{name}"
    def learn_weights(self, log, clock):
        return tr.Weights(np.eye(len(log.items), dtype=np.float32)[::-1].copy()), None
'''


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An artifact whose manifest names a class of evil.py, in the current directory with it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text(EVIL)
    path = tr.Popular().fit(tiny_log()).save(tmp_path / "evil.tale")
    edit_manifest(path, lambda manifest: manifest.update(model="evil:Kind"))
    yield path
    assert not (tmp_path / "TRACE").exists(), "the module was imported"
    assert "evil" not in sys.modules


QUERIES = {
    "verify": ("verify", "evil.tale"),
    "recommend": ("recommend", "evil.tale", "--history", "i1"),
    "similar": ("similar", "evil.tale", "i1"),
    "explain": ("explain", "evil.tale", "--item", "i1", "--history", "i2"),
    "lists": ("lists", "evil.tale", "log.csv", "-o", "lists.csv"),
    "install": ("install", "evil.tale", "shop.tale"),
}


@pytest.mark.parametrize("arguments", QUERIES.values(), ids=QUERIES)
def test_no_command_imports_what_an_artifact_names(evil: Path, arguments: tuple[str, ...]) -> None:
    write_log(evil.with_name("log.csv"))
    message = refusal(*arguments)
    assert "holds a model 'evil:Kind', which this version does not have" in message
    assert "TALEREC_MODELS=module:Class" in message


def test_an_update_does_not_import_what_an_artifact_names(evil: Path) -> None:
    write_log(evil.with_name("log.csv"))
    edit_manifest(evil, lambda manifest: manifest["training"].update(updatable=True))
    assert "holds a model 'evil:Kind'" in refusal("update", evil, "log.csv")


@pytest.mark.parametrize("name", ["evil:Kind", "evil", "os:system", ":", "evil:", "evil.Kind"])
def test_loading_looks_names_up(evil: Path, name: str) -> None:
    edit_manifest(evil, lambda manifest: manifest.update(model=name))
    for options in ({}, {"verify": True}):
        with pytest.raises(tr.TalerecError, match="which this version does not have"):
            tr.load(evil, **options)


def test_the_service_does_not_start_with_such_an_artifact(evil: Path) -> None:
    pytest.importorskip("uvicorn", reason="needs the extra serve")
    code = "import sys; from talerec.cli.main import main; main()"
    run = subprocess.run(
        [sys.executable, "-c", code, "serve", str(evil), "--port", "0"],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=LONG_S,
    )  # fmt: skip
    assert run.returncode == 2, run
    assert "holds a model 'evil:Kind'" in run.stderr


def test_spark_does_not_import_what_an_artifact_names(evil: Path) -> None:
    pytest.importorskip("pyspark", reason="needs the extra spark")
    from talerec.spark import recommend_job

    with pytest.raises(tr.TalerecError, match="holds a model 'evil:Kind'"):
        recommend_job._load_model(str(evil), None, None)  # type: ignore[arg-type]


def test_a_file_of_parameters_names_models_that_are_there(evil: Path) -> None:
    log = write_log(evil.with_name("log.csv"))
    Path("best.json").write_text('{"model": "evil:Kind", "params": {}}')
    assert "there is no model 'evil:Kind'" in refusal("evaluate", log, "--params", "best.json")


def test_a_saved_evaluation_names_models_that_are_there(evil: Path) -> None:
    split = tr.leave_one_out(tiny_log())
    result = tr.evaluate(tr.Popular().fit(split.train), split)
    loaded = tr.Evaluation.load(replace(result, model="evil:Kind").save("evil.parquet"))
    assert loaded.to_dict()["model"] == "evil:Kind"


def test_a_blend_names_models_of_the_library(evil: Path) -> None:
    path = tr.Blend(parts="popular", weights_of_parts="1").fit(tiny_log()).save("blend.tale")
    edit_manifest(path, lambda manifest: manifest["params"].update(parts="evil:Kind"))
    with pytest.raises(tr.TalerecError, match="cannot be used: parts is 'evil:Kind'"):
        tr.load(path)


# -- how third-party models are found --------------------------------------------------------------


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The module of a third-party model, in the current directory and not imported any more."""
    name = f"mirror_{abs(hash(request.node.name))}"
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{name}.py").write_text(MODULE.format(name=name))
    log = write_log(tmp_path / "log.csv")
    works("fit", log, "-o", "mirror.tale", "--model", f"{name}:Mirror")
    assert manifest_of(Path("mirror.tale"))["model"] == name
    del sys.modules[name], REGISTRY[name]
    assert "which this version does not have" in refusal("verify", "mirror.tale")
    assert name not in sys.modules
    return name


@pytest.mark.parametrize("spelling", ["{0}", "{0}:Mirror", " {0}:Mirror , json"])
def test_models_of_the_environment_variable(
    mirror: str, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    monkeypatch.setenv("TALEREC_MODELS", spelling.format(mirror))
    works("verify", "mirror.tale")
    assert mirror in works("models")


def test_models_of_an_entry_point(
    mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed package offers a model under the model's name."""
    package = tmp_path / "site" / "mirrors-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: mirrors\nVersion: 1.0\n")
    points = f"[talerec.models]\n{mirror} = {mirror}:Mirror\nbroken = nowhere_at_all:Kind\n"
    (package / "entry_points.txt").write_text(points)
    (tmp_path / f"{mirror}.py").rename(tmp_path / "site" / f"{mirror}.py")
    assert "which this version does not have" in refusal("verify", "mirror.tale")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    works("verify", "mirror.tale")
    assert tr.load("mirror.tale").name == mirror
    edit_manifest(Path("mirror.tale"), lambda manifest: manifest.update(model="broken"))
    message = "the model 'broken' of an installed package cannot be imported (nowhere_at_all:Kind)"
    assert message in refusal("verify", "mirror.tale")
    assert "'broken' of an installed package" in talerec("models").err


def test_an_entry_point_in_the_current_directory_is_not_installed(mirror: str) -> None:
    package = Path("mirrors-1.0.dist-info")
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: mirrors\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[talerec.models]\n{mirror} = {mirror}:Mirror\n")
    command = Path(sys.executable).with_name("talerec")
    if not command.exists():
        pytest.skip("the command is not installed")
    run = subprocess.run(
        [str(command), "verify", "mirror.tale"],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=LONG_S,
    )  # fmt: skip
    assert run.returncode == 2
    assert "which this version does not have" in run.stderr


def test_a_model_that_the_caller_names_and_parameters_of_a_file(mirror: str) -> None:
    Path("best.json").write_text(f'{{"model": "{mirror}", "params": {{"recency": 2.0}}}}')
    assert f"there is no model '{mirror}'" in refusal(
        "evaluate", "log.csv", "--params", "best.json"
    )
    works("evaluate", "log.csv", "--params", "best.json", "--model", f"{mirror}:Mirror")


# -- pickles ---------------------------------------------------------------------------------------


class Bomb:
    def __reduce__(self):
        return (os.mkdir, ("TRACE",))


def test_an_array_of_objects_is_not_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tr.Popular().fit(tiny_log()).save("m.tale")
    name, entry = next((n, e) for n, e in manifest_of(path)["files"].items() if "dtype" in e)
    np.save(path / "bomb.npy", np.array([Bomb()] * 12, object), allow_pickle=True)
    content = (path / "bomb.npy").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    file = f"{name}-{digest[:16]}.npy"
    (path / "bomb.npy").rename(path / file)
    for dtype in ("|O", "O", entry["dtype"]):
        new = {"file": file, "bytes": len(content), "sha256": digest, "dtype": dtype, "shape": [12]}
        edit_manifest(path, lambda manifest, new=new: manifest["files"].update({name: new}))
        for verify in (False, True):
            with suppress(tr.TalerecError):  # bytes of a pickle can be numbers, too
                tr.load(path, verify=verify)
    assert not Path("TRACE").exists()
    pickle.loads(pickle.dumps(Bomb()))  # the bomb is a live one
    assert Path("TRACE").exists()


def test_a_training_with_objects_is_not_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="needs the extra torch")
    from talerec.neural import checkpoints

    monkeypatch.chdir(tmp_path)
    np.savez("bomb.npz", about=np.array([Bomb()], object), allow_pickle=True)
    with pytest.raises(tr.TalerecError, match="is not a readable training"):
        checkpoints.read(Path("bomb.npz"))
    assert not Path("TRACE").exists()


CODE_FROM_DATA = {
    "pickle",
    "cPickle",
    "marshal",
    "shelve",
    "dill",
    "joblib",
    "cloudpickle",
    "runpy",
}


def test_the_source_has_nothing_that_turns_data_into_code() -> None:
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: set[str] = set()
            if isinstance(node, ast.Import):
                names = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {(node.module or "").split(".")[0]}
            assert not names & CODE_FROM_DATA, f"{path}:{node.lineno}"
            if isinstance(node, ast.Call):
                text = ast.unparse(node.func)
                assert text not in ("eval", "exec", "compile", "__import__", "torch.load"), path
                flags = {key.arg: ast.unparse(key.value) for key in node.keywords}
                assert flags.get("allow_pickle", "False") == "False", f"{path}:{node.lineno}"


AUDIT = """
import os, sys
import polars, numpy, pyarrow.parquet, talerec as tr
tr.load(sys.argv[1], verify=True)  # imports what it needs
events = []
def record(event, args):
    if event in ("pickle.find_class", "marshal.loads", "exec", "import", "os.system",
                 "subprocess.Popen", "os.exec", "os.posix_spawn", "ctypes.dlopen"):
        events.append((event, str(args)[:200]))
sys.addaudithook(record)
for path in sys.argv[2:]:
    try:
        tr.load(path, verify=True)
    except tr.TalerecError:
        pass
events = [pair for pair in events if pair[0] != "import" or "talerec" not in pair[1]]
print(events)
"""


def test_loading_a_hostile_artifact_runs_nothing(evil: Path) -> None:
    """Python itself reports every import, execution and unpickling: there is none."""
    whole = tr.Popular().fit(tiny_log()).save("whole.tale")
    run = subprocess.run(
        [sys.executable, "-c", AUDIT, str(whole), str(evil), str(whole)],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=LONG_S,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"

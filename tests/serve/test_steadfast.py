"""A service stays up: partial deployments, broken models, slow clients, killed parents."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import talerec as tr
from talerec.artifact import Bundle, read_artifact, read_manifest, write_artifact

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from processes import is_running, workers_of
from service import START, Local, Remote
from talerec.serve import SharedState
from talerec.serve.model import copies
from waiting import LONG_S, until

TOKEN = "a-token-for-tests-alone"
ASK = {"history": [{"item_id": 3}, {"item_id": 5}], "k": 5}
proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")


@pytest.fixture(scope="module")
def models(log, tmp_path_factory) -> list[Path]:
    """Two models of one log: some of their files are the same, under the same names."""
    folder = tmp_path_factory.mktemp("models")
    return [tr.TALE(reg=reg).fit(log).save(folder / f"{reg}.tale") for reg in (20, 500)]


@pytest.fixture
def path(models, tmp_path) -> Path:
    return shutil.copytree(models[0], tmp_path / "shop.tale")


def version(path: Path) -> str:
    return str(read_manifest(path)["version"])


# -- models deployed by copying --------------------------------------------------------------------


def served_by(local: Local) -> str:
    return str(local.post("/v1/recommend", ASK).json["model"])


@pytest.mark.parametrize("first", ["manifest.json", "data"])
def test_a_model_copied_file_by_file_is_served_once_complete(models, path, tmp_path, first):
    """Each partial copy is refused; the complete one is served."""
    local = Local(path, tmp_path / "run")
    holder, before = local.app.holder, version(path)
    rank = {"manifest.json": 0 if first == "manifest.json" else 2}
    files = sorted(
        models[1].iterdir(), key=lambda file: rank.get(file.name, "weights" in file.name)
    )
    for file in files:
        assert served_by(local) == before
        shutil.copyfile(file, path / file.name)
        holder._refresh_if_changed(force=False)
    assert served_by(local) == version(models[1]) != before


def test_a_refused_model_is_reported_once_and_only_if_it_stays_refused(
    models, path, tmp_path, caplog
):
    local = Local(path, tmp_path / "run")
    holder = local.app.holder
    shutil.copyfile(models[1] / "manifest.json", path / "manifest.json")
    holder._refresh_if_changed(force=False)
    assert "refused" not in caplog.text  # it may be on its way
    for _ in range(3):
        holder._refresh_if_changed(force=False)
    assert caplog.text.count("is refused") == 1
    assert "talerec_reloads_refused_total 1\n" in local.get("/metrics").body.decode()
    for file in models[1].iterdir():
        shutil.copyfile(file, path / file.name)
    holder._refresh_if_changed(force=False)
    assert served_by(local) == version(models[1])


def test_a_temporary_obstacle_delays_a_model(models, path, tmp_path, monkeypatch):
    """After a full disk, say, unchanged files are tried again."""
    local = Local(path, tmp_path / "run")
    holder = local.app.holder
    for file in models[1].iterdir():
        shutil.copyfile(file, path / file.name)
    with monkeypatch.context() as patch:
        patch.setattr(
            copies, "copy_file", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left"))
        )
        holder._refresh_if_changed(force=False)
    assert served_by(local) != version(models[1])
    monkeypatch.setattr(holder._failure, "retry_at", 0.0)
    holder._refresh_if_changed(force=False)
    assert served_by(local) == version(models[1])


def test_truncated_files_do_not_crash_the_service(models, path, tmp_path):
    """`cp` over a live artifact truncates its files; reading a mapped one then kills."""
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from pathlib import Path
from service import Local
path = Path({str(path)!r})
local = Local(path, Path({str(tmp_path / "run")!r}))
before = local.post("/v1/recommend", {ASK!r}).body
for file in path.iterdir():
    file.open("r+b").truncate(0)
assert local.post("/v1/recommend", {ASK!r}).body == before
assert local.post("/v1/similar", {{"item_id": 3}}).status == 200
print("served on")
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout == "served on\n", (ran.returncode, ran.stderr[-2000:])


def test_without_disk_space_for_a_copy_the_file_itself_is_served(tmp_path, monkeypatch, caplog):
    (tmp_path / "a").write_bytes(b"content")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(copies.shutil, "copyfileobj", full)
    monkeypatch.setattr(copies.fcntl, "ioctl", full)
    copies.copy_file(tmp_path / "a", tmp_path / "b")
    assert os.path.samefile(tmp_path / "a", tmp_path / "b")
    assert "no room for a copy" in caplog.text


def test_old_copies_are_removed_and_a_new_worker_serves_the_last_good_one(models, path, tmp_path):
    local = Local(path, tmp_path / "run")
    shutil.rmtree(path)
    shutil.copytree(models[1], path)
    local.app.holder.refresh()
    versions = [place.name for place in (tmp_path / "run" / "models").iterdir() if place.is_dir()]
    assert versions == [version(models[1])]
    shutil.rmtree(path)
    another = type(local.app)(local.app.settings, tmp_path / "run")
    assert another.holder.start().version == version(models[1])


# -- models that cannot answer ---------------------------------------------------------------------


def tampered(path: Path, name: str, place: Any, value: Any) -> Path:
    bundle = read_artifact(path)
    arrays = {key: np.array(array) for key, array in bundle.arrays.items()}
    arrays[name][place] = value
    return write_artifact(path, Bundle(bundle.facts, arrays, dict(bundle.tables)))


def command(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "TALEREC_TOKEN"}
    return subprocess.Popen(
        [sys.executable, "-c", START, "serve", *arguments, "--port", "0"],
        env=inherited | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_broken_model_prevents_the_start_with_an_error(path, workers):
    tampered(path, "item", 0, 10**6)
    with command(str(path), "--workers", workers) as started:
        said, error = started.communicate(timeout=LONG_S)
    assert started.returncode == 2
    assert said == ""  # no address of a service that is not there
    assert "error: " in error.splitlines()[-1]
    assert "item goes from" in error.splitlines()[-1]


def test_a_model_that_kills_workers_is_tried_twice_and_then_refused(models, path, tmp_path):
    """Loading it kills a worker, which no check detects; the next worker serves the old model."""
    local = Local(path, tmp_path / "run")
    holder, dead = local.app.holder, tmp_path / "run" / "models" / "trial"
    shutil.rmtree(path)
    shutil.copytree(models[1], path)
    load, loaded = holder._load, []

    def deadly(copy: Path, verify: bool) -> Any:
        if verify:
            loaded.append(copy.name)
            raise KeyboardInterrupt  # the worker ends
        return load(copy, verify)

    holder._load = deadly
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            holder.refresh()
        dead.write_text(version(path))  # as a process leaves it that had no time to clean up
    assert holder.start().version == version(models[0])
    assert loaded == [version(path)] * 2
    with pytest.raises(tr.TalerecError, match="2 workers ended while they tried it"):
        holder.refresh()


def test_a_hash_valid_model_with_invalid_indices_is_refused(path, tmp_path):
    local = Local(path, tmp_path / "run", token=TOKEN)
    allowed = {"authorization": f"Bearer {TOKEN}"}
    before = local.post("/v1/recommend", ASK, **allowed).body
    tampered(path, "item", 0, 10**6)
    answer = local.ask("POST", "/v1/reload", None, allowed)
    assert (answer.status, answer.code) == (409, "artifact_refused")
    assert str(path) in answer.json["error"]["message"]
    assert "item goes from" in answer.json["error"]["message"]
    assert local.post("/v1/recommend", ASK, **allowed).body == before
    metrics = local.ask("GET", "/metrics", None, allowed).body.decode()
    local.app.holder._refresh_if_changed(force=False)
    assert "talerec_reloads_refused_total 1\n" in metrics
    assert local.ask("GET", "/metrics", None, allowed).body.decode().count("refused_total 1\n") == 1


def test_a_title_of_10_mb_is_truncated(log, tmp_path):
    named = log.info.with_columns(
        title=pl.when(pl.int_range(pl.len()) == 2).then(pl.lit("x" * 10_000_000)).otherwise("title")
    )
    model = tr.TALE(reg=20).fit(log.with_items(named.drop("category")))
    local = Local(model.save(tmp_path / "m.tale"), tmp_path / "run")
    for answer in (local.get("/v1/items?q=3"), local.post("/v1/similar", {"item_id": 3})):
        assert answer.status == 200
        assert len(answer.body) < 20_000
        assert "xxx…" in answer.body.decode()


# -- clients that do not read ----------------------------------------------------------------------


def test_requests_are_in_flight_until_the_response_is_sent(path, tmp_path):
    local = Local(path, tmp_path / "run")
    seen = []

    async def send(message: dict[str, Any]) -> None:
        seen.append((message["type"], local.app._in_flight))

    local.ask_with(send, "GET", "/health/live")
    assert seen == [("http.response.start", 1), ("http.response.body", 1)]
    assert local.app._in_flight == 0


def test_a_large_response_is_written_in_parts_and_counted_until_read(path, tmp_path):
    local = Local(path, tmp_path / "run")
    batch = {"requests": [{"history": [{"item_id": 3}], "k": 150}] * 100}
    parts, held = [], []

    async def send(message: dict[str, Any]) -> None:
        parts.append(bytes(message.get("body", b"")))
        held.append(local.app.api.unread_bytes)

    local.ask_with(send, "POST", "/v1/recommend:batch", batch)
    body = b"".join(parts)
    assert len(json.loads(body)["answers"]) == 100
    assert max(map(len, parts)) <= 2**18 < len(body)
    assert held[1:] == [len(body)] * (len(parts) - 1)
    assert local.app.api.unread_bytes == 0


def test_no_batch_is_computed_while_unread_responses_fill_the_memory(path, tmp_path):
    local = Local(path, tmp_path / "run", max_unread=1000)
    batch = {"requests": [ASK]}
    assert local.post("/v1/recommend:batch", batch).status == 200
    local.app.api.unread_bytes = 1001
    answer = local.post("/v1/recommend:batch", batch)
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "busy", "1")
    assert local.post("/v1/recommend", ASK).status == 200


def test_a_batch_may_not_ask_for_more_items_than_the_limit(path, tmp_path):
    local = Local(path, tmp_path / "run", max_items=9)
    assert local.post("/v1/recommend:batch", {"requests": [{**ASK, "k": 4}] * 2}).status == 200
    answer = local.post("/v1/recommend:batch", {"requests": [ASK] * 2})
    assert (answer.status, answer.code) == (422, "batch_too_long")


@pytest.fixture(scope="module")
def service(models):
    remote = Remote(models[0], "--timeout", "4")  # in which a busy machine makes a batch
    yield remote
    assert remote.stop() == 0


def test_a_client_that_does_not_read_is_dropped(service):
    """The client reads nothing; after the timeout the service drops it and frees its memory."""
    body = json.dumps({"requests": [{"history": [{"item_id": 1}], "k": 150}] * 100}).encode()
    head = b"POST /v1/recommend:batch HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    head += b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    whole = service.ask("POST", "/v1/recommend:batch", body)
    assert whole.status == 200
    before = service.metric("talerec_dropped_connections_total")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", service.port))
        client.sendall((head + body) * 3)
        until(lambda: service.metric("talerec_dropped_connections_total") > before)
        until(lambda: service.metric("talerec_in_flight") == 1)  # who asks for it
        client.settimeout(LONG_S)
        got = 0
        with suppress(ConnectionResetError):
            while part := client.recv(2**20):
                got += len(part)
        assert got < 3 * len(whole.body)


# -- processes -------------------------------------------------------------------------------------


@proc
@pytest.mark.parametrize("workers", ["1", "2"])
def test_workers_end_with_their_parent_and_leave_nothing_behind(path, tmp_path, workers):
    (tmp_path / "copies").mkdir()
    service = Remote(
        path, "--workers", workers, "--drain", "0.1", "--copies", str(tmp_path / "copies")
    )
    pids = workers_of(service.process.pid)
    assert len(pids) == int(workers)
    assert list((tmp_path / "copies").iterdir())
    service.process.kill()
    until(lambda: not any(map(is_running, pids)))
    until(lambda: not list((tmp_path / "copies").iterdir()))
    service.stop()


def test_leftovers_of_a_killed_run_are_removed_by_the_next(path, tmp_path):
    left = tmp_path / "talerec-left"
    left.mkdir()
    (left / "owner").touch()
    (left / "weights").write_bytes(b"x" * 1000)
    other = tmp_path / "talerec-of-somebody-else"
    other.mkdir()
    service = Remote(path, "--copies", str(tmp_path))
    assert not left.exists()
    assert other.exists()
    assert service.stop() == 0
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["shop.tale", other.name]


@proc
def test_a_single_worker_that_dies_is_replaced(path):
    service = Remote(path)
    (pid,) = workers_of(service.process.pid)
    os.kill(pid, signal.SIGSEGV)
    until(lambda: workers_of(service.process.pid) not in ([], [pid]))
    service.until("talerec_workers_ready", 1)
    assert service.ask("POST", "/v1/recommend", ASK).status == 200
    assert service.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_handled_while_the_model_is_loaded(path, tmp_path, number):
    """Here loading takes an hour, in code that handles no signal."""
    (tmp_path / "sitecustomize.py").write_text(
        "import ctypes\n"
        "from talerec.serve.model import reload\n"
        f"def load(self, *_):\n    open({str(tmp_path / 'loading')!r}, 'w').close()\n"
        "    ctypes.CDLL(None).sleep(3600)\n"
        "reload.ModelHolder._load = load\n"
    )
    source = os.environ.get("PYTHONPATH", "")
    with command(str(path), PYTHONPATH=f"{tmp_path}{os.pathsep}{source}") as started:
        until(lambda: (tmp_path / "loading").exists())
        started.send_signal(number)
        try:
            said, _ = started.communicate(timeout=LONG_S)
        finally:
            started.kill()
    assert started.returncode == 0
    assert said == ""


def test_reloads_do_not_block_answers(path, tmp_path, monkeypatch):
    """Three reloads wait until every other route has answered."""
    local = Local(path, tmp_path / "run", token=TOKEN, timeout=60)
    allowed = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    others = [
        ("POST", "/v1/similar", {"item_id": 3}),
        ("POST", "/v1/explain", {"history": [], "item_id": 3}),
        ("POST", "/v1/recommend:batch", {"requests": [ASK]}),
        ("GET", "/v1/items?q=3", None),
    ]
    answered: list[str] = []
    everywhere = lambda _: {where for _, where, _ in others} <= set(answered)  # noqa: E731
    monkeypatch.setattr(local.app.holder, "is_served_everywhere", everywhere)
    requests = [("POST", "/v1/reload", None)] * 3 + others
    finished = local.ask_all(requests, allowed, answered)
    assert [answer.status for answer in finished] == [200] * 7
    assert answered[4:] == ["/v1/reload"] * 3


def test_shared_metrics_reserve_their_disk_space(tmp_path, monkeypatch):
    SharedState(tmp_path, 2, 0, ("/a",))
    for name in ("metrics", "states"):
        result = (tmp_path / name).stat()
        assert result.st_blocks * 512 >= result.st_size > 0  # no holes

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(tr.TalerecError, match="No space left on device"):
        SharedState(tmp_path, 2, 0, ("/a",))


def test_workers_share_metrics_without_posix_fallocate(tmp_path, monkeypatch):
    """As on macOS. A second worker does not change the counters of the first."""
    monkeypatch.delattr(os, "posix_fallocate")
    first = SharedState(tmp_path, 2, 0, ("/a",))
    first.increment("reloads_done", 3)
    second = SharedState(tmp_path, 2, 1, ("/a",))
    second.increment("reloads_done", 2)
    assert first.total("reloads_done") == second.total("reloads_done") == 5

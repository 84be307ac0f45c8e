"""Folders of former runs beside the folder of a run: they are removed, and never waited for."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="needs the extra serve")

from talerec.serve.process import supervisor
from waiting import LONG_S


def test_a_fifo_in_the_place_of_an_owner_does_not_hang_the_start(tmp_path: Path) -> None:
    """Anybody on the machine can make such a folder in /tmp."""
    names = [f"{supervisor._RUN_PREFIX}{name}" for name in ("fifo", "left", "running")]
    for name in names:
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / names[0] / "owner")
    (tmp_path / names[1] / "owner").touch()
    with (tmp_path / names[2] / "owner").open("wb") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        thread = threading.Thread(
            target=supervisor._remove_abandoned, args=(tmp_path,), daemon=True
        )
        thread.start()
        thread.join(LONG_S / 10)
        assert not thread.is_alive(), "it waits"
        assert sorted(os.listdir(tmp_path)) == [names[0], names[2]]

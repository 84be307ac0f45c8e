"""Files that tests write."""

from __future__ import annotations

from pathlib import Path

import pytest

from log_files import Write


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def put(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return put

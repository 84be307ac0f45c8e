"""Models for tests: networks are tiny, and are included only where torch is installed."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import pytest

from talerec.models import MODELS

#: Settings with which a neural model is fitted in a fraction of a second.
SMALL: dict[str, Any] = {
    "dim": 8, "layers": 2, "max_history": 6, "epochs": 2, "batch": 64, "device": "cpu",
}  # fmt: skip

NEURAL = sorted(name for name, kind in MODELS.items() if kind.extra == "torch")


def small(name: str) -> dict[str, Any]:
    """Settings that make this neural model small."""
    defaults = MODELS[name]().params
    more = {"heads": 2, "warmup": 1}
    return SMALL | {key: value for key, value in more.items() if key in defaults}


def need_torch() -> None:
    """Skip a test where the heavy parts are not wanted."""
    if os.environ.get("EXTRAS") != "all":
        pytest.skip("needs torch: EXTRAS=all make test")
    import torch

    torch.set_num_threads(1)


def maker(name: str, **settings: Any) -> Any:
    """What makes a model of this name."""
    kind = MODELS[name]
    if kind.extra == "content":
        pytest.importorskip("sklearn", reason="the extra content is not installed")
    if kind.extra in (None, "content"):
        return partial(kind, **settings)
    if kind.extra == "rank":
        pytest.importorskip("lightgbm")
        return partial(kind, **settings)
    need_torch()
    return partial(kind, **{**small(name), **settings})

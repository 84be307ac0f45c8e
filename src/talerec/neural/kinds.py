"""Every kind of network by name."""

from __future__ import annotations

from talerec.neural.nets.base import Net
from talerec.neural.nets.sasrec import SASRecNet
from talerec.neural.settings import Settings

KINDS: dict[str, type[Net]] = {"sasrec": SASRecNet}


def build(items: int, settings: Settings) -> Net:
    """A network of the settings' kind, its parameters not yet drawn."""
    return KINDS[settings.kind](items, settings)

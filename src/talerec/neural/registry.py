"""Every kind of network by the name of its model."""

from __future__ import annotations

from talerec.neural.nets.base import Net
from talerec.neural.nets.bert4rec import BERT4RecNet
from talerec.neural.nets.bsarec import BSARecNet
from talerec.neural.nets.contrast import DuoRecNet
from talerec.neural.nets.fearec import FEARecNet
from talerec.neural.nets.gru4rec import GRU4RecNet
from talerec.neural.nets.hstu import HSTUNet
from talerec.neural.nets.linrec import LinRecNet
from talerec.neural.nets.lrurec import LRURecNet
from talerec.neural.nets.sasrec import ESASRecNet, SASRecNet
from talerec.neural.nets.tcpsrec import TCPSRecNet
from talerec.neural.nets.ticoserec import TiCoSeRecNet
from talerec.neural.nets.tisasrec import TiSASRecNet
from talerec.neural.settings import Settings

KINDS: dict[str, type[Net]] = {
    "sasrec": SASRecNet,
    "gsasrec": SASRecNet,
    "esasrec": ESASRecNet,
    "gru4rec": GRU4RecNet,
    "bert4rec": BERT4RecNet,
    "duorec": DuoRecNet,
    "fearec": FEARecNet,
    "bsarec": BSARecNet,
    "tisasrec": TiSASRecNet,
    "tcpsrec": TCPSRecNet,
    "ticoserec": TiCoSeRecNet,
    "linrec": LinRecNet,
    "lrurec": LRURecNet,
    "hstu": HSTUNet,
}


def build(items: int, settings: Settings) -> Net:
    """A network of the settings' kind, its parameters not yet drawn."""
    return KINDS[settings.kind](items, settings)

"""Every network class by the name of its model."""

from __future__ import annotations

from talerec.neural.nets.base import Net
from talerec.neural.nets.bert4rec import BERT4RecNet
from talerec.neural.nets.contrastive import DuoRecNet, TCPSRecNet, TiCoSeRecNet
from talerec.neural.nets.hstu import HSTUNet
from talerec.neural.nets.recurrent import GRU4RecNet, LRURecNet
from talerec.neural.nets.sasrec import ESASRecNet, LinRecNet, SASRecNet
from talerec.neural.nets.spectral import BSARecNet, FEARecNet
from talerec.neural.nets.tisasrec import TiSASRecNet
from talerec.neural.settings import NetSettings

NETWORKS: dict[str, type[Net]] = {
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


def build_net(items: int, settings: NetSettings) -> Net:
    """Return a network for `items` items, of the class that `settings.kind` names.

    Its parameters are not initialised.
    """
    return NETWORKS[settings.kind](items, settings)

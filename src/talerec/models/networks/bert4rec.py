"""BERT4Rec: attention in both directions, trained by finding rows that were hidden."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from talerec.models.core.params import param
from talerec.models.networks.base import Attentive, other


@dataclass(eq=False, kw_only=True)
class BERT4Rec(Attentive):
    """Attention in both directions, trained by finding rows that were hidden. Needs torch, and many epochs.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.BERT4Rec().params["masked"]
    0.2
    """

    name: ClassVar[str] = "bert4rec"
    good_for: ClassVar[str] = "Long histories and many hours; a baseline"
    paper: ClassVar[str] = (
        "BERT4Rec: Sequential Recommendation with Bidirectional Encoder Representations, CIKM 2019"
    )

    masked: float = param(0.2, "share of rows that are hidden", above=0, high=1, search=(0.1, 0.6))
    samples: str = param("masked", "rows are hidden, and are the targets", choices=("masked",))
    epochs: int = other(Attentive, "epochs", 500)
    patience: int = other(Attentive, "patience", 20)

"""SASRec with a second loss: same targets alike (DuoRec), rows of one time (TCPSRec), views by intervals (TiCoSeRec)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from talerec.models.core.params import param
from talerec.models.networks.base import Attentive, other


@dataclass(eq=False, kw_only=True)
class DuoRec(Attentive):
    """SASRec whose states are alike for samples with the same target. Needs torch.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.DuoRec().params["contrast"]
    0.1
    """

    name: ClassVar[str] = "duorec"
    good_for: ClassVar[str] = "As sasrec; meant for sparse logs"
    paper: ClassVar[str] = (
        "Contrastive Learning for Representation Degeneration Problem in Sequential Recommendation, WSDM 2022"
    )

    contrast: float = param(0.1, "weight of the second loss", low=0, high=100, search=(0.01, 0.5))
    temperature: float = param(1.0, "of the second loss", above=0, high=100)
    samples: str = param(
        "prefixes", "a sample has one target, that partners share", choices=("prefixes",)
    )
    batch: int = other(Attentive, "batch", 256)


@dataclass(eq=False, kw_only=True)
class TCPSRec(Attentive):
    """SASRec whose item vectors first learn which rows stand together in time. Needs torch.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.TCPSRec().params["warmup"]
    50
    """

    name: ClassVar[str] = "tcpsrec"
    good_for: ClassVar[str] = "As sasrec, with items that stand together in time"
    paper: ClassVar[str] = (
        "Temporal Contrastive Pre-Training for Sequential Recommendation, CIKM 2022"
    )

    warmup: int = param(50, "passes in which item vectors alone are trained", low=0, high=100_000)
    gap: float = param(1.0, "hours without a row that end a visit", above=0)
    contrast: float = param(1e-4, "weight of the first passes' losses", above=0, high=100)

    @property
    def needs_time(self) -> bool:
        return True


@dataclass(eq=False, kw_only=True)
class TiCoSeRec(Attentive):
    """SASRec, and two views of each history, made where its intervals are uneven, that should be alike. Needs torch.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.TiCoSeRec().params["loss"]
    'bce'
    """

    name: ClassVar[str] = "ticoserec"
    good_for: ClassVar[str] = "As sasrec, with uneven intervals"
    paper: ClassVar[str] = (
        "Uniform Sequence Better: Time Interval Aware Data Augmentation for Sequential Recommendation, AAAI 2023"
    )

    crop: float = param(0.7, "rows that a cropped view keeps", above=0, high=1)
    mask: float = param(0.5, "rows that a masked view loses", low=0, high=1)
    reorder: float = param(0.2, "rows that a reordered view shuffles", low=0, high=1)
    substitute: float = param(0.1, "rows that become similar items", low=0, high=1)
    insert: float = param(0.5, "rows after which a similar item is put in", low=0, high=1)
    short: int = param(12, "longest history that is neither cropped nor reordered", low=1)
    spared: float = param(
        0.15, "share of users, with the evenest intervals, kept as they are", low=0, high=1
    )
    warmup: int = param(40, "passes without views", low=0, high=100_000)
    contrast: float = param(0.1, "weight of the loss of two views", low=0, high=100)
    loss: str = other(Attentive, "loss", "bce")
    negatives: int = other(Attentive, "negatives", 1)
    batch: int = other(Attentive, "batch", 512)
    epochs: int = other(Attentive, "epochs", 350)
    patience: int = other(Attentive, "patience", 30)

    @property
    def needs_time(self) -> bool:
        return True

"""SASRec with a contrastive loss: DuoRec, TCPSRec and TiCoSeRec."""

from __future__ import annotations

from dataclasses import dataclass

from talerec.models.core import param
from talerec.models.networks.base import AttentionModel, with_default


@dataclass(eq=False, kw_only=True)
class DuoRec(AttentionModel):
    """SASRec with similar states for samples that have the same target. Needs torch.

    A sample is a history, its target the next item, its state the network's output vector. A
    contrastive loss (InfoNCE) draws the states of such samples together.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.DuoRec().params["contrast"]
    0.1
    """

    name = "duorec"
    summary = "As sasrec; meant for sparse logs"
    paper = (
        "Contrastive Learning for Representation Degeneration Problem in Sequential "
        "Recommendation, WSDM 2022"
    )

    contrast: float = param(
        0.1, "weight of the contrastive loss", low=0, high=100, search=(0.01, 0.5)
    )
    temperature: float = param(1.0, "temperature of the contrastive loss", above=0, high=100)
    samples: str = param(
        "prefixes", "a sample has one target, which positive pairs share", choices=("prefixes",)
    )
    batch: int = with_default(AttentionModel, "batch", 256)


@dataclass(eq=False, kw_only=True)
class TCPSRec(AttentionModel):
    """SASRec with item vectors pre-trained on rows that are close in time. Needs torch.

    Pre-training assigns items to their history, visit, weekday and quarter of the day; a visit ends
    with a long gap.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.TCPSRec().params["warmup"]
    50
    """

    name = "tcpsrec"
    summary = "As sasrec, with items that are used close in time"
    paper = "Temporal Contrastive Pre-Training for Sequential Recommendation, CIKM 2022"

    warmup: int = param(50, "epochs of pre-training item vectors", low=0, high=100_000)
    gap: float = param(1.0, "hours without an event that end a visit", above=0)
    contrast: float = param(1e-4, "weight of the pre-training losses", above=0, high=100)

    needs_time = True


@dataclass(eq=False, kw_only=True)
class TiCoSeRec(AttentionModel):
    """SASRec with a contrastive loss between views of a history with more even intervals.

    A view is a randomly augmented copy of a history: cropped, masked, reordered, or with similar
    items. Needs torch.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.TiCoSeRec().params["loss"]
    'bce'
    """

    name = "ticoserec"
    summary = "As sasrec, with uneven intervals"
    paper = (
        "Uniform Sequence Better: Time Interval Aware Data Augmentation for Sequential "
        "Recommendation, AAAI 2023"
    )

    crop: float = param(0.7, "share of rows that a cropped view keeps", above=0, high=1)
    mask: float = param(0.5, "share of rows that a masked view loses", low=0, high=1)
    reorder: float = param(0.2, "share of rows that a reordered view shuffles", low=0, high=1)
    substitute: float = param(0.1, "share of rows replaced by similar items", low=0, high=1)
    insert: float = param(0.5, "share of rows followed by an inserted similar item", low=0, high=1)
    short: int = param(12, "longest history that is not cropped or reordered", low=1)
    spared: float = param(
        0.15, "share of users, with the most even intervals, not augmented", low=0, high=1
    )
    warmup: int = param(40, "epochs without the contrastive loss", low=0, high=100_000)
    contrast: float = param(0.1, "weight of the contrastive loss", low=0, high=100)
    loss: str = with_default(AttentionModel, "loss", "bce")
    negatives: int = with_default(AttentionModel, "negatives", 1)
    batch: int = with_default(AttentionModel, "batch", 512)
    epochs: int = with_default(AttentionModel, "epochs", 350)
    patience: int = with_default(AttentionModel, "patience", 30)

    needs_time = True

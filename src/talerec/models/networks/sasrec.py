"""SASRec, attention over the rows so far, and two models that train it otherwise or build it otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from talerec.models.core.params import param
from talerec.models.networks.base import Attentive, other


@dataclass(eq=False, kw_only=True)
class SASRec(Attentive):
    """Self-attention over the rows so far, with a softmax over all items at every row. Needs torch.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.SASRec(dim=32).params["norm"]
    'post'
    """

    name: ClassVar[str] = "sasrec"
    good_for: ClassVar[str] = "Long histories, seen items hidden, a GPU"
    paper: ClassVar[str] = "Self-Attentive Sequential Recommendation, ICDM 2018"

    norm: str = param(
        "post",
        "where layers are normalised: after, before, or as first published",
        choices=("post", "pre", "original"),
    )
    output: str = param(
        "shared",
        "items are scored by the vectors that they are read by, or by their own",
        choices=("shared", "own"),
    )


@dataclass(eq=False, kw_only=True)
class GSASRec(SASRec):
    """SASRec as first published, trained against sampled items with a loss that corrects for the sampling. Needs torch.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.GSASRec().params["loss"]
    'gbce'
    """

    name: ClassVar[str] = "gsasrec"
    good_for: ClassVar[str] = "As sasrec, with very many items"
    paper: ClassVar[str] = (
        "gSASRec: Reducing Overconfidence in Sequential Recommendation Trained with Negative Sampling, RecSys 2023"
    )

    calibration: float = param(
        0.75, "0 is plain binary cross-entropy, 1 corrects all of the sampling", low=0, high=1
    )
    loss: str = other(Attentive, "loss", "gbce")
    norm: str = other(SASRec, "norm", "original")
    output: str = other(SASRec, "output", "own")
    heads: int = other(Attentive, "heads", 1)


@dataclass(eq=False, kw_only=True)
class ESASRec(Attentive):
    """SASRec with gated blocks (LiGR) and a softmax over sampled items. Needs torch.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.ESASRec().params["negatives"]
    256
    """

    name: ClassVar[str] = "esasrec"
    good_for: ClassVar[str] = "As sasrec, the newest recipe"
    paper: ClassVar[str] = (
        "eSASRec: Enhancing Transformer-based Recommendations in a Modular Fashion, RecSys 2025"
    )

    loss: str = other(Attentive, "loss", "sampled")
    heads: int = other(Attentive, "heads", 1)

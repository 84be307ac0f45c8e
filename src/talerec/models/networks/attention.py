"""Networks with attention over the rows of a history: SASRec and its relatives."""

from __future__ import annotations

from dataclasses import dataclass

from talerec.models.core import param
from talerec.models.networks.base import AttentionModel, with_default


@dataclass(eq=False, kw_only=True)
class SASRec(AttentionModel):
    """Self-attention over earlier rows, with a softmax over all items. Needs torch.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.SASRec(dim=32).params["norm"]
    'post'
    """

    name = "sasrec"
    summary = "Long histories, seen items hidden, a GPU"
    paper = "Self-Attentive Sequential Recommendation, ICDM 2018"

    norm: str = param(
        "post", "place of layer normalization in a block", choices=("post", "pre", "original")
    )
    output: str = param(
        "shared", "item vectors for scores: those of the input, or own", choices=("shared", "own")
    )


@dataclass(eq=False, kw_only=True)
class GSASRec(SASRec):
    """SASRec as first published, with a sampled loss that corrects for the sampling.

    The loss is gBCE: binary cross-entropy against sampled items, with a weight of the target. Needs
    torch.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.GSASRec().params["loss"]
    'gbce'
    """

    name = "gsasrec"
    summary = "As sasrec, with very many items"
    paper = (
        "gSASRec: Reducing Overconfidence in Sequential Recommendation "
        "Trained with Negative Sampling, RecSys 2023"
    )

    calibration: float = param(
        0.75, "0: plain binary cross-entropy; 1: full correction for the sampling", low=0, high=1
    )
    loss: str = with_default(AttentionModel, "loss", "gbce")
    norm: str = with_default(SASRec, "norm", "original")
    output: str = with_default(SASRec, "output", "own")
    heads: int = with_default(AttentionModel, "heads", 1)


@dataclass(eq=False, kw_only=True)
class ESASRec(AttentionModel):
    """SASRec with gated blocks (LiGR) and a softmax over sampled items. Needs torch.

    Gates scale the outputs of attention and of the feed-forward network before they are added.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.ESASRec().params["negatives"]
    256
    """

    name = "esasrec"
    summary = "As sasrec, the newest recipe"
    paper = "eSASRec: Enhancing Transformer-based Recommendations in a Modular Fashion, RecSys 2025"

    loss: str = with_default(AttentionModel, "loss", "sampled")
    heads: int = with_default(AttentionModel, "heads", 1)


@dataclass(eq=False, kw_only=True)
class BERT4Rec(AttentionModel):
    """Attention in both directions, trained to predict masked rows. Needs torch.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.BERT4Rec().params["masked"]
    0.2
    """

    name = "bert4rec"
    summary = "Long histories and many hours; a baseline"
    paper = (
        "BERT4Rec: Sequential Recommendation with Bidirectional Encoder Representations, CIKM 2019"
    )

    masked: float = param(0.2, "share of rows that are masked", above=0, high=1, search=(0.1, 0.6))
    samples: str = param("masked", "masked rows are the targets", choices=("masked",))
    epochs: int = with_default(AttentionModel, "epochs", 500)
    patience: int = with_default(AttentionModel, "patience", 20)


@dataclass(eq=False, kw_only=True)
class LinRec(AttentionModel):
    """SASRec with linear attention, whose cost per row does not grow with the history.

    Needs torch.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.LinRec(causal="yes", samples="windows").params["samples"]
    'windows'
    """

    name = "linrec"
    summary = "As sasrec, for very long histories"
    paper = (
        "LinRec: Linear Attention Mechanism for Long-term Sequential Recommender Systems, "
        "SIGIR 2023"
    )

    causal: str = param(
        "no", "attend to earlier rows only; as published: to all rows", choices=("no", "yes")
    )
    samples: str = with_default(AttentionModel, "samples", "prefixes")
    batch: int = with_default(AttentionModel, "batch", 2048)

    def _sees_later(self) -> bool:
        """Return whether a row's state depends on later rows: unless `causal` is "yes"."""
        return self.causal == "no"


@dataclass(eq=False, kw_only=True)
class TiSASRec(AttentionModel):
    """Self-attention with vectors for the time between two rows. Needs torch.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.TiSASRec(unit="log").params["units"]
    256
    """

    name = "tisasrec"
    summary = "As sasrec, where the time between rows matters"
    paper = "Time Interval Aware Self-Attention for Sequential Recommendation, WSDM 2020"

    units: int = param(256, "largest interval with a vector of its own", low=1, high=100_000)
    unit: str = param(
        "user",
        "interval unit: a history's least, or octaves of the median",
        choices=("user", "log"),
    )
    heads: int = with_default(AttentionModel, "heads", 1)

    needs_time = True


@dataclass(eq=False, kw_only=True)
class HSTU(AttentionModel):
    """Gated attention without a softmax, given each row's age at request time. Needs torch.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.HSTU().params["temperature"]
    0.05
    """

    name = "hstu"
    summary = "Long histories with times, a GPU; the best on ML-1M"
    paper = "Actions Speak Louder than Words: Trillion-Parameter Sequential Transducers, ICML 2024"

    temperature: float = param(
        0.05, "divisor of cosine similarities", above=0, high=100, search=(0.02, 0.2)
    )
    buckets: int = param(
        128, "buckets of time, each a third longer than the previous one", low=1, high=1000
    )
    loss: str = with_default(AttentionModel, "loss", "sampled")
    heads: int = with_default(AttentionModel, "heads", 1)

    needs_time = True

"""LinRec: attention whose cost grows with the length of a history and not with its square."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from talerec.models.core.params import param
from talerec.models.networks.base import Attentive, other


@dataclass(eq=False, kw_only=True)
class LinRec(Attentive):
    """SASRec with attention that needs no softmax, so that long histories cost no more per row. Needs torch.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.LinRec(causal="yes", samples="windows").params["samples"]
    'windows'
    """

    name: ClassVar[str] = "linrec"
    good_for: ClassVar[str] = "As sasrec, for very long histories"
    paper: ClassVar[str] = (
        "LinRec: Linear Attention Mechanism for Long-term Sequential Recommender Systems, SIGIR 2023"
    )

    causal: str = param(
        "no",
        "rows look at those before them alone; as published, at all",
        choices=("no", "yes"),
    )
    samples: str = other(Attentive, "samples", "prefixes")
    batch: int = other(Attentive, "batch", 2048)

    def _sees_later(self) -> bool:
        return self.causal == "no"

"""TiSASRec: attention that knows how much time lies between two rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from talerec.models.core.params import param
from talerec.models.networks.base import Attentive, other


@dataclass(eq=False, kw_only=True)
class TiSASRec(Attentive):
    """Self-attention with vectors for the time between two rows. Needs torch.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.TiSASRec(unit="log").params["units"]
    256
    """

    name: ClassVar[str] = "tisasrec"
    good_for: ClassVar[str] = "As sasrec, where the time between rows matters"
    paper: ClassVar[str] = (
        "Time Interval Aware Self-Attention for Sequential Recommendation, WSDM 2020"
    )

    units: int = param(256, "the largest interval that is told apart", low=1, high=100_000)
    unit: str = param(
        "user",
        "intervals in units of a history's smallest one, or in octaves of the log's median",
        choices=("user", "log"),
    )
    heads: int = other(Attentive, "heads", 1)

    @property
    def needs_time(self) -> bool:
        return True

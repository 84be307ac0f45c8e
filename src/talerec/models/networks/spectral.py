"""Networks that look at frequencies: a filter beside attention (BSARec), attention on frequencies (FEARec)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from talerec.errors import TalerecError
from talerec.models.core.params import param
from talerec.models.networks.base import Attentive, other


@dataclass(eq=False, kw_only=True)
class BSARec(Attentive):
    """Attention, and beside it a filter that weighs slow and fast changes along the history. Needs torch.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.BSARec().params["samples"]
    'prefixes'
    """

    name: ClassVar[str] = "bsarec"
    good_for: ClassVar[str] = "As sasrec, with slow and fast changes of taste"
    paper: ClassVar[str] = (
        "An Attentive Inductive Bias for Sequential Recommendation beyond the Self-Attention, AAAI 2024"
    )

    share: float = param(
        0.7, "of the filter, the rest is attention's", low=0, high=1, search=(0.1, 0.9)
    )
    bins: int = param(5, "half of it and one are the slow frequencies", low=0, high=10_000)
    samples: str = other(Attentive, "samples", "prefixes")
    batch: int = other(Attentive, "batch", 2048)

    def _sees_later(self) -> bool:
        return True


@dataclass(eq=False, kw_only=True)
class FEARec(Attentive):
    """Attention on bands of frequencies and along lags at which a history resembles itself. Needs torch.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.FEARec().params["band"]
    0.6
    """

    name: ClassVar[str] = "fearec"
    good_for: ClassVar[str] = "Histories with rhythms"
    paper: ClassVar[str] = (
        "Frequency Enhanced Hybrid Attention Network for Sequential Recommendation, SIGIR 2023"
    )

    band: float = param(0.6, "share of the frequencies that a layer sees", above=0, high=1)
    time_share: float = param(0.1, "of attention between rows, beside lags", low=0, high=1)
    lags: float = param(1.0, "lags are so many times the logarithm of max_history", above=0)
    contrast: float = param(
        0.1, "weight of the loss that makes samples with the same target alike", low=0, high=100
    )
    samples: str = other(Attentive, "samples", "prefixes")
    batch: int = other(Attentive, "batch", 256)

    def _sees_later(self) -> bool:
        return True

    def _check(self) -> None:
        super()._check()
        if self.max_history % 2:
            raise TalerecError(
                f"max_history is {self.max_history}; fearec takes an even number of rows"
            )

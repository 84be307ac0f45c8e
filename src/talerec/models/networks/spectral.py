"""Networks in the frequency domain: BSARec (filter and attention) and FEARec (bands)."""

from __future__ import annotations

from dataclasses import dataclass

from talerec.errors import TalerecError
from talerec.models.core import param
from talerec.models.networks.base import AttentionModel, with_default


@dataclass(eq=False, kw_only=True)
class BSARec(AttentionModel):
    """Attention combined with a low-pass filter over the rows of a history. Needs torch.

    The filter keeps the lowest frequencies (slow changes of taste), and scales the others by a
    learned factor.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.BSARec().params["samples"]
    'prefixes'
    """

    name = "bsarec"
    summary = "As sasrec, with slow and fast changes of taste"
    paper = (
        "An Attentive Inductive Bias for Sequential Recommendation beyond the Self-Attention, "
        "AAAI 2024"
    )

    share: float = param(
        0.7, "share of the filter; the rest is attention", low=0, high=1, search=(0.1, 0.9)
    )
    bins: int = param(
        5, "half of it, plus one, is the number of slow frequencies", low=0, high=10_000
    )
    samples: str = with_default(AttentionModel, "samples", "prefixes")
    batch: int = with_default(AttentionModel, "batch", 2048)

    def _sees_later(self) -> bool:
        """Return True: the filter over all rows makes a row's state depend on later rows."""
        return True


@dataclass(eq=False, kw_only=True)
class FEARec(AttentionModel):
    """Attention on frequency bands, and by autocorrelation along lags. Needs torch.

    Each layer sees a band of the frequencies of a history; autocorrelation says at which lags (rows
    apart) the history resembles itself.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.FEARec().params["band"]
    0.6
    """

    name = "fearec"
    summary = "Histories with rhythms"
    paper = "Frequency Enhanced Hybrid Attention Network for Sequential Recommendation, SIGIR 2023"

    band: float = param(0.6, "share of the frequencies that a layer sees", above=0, high=1)
    time_share: float = param(
        0.1, "share of attention between rows; the rest is by lags", low=0, high=1
    )
    lags: float = param(
        1.0, "number of lags, as a multiple of the logarithm of max_history", above=0
    )
    contrast: float = param(
        0.1, "weight of the contrastive loss between samples with the same target", low=0, high=100
    )
    samples: str = with_default(AttentionModel, "samples", "prefixes")
    batch: int = with_default(AttentionModel, "batch", 256)

    def _sees_later(self) -> bool:
        """Return True: filters over all rows make a row's state depend on later rows."""
        return True

    def _check(self) -> None:
        """Raise TalerecError if parameters do not fit together: `max_history` must be even, too.

        The base class checks that `heads` divides `dim`.
        """
        super()._check()
        if self.max_history % 2:
            limit = "fearec takes an even number of rows"
            raise TalerecError(f"max_history is {self.max_history}; {limit}")

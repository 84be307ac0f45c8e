"""HSTU: gated attention without a softmax, that knows when it is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from talerec.models.core.params import param
from talerec.models.networks.base import Attentive, other


@dataclass(eq=False, kw_only=True)
class HSTU(Attentive):
    """Gated attention without a softmax, that knows how long ago each row was when it is asked. Needs torch.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.HSTU().params["temperature"]
    0.05
    """

    name: ClassVar[str] = "hstu"
    good_for: ClassVar[str] = "Long histories with times, a GPU; the best on ML-1M"
    paper: ClassVar[str] = (
        "Actions Speak Louder than Words: Trillion-Parameter Sequential Transducers, ICML 2024"
    )

    temperature: float = param(
        0.05, "cosines are divided by it", above=0, high=100, search=(0.02, 0.2)
    )
    buckets: int = param(128, "of time, each a third longer than the one before", low=1, high=1000)
    loss: str = other(Attentive, "loss", "sampled")
    heads: int = other(Attentive, "heads", 1)

    @property
    def needs_time(self) -> bool:
        return True

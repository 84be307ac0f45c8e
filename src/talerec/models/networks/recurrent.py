"""Recurrent networks: a state that each row moves on (GRU4Rec), and one that moves on linearly (LRURec)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from talerec.models.core.params import param
from talerec.models.networks.base import Neural, other


@dataclass(eq=False, kw_only=True)
class GRU4Rec(Neural):
    """A gated recurrent unit over the rows, and a bias of each item. Needs torch.

    It is GRU4Rec's network and losses with the trainer of all others: full back-propagation through the window, Adam.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.GRU4Rec(loss="sampled", popularity=0.5).params["popularity"]
    0.5
    """

    name: ClassVar[str] = "gru4rec"
    good_for: ClassVar[str] = "Sessions; a recurrent baseline"
    paper: ClassVar[str] = (
        "Recurrent Neural Networks with Top-k Gains for Session-based Recommendations, CIKM 2018"
    )

    popularity: float = param(
        0.0,
        "sampled items are drawn by their counts to this power, and corrected for it",
        low=0,
        high=2,
    )
    layers: int = other(Neural, "layers", 1)


@dataclass(eq=False, kw_only=True)
class LRURec(Neural):
    """Linear recurrent units: a state that moves on by a complex factor, so that all rows are found at once. Needs torch.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.LRURec().params["reg"]
    0.01
    """

    name: ClassVar[str] = "lrurec"
    good_for: ClassVar[str] = "As gru4rec, trained on all rows of a history at once"
    paper: ClassVar[str] = "Linear Recurrent Units for Sequential Recommendation, WSDM 2024"

    reg: float = other(Neural, "reg", 0.01)

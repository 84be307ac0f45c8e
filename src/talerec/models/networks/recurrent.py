"""Recurrent networks: gated units (GRU4Rec) and linear recurrent units (LRURec)."""

from __future__ import annotations

from dataclasses import dataclass

from talerec.models.core import param
from talerec.models.networks.base import NeuralModel, with_default


@dataclass(eq=False, kw_only=True)
class GRU4Rec(NeuralModel):
    """A gated recurrent unit over the rows, and a bias per item. Needs torch.

    The network and losses are GRU4Rec's; the training is that of the other models: full
    back-propagation through the window, with Adam. Unlike those of the other networks, its states
    are not normalised and are small at first, so it starts slowly: the defaults of `rate` and
    `batch` take large and many steps, as GRU4Rec's authors do. With `rate=0.001` and `batch=4096`,
    the defaults until version 0.2, early stopping ends the training on a log of sessions while the
    network knows little more than popularity.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.GRU4Rec(loss="sampled", popularity=0.5).params["popularity"]
    0.5
    """

    name = "gru4rec"
    summary = "Sessions; a recurrent baseline"
    paper = (
        "Recurrent Neural Networks with Top-k Gains for Session-based Recommendations, CIKM 2018"
    )

    popularity: float = param(
        0.0, "exponent of item counts in sampling, corrected in the loss", low=0, high=2
    )
    layers: int = with_default(NeuralModel, "layers", 1)
    rate: float = with_default(NeuralModel, "rate", 0.01)
    batch: int = with_default(NeuralModel, "batch", 256)


@dataclass(eq=False, kw_only=True)
class LRURec(NeuralModel):
    """Linear recurrent units with complex factors, so that all rows are computed in parallel.

    Needs torch.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.LRURec().params["reg"]
    0.01
    """

    name = "lrurec"
    summary = "As gru4rec, trained on all rows of a history at once"
    paper = "Linear Recurrent Units for Sequential Recommendation, WSDM 2024"

    reg: float = with_default(NeuralModel, "reg", 0.01)

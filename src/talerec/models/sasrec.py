"""SASRec: attention over the rows so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from talerec.models._neural import Neural
from talerec.models.params import param


@dataclass(eq=False, kw_only=True)
class SASRec(Neural):
    """Self-attention over the rows so far, with a softmax over all items at every row. Needs torch.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.SASRec(dim=32).params["norm"]
    'post'
    """

    name: ClassVar[str] = "sasrec"
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

"""Ranking: from weights B and queries x to scores x @ B, top items, ranks and reasons.

`weights` holds B as a stack of `blocks` and makes queries from histories. Compiled loops add up
`scores`, keep the `top_k`, and find `ranks` of targets (`search` stops early for large catalogues);
`reasons` splits scores into contributions, and `lists` runs all of this on threads.
"""

from talerec.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)

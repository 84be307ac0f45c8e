"""Nearest-neighbor models: SKNN and STAN score items by the most similar histories.

`models` defines the two models; `search` indexes the histories and finds the neighbors of a query.
"""

from talerec.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)

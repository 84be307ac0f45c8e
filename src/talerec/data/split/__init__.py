"""Splits of a log into training rows and held-out test cases: leave-one-out, or by time.

A case is a user's history and the item that came next (its target). Whatever a model learns, its
vocabulary too, comes from the training rows of a split alone.
"""

from talerec.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)

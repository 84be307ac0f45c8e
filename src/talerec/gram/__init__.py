"""Grams: the matrices G = S'S and K = S'T that a linear model is solved from.

A row of S holds the weighted source items of one training row, the same row of T its target
items. Neither is ever built: `pairs` gives what two rows of one user add to G and K, `accumulate`
adds that up on all cores, and `builders` has one function per model. Grams add, so `terms`
describes a model's Gram as a weighted sum.
"""

from talerec.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)

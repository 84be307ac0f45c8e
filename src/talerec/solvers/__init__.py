"""Solvers: from a Gram to the weights B = (G + diag(penalty))^-1 K.

`solver` chooses between them. `exact` factors the whole matrix, on the CPU in `tiles` or on a GPU
(`gpu`); `local` solves a small system of a few sources for every target item, from a `triangle`
of G that an update can add to.
"""

from talerec.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)

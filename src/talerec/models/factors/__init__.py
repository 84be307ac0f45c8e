"""Factorization models: FPMC, a Markov chain in item factors fitted with BPR."""

from talerec.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)

"""Ranker: a linear score and trees that order the candidates of several models.

`model` is the model, `candidates` the first stage, `queries` the held-out queries that it learns
from, `learning` the training and the guard, `linear` the linear score, `trees` the trees and how
they are walked.
"""

from talerec.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)

"""Blend: a weighted sum of scores of several models, with weights learned by validation.

`model` is the model; `parts` reads the text that names its parts, learns their weights on held-out
queries, and finds the trainings of neural parts that were trained elsewhere.
"""

from talerec.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)

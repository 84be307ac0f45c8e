"""Neural networks as functions of plain arrays: samples, networks, losses and one trainer.

Only NumPy and torch are needed, so that a training can run on a machine without the rest.
"""

from talerec.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)

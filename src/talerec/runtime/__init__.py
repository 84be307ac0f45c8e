"""The machine: arrays, compressed matrices, kernels, threads, memory, progress, files.

Nothing in this package knows about recommendation: it imports only `talerec.errors`, and every
other package may import it.
"""

from talerec.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)

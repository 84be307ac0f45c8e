"""Linear item-item models: scores are x @ B, with x from the history and B from a Gram.

TALE (`tale`), SLIS, SLIT and SLIST (`slist`), the autoencoders EASE, EDLAE and RDLAE (`ease`), and
S-Walk (`swalk`); `base` has what they share. Tempo and the counting models build on `base` too.
"""

from talerec.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)

"""Neural models: parameters, fits and queries of networks that `talerec.neural` trains.

One file per family: `attention`, `recurrent`, `contrastive`, `spectral`; `base` has what all share.
torch is imported only when a network is trained or queried.
"""

from talerec.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)

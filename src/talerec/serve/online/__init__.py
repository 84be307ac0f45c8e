"""Online evaluation: how well the served models rank the items of arriving events.

A background process ranks each sampled event with the list that a model would have shown right
before it; the metrics per model version are stored beside the events and shown by all workers.
"""

from talerec.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)

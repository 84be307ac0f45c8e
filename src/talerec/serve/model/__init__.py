"""One model as it is served: its catalogue, queries and responses, and its replacement."""

from talerec.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)

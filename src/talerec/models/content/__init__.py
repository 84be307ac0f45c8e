"""Models of what the item table says of items, in closed form; new items have scores."""

from talerec.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)

"""The HTTP service, `talerec serve`.

Only this package imports the web libraries (extra `serve`).
"""

from talerec.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)

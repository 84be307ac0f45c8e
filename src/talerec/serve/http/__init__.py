"""The HTTP interface: the ASGI application, its routes, access rules and OpenAPI."""

from talerec.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)

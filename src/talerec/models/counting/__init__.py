"""Models that count: popularity (`popular`) and pairs of items (`rules`); baselines."""

from talerec.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)

"""Saved models on disk: how they are written, checked, read, and installed.

An artifact is a folder NAME.tale of plain files: a manifest, arrays and tables. Nothing is pickled.
This package knows files and hashes; what the arrays mean is the business of `talerec.models`.
"""

from talerec.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)

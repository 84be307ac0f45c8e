"""Features: numbers on a request and a candidate item, for models that rank candidates.

A family is a group of features that one kernel computes (`parts`, `popularity`, `user`,
`repeats`, `context`, `content`); `build_features` is the only function that computes them, in
training, evaluation, lists and service alike. Counted features use rows strictly before a request,
and the given history.
"""

from talerec.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)

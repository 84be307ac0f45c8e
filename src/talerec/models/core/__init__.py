"""The contract of models, and everything that all models share.

`contract` declares what a model defines and what it gets for nothing, `base` implements it for
linear models; `inference` ranks histories with a fitted model (`scorer`), under the `filters` and
`boosts` of a request; `recommender` has the methods in external ids; `params` declares
hyper-parameters; `persistence` stores a fit in an artifact, `checks` checks a loaded one, and
`registry` finds model classes by name.
"""

from talerec.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)

"""Tempo, the default model: item-item weights, repeats and popularity in one linear model.

Scores are x @ [B; I; P]. `model` fits the blocks and answers queries; `query_params`,
`search`, `learning` and `holdout_fit` choose the weights in x by validation; `log_statistics`,
`tie_order` and `popularity` measure the log; `descriptions` reports what was learned.
"""

from talerec.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)

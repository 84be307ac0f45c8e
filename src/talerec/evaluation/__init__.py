"""Evaluation: held-out queries, metrics with intervals, comparison and tuning.

`evaluator` makes an `Evaluation` (`result`, `result_text`) from a split, with one row per case
(`queries`) and `metrics` of these rows; `intervals` and `comparison` say how certain they are, from
sums over users (`user_sums`); `tuning` searches parameters by `trials` on validation rows.
"""

from talerec.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)

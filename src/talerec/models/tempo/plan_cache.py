"""A base class of tempo that caches what queries are built from."""

from __future__ import annotations

from typing import Any

from talerec.models.linear import RidgeModel
from talerec.models.tempo.query import QueryPlan


class PlanCachingModel(RidgeModel):
    """A ridge model that caches the `QueryPlan` (what queries are built from) of its fit.

    The cache is a pair: the fit and parameters that the plan was built from, and the plan. It is
    not saved.
    """

    _plan_cache: tuple[Any, QueryPlan] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_plan_cache"}

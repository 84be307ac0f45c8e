"""The splits of a log for every order of simultaneous rows, for one model or several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from talerec.data import Log, order_ties
from talerec.data.split import Split, SplitPlan, basket_splits
from talerec.models.core import Model, SharedFits


class LogSplits:
    """The splits of a log by a plan, for any order of ties (rows of a user with equal times).

    A split has training rows and held-out cases. With `is_shared`, splits are kept for further
    models, each with a cache of the steps that fits to its training rows have in common; without,
    a split is made when it is needed, and nothing is kept.
    """

    def __init__(
        self, log: Log, plan: SplitPlan, on: str, *, is_shared: bool = False, baskets: bool = False
    ) -> None:
        """Remember the log, how to split it, and which rows (test or validation) are targets.

        baskets: hold out baskets (rows of one user and time), not rows.
        """
        self.log, self._plan, self._on, self._is_shared = log, plan, on, is_shared
        self._baskets = baskets
        self._splits_by_order: dict[str, list[tuple[Split, SharedFits]]] = {}

    def in_order(self, ties: str) -> Iterable[tuple[Split, SharedFits | None]]:
        """Return each split with its cache (None if splits are not kept), for an order of ties.

        ties: "file", "item" or "random:SEED".
        """
        if not self._is_shared:
            return ((split, None) for split in self._make(ties))
        if ties not in self._splits_by_order:
            self._splits_by_order[ties] = [(split, SharedFits()) for split in self._make(ties)]
        return self._splits_by_order[ties]

    @property
    def caches(self) -> list[SharedFits]:
        """The caches of all splits that are kept."""
        return [cache for splits in self._splits_by_order.values() for _, cache in splits]

    def _make(self, ties: str) -> Iterator[Split]:
        """Yield the splits of the log with ties in the order `ties`."""
        log = order_ties(self.log, ties)
        return (basket_splits if self._baskets else SplitPlan.splits)(self._plan, log, self._on)

    def fit_each(self, model: Model, ties: str = "file") -> Iterator[Split]:
        """Yield each split, for an order of ties, after `model` was fitted to its training rows."""
        for split, cache in self.in_order(ties):
            model.fit(split.train, cache=cache)
            yield split

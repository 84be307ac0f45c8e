"""The splits of a log for every order of simultaneous rows, for one model or several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from talerec.data import Log, order_ties
from talerec.data.split import Split, SplitPlan, basket_splits
from talerec.models.core import Model, SharedFits


class LogSplits:
    """The splits of a log by a plan, for any order of ties (rows of a user with equal times).

    A split has training rows and held-out cases. With `is_shared`, the splits of an order are made
    once for all models, and each has a cache through which fits of several models to its training
    rows share steps. Without, splits are made one at a time for each model, and nothing is kept.
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

    def splits_and_caches(self, ties: str) -> Iterable[tuple[Split, SharedFits | None]]:
        """Return pairs of a split of the log and its cache, None without `is_shared`.

        ties: the order of the log's simultaneous rows: "file", "item" or "random:SEED".
        """
        if not self._is_shared:
            return ((split, None) for split in self._build_splits(ties))
        if ties not in self._splits_by_order:
            self._splits_by_order[ties] = [
                (split, SharedFits()) for split in self._build_splits(ties)
            ]
        return self._splits_by_order[ties]

    @property
    def caches(self) -> list[SharedFits]:
        """The caches of all splits that are kept."""
        return [cache for splits in self._splits_by_order.values() for _, cache in splits]

    def _build_splits(self, ties: str) -> Iterator[Split]:
        """Put simultaneous rows in the order `ties`, and yield the splits of that log."""
        log = order_ties(self.log, ties)
        return (basket_splits if self._baskets else SplitPlan.splits)(self._plan, log, self._on)

    def fit_on_each(self, model: Model, ties: str = "file") -> Iterator[Split]:
        """Fit the model to the training rows of each split in turn, and yield the split.

        The model is refitted for the next split. ties: the order of simultaneous rows.
        """
        for split, cache in self.splits_and_caches(ties):
            model.fit(split.train, cache=cache)
            yield split

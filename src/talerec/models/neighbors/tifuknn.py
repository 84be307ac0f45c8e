"""TIFU-kNN: how often a user takes an item, by recency, and how often similar users do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from talerec.data import Histories, Log, list_history_rows
from talerec.gram import newest_rows
from talerec.models.core import SCORE, Model, check_indptr, check_range, param, require
from talerec.ranking import IdentityBlock, Query, SparseBlock, Weights
from talerec.runtime import Array, Clock, sparse

_MAX_DISTANCES = 2**22  # distances in memory at a time
_DIGITS = 6  # decimals of squared distances; users who are equally near keep the log's order


@dataclass(eq=False, kw_only=True)
class TIFUKNN(Model):
    """An item scores its decayed frequency in the baskets of the user and of similar users.

    A basket is the rows of one time. The vector of a user has, for each item, the mean over groups
    of baskets of the share of the group's baskets that have it, with a decay within groups and one
    between them. Scores are history_share times the history's vector, plus the rest times the mean
    vector of the `nearest` training users by Euclidean distance.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.TIFUKNN(nearest=20).fit(log).recommend([1], k=3)["item_id"].to_list()
    [86, 11, 4]
    """

    name = "tifuknn"
    summary = "Next baskets: frequent items, also of similar users"
    paper = (
        "Modeling Personalized Item Frequency Information for Next-basket Recommendation, "
        "SIGIR 2020"
    )
    needs_time = True

    nearest: int = param(300, "neighbors of a history", low=1, high=100_000, search=(50, 1000))
    group: int = param(7, "baskets in a group", low=1, high=10_000, search=(1, 20))
    basket_decay: float = param(
        0.9, "weight of a basket relative to the next one of its group",
        above=0, high=1, search=(0.1, 1.0),
    )  # fmt: skip
    group_decay: float = param(
        0.7, "weight of a group relative to the next one", above=0, high=1, search=(0.1, 1.0)
    )
    history_share: float = param(
        0.7, "weight of the history's own frequencies; the rest is that of the neighbors",
        low=0, high=1, search=(0.0, 1.0), stage=SCORE,
    )  # fmt: skip
    max_history: int = param(2500, "a user's last rows that are used", low=1)

    def learn_weights(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        """Return what scores a history by its own items and by the vectors of similar users.

        The weights are two blocks: the identity, by which the items of a history score themselves,
        and a row per training user, the user's vector of decayed item frequencies. Query arrays
        find similar users: "holders", "entries" and "shares" are the column pointers, users and
        values of the same vectors by item, and "norms" the squared norm of each user's vector. The
        second value, a solver's name, is None.
        """
        with clock("gram"):
            recent = newest_rows(log, self.max_history)
            vectors = self._vectors(Histories.of_users(recent), len(log.items)).astype(np.float32)
            by_item = vectors.T.tocsr()
            by_item.sort_indices()
            users = SparseBlock(
                items=len(log.items), indptr=vectors.indptr, indices=vectors.indices,
                values=vectors.data, source_item=np.full(vectors.shape[0], -1, np.int32),
            )  # fmt: skip
            arrays = {
                "holders": by_item.indptr,
                "entries": by_item.indices,
                "shares": by_item.data,
                "norms": np.asarray(vectors.astype(np.float64).power(2).sum(axis=1)).ravel(),
            }
        return Weights([IdentityBlock(items=len(log.items)), users], query_arrays=arrays), None

    def query(self, histories: Histories) -> Query:
        """Return each history's vector as weights of items, and equal weights of its neighbors.

        Sources are items (rows of the identity), then training users. A history without known items
        has none.
        """
        n_items = len(self.fitted.items)
        vectors = self._vectors(histories, n_items)
        n_users = len(self.fitted.weights.query_arrays["norms"])
        nearest, chunk = min(self.nearest, n_users), max(1, _MAX_DISTANCES // n_users)
        has_items = np.diff(vectors.indptr) > 0
        parts = []
        for a in range(0, len(histories), chunk):
            some = vectors[a : a + chunk]
            neighbors = self._find_neighbors(some, nearest)
            neighbors[~has_items[a : a + chunk]] = False
            weight = (1.0 - self.history_share) / nearest
            blocks = [self.history_share * some, weight * sparse.csr_array(neighbors, dtype=float)]
            parts.append(sparse.hstack(blocks, format="csr"))
        x = sparse.vstack(parts, format="csr") if parts else vectors
        return Query(x.indptr.astype(np.int64), x.indices.astype(np.int64), x.data)

    def _vectors(self, histories: Histories, n_items: int) -> Any:
        """Return the vector of each history, history x item, as a SciPy CSR array of float64.

        A history's last baskets form the last group, and so on; the first group may be smaller.
        Items that a basket has twice count once, and unknown items not at all; their baskets do.
        """
        start = np.maximum(histories.start, histories.stop - self.max_history)
        number, row, n_later = list_history_rows(start, histories.stop, histories.time)
        n_baskets = np.ones(len(start), np.int64)
        np.maximum.at(n_baskets, number, n_later + 1)
        items = histories.item[row]
        key = np.column_stack([number, items, n_later])[items >= 0]
        number, item, n_later = np.unique(key, axis=0).T.astype(np.int64)
        size = n_baskets[number]
        n_groups = -(-size // self.group)
        later_groups, later_baskets = np.divmod(n_later, self.group)
        in_group = np.minimum(size - later_groups * self.group, self.group)
        weight = self.basket_decay ** later_baskets.astype(float) / in_group
        weight *= self.group_decay ** later_groups.astype(float) / n_groups
        vectors = sparse.csr_array((weight, (number, item)), shape=(len(start), n_items))
        vectors.sum_duplicates()
        return vectors

    def _find_neighbors(self, vectors: Any, nearest: int) -> Array:
        """Return flags, history x training user: whether the user is one of the nearest.

        vectors: of the histories, history x item. Of users who are equally near, the first in the
        log are taken.
        """
        arrays = self.fitted.weights.query_arrays
        norms, n_items = arrays["norms"], len(self.fitted.items)
        by_item = sparse.csr_array(
            (arrays["shares"], arrays["entries"], arrays["holders"]), shape=(n_items, len(norms))
        )
        # the squared norm of the history itself does not change the order
        distance = np.round(norms - 2.0 * (vectors @ by_item).toarray(), _DIGITS)
        farthest = np.partition(distance, nearest - 1, axis=1)[:, nearest - 1 : nearest]
        is_near: Array = distance < farthest
        is_tied = distance == farthest
        n_free = nearest - is_near.sum(axis=1, keepdims=True)
        is_near |= is_tied & (np.cumsum(is_tied, axis=1) <= n_free)
        return is_near

    def _check_loaded(self) -> None:
        """Raise TalerecError if the users' vectors, read from an artifact, do not fit together."""
        super()._check_loaded()
        arrays, users = self.fitted.weights.query_arrays, self.fitted.weights.blocks[1]
        n_entries = len(arrays["entries"])
        check_indptr("holders", arrays["holders"], len(self.fitted.items), n_entries)
        check_range("entries", arrays["entries"], 0, users.sources)
        sizes = (arrays["shares"].shape, arrays["norms"].shape)
        require(sizes == ((n_entries,), (users.sources,)), "the users' vectors do not fit them")

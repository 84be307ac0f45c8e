"""Content on a cluster: pairs of rows are summed by partitions of users.

The item table is encoded on the driver; tasks read the features from a file.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from talerec.data import Log, Vocabulary, median_in_days
from talerec.errors import TalerecError
from talerec.models.content import Content, Moments, find_types, sum_item_moments, sum_pair_moments
from talerec.models.core import ITEM_COLUMNS, UNSEEN_ITEMS
from talerec.ranking import Weights
from talerec.runtime import Array
from talerec.spark import messages, tempo_tasks
from talerec.spark.log_stats import ClusterLog
from talerec.spark.partitions import RowFiles
from talerec.spark.session import run_on_partitions
from talerec.spark.solve import count_trends

_FEATURES = "features"  # name of the saved array: rank x dimension


@dataclass(frozen=True, eq=False)
class ContentFit:
    """A fit of the model content to a log whose rows are saved in partitions of users."""

    log: ClusterLog
    model: Content
    catalogue: Log  # no rows; the items of the log, then those of the item table without rows

    @classmethod
    def prepare(cls, log: ClusterLog, model: Content, items: pl.DataFrame | None) -> ContentFit:
        """Return the fit of a model to saved rows and an item table; TalerecError without one."""
        if items is None:
            raise TalerecError("content needs an item table (`items`) on Spark, too", "items")
        model.check_ready()
        vocabulary = Vocabulary(log.stats.ids)
        return cls(log, model, empty_log(vocabulary).with_items(items).with_catalogue())

    @property
    def has_rows(self) -> Array:
        """A flag per item of the catalogue: whether the log has rows of it."""
        flags: Array = np.arange(len(self.catalogue.items)) < len(self.log.stats.ids)
        return flags

    def fit_weights(self) -> Weights:
        """Return the weights of one machine, up to the order in which sums are added."""
        log, model, rows = self.log, self.model, self.log.rows
        with log.run.stage("gram"):
            encoder, features = model.encode_items(self.catalogue, self.has_rows)
        messages.save_array(log.run.folder, _FEATURES, features[log.stats.position])
        intervals = list(rows.map_arrays("intervals", log.n_partitions))
        weighting = model.pair_weighting(median_in_days(tempo_tasks.median(intervals)))
        if model.trend:
            rows = count_trends(log, rows, model.window, "both")

        def save_moments(partition: int) -> None:
            """Sum the pairs of rows of a partition of users, and save the sums."""
            values = messages.map_array(rows.folder, _FEATURES)
            sums = sum_pair_moments(rows.load_latest(partition), values, weighting)
            rows.save_array("moments", partition, np.stack(sums))

        with log.run.stage("gram"):
            run_on_partitions(log.run, log.n_partitions, save_moments)
            gram, cross = _sum_arrays(rows, log.n_partitions)
        with log.run.stage("solve"):
            moments = Moments(gram, cross, sum_item_moments(features[self.has_rows]))
            return model.combine(encoder, features, moments)

    def describe(self) -> dict[str, Any]:
        """Return what a saved model stores about its training rows, by name."""
        types = find_types(self.catalogue, self.has_rows)
        columns = [asdict(column) for column in types]
        n_items, n_unseen = len(self.has_rows), int(np.count_nonzero(~self.has_rows))
        facts = self.log.describe() | {"items": n_items, ITEM_COLUMNS: columns}
        return facts | ({UNSEEN_ITEMS: n_unseen} if n_unseen else {})

    def merge(self) -> Log:
        """Return all rows as one log in the driver, with the items of the catalogue."""
        merged, catalogue = self.log.merge(), self.catalogue
        assert catalogue.info is not None
        return merged.with_items(catalogue.info).with_catalogue()


def _sum_arrays(rows: RowFiles, count: int) -> Array:
    """Return the sum of the moments that `count` partitions have saved, in their order."""
    arrays = rows.map_arrays("moments", count)
    total: Array = next(arrays).copy()
    for array in arrays:
        total += array
    return total


def empty_log(items: Vocabulary) -> Log:
    """Return a log of these items without users and rows."""
    none, no_users = np.empty(0, np.int64), Vocabulary(pl.Series([], dtype=pl.Int64))
    return Log(np.zeros(1, np.int64), none.astype(np.int32), none, no_users, items)

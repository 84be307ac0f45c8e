"""Choose among settings by the NDCG@10 of held-out queries, and measure the choice."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.runtime import Array

_TIE = 0.5  # standard errors within which a setting is as good as the best


class SettingGains(NamedTuple):
    """The NDCG@10 of queries by tempo alone, and under each setting.

    Parameters
    ----------
    gains : array
        Query x (1 + setting), the first column for tempo alone.
    user : array
        The user of each query. Sums over a user's queries are the units of standard errors.
    is_rare : bool array
        Whether the query's target has few rows or none.
    group : array
        The group of each column: settings that add content to the same classes of items.
    """

    gains: Array
    user: Array
    is_rare: Array
    group: Array

    def choose_setting(self) -> int:
        """Return the column with the largest gain over the first one, less its standard error.

        So a setting that gains much for some users and loses much for others is not preferred to
        one with a steady gain. Of the settings of its group that are within half a standard error
        of it, the one with the largest gain for rare targets is returned.
        """
        if not len(self.gains):
            return 0
        mean, error = self._differences(0)
        best = int((mean - error).argmax())
        below, tolerance = self._differences(best)
        is_tie = (below >= -_TIE * tolerance) & (mean > error) & (self.group == self.group[best])
        if not is_tie[best]:
            return best
        rare_gain = self.gains[self.is_rare].sum(axis=0)
        rare_gain[best] += 1e-9
        return int(np.where(is_tie, rare_gain, -1.0).argmax())

    def held_out_z(self) -> float:
        """Return the z-score of the chosen setting's gain over tempo alone, on other users."""
        gain, error = self.held_out_gain()
        return gain / error if error > 0 else 0.0

    def held_out_gain(self) -> tuple[float, float]:
        """Return the chosen setting's mean gain over tempo alone, and its standard error.

        Users are divided in two; the setting that is chosen by one half is measured on the other.
        """
        _, user = np.unique(self.user, return_inverse=True)
        is_first = user % 2 == 0
        difference = np.zeros(len(user))
        for fold in (is_first, ~is_first):
            chosen = self._select(~fold).choose_setting()
            difference[fold] = self.gains[fold, chosen] - self.gains[fold, 0]
        deviations = np.bincount(user, difference - difference.mean())
        error = float(np.sqrt(deviations @ deviations))
        n_queries = max(len(difference), 1)
        return float(difference.sum()) / n_queries, error / n_queries

    def _select(self, mask: Array) -> SettingGains:
        """Return some of the queries."""
        return SettingGains(self.gains[mask], self.user[mask], self.is_rare[mask], self.group)

    def _differences(self, column: int) -> tuple[Array, Array]:
        """Return the mean difference of each column to one of them, and its standard error."""
        order = np.argsort(self.user, kind="stable")
        difference = (self.gains - self.gains[:, column : column + 1])[order]
        mean = difference.mean(axis=0)
        starts = np.flatnonzero(np.diff(self.user[order], prepend=self.user[order[0]] - 1))
        sums = np.add.reduceat(difference - mean, starts, axis=0)
        return mean, np.sqrt((sums**2).sum(axis=0)) / len(difference)

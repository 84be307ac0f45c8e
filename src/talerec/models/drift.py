"""How far an updated model is from a new fit of the same rows."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from talerec.errors import TalerecError
from talerec.models.core import ItemFilter, Model, rank_top, user_histories

_MAX_USERS = 1_000  # whose lists are compared


class Drift(NamedTuple):
    """The difference between an updated model and a new fit of the same rows."""

    overlap: float  # share of listed items that both models list, mean over users
    users: int  # users whose lists are compared
    k: int  # length of a list
    learned_before: list[str]  # what only the first fit learned, as `describe_learned` says it
    learned_today: list[str]  # what only the new fit learned

    @property
    def has_drifted(self) -> bool:
        """Whether the new fit learned something else than the first one."""
        return bool(self.learned_before or self.learned_today)


def check_drift(model: Model, k: int = 10) -> Drift:
    """Return how far an updated model is from a new fit of the same rows.

    An update keeps what the first fit learned, such as tempo's query parameters. The new fit takes
    the model's parameters; the model stays as it is.

    Parameters
    ----------
    model : Model
        A fitted model with its histories.
    k : int
        The length of the lists that are compared, of up to 1,000 users.

    Examples
    --------
    >>> import talerec as tr
    >>> from talerec.models import check_drift
    >>> check_drift(tr.TALE().fit(tr.synthetic_log(500)), k=3).overlap
    1.0
    """
    log = model.fitted.log
    if log is None:
        raise TalerecError("this model was saved without histories: refit it")
    log = replace(log, info=model.fitted.info)
    today = model.with_params().fit(log)
    step = max(-(-len(log.users) // _MAX_USERS), 1)
    users = np.arange(0, len(log.users), step)
    before_lists, today_lists = (
        rank_top(each, user_histories(log, users, None), k, ItemFilter()).items
        for each in (model, today)
    )
    shares = []
    for before_row, today_row in zip(before_lists.tolist(), today_lists.tolist(), strict=True):
        before_items, today_items = set(before_row) - {-1}, set(today_row) - {-1}
        longer = max(len(before_items), len(today_items))
        shares.append(len(before_items & today_items) / longer if longer else 1.0)
    before_learned, today_learned = model.describe_learned(), today.describe_learned()
    return Drift(
        float(np.mean(shares)) if shares else 1.0,
        len(users),
        k,
        [line for line in before_learned if line not in today_learned],
        [line for line in today_learned if line not in before_learned],
    )

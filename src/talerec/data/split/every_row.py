"""The split that evaluates as production asks: each row from a cutoff on is a query.

A model is fitted on the rows before the cutoff, and then sees what users do: the history of a row
is all earlier rows of its user, those after the cutoff too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from talerec.data import (
    Log,
    TimeLike,
    as_log,
    count_earlier_in_session,
    name_history_unit,
    parse_duration,
    time_to_microseconds,
)
from talerec.data.split import windows
from talerec.data.split.cases import Cases, RowItems, build_cases, select_training_rows
from talerec.data.split.splits import Split, find_earlier_cut, split_at_windows
from talerec.data.split.windows import TEST, TimeWindow
from talerec.errors import InvalidLogError, TalerecError
from talerec.runtime import Array

LAST_PREFIX = "last:"  # begins the text of a cutoff that leaves a share of the rows behind it
#: Earlier rows of a session, at most, of positions 2, 3, 4, 5 and 6 to 10; then over 10.
_POSITION_BOUNDS = (1, 2, 3, 4, 9)
KNOWN_USER, NEW_USER = 0, 1  # groups of cases by whether the user has training rows


def every_row_split(
    log: Log, moment: TimeLike, *, refit_every: str | None = None, on: str = TEST
) -> list[Split]:
    """Train on the rows before a cutoff; each row from then on is a case with its history.

    The history of a case has all rows of its user that are earlier than the target, also those from
    the cutoff on; rows of the same time are not in each other's history. Cases of users without
    training rows begin with the user's second time. The rows of such a user's first time, which
    have no history, are `first_rows` of the split. In a log of sessions (`split_sessions`), each
    row with an earlier row in its session is a case.

    Parameters
    ----------
    log : Log
        The rows to split.
    moment : date, datetime, str or number
        The cutoff, as for `time_split`; or ``"last:10%"`` for the time from which on the last 10 %
        of the rows lie (more, if rows of equal times lie on both sides).
    refit_every : str, optional
        A duration such as ``"7d"`` or ``"12h"``: each period of this length is a split of its own,
        whose training rows are all rows before it. Periods without a case are omitted.
    on : {"test", "validation"}
        With ``"validation"``, cases lie before the cutoff, as for `time_split` and `rolling_split`.

    Returns
    -------
    list of Split
        One split without `refit_every`.

    Raises
    ------
    TalerecError
        If `moment` is not a time, the log has no times or no rows on one side of the cutoff, or no
        row has a history.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000)
    >>> tr.every_row_split(log, "2024-07-01")
    [Split(every:2024-07-01, 1,487 training rows, 468 test cases)]
    >>> [split.train.rows for split in tr.every_row_split(log, "last:10%", refit_every="30d")]
    [1800, 1889, 1981]
    """
    log = as_log(log)
    when = find_cutoff(log, moment)
    width = None if refit_every is None else parse_duration(refit_every, "refit_every")
    text = moment if isinstance(moment, str) else windows.format_time(when)
    name = windows.every_row_name(text, refit_every)
    last = int(log.time.max())
    periods = windows.every_row_windows(
        name, when, width, last, on, lambda cut: find_earlier_cut(log, cut)
    )
    if width is None:
        return [_split_every_row(log, periods[0], on)]
    return split_at_windows(periods, lambda window: _split_every_row(log, window, on))


def find_cutoff(log: Log, moment: TimeLike) -> int:
    """Return a cutoff in microseconds since 1970: a given time, or that of a share of rows.

    `moment` is a time as for `time_split`, or text such as "last:10%": the time of the earliest of
    the newest 10 % of the rows. InvalidLogError if the log has no rows or no times.
    """
    if log.unit == "none":
        raise InvalidLogError("the log has no times: it can be split by leave-one-out alone")
    if not log.rows:
        raise InvalidLogError("the log is empty: it has no rows")
    if not isinstance(moment, str) or not moment.startswith(LAST_PREFIX):
        return time_to_microseconds(moment, log.unit)
    n_last = max(1, round(parse_share(moment) * log.rows))
    return int(np.partition(log.time, log.rows - n_last)[log.rows - n_last])


def parse_share(text: str) -> float:
    """Return the share that a text such as "last:10%" names, here 0.1; above 0 and below 1.

    TalerecError for another text.
    """
    number, percent = text.removeprefix(LAST_PREFIX).strip(), "%"
    try:
        share = float(number.removesuffix(percent)) / 100
    except ValueError:
        share = 0.0
    if not number.endswith(percent) or not 0 < share < 1:
        message = f"`split` is {text!r}; last takes a percentage of the rows such as last:10%"
        raise TalerecError(message, "split")
    return share


class EvaluatedRows(NamedTuple):
    """The rows of a test period, which are to be predicted: each array has one entry per row.

    users    position of the row's user
    targets  row number in the log
    stop     the row after the user's earlier rows, which begin at row first[i]
    is_case  whether the row has a history; in a log of sessions, one in its session
    labels   groups of the rows by grouping, such as "user": numbers of the groups in their order
    """

    users: Array
    targets: Array
    first: Array
    stop: Array
    is_case: Array
    labels: dict[str, Array]

    def build_cases(self, log: Log, items: RowItems) -> Cases:
        """Return a case for each row with a history; items: of each row of the log."""
        labels = {name: codes[self.is_case] for name, codes in self.labels.items()}
        return replace(self._build(log, items, self.is_case), labels=labels)

    def build_first_rows(self, log: Log, items: RowItems) -> Cases:
        """Return a case without history for each row of a user's first time; items: of all rows."""
        return self._build(log, items, self.stop == self.first)

    def _build(self, log: Log, items: RowItems, which: Array) -> Cases:
        """Return cases of some rows, a mask; items: of each row of the log."""
        rows = (self.users, self.targets, self.stop)
        return build_cases(log, items, *(column[which] for column in rows))


def find_evaluated_rows(log: Log, window: TimeWindow) -> EvaluatedRows:
    """Return the rows of a log in a test period, which cases they are, and their groups.

    The period is from `window.when` to before `window.end` (None: to the end of the log). A row is
    a case if its user has earlier rows, its history; in a log of sessions, if its session has
    earlier rows. Rows of the same time are not earlier than each other.
    """
    train = log.time < window.when
    is_held_out = ~train if window.end is None else ~train & (log.time < window.end)
    targets = np.flatnonzero(is_held_out)
    users = np.searchsorted(log.ptr, targets, "right") - 1
    first = log.ptr[users]
    stop = _find_first_simultaneous(log.time, targets, first)
    is_case = stop > first
    labels = {"user": np.where(train[first], KNOWN_USER, NEW_USER).astype(np.int8)}
    if log.owners is not None or log.group is not None:  # the log has sessions
        n_earlier = count_earlier_in_session(log)[targets]
        is_case &= n_earlier > 0
        labels["position"] = np.searchsorted(_POSITION_BOUNDS, n_earlier).astype(np.int8)
    return EvaluatedRows(users, targets, first, stop, is_case, labels)


def _split_every_row(log: Log, window: TimeWindow, on: str) -> Split:
    """Return the split that trains on rows before a window, and holds out each row in it.

    A window is a test period, from `window.when` to `window.end` (None: the end of the log). A case
    is a row in it whose user has earlier rows, its history. NoCasesError without rows before the
    window or without a case. `on` says what the cases are: "test" or "validation".
    """
    train = log.time < window.when
    windows.require_both_sides(int(np.count_nonzero(train)), log.rows)
    rows = find_evaluated_rows(log, window)
    if not rows.is_case.any():
        raise windows.no_history_error(name_history_unit(log))
    log = log.normalize_weights(train)
    training, items = select_training_rows(log, train)
    cases = rows.build_cases(log, items)
    test, validation = (cases, None) if on == TEST else (None, cases)
    return Split(
        window.name, log.users, training, validation, test, window=window.words,
        first_rows=rows.build_first_rows(log, items), owners=log.owners,
    )  # fmt: skip


def _find_first_simultaneous(time: Array, rows: Array, first: Array) -> Array:
    """Return, for each of some rows, the first row of its user that has the same time.

    time : of all rows of a log, which are in order of user, then time
    rows : ascending row numbers; with a row, all other rows of the same user and time are there
    first : the first row of each row's user
    """
    begins = (rows == first) | (time[rows] != time[rows - 1])
    return np.maximum.accumulate(np.where(begins, rows, 0))

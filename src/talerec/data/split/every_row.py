"""The split that evaluates as production asks: each row from a cutoff on is a query.

A model is fitted on the rows before the cutoff, and then sees what users do: the history of a row
is all earlier rows of its user, those after the cutoff too.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from talerec.data import (
    Log,
    TimeLike,
    as_log,
    parse_duration,
    session_positions,
    time_to_microseconds,
)
from talerec.data.split import windows
from talerec.data.split.cases import build_cases, select_training_rows
from talerec.data.split.splits import Split, find_earlier_cut, split_at_windows
from talerec.data.split.windows import TEST, NoCasesError, TimeWindow
from talerec.errors import InvalidLogError, TalerecError
from talerec.runtime import Array

LAST = "last:"  # begins the text of a cutoff that leaves a share of the rows behind it
#: Earlier rows of a session, at most, of positions 2, 3, 4, 5 and 6 to 10; then over 10.
_POSITION_BOUNDS = (1, 2, 3, 4, 9)
KNOWN_USER, NEW_USER = 0, 1  # groups of cases by whether the user has training rows


def every_row_split(
    log: Log, moment: TimeLike, *, refit_every: str | None = None, on: str = TEST
) -> list[Split]:
    """Train on the rows before a cutoff; each row from then on is a case with its history.

    The history of a case has all rows of its user that are earlier than the target, also those from
    the cutoff on; rows of the same time are no history of each other. Cases of users without
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
    name = f"every:{text}" + ("" if refit_every is None else f",{refit_every.strip()}")
    last = int(log.time.max())
    periods = windows.every_row_windows(
        name, when, width, last, on, lambda cut: find_earlier_cut(log, cut)
    )
    if width is None:
        return [_split_every_row(log, periods[0], on)]
    return split_at_windows(periods, lambda window: _split_every_row(log, window, on))


def find_cutoff(log: Log, moment: TimeLike) -> int:
    """Return a cutoff in microseconds since 1970: a time, or the beginning of the last rows.

    `moment` is a time as for `time_split`, or text such as "last:10%". InvalidLogError if the log
    has no rows or no times.
    """
    if log.unit == "none":
        raise InvalidLogError("the log has no times: it can be split by leave-one-out alone")
    if not log.rows:
        raise InvalidLogError("the log is empty: it has no rows")
    if not isinstance(moment, str) or not moment.startswith(LAST):
        return time_to_microseconds(moment, log.unit)
    n_last = max(1, round(parse_share(moment) * log.rows))
    return int(np.partition(log.time, log.rows - n_last)[log.rows - n_last])


def parse_share(text: str) -> float:
    """Return the share that a text such as "last:10%" names, here 0.1; above 0 and below 1.

    TalerecError for another text.
    """
    number, percent = text.removeprefix(LAST).strip(), "%"
    try:
        share = float(number.removesuffix(percent)) / 100
    except ValueError:
        share = 0.0
    if not number.endswith(percent) or not 0 < share < 1:
        message = f"`split` is {text!r}; last takes a percentage of the rows such as last:10%"
        raise TalerecError(message, "split")
    return share


def _split_every_row(log: Log, window: TimeWindow, on: str) -> Split:
    """Return the split that trains on rows before a window, and holds out each row in it.

    A window is a test period, from `window.when` to `window.end` (None: the end of the log). A case
    is a row in it whose user has earlier rows, its history. NoCasesError without rows before the
    window or without a case. `on` says what the cases are: "test" or "validation".
    """
    train = log.time < window.when
    windows.require_both_sides(int(np.count_nonzero(train)), log.rows)
    is_held_out = ~train if window.end is None else ~train & (log.time < window.end)
    targets = np.flatnonzero(is_held_out)
    users = np.searchsorted(log.ptr, targets, "right") - 1
    first = log.ptr[users]
    stop = _first_simultaneous(log.time, targets, first)
    has_history = stop > first
    labels = {"user": np.where(train[first], KNOWN_USER, NEW_USER)}
    if log.owners is not None or log.group is not None:  # the log has sessions
        n_earlier = session_positions(log)[targets]
        has_history &= n_earlier > 0
        labels["position"] = np.searchsorted(_POSITION_BOUNDS, n_earlier)
    if not has_history.any():
        raise NoCasesError("no row from the point of the split on has an earlier row of its user")
    log = log.normalize_weights(train)
    training, items = select_training_rows(log, train)
    rows = (users, targets, stop)
    cases = build_cases(log, items, *(column[has_history] for column in rows))
    cases = replace(cases, labels={name: codes[has_history] for name, codes in labels.items()})
    test, validation = (cases, None) if on == TEST else (None, cases)
    return Split(
        window.name, log.users, training, validation, test, window=window.words,
        first_rows=build_cases(log, items, *(column[stop == first] for column in rows)),
        owners=log.owners,
    )  # fmt: skip


def _first_simultaneous(time: Array, rows: Array, first: Array) -> Array:
    """Return, for each of some rows, the first row of its user that has the same time.

    time : of all rows of a log, which are in order of user, then time
    rows : ascending row numbers; with a row, all other rows of the same user and time are there
    first : the first row of each row's user
    """
    begins = (rows == first) | (time[rows] != time[rows - 1])
    return np.maximum.accumulate(np.where(begins, rows, 0))

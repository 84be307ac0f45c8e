"""A way to split a log, described by text: leave-one-out, at:TIME, every:TIME and others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from talerec.data import Log, parse_duration, parse_time_text, time_to_microseconds
from talerec.data.split import windows
from talerec.data.split.every_row import LAST_PREFIX, every_row_split, find_cutoff, parse_share
from talerec.data.split.splits import Split, leave_one_out, rolling_split, time_split
from talerec.data.split.windows import TEST, VALIDATION, FindEarlierCut, TimeWindow
from talerec.errors import TalerecError


@dataclass(frozen=True)
class SplitPlan:
    """A way to split a log, given as text: leave-one-out, at:TIME, every:TIME ...

    The texts are leave-one-out, at:TIME, last:10%, rolling:TIME,DAYS, every:TIME and
    every:TIME,7d, which refits the model every 7 days; for every, TIME may be last:10%.
    TalerecError if the text is something else.
    """

    text: str = "leave-one-out"
    refit: bool = False  # leave-one-out: whether validation rows are for training too
    target: str | None = None  # leave-one-out: the event to predict, such as "buy"

    def __post_init__(self) -> None:
        if self.target is not None and self.text != "leave-one-out":
            raise TalerecError("`target` goes with `split` leave-one-out alone", "target", "split")
        if self.text == "leave-one-out":
            return
        if self.kind == "at":
            parse_time_text(self._rest)  # a mistake is found before the log is read
        elif self.kind == "last":
            parse_share(self.text)
        elif self.kind == "rolling":
            parse_time_text(self._window()[0])
        elif self.kind == "every":
            cutoff, refit_every = self._cutoff()
            parse_share(cutoff) if cutoff.startswith(LAST_PREFIX) else parse_time_text(cutoff)
            if refit_every is not None:
                parse_duration(refit_every, "refit_every")
        else:
            raise TalerecError(
                f"`split` is {self.text!r}; it takes leave-one-out, at:TIME, last:10%, "
                "rolling:TIME,DAYS or every:TIME",
                "split",
            )

    @property
    def kind(self) -> str:
        """The kind of split: leave-one-out, at, last, rolling or every; `text` begins with it."""
        return self.text.partition(":")[0]

    @property
    def _rest(self) -> str:
        """The text after the kind of split and a colon in `text`: TIME of at:TIME."""
        return self.text.partition(":")[2]

    def _cutoff(self) -> tuple[str, str | None]:
        """Return TIME and the refit interval of "every:TIME,7d"; None for "every:TIME".

        `self.text` is the text; TIME is a time or last:10%.
        """
        cutoff, comma, refit_every = self._rest.partition(",")
        return cutoff, refit_every if comma else None

    def _window(self) -> tuple[str, float]:
        """Return TIME and DAYS of the text "rolling:TIME,DAYS"; TalerecError if it is malformed.

        `self.text` is the text; TIME is where the first test period begins, DAYS its length.
        """
        moment, _, days = self._rest.rpartition(",")
        try:
            return moment, float(days)
        except ValueError:
            raise TalerecError(
                f"`split` is {self.text!r}; rolling takes TIME,DAYS such as rolling:2019-07-01,30",
                "split",
            ) from None

    def check(self, on: str) -> None:
        """Raise TalerecError unless this plan holds out rows for `on` (test or validation).

        With `refit`, validation rows are for training, and not held out.
        """
        if self.refit and on == VALIDATION:
            message = "`refit` trains on the validation rows: they cannot be scored too"
            raise TalerecError(message, "refit")
        windows.require_held_out(on)

    def splits(self, log: Log, on: str = TEST) -> Iterator[Split]:
        """Yield the splits of a log, one or (rolling) several; `on` is "test" or "validation".

        `self.text` says how, from leave-one-out to every:TIME. A split has training rows, and
        held-out cases of `on`: histories and their next items. For leave-one-out, `refit` trains on
        validation rows too, and `target` is the event to predict.
        """
        self.check(on)
        if self.kind == "every":
            cutoff, refit_every = self._cutoff()
            yield from every_row_split(log, cutoff, refit_every=refit_every, on=on)
        elif self.kind == "rolling":
            yield from rolling_split(log, *self._window(), on=on)
        elif self.kind == "at":
            yield time_split(log, self._rest, on=on)
        elif self.kind == "last":
            when = np.datetime64(find_cutoff(log, self.text), "us")
            yield replace(time_split(log, when, on=on), name=self.text)
        else:
            yield leave_one_out(log, refit=self.refit, target=self.target)

    @property
    def has_windows(self) -> bool:
        """Whether a log is split several times, by consecutive test periods.

        Such plans are rolling:TIME,DAYS and every:TIME,7d (`self.text`).
        """
        return self.kind == "rolling" or (self.kind == "every" and self._cutoff()[1] is not None)

    def windows(
        self,
        on: str,
        unit: str,
        last: int,
        find_earlier_cut: FindEarlierCut,
        find_last_rows: Callable[[float], int],
    ) -> list[TimeWindow]:
        """Return the test periods of a split by time, without reading the rows of the log.

        on : the periods that are held out: "test" or "validation"
        unit, last : the log's time unit, and its last time in microseconds
        find_earlier_cut : function from the cutoff to the time at which the validation period
        begins
        find_last_rows : function from a share to the time from which on that share of the rows lies

        `self.text` is at:TIME, last:10%, rolling:TIME,DAYS, every:TIME or every:TIME,7d.
        """
        self.check(on)
        if self.kind == "rolling":
            return windows.rolling_windows(*self._window(), unit, last, on)
        if self.kind == "at":
            return [windows.time_window(self._rest, unit, on, find_earlier_cut)]
        text, refit_every = self._cutoff() if self.kind == "every" else (self.text, None)
        is_share = text.startswith(LAST_PREFIX)
        when = find_last_rows(parse_share(text)) if is_share else time_to_microseconds(text, unit)
        if self.kind == "last":
            window = windows.time_window(np.datetime64(when, "us"), unit, on, find_earlier_cut)
            return [window._replace(name=self.text)]
        name = windows.every_row_name(text, refit_every)
        width = None if refit_every is None else parse_duration(refit_every, "refit_every")
        return windows.every_row_windows(name, when, width, last, on, find_earlier_cut)

"""A way to split a log, described by text: leave-one-out, at:TIME or rolling:TIME,DAYS."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from talerec.data import Log, parse_time_text
from talerec.data.split import windows
from talerec.data.split.splits import Split, leave_one_out, rolling_split, time_split
from talerec.data.split.windows import TEST, VALIDATION, FindEarlierCut, TimeWindow
from talerec.errors import TalerecError


@dataclass(frozen=True)
class SplitPlan:
    """A way to split a log, given as text: leave-one-out, at:TIME or rolling:TIME,DAYS.

    TalerecError if the text is something else.
    """

    text: str = "leave-one-out"
    refit: bool = False  # leave-one-out: whether validation rows are for training too
    target: str | None = None  # leave-one-out: the event to predict, such as "buy"

    def __post_init__(self) -> None:
        kind, _, rest = self.text.partition(":")
        if self.target is not None and self.text != "leave-one-out":
            raise TalerecError("`target` goes with `split` leave-one-out alone", "target", "split")
        if self.text == "leave-one-out":
            return
        if kind == "at":
            parse_time_text(rest)  # a mistake is found before the log is read
        elif kind == "rolling":
            parse_time_text(self._window()[0])
        else:
            raise TalerecError(
                f"`split` is {self.text!r}; it takes leave-one-out, at:TIME or rolling:TIME,DAYS",
                "split",
            )

    def _window(self) -> tuple[str, float]:
        """Return TIME and DAYS of the text "rolling:TIME,DAYS"; TalerecError if it is malformed.

        `self.text` is the text; TIME is where the first test period begins, DAYS its length.
        """
        moment, _, days = self.text.partition(":")[2].rpartition(",")
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

        `self.text` is leave-one-out, at:TIME or rolling:TIME,DAYS. A split has training rows, and
        held-out cases of `on`: histories and their next items. For leave-one-out, `refit` trains on
        validation rows too, and `target` is the event to predict.
        """
        self.check(on)
        kind, _, rest = self.text.partition(":")
        if kind == "rolling":
            yield from rolling_split(log, *self._window(), on=on)
        elif kind == "at":
            yield time_split(log, rest, on=on)
        else:
            yield leave_one_out(log, refit=self.refit, target=self.target)

    @property
    def is_by_time(self) -> bool:
        """Whether a time splits the log (at:, rolling:), rather than each user's number of rows.

        `self.text` is leave-one-out, at:TIME or rolling:TIME,DAYS.
        """
        return self.text != "leave-one-out"

    def windows(
        self, on: str, unit: str, last: int, find_earlier_cut: FindEarlierCut
    ) -> list[TimeWindow]:
        """Return the test periods of a split by time, without reading the rows of the log.

        on : the periods that are held out: "test" or "validation"
        unit, last : the log's time unit, and its last time in microseconds
        find_earlier_cut : function from the cutoff to the time at which the validation period
        begins

        `self.text` is at:TIME, which has one period, or rolling:TIME,DAYS.
        """
        self.check(on)
        if self.text.startswith("rolling:"):
            return windows.rolling_windows(*self._window(), unit, last, on)
        return [windows.time_window(self.text.partition(":")[2], unit, on, find_earlier_cut)]
